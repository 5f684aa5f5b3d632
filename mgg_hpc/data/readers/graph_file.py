"""A graph file as a stream of edges and passes over its datasets of nodes, with its rows renumbered or as they are.

Nothing here holds more of the file than a block and one window of the new rows, and for each node the numbering, its
inverse and the offsets of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import checks, schema
from ..edge_stream import EdgeBlock, Imported, Rows
from ..graph import INT32_NODES
from ..schema import Layout
from ..store import GraphFile
from .array_edges import rows_of

BLOCK_EDGES = 1 << 22  # read at a time, at most
EDGES_BYTES = 32 << 20  # bytes of ids, weights and data of edges that are read at a time
BLOCK_BYTES = 8 << 20  # bytes of a dataset of nodes that are read or yielded at a time
SPARSE = {  # datasets of nodes that are CSR, and their offsets
    schema.X_INDICES: schema.X_INDPTR,
    schema.X_DATA: schema.X_INDPTR,
    schema.NAME_TEXT: schema.NAME_OFFSETS,
}
NOT_OF_NODES = (*schema.EDGE_DATASETS, schema.EDGE, "partition/", schema.PERMUTATION)

Numbers = NDArray[np.int64]


class NumberedEdges:
    """An `EdgeStream` over a graph file's edges in the file's order, with renumbered ends.

    Args: number: int64 [N], the new number of each row; None keeps the numbers. data: read weights and data of edges,
    too. A block has BLOCK_EDGES edges at most, and EDGES_BYTES as they are stored, or one edge. Marks are entry
    numbers.
    """

    def __init__(self, opened: GraphFile, number: Numbers | None, *, data: bool = True) -> None:
        self.where, self.total = opened.where, opened.edges
        self.nodes: int | None = opened.nodes
        self._opened = opened
        narrow = np.int32 if opened.nodes < INT32_NODES else np.int64
        self._number = None if number is None else number.astype(narrow)
        self._weighted = data and opened.weighted
        self._data = opened.edge_data if data else ()
        paths = [
            schema.INDICES,
            *[schema.WEIGHT] * self._weighted,
            *(schema.EDGE + name for name in self._data),
        ]
        fit = EDGES_BYTES // sum(opened.contents.datasets[path].row_bytes for path in paths)
        # A power of two: then blocks are whole digest blocks, which are read once, of most types.
        self._step = min(BLOCK_EDGES, 1 << max(fit, 1).bit_length() - 1)

    def blocks(self, mark: Any = None, progress: Callable[[int], None] | None = None) -> Iterator[EdgeBlock]:
        opened, indptr = self._opened, self._opened.indptr()
        for low in range(mark or 0, self.total, self._step):
            high = min(low + self._step, self.total)
            with opened.compared():
                sources = _sources(opened, indptr, low, high)
                destinations = rows_of(indptr, low, high, sources.dtype)
                if self._number is not None:
                    destinations, sources = self._number[destinations], self._number[sources]
                weight = opened.checked(schema.WEIGHT, low, high) if self._weighted else None
                data = {name: opened.checked(schema.EDGE + name, low, high) for name in self._data}
            yield EdgeBlock(sources, destinations, weight, data, mark=high)
            if progress:
                progress(high)


def _sources(opened: GraphFile, indptr: Numbers, low: int, high: int) -> NDArray[Any]:
    """Return indices low .. high - 1. Raises InputError for damage and for ids out of range."""

    def row_of(entry: int) -> int:
        return int(np.searchsorted(indptr, entry, side="right")) - 1

    sources = opened.checked(schema.INDICES, low, high)
    checks.ids(opened.where, schema.EDGES, sources, position=low, limit=opened.nodes, row_of=row_of)
    return sources


def renumbered(opened: GraphFile, order: Numbers, ids: Numbers | None, *, memory: int) -> Imported:
    """Return a graph file's contents with old row order[i] as row i.

    Args: order: int64 [N], a permutation. ids: int64 [N], the user's id of each new row; None where these are the row
    numbers. memory: bytes of a window of new rows; for each window the old rows are read once, in order.

    Edges keep the sequence of the file, so that equal ones stay in their order.
    """
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    held = opened.contents
    moved = _MovedRows(opened, order, number, memory)
    rows = {
        path: Rows(layout, partial(moved.pieces, path))
        for path, layout in held.datasets.items()
        if not path.startswith(NOT_OF_NODES)
    }
    if ids is not None:
        rows[schema.PERMUTATION] = Rows(Layout(schema.INT64, ids.shape), partial(_pieces, ids))
    return Imported(
        held.name,
        NumberedEdges(opened, number),
        rows,
        classes=held.classes,
        multilabel=held.multilabel,
        sparse_shape=held.sparse_shape,
        types=held.types,
        directed=held.directed,
    )


@dataclass(frozen=True, eq=False)
class _MovedRows:
    """Passes over datasets of nodes in a new order of rows. number: the new number of each row."""

    opened: GraphFile
    order: Numbers
    number: Numbers
    memory: int

    def pieces(self, path: str) -> Iterator[NDArray[Any]]:
        """Start a pass over a dataset of nodes in the new order."""
        if path in SPARSE:
            return self._entries(path)
        if path in SPARSE.values():
            return _pieces(self._new_offsets(self._old_offsets(path)))
        return self._rows(path)

    def _rows(self, path: str) -> Iterator[NDArray[Any]]:
        """Yield a dataset [N, ...] in pieces of new rows."""
        layout, nodes = self.opened.contents.datasets[path], len(self.order)
        window = max(1, self.memory // layout.row_bytes)
        step = max(1, BLOCK_BYTES // layout.row_bytes)
        for first in range(0, nodes, window):
            new = np.empty((min(window, nodes - first), *layout.shape[1:]), layout.dtype)
            with self.opened.compared():
                for low in range(0, nodes, step):
                    high = min(low + step, nodes)
                    values = self.opened.checked(path, low, high)
                    at = self.number[low:high] - first
                    inside = (at >= 0) & (at < len(new))
                    new[at[inside]] = values[inside]
            yield from _pieces(new)

    def _entries(self, path: str) -> Iterator[NDArray[Any]]:
        """Yield the entries of a CSR of nodes in pieces, row by new row."""
        layout = self.opened.contents.datasets[path]
        old = self._old_offsets(SPARSE[path])
        new, first = self._new_offsets(old), 0
        while first < len(self.order):
            end = int(np.searchsorted(new, new[first] + self.memory // layout.row_bytes, side="right")) - 1
            end = max(end, first + 1)
            yield from _pieces(self._window(path, old, new, first, end))
            first = end

    def _window(self, path: str, old: Numbers, new: Numbers, first: int, end: int) -> NDArray[Any]:
        """Return the entries of new rows first .. end - 1 of a CSR, from one pass over the old ones."""
        layout = self.opened.contents.datasets[path]
        found = np.empty((int(new[end] - new[first]), *layout.shape[1:]), layout.dtype)
        step = max(1, BLOCK_BYTES // layout.row_bytes)
        low = 0
        with self.opened.compared():
            while low < len(self.order):
                high = max(low + 1, int(np.searchsorted(old, old[low] + step, side="right")) - 1)
                values = self.opened.checked(path, int(old[low]), int(old[high]))
                rows = low + np.flatnonzero((self.number[low:high] >= first) & (self.number[low:high] < end))
                counts = old[rows + 1] - old[rows]
                within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
                taken = np.repeat(old[rows] - old[low], counts) + within
                found[np.repeat(new[self.number[rows]] - new[first], counts) + within] = values[taken]
                low = high
        return found

    def _old_offsets(self, path: str) -> Numbers:
        """Return the offsets [N + 1] of the old rows of a CSR. Raises InputError for values that are no offsets."""
        nodes = len(self.order)
        entries = next(each for each, offsets in SPARSE.items() if offsets == path)
        total = self.opened.contents.datasets[entries].shape[0]
        with self.opened.compared():
            found = self.opened.checked(path, 0, nodes + 1)
            checks.offsets(self.opened.where, path, found, row=0, rows=nodes, total=total)
        return found

    def _new_offsets(self, old: Numbers) -> Numbers:
        """Return the offsets [N + 1] of the new rows of a CSR."""
        new = np.zeros(len(self.order) + 1, np.int64)
        np.cumsum(np.diff(old)[self.order], out=new[1:])
        return new


def _pieces(values: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield an array in pieces of about BLOCK_BYTES."""
    step = max(1, BLOCK_BYTES // max(1, values.nbytes // max(1, len(values))))
    yield from (values[low : low + step] for low in range(0, len(values), step))


def slices(opened: GraphFile) -> Iterator[tuple[int, Numbers, NDArray[Any]]]:
    """Yield the edges in slices of whole rows: (first row, indptr int64 [n + 1] from 0, indices ascending in each row).

    A slice has at most BLOCK_EDGES edges, or one row. Raises InputError as `GraphFile.slice` does.
    """
    indptr, first = opened.indptr(), 0
    while first < opened.nodes:
        end = int(np.searchsorted(indptr, indptr[first] + BLOCK_EDGES, side="right")) - 1
        end = max(end, first + 1)
        offsets, indices = edges_of_rows(opened, indptr, first, end)
        yield first, offsets, _ascending(offsets, indices)
        first = end


def _ascending(offsets: Numbers, indices: NDArray[Any]) -> NDArray[Any]:
    """Return the entries of each row of a CSR in ascending order."""
    falls = np.flatnonzero(indices[1:] < indices[:-1]) + 1
    starts = offsets[np.searchsorted(offsets, falls, side="left").clip(max=len(offsets) - 1)]
    if (starts == falls).all():
        return indices
    rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    return indices[np.lexsort((indices, rows))]


def edges_of_rows(opened: GraphFile, indptr: Numbers, first: int, end: int) -> tuple[Numbers, NDArray[Any]]:
    """Return the edges of rows first .. end - 1: indptr int64 [n + 1] from 0, indices as stored.

    indptr: the whole one, `GraphFile.indptr`. Raises InputError as `GraphFile.slice` does.
    """
    low = int(indptr[first])
    with opened.compared():
        indices = _sources(opened, indptr, low, int(indptr[end]))
    return indptr[first : end + 1] - low, indices
