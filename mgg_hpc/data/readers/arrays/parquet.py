"""Tables of numbers in Parquet's files, by the package pyarrow where it is installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import InputError
from ...edge_stream import Rows
from ...schema import Layout
from ..limits import shown

BATCH_BYTES = 8 << 20  # of numbers that are taken at a time
BUFFER = 1 << 20  # bytes that are read of a column at a time
MOST_COLUMNS = 1 << 20


def open_parquet(path: Path) -> Rows:
    """Open a table whose columns are numbers, or lists of as many numbers in each row, as numbers [rows, columns].

    An empty place is NaN. Raises InputError for a file that cannot be read, other types of columns, and where pyarrow
    is missing; passes raise it for lists of several lengths.
    """
    with _opened(path) as file:
        rows, names = file.metadata.num_rows, file.schema_arrow.names
        types = [_number_type(path, field) for field in file.schema_arrow]
        first = next(file.iter_batches(1, use_threads=False), None) if rows and names else None
        if first is None or not first.num_rows:
            raise InputError(f"{path} holds no rows; expected a table of numbers")
        columns = _matrix(path, first, 0).shape[1]
    if not 1 <= columns <= MOST_COLUMNS:
        raise InputError(f"{path} has {columns} columns; expected 1 .. {MOST_COLUMNS}")
    dtype = np.result_type(*types)

    def pieces() -> Iterator[NDArray[Any]]:
        count, step = 0, max(1, BATCH_BYTES // (columns * dtype.itemsize))
        with _opened(path) as file:
            for batch in file.iter_batches(step, use_threads=False):
                values = _matrix(path, batch, count)
                if values.shape[1] != columns:
                    raise InputError(
                        f"{path} has {values.shape[1]} numbers at row {count}; expected {columns}"
                    )
                if values.dtype.kind == "f" and dtype.kind != "f":
                    raise InputError(
                        f"{path} has an empty place at row {count} or behind it; expected integers"
                    )
                count += len(values)
                yield values.astype(dtype, copy=False)
        if count != rows:
            raise InputError(f"{path} has {count} rows; expected the {rows} that it tells of")

    return Rows(Layout(dtype, (rows, columns)), pieces)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a file. Raises InputError for what pyarrow finds wrong with it, here or while it is read."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise InputError(
            f"{path}: Parquet's files need pyarrow, which is not installed; pip install 'mgg-hpc[parquet]'"
        ) from error
    try:
        with path.open("rb") as raw, parquet.ParquetFile(raw, buffer_size=BUFFER, pre_buffer=False) as file:
            yield file
    except InputError:
        raise
    except OSError as error:
        reason = " ".join((error.strerror or str(error)).split())
        raise InputError(f"{path} cannot be read: {reason[:200]}") from error
    except (pyarrow.ArrowException, ValueError, TypeError, KeyError, OverflowError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path} is not a Parquet file that can be read: {reason[:200]}") from error


def _number_type(path: Path, field: Any) -> np.dtype[Any]:
    """Return the type of a column's numbers. Raises InputError for a column of something else."""
    from pyarrow import types

    kind = field.type
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        kind = kind.value_type
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return np.dtype(kind.to_pandas_dtype())
    raise InputError(f"{path}: the column {shown(field.name)} is of {str(kind)[:40]}; expected numbers")


def _matrix(path: Path, batch: Any, row: int) -> NDArray[Any]:
    """Return a batch, whose first row is ``row``, as numbers [rows, columns]."""
    return np.column_stack([_column(path, column, row) for column in batch.columns])


def _column(path: Path, column: Any, row: int) -> NDArray[Any]:
    """Return a column as numbers [rows, length of its lists, or 1]."""
    from pyarrow import types

    if not (
        types.is_list(column.type)
        or types.is_large_list(column.type)
        or types.is_fixed_size_list(column.type)
    ):
        return np.asarray(column.to_numpy(zero_copy_only=False)).reshape(-1, 1)
    values = np.asarray(column.flatten().to_numpy(zero_copy_only=False))
    if column.null_count or len(values) % max(1, len(column)):
        raise InputError(
            f"{path} has lists of several lengths from row {row} on; expected as many numbers in each row"
        )
    if not types.is_fixed_size_list(column.type):
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        if len(lengths) and (lengths != lengths[0]).any():
            at = row + int(np.flatnonzero(lengths != lengths[0])[0])
            raise InputError(
                f"{path} has another number of numbers at row {at}; expected as many in each row"
            )
    return values.reshape(len(column), -1)
