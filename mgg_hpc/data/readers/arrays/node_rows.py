"""Features, labels and masks out of arrays that come in pieces: their types, and what values may be."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import InputError
from ... import checks, schema
from ...edge_stream import Rows
from ...schema import Layout
from ..limits import check_memory
from ..npy import PIECE, Array
from .edges import in_range, offsets

Pieces = Iterator[NDArray[Any]]


def of_array(array: NDArray[Any]) -> Rows:
    """Return an array in memory as rows."""
    step = max(1, PIECE // max(1, math.prod(array.shape[1:]) * array.itemsize))

    def pieces() -> Pieces:
        yield from (np.ascontiguousarray(array[low : low + step]) for low in range(0, len(array), step))

    return Rows(Layout(array.dtype, array.shape), pieces)


def feature_rows(where: str, rows: Rows, dtype: np.dtype[Any]) -> Rows:
    """Return numbers [N, F] as features of a float type.

    Raises InputError for other types or shapes; a pass raises it, with row and column, for a number that is not finite,
    or not in that type.
    """
    layout = rows.layout
    if len(layout.shape) != 2 or layout.dtype.kind not in "fiub":
        raise InputError(f"{where} is {layout}; expected numbers [nodes, features]")

    def pieces() -> Pieces:
        row = 0
        for given in rows.pieces():
            with np.errstate(over="ignore"):
                piece = given.astype(dtype, copy=False)
            _check_finite(where, given, piece, row)
            row += len(piece)
            yield piece

    return Rows(Layout(dtype, layout.shape), pieces)


def _check_finite(where: str, given: NDArray[Any], piece: NDArray[Any], row: int) -> None:
    """Raise InputError for a number of ``piece`` that is not finite. given: what it was converted from."""
    bad = ~np.isfinite(piece)
    at = checks.first(bad.any(axis=1))
    if at is None:
        return
    column = checks.first(bad[at]) or 0
    value = given[at, column]
    reason = (
        f", which {piece.dtype.name} does not hold" if np.isfinite(value) else "; expected finite numbers"
    )
    raise InputError(f"{where} has {value} at row {row + at}, column {column}{reason}")


def label_rows(
    where: str, rows: Rows, *, column: bool = False, unlabelled: bool = False
) -> tuple[Rows, dict[str, Any]]:
    """Return labels, and the fields of `Imported` that belong to them: int64 [N], or float32 [N, C] of 0 and 1.

    Numbers [N] are classes, which are counted in a pass: whole numbers, -1 where unlabelled. column: whether those
    [N, 1] are, too. unlabelled: whether NaN says that there is no label. Numbers [N, C] are left to be checked as they
    are written. Raises InputError for other types and shapes, and for a number that is no class.
    """
    layout = rows.layout
    shape, kind = layout.shape, layout.dtype.kind
    if len(shape) == 2 and shape[1] > column and kind in "fiub":
        return _several(rows), {"classes": shape[1], "multilabel": True}
    if len(shape) != 1 + (len(shape) > 1 and column) or math.prod(shape[1:]) != 1 or kind not in "fiu":
        raise InputError(f"{where} is {layout}; expected integers [nodes], or 0 and 1 [nodes, classes]")

    def pieces() -> Pieces:
        row = 0
        for piece in rows.pieces():
            yield _classes(where, piece.reshape(-1), row, unlabelled)
            row += len(piece)

    highest = max((int(piece.max(initial=-1)) for piece in pieces()), default=-1)
    found = Rows(Layout(schema.INT64, shape[:1]), pieces)
    return found, {"classes": max(highest, 0) + 1, "multilabel": False}


def _several(rows: Rows) -> Rows:
    def pieces() -> Pieces:
        for piece in rows.pieces():
            yield piece.astype(schema.FLOAT32, copy=False)

    return Rows(Layout(schema.FLOAT32, rows.layout.shape), pieces)


def _classes(where: str, values: NDArray[Any], row: int, unlabelled: bool) -> NDArray[np.int64]:
    """Return classes of numbers. Raises InputError for one that is none."""
    most = schema.MOST_CLASSES
    with np.errstate(invalid="ignore"):
        missing = np.isnan(values) if unlabelled and values.dtype.kind == "f" else np.zeros(len(values), bool)
        at = checks.first(~((values >= -1) & (values < most) & (values == np.floor(values)) | missing))
    if at is not None:
        raise InputError(
            f"{where} has the label {values[at]} at row {row + at}; expected a class, 0 .. {most - 1}, or -1"
        )
    return np.where(missing, -1, values).astype(np.int64)


def mask_rows(where: str, rows: Rows, nodes: int) -> Rows:
    """Return a mask, bool [nodes], of 0 and 1 [nodes], or of node numbers [k].

    Numbers count as a mask where there is one for each of more than two nodes, and none but 0 and 1. Raises InputError
    for other shapes and numbers.
    """
    layout = rows.layout
    if math.prod(layout.shape[1:]) != 1 or layout.dtype.kind not in "biuf" or not layout.shape:
        raise InputError(f"{where} is {layout}; expected 0 and 1 [{nodes}], or node numbers")
    if layout.dtype.kind == "b" and layout.shape[0] != nodes:
        raise InputError(f"{where} is {layout}; expected bool [{nodes}], or node numbers")
    as_mask = layout.dtype.kind == "b" or (
        2 < nodes == layout.shape[0] and all(((piece == 0) | (piece == 1)).all() for piece in rows.pieces())
    )
    if not as_mask:
        chosen(where, rows, nodes)  # errors come before the edges are read

    def pieces() -> Pieces:
        if not as_mask:
            yield from of_array(chosen(where, rows, nodes)).pieces()
            return
        for piece in rows.pieces():
            yield piece.reshape(-1).astype(bool)

    return Rows(Layout(schema.BOOL, (nodes,)), pieces)


def chosen(where: str, rows: Rows, nodes: int) -> NDArray[np.bool_]:
    """Return a mask, bool [nodes], of node numbers. Raises InputError for one out of range."""
    mask, row = np.zeros(nodes, dtype=bool), 0
    for piece in rows.pieces():
        numbers = piece.reshape(-1)
        with np.errstate(invalid="ignore"):
            at = checks.first(~((numbers >= 0) & (numbers < nodes) & (numbers == np.floor(numbers))))
        if at is not None:
            raise InputError(
                f"{where} has {numbers[at]} at row {row + at}; expected node numbers, 0 .. {nodes - 1}"
            )
        mask[numbers.astype(np.int64)] = True
        row += len(numbers)
    return mask


def sparse_rows(indptr: Array, indices: Array, data: Array, columns: int) -> dict[str, Rows]:
    """Return the three datasets of sparse features: offsets [N+1], columns [nnz] and values [nnz].

    Passes raise InputError for offsets that are none, columns out of range, and values that are not finite in float32.
    """
    stored = len(indices)

    def of_offsets() -> Pieces:
        yield np.zeros(1, np.int64)
        for _, part in offsets(indptr, stored):
            yield part[1:]

    def of_columns() -> Pieces:
        low = 0
        for piece in indices.rows().pieces():
            yield in_range(indices, piece, low, columns).astype(np.int32)
            low += len(piece)

    def of_values() -> Pieces:
        low = 0
        for given in data.rows().pieces():
            with np.errstate(over="ignore"):
                piece = given.astype(np.float32, copy=False)
            at = checks.first(~np.isfinite(piece))
            if at is not None:
                raise InputError(
                    f"{data.where} has {given[at]} at entry {low + at}; expected finite numbers of float32"
                )
            low += len(piece)
            yield piece

    shapes: dict[str, tuple[np.dtype[Any], int, Callable[[], Pieces]]] = {
        schema.X_INDPTR: (schema.INT64, len(indptr), of_offsets),
        schema.X_INDICES: (schema.INT32, stored, of_columns),
        schema.X_DATA: (schema.FLOAT32, stored, of_values),
    }
    return {path: Rows(Layout(dtype, (length,)), pieces) for path, (dtype, length, pieces) in shapes.items()}


def check_nodes(where: str | Path, nodes: int) -> None:
    """Raise InputError for numbers of nodes of which no graph can be made here."""
    if nodes < 1:
        raise InputError(f"{where} is of no nodes; a graph has one node at least")
    check_memory(f"{where}: a graph of {nodes} nodes", 8 * nodes)
