"""Features, labels and masks of nodes: from files of their own, and checked as they are read.

Files are arrays of NumPy (.npy), tables as text (.csv, .tsv, .txt, plain, .gz or .zst), Parquet's (.parquet), or for
sparse features matrices of SciPy (.npz).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError, shown
from ...sizes import counted
from .. import checks, schema
from ..edge_stream import Rows
from ..schema import Layout
from .array_edges import count_rounded, in_range, offset_runs, rounding
from .dialect import Dialect
from .limits import check_memory
from .npy import NUMBERS, PIECE, Archive, Array, open_array
from .tables import Head, open_parquet, open_table, table_head

PACKED = (".gz", ".zst")
TABLES = (".csv", ".tsv", ".txt")
NAMES = "; leave out a column of names: rows are in the order of nodes"
CLASSES = "; classes are 0, 1, ..., and -1 for none, in the order of nodes: pandas.factorize numbers words"
LEAST_IDS = 4  # rows whose first column may be ids

Pieces = Iterator[NDArray[Any]]
Place = Callable[[int], str]  # of `Rows`


def node_rows(
    *,
    features: Path | None = None,
    labels: Path | None = None,
    masks: Sequence[Path] | None = None,
    dtype: str = "float32",
    dialect: Dialect | None = None,
    notes: list[str] | None = None,
    heads: dict[Path, Head] | None = None,
) -> tuple[int | None, dict[str, Rows], dict[str, Any]]:
    """Return the number of nodes (None without files), the datasets of nodes by path, and fields of `Imported`.

    Args: features: numbers [N, F], stored as dtype, "float32" or "float16", or a sparse matrix [N, F]. labels: integers
    [N], -1 where unlabelled, or 0 and 1 [N, C]. masks: three files, of 0 and 1 [N] or of node numbers. dialect: of
    tables of text. notes: takes lines to print. heads: takes the heads of features and labels that are tables of text.

    Raises InputError for other types or shapes; passes over the rows raise it, with row and column, for a value that is
    not finite, or that dtype cannot represent.
    """
    rows: dict[str, Rows] = {}
    fields: dict[str, Any] = {}
    counts: dict[Path, int] = {}

    def numbers_of(path: Path, *, mask: bool = False, hint: str = "") -> Rows:
        if not is_text(path):
            return _open_numbers(path, notes)
        head = table_head(path, dialect or Dialect(), mask=mask, hint=hint)
        if heads is not None and not mask:
            heads[path] = head
        return open_table(path, head=head, notes=notes)

    if features is not None and features.name.lower().endswith(".npz"):
        if dtype != "float32":
            raise InputError(
                f"{features}: sparse features are stored as float32; --feature-type {dtype} is for dense ones"
            )
        found, fields["sparse_shape"] = _sparse_features(features)
        rows |= found
        counts[features] = fields["sparse_shape"][0]
    elif features is not None:
        numbers = _without_ids(str(features), numbers_of(features, hint=NAMES))
        rows[schema.X] = feature_rows(str(features), numbers, np.dtype(dtype), notes)
        counts[features] = rows[schema.X].layout.shape[0]
    if labels is not None:
        rows[schema.Y], more = label_rows(str(labels), numbers_of(labels, hint=CLASSES))
        fields |= more
        counts[labels] = rows[schema.Y].layout.shape[0]
    first, nodes = next(iter(counts.items()), (None, None))
    for path, count in counts.items():
        if count != nodes:
            raise InputError(f"{path} has {counted(count, 'row')}; {first} has {nodes}")
        check_nodes(path, count)
    for mask, file in zip(schema.MASKS, masks or (), strict=False):
        if nodes is None:
            raise InputError(f"{file}: masks need features or labels, which tell the number of nodes")
        rows[mask] = mask_rows(str(file), numbers_of(file, mask=True), nodes)
    return nodes, rows, fields


def _open_numbers(path: Path, notes: list[str] | None) -> Rows:
    """Open an array or Parquet's file of numbers by the ending of its name: [N] or [N, F].

    Raises InputError for another ending, and for a file that does not hold numbers.
    """
    name = path.name.lower()
    if name.endswith(".parquet"):
        return open_parquet(path, notes)
    if name.endswith(".npy"):
        array = open_array(path)
        if not array.shape:
            raise InputError(f"{path} is {array}; expected rows of numbers")
        return array.rows()
    raise InputError(
        f"{path}: its name does not tell what it is; expected .npy, .csv, .tsv or .txt (and .gz or .zst), or .parquet"
    )


def is_text(path: Path) -> bool:
    """Return whether a file is a table of text, by its name."""
    name = path.name.lower()
    for ending in PACKED:
        name = name.removesuffix(ending)
    return name.endswith(TABLES)


def _sparse_features(path: Path) -> tuple[dict[str, Rows], tuple[int, int]]:
    """Open SciPy's matrix [N, F] in CSR: the datasets, and (N, F). Raises InputError for others."""
    archive = Archive(path)
    matrix = archive.matrix()
    if matrix is None:
        raise InputError(f"{path} is no matrix of SciPy; expected what scipy.sparse.save_npz writes")
    form, nodes, columns = matrix
    if form != "csr":
        raise InputError(f"{path} is a matrix in the form {form}; expected csr: save its .tocsr()")
    if not 1 <= columns < 2**31:
        raise InputError(f"{path} has {counted(columns, 'column')}; expected 1 .. {2**31 - 1}")
    check_nodes(path, nodes)
    indices = archive.need("indices", "int", None)
    data = archive.need("data", "any number", len(indices))
    return sparse_rows(archive.need("indptr", "int", nodes + 1), indices, data, columns), (nodes, columns)


def check_nodes(where: str | Path, nodes: int) -> None:
    """Raise InputError for a number of nodes of which no graph can be made on this machine."""
    if nodes < 1:
        raise InputError(f"{where} is of no nodes; a graph has one node at least")
    check_memory(f"{where}: a graph of {nodes} nodes", 8 * nodes)


def label_fields(where: str, y: np.ndarray) -> dict[str, Any]:
    """Return Graph's fields ``y`` and ``classes`` from the labels that `label_rows` takes, in memory."""
    if y.ndim in (1, 2) and math.prod(y.shape[1:]) == 1 and y.dtype.kind in NUMBERS:
        y = _classes(where, y.reshape(-1), 0, False)
        return {"y": y, "classes": max(int(y.max(initial=0)), 0) + 1}
    if y.ndim == 2 and y.shape[1] and y.dtype.kind in NUMBERS:
        return {"y": y.astype(np.float32, copy=False), "classes": y.shape[1]}
    raise InputError(
        f"{where} is {y.dtype} {list(y.shape)}; expected integers [nodes], or 0 and 1 [nodes, classes]"
    )


# --- datasets that are checked as they are read


def of_array(array: NDArray[Any]) -> Rows:
    """Return an array in memory as a dataset that comes in pieces."""
    step = max(1, PIECE // max(1, math.prod(array.shape[1:]) * array.itemsize))

    def pieces() -> Pieces:
        yield from (np.ascontiguousarray(array[low : low + step]) for low in range(0, len(array), step))

    return Rows(Layout(array.dtype, array.shape), pieces)


class RowReader:
    """Reads the rows of a dataset in order, any number at a time."""

    def __init__(self, rows: Rows) -> None:
        self._pieces, self._held = rows.pieces(), np.empty((0, *rows.layout.shape[1:]), rows.layout.dtype)

    def take(self, count: int) -> NDArray[Any]:
        """Return the next rows, fewer at the end of the dataset."""
        parts: list[NDArray[Any]] = []
        while True:
            parts.append(self._held[:count])
            self._held, count = self._held[count:], count - len(parts[-1])
            if not count or (piece := next(self._pieces, None)) is None:
                return np.concatenate(parts)
            self._held = piece


def _converted(
    rows: Rows,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    convert: Callable[[NDArray[Any], int], NDArray[Any]],
) -> Rows:
    """Return a dataset of converted pieces. convert: called with a piece and the number of its first row."""

    def converted() -> Pieces:
        row = 0
        for piece in rows.pieces():
            yield convert(piece, row).astype(dtype, copy=False)
            row += len(piece)

    return Rows(Layout(dtype, shape), converted, rows.place)


def _without_ids(where: str, rows: Rows) -> Rows:
    """Return a table, passes over which raise InputError if its first column has the numbers of all rows, once each."""
    shape, kind = rows.layout.shape, rows.layout.dtype.kind
    if len(shape) != 2 or shape[0] < LEAST_IDS or shape[1] < 2 or kind not in "iuf":
        return rows

    def pieces() -> Pieces:
        row, sums = 0, {0: 0, 1: 0}  # by the first number
        for piece in rows.pieces():
            ids = piece[:, 0]
            if sums and ((ids >= 0) & (ids <= shape[0]) & (ids == np.floor(ids))).all():
                for first in sums:
                    sums[first] += _mixed(ids) - _mixed(np.arange(row + first, row + first + len(ids)))
            else:
                sums = {}
            row += len(piece)
            yield piece
        if any(each % 2**64 == 0 for each in sums.values()):
            raise InputError(
                f"{where}: the first column has the numbers of all {row} rows, as ids of nodes; leave it out, and put "
                "the rows in the order of nodes (a feature may be any other column)"
            )

    return Rows(rows.layout, pieces, rows.place)


def _mixed(ids: NDArray[Any]) -> int:
    """Return the sum of hashes of whole numbers (mod 2**64)."""
    mixed = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return int(((mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xBF58476D1CE4E5B9)).sum())


def _in_type(
    where: str, values: NDArray[Any], row: int, dtype: np.dtype[Any], place: Place = Rows.place
) -> NDArray[Any]:
    """Return finite numbers [n] or [n, F] in another type. Raises InputError for one that is not finite in it."""
    with np.errstate(over="ignore"):
        found = values.astype(dtype, copy=False)
    bad = ~np.isfinite(found)
    at = checks.first(bad if bad.ndim == 1 else bad.any(axis=1))
    if at is None:
        return found
    if bad.ndim == 1:
        raise InputError(f"{where} has {values[at]} at entry {row + at}; expected finite numbers of float32")
    column = checks.first(bad[at]) or 0
    value = values[at, column]
    reason = f", which {dtype.name} does not hold" if np.isfinite(value) else "; expected finite numbers"
    raise InputError(f"{where} has {value} at {place(row + at)}, column {column}{reason}")


def feature_rows(where: str, rows: Rows, dtype: np.dtype[Any], notes: list[str] | None = None) -> Rows:
    """Return numbers [N, F] as features of a float type. notes: takes a line to print for rounded whole numbers.

    Raises InputError for other types or shapes; a pass raises it, with row and column, for a number that is not finite,
    or not in that type.
    """
    layout = rows.layout
    if len(layout.shape) != 2 or layout.dtype.kind not in NUMBERS:
        raise InputError(f"{where} is {layout}; expected numbers [nodes, features]")
    rounded = 0

    def convert(piece: NDArray[Any], row: int) -> NDArray[Any]:
        nonlocal rounded
        found = _in_type(where, piece, row, dtype, rows.place)
        rounded = (rounded if row else 0) + count_rounded(piece, found)
        if rounded and notes is not None and row + len(piece) == layout.shape[0]:
            notes.append(f"{where}: {rounding('the features', rounded, dtype)}")
        return found

    return _converted(rows, layout.shape, dtype, convert)


def label_rows(where: str, rows: Rows, *, unlabelled: bool = False) -> tuple[Rows, dict[str, Any]]:
    """Return labels, and the fields of `Imported` that belong to them: int64 [N], or float32 [N, C] of 0 and 1.

    Numbers [N] and [N, 1] are classes, which are counted in a pass: whole numbers of any type, -1 where unlabelled, or
    bool. unlabelled: NaN stands for a missing label.

    Raises InputError for other types and shapes, and for a number that is no class.
    """
    layout = rows.layout
    shape, kind = layout.shape, layout.dtype.kind
    if len(shape) == 2 and shape[1] > 1 and kind in NUMBERS:

        def several(piece: NDArray[Any], row: int) -> NDArray[Any]:
            if (at := checks.first(((piece != 0) & (piece != 1)).any(axis=1))) is not None:
                raise InputError(
                    f"{where} has {shown(str(piece[at].tolist()))} at {rows.place(row + at)}; expected 0 and 1, "
                    "several labels of a node, or one column of classes"
                )
            return piece

        return _converted(rows, shape, schema.FLOAT32, several), {"classes": shape[1], "multilabel": True}
    if len(shape) not in (1, 2) or math.prod(shape[1:]) != 1 or kind not in NUMBERS:
        raise InputError(f"{where} is {layout}; expected integers [nodes], or 0 and 1 [nodes, classes]")
    found = _converted(
        rows,
        shape[:1],
        schema.INT64,
        lambda piece, row: _classes(where, piece.reshape(-1), row, unlabelled, rows.place),
    )
    highest = max((int(piece.max(initial=-1)) for piece in found.pieces()), default=-1)
    return found, {"classes": max(highest, 0) + 1, "multilabel": False}


def _classes(
    where: str, values: NDArray[Any], row: int, unlabelled: bool, place: Place = Rows.place
) -> NDArray[np.int64]:
    """Return the classes of row ``row`` and following. Raises InputError for a number that is none."""
    most, floats = schema.MOST_CLASSES, values.dtype.kind == "f"
    if floats:  # float16 has no odd numbers from 2048 on
        most = min(most, 2 ** (np.finfo(values.dtype).nmant + 1))
    elif values.dtype.kind == "b":
        values = values.view(np.uint8)
    with np.errstate(invalid="ignore"):
        missing = np.isnan(values) if unlabelled and floats else np.zeros(len(values), bool)
        at = checks.first(~((values >= -1) & (values < most) & (values == np.floor(values)) | missing))
    if at is not None:
        raise InputError(
            f"{where} has the label {values[at]} at {place(row + at)}; expected a class, 0 .. {most - 1}, or -1"
        )
    return np.where(missing, -1, values).astype(np.int64)


def mask_rows(where: str, rows: Rows, nodes: int) -> Rows:
    """Return a mask, bool [nodes], from 0 and 1 [nodes], or from other than ``nodes`` node numbers [k].

    Raises InputError for other shapes and numbers, and for 0 and 1 that may be the numbers of all of one or two nodes.
    """
    layout = rows.layout
    if math.prod(layout.shape[1:]) != 1 or layout.dtype.kind not in NUMBERS or not layout.shape:
        raise InputError(f"{where} is {layout}; expected 0 and 1 [{nodes}], or node numbers")
    if layout.dtype.kind == "b" and layout.shape[0] != nodes:
        raise InputError(f"{where} is {layout}; expected bool [{nodes}], or node numbers")
    if layout.shape[0] == nodes:
        row, numbers = 0, layout.dtype.kind != "b" and layout.dtype != np.uint8
        for piece in rows.pieces():
            at = checks.first(~((piece == 0) | (piece == 1)).reshape(-1))
            if at is not None:
                raise InputError(
                    f"{where} has {piece.reshape(-1)[at]} at {rows.place(row + at)}; expected 0 or 1, or true or "
                    f"false, for each of {nodes} nodes, or fewer node numbers"
                )
            if (
                numbers
                and nodes < 3
                and len({*piece.reshape(-1).tolist()}) == piece.reshape(-1).max() + 1 == nodes
            ):
                raise InputError(
                    f"{where} may be a mask, or the numbers of all nodes; expected bool, or true and false in text"
                )
            row += len(piece)
        return _converted(rows, (nodes,), schema.BOOL, lambda piece, _: piece.reshape(-1))
    mask_of_nodes(where, rows, nodes)  # errors come before the edges are read
    return Rows(Layout(schema.BOOL, (nodes,)), lambda: of_array(mask_of_nodes(where, rows, nodes)).pieces())


def mask_of_nodes(where: str, rows: Rows, nodes: int) -> NDArray[np.bool_]:
    """Return the mask, bool [nodes], of node numbers. Raises InputError for one out of range."""
    mask, row = np.zeros(nodes, dtype=bool), 0
    for piece in rows.pieces():
        numbers = piece.reshape(-1)
        with np.errstate(invalid="ignore"):
            at = checks.first(~((numbers >= 0) & (numbers < nodes) & (numbers == np.floor(numbers))))
        if at is not None:
            raise InputError(
                f"{where} has {numbers[at]} at {rows.place(row + at)}; expected node numbers, 0 .. {nodes - 1}"
            )
        mask[numbers.astype(np.int64)] = True
        row += len(numbers)
    if (distinct := int(mask.sum())) < row:
        raise InputError(
            f"{where} has {row} numbers of {distinct} nodes; expected each node once, or 0 and 1 for each of {nodes}"
        )
    return mask


def sparse_rows(indptr: Array, indices: Array, data: Array, columns: int) -> dict[str, Rows]:
    """Return the three datasets of sparse features: offsets [N+1], columns [nnz] and values [nnz].

    Passes raise InputError for offsets that are none, columns out of range, and values that are not finite in float32.
    """
    stored = len(indices)

    def of_offsets() -> Pieces:
        yield np.zeros(1, np.int64)
        for _, part in offset_runs(indptr, stored):
            yield part[1:]

    return {
        schema.X_INDPTR: Rows(Layout(schema.INT64, (len(indptr),)), of_offsets),
        schema.X_INDICES: _converted(
            indices.rows(),
            (stored,),
            schema.INT32,
            lambda piece, low: in_range(indices, piece, low, columns),
        ),
        schema.X_DATA: _converted(
            data.rows(),
            (stored,),
            schema.FLOAT32,
            lambda piece, low: _in_type(data.where, piece, low, schema.FLOAT32),
        ),
    }
