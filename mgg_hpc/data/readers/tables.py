"""Tables of numbers with a row for each node: text, plain or packed by gzip or zstd; and Parquet's files.

Text has one row a line, of numbers that are separated by commas, semicolons, or blanks and tabs; all lines have as many
as the first. An empty field between commas or semicolons is NaN, and so is a pair of quotes, which pandas writes where
it is alone in a line. The first line may name the columns, by words that are no numbers. Lines of blanks are passed
over. Blocks of lines are parsed natively.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from .. import checks, native
from ..edge_stream import Rows
from ..schema import Layout
from .compressed import lines_of, text_blocks
from .limits import shown

FLOAT64 = np.dtype("<f8")
BLANKS = " \t\r"
BATCH_BYTES = 8 << 20  # of a Parquet file's numbers that are converted at a time
BUFFER = 1 << 20  # bytes that are read of a column of Parquet at a time
MOST_COLUMNS = 1 << 20


def open_table(path: Path, rows: int | None = None) -> Rows:
    """Open a text as numbers, float64 [rows, columns]. rows: expected number of rows. [default: they are counted]

    Raises InputError for a file that cannot be read; passes raise it, with the line, for a row that is wrong, and for
    another number of rows.
    """
    header, columns = _first_line(path)
    if rows is None:
        rows = sum(len(piece) for piece in _parsed(path, columns, header))

    def pieces() -> Iterator[NDArray[Any]]:
        count = 0
        for piece in _parsed(path, columns, header):
            count += len(piece)
            if count > rows:
                break
            yield piece
        if count != rows:
            raise InputError(f"{path} has {'more' if count > rows else count} rows; expected {rows}")

    return Rows(Layout(FLOAT64, (rows, columns)), pieces)


def _first_line(path: Path) -> tuple[bool, int]:
    """Return whether the first line names the columns, and their number, 1 without a line."""
    for block in text_blocks(path):
        for _, words in _rows_of(block.text):
            return not any(map(_is_number, words)) and any(words), len(words)
    return False, 1


def _parsed(path: Path, columns: int, header: bool) -> Iterator[NDArray[np.float64]]:
    """Yield the rows, float64 [k, columns]."""
    for block in text_blocks(path):
        text, line = block.text, block.line
        if header:
            begin = next((end for end, words in _rows_of(text) if any(words)), None)
            if begin is None:
                continue
            line, header = line + native.load().count_lines(text[:begin]), False
            text = text[begin:]
        rows = min(native.load().count_rows(text), len(text) // columns)
        values = np.empty((rows, columns))
        _, irregular = native.load().parse_table(text, columns, values.reshape(-1))
        if irregular >= 0:
            _refuse(path, text[irregular:], line + native.load().count_lines(text[:irregular]), columns)
        if rows:
            yield values


def _refuse(path: Path, text: NDArray[np.uint8], number: int, columns: int) -> NoReturn:
    """Raise InputError for the line with which a text begins."""
    _, words = next(_rows_of(text))
    if len(words) != columns:
        raise InputError(f"{path}:{number}: {len(words)} columns; expected {columns}, as in the first line")
    at = next((at for at, word in enumerate(words) if word and not _is_number(word)), 0)
    raise InputError(f"{path}:{number}: {shown(words[at])} in column {at} is not a number")


def _rows_of(text: NDArray[np.uint8]) -> Iterator[tuple[int, list[str]]]:
    """Yield the byte after each line that is not blank, and the line's words."""
    for _, end, text_line in lines_of(text):
        if line := text_line.strip(BLANKS):
            delimiter = next((each for each in ",;" if each in line), None)
            words = line.split(delimiter) if delimiter else re.split(rf"[{BLANKS}]+", line)
            yield end, [word.strip(BLANKS) for word in words]


def _is_number(word: str) -> bool:
    if word == '""':
        return True
    try:
        float(word if word.isascii() and "_" not in word and word == word.strip() else "")
    except ValueError:
        return False
    return True


# --- Parquet


def open_parquet(path: Path) -> Rows:
    """Open a table whose columns are numbers, or lists of as many numbers in each row, as numbers [rows, columns].

    A null is NaN. Raises InputError for a file that cannot be read, other types of columns, and where pyarrow is
    missing; passes raise it for lists of several lengths.
    """
    with _parquet(path) as file:
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
        with _parquet(path) as file:
            for batch in file.iter_batches(step, use_threads=False):
                values = _matrix(path, batch, count)
                if values.shape[1] != columns:
                    raise InputError(
                        f"{path} has {values.shape[1]} numbers at row {count}; expected {columns}"
                    )
                if values.dtype.kind == "f" and dtype.kind != "f":
                    raise InputError(f"{path} has a null in row {count} or after it; expected integers")
                count += len(values)
                yield values.astype(dtype, copy=False)
        if count != rows:
            raise InputError(f"{path} has {count} rows; expected {rows}, as its metadata say")

    return Rows(Layout(dtype, (rows, columns)), pieces)


@contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    """Open a file, and convert pyarrow's exceptions, here and while it is read, to InputError."""
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


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _number_type(path: Path, field: Any) -> np.dtype[Any]:
    """Return the type of a column's numbers. Raises InputError for a column of something else."""
    from pyarrow import types

    kind = field.type.value_type if _is_list(field.type) else field.type
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return np.dtype(kind.to_pandas_dtype())
    raise InputError(f"{path}: the column {shown(field.name)} is of {str(kind)[:40]}; expected numbers")


def _matrix(path: Path, batch: Any, row: int) -> NDArray[Any]:
    """Return a batch, whose first row is ``row``, as numbers [rows, columns]."""
    return np.column_stack([_column(path, column, row) for column in batch.columns])


def _column(path: Path, column: Any, row: int) -> NDArray[Any]:
    """Return a column as numbers [rows, length of its lists, or 1]."""
    from pyarrow import compute

    if not _is_list(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False)).reshape(-1, 1)
    lengths = compute.list_value_length(column).to_numpy(zero_copy_only=False)  # NaN where there is no list
    at = checks.first(lengths != lengths[0])
    if at is not None:
        raise InputError(
            f"{path} has a list of another length at row {row + at}; expected the same in each row"
        )
    return np.asarray(column.flatten().to_numpy(zero_copy_only=False)).reshape(len(column), -1)
