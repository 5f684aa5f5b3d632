"""Streams of edges over arrays that are read side by side: pairs of ends, and compressed rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import InputError
from ... import checks
from ...edge_stream import EdgeBlock, EdgeStream
from ..npy import Array, Take

BLOCK_EDGES = 1 << 20
ROWS = 1 << 20  # of offsets that are read at a time
CARRIED = {"float64": np.float32, "bool": np.uint8}  # types of edges' data that graph files do not have


class PairedEdges:
    """An `EdgeStream` over arrays of sources and of destinations [E], or one of both [E, 2]. Marks are edge numbers.

    nodes: their number, None: the largest id plus one. weight: numbers [E]; data: further arrays [E, ...] by name.
    counted: where the number of nodes is from, for messages; without it the build refuses ids that are too large.
    """

    def __init__(
        self,
        where: str,
        ends: tuple[Array, ...],
        nodes: int | None,
        *,
        weight: Array | None = None,
        data: Mapping[str, Array] | None = None,
        counted: str = "",
    ) -> None:
        self.where, self.nodes, self.total = where, nodes, len(ends[0])
        self._counted = counted
        self._ends, self._weight, self._data = ends, weight, dict(data or {})

    def blocks(self, mark: Any = None, progress: Callable[[int], None] | None = None) -> Iterator[EdgeBlock]:
        """Yield the edges, as `EdgeStream` has it. Raises InputError for a negative id."""
        with ExitStack() as files:
            ends = [files.enter_context(each.reading(mark or 0)) for each in self._ends]
            carried = _Carried(files, mark or 0, self._weight, self._data)
            for low in range(mark or 0, self.total, BLOCK_EDGES):
                high = min(low + BLOCK_EDGES, self.total)
                found = [take(high - low) for take in ends]
                pair = found if len(found) == 2 else [found[0][:, 0], found[0][:, 1]]
                sources, destinations = (
                    self._ids(low, name, ids) for name, ids in zip("sd", pair, strict=True)
                )
                yield EdgeBlock(sources, destinations, *carried.next(high - low), mark=high)
                if progress:
                    progress(high)

    def _ids(self, low: int, end: str, ids: NDArray[Any]) -> NDArray[np.int64]:
        """Return ids as int64."""
        name = "source" if end == "s" else "destination"
        at = checks.first(ids.astype(np.int64, copy=False) < 0)  # those from 2**63 on are negative then
        if at is not None:
            raise InputError(
                f"{self.where}: edge {low + at} has the {name} {ids[at]}; expected 0 .. 2**63 - 1"
            )
        if self._counted and self.nodes is not None:
            at = checks.first(ids >= self.nodes)
            if at is not None:
                raise InputError(
                    f"{self.where}: edge {low + at} has the {name} {ids[at]}; expected 0 .. {self.nodes - 1}, since "
                    f"{self._counted}"
                )
        return np.ascontiguousarray(ids, np.int64)


def pair_of(edges: Array) -> tuple[Array, ...]:
    """Return the ends of edges as `PairedEdges` takes them. edges: integers [2, E] or [E, 2].

    Raises InputError for other types and shapes.
    """
    shape = edges.shape
    if len(shape) != 2 or 2 not in shape or edges.dtype.kind not in "iu":
        raise InputError(f"{edges.where} is {edges}; expected integers [2, edges] or [edges, 2]")
    count = math.prod(shape) // 2
    if (shape[0] == 2) == edges.columns_lie_together:  # the two ends of an edge lie side by side
        return (edges.stored(count, 2),)
    return _Half(edges.flat(), 0, count), _Half(edges.flat(), count, count)


class _Half(Array):
    """Part of an array of one dimension."""

    def __init__(self, array: Array, low: int, length: int) -> None:
        super().__init__(array.where, array.header._replace(shape=(length,)))
        self._array, self._low = array, low

    def stored(self, *shape: int) -> Array:
        if shape != self.shape:
            raise ValueError(f"part of an array is {self.shape}, and not {shape}")
        return self

    def reading(self, low: int = 0) -> AbstractContextManager[Take]:
        return self._array.reading(self._low + low)


class CompressedEdges:
    """An `EdgeStream` over offsets [N+1] and ids [E]: row v lists the sources of edges to v. Marks are entry numbers.

    by_source: row v lists the destinations of edges from v. weight: numbers [E]; data: further arrays [E, ...] by name.
    """

    def __init__(
        self,
        where: str,
        indptr: Array,
        indices: Array,
        *,
        weight: Array | None = None,
        data: Mapping[str, Array] | None = None,
        by_source: bool = False,
    ) -> None:
        self.where, self.total = where, len(indices)
        self.nodes: int | None = len(indptr) - 1
        self._indptr, self._indices, self._by_source = indptr, indices, by_source
        self._weight, self._data = weight, dict(data or {})

    def blocks(self, mark: Any = None, progress: Callable[[int], None] | None = None) -> Iterator[EdgeBlock]:
        """Yield the edges, as `EdgeStream` has it. Raises InputError for wrong offsets, and ids out of range."""
        begin = mark or 0
        with ExitStack() as files:
            take = files.enter_context(self._indices.reading(begin))
            carried = _Carried(files, begin, self._weight, self._data)
            for row, indptr in offsets(self._indptr, self.total):
                for low in range(max(begin, int(indptr[0])), int(indptr[-1]), BLOCK_EDGES):
                    high = min(low + BLOCK_EDGES, int(indptr[-1]))
                    ids = in_range(self._indices, take(high - low), low, len(self._indptr) - 1)
                    rows = row + rows_of(indptr, low, high)
                    ends = (rows, ids) if self._by_source else (ids, rows)
                    yield EdgeBlock(*ends, *carried.next(high - low), mark=high)
                    if progress:
                        progress(high)


class _Carried:
    """Weights and data of edges that are read beside their ends."""

    def __init__(self, files: ExitStack, low: int, weight: Array | None, data: Mapping[str, Array]) -> None:
        self._weight: Take | None = None if weight is None else files.enter_context(weight.reading(low))
        self._data = {name: files.enter_context(each.reading(low)) for name, each in data.items()}

    def next(self, count: int) -> tuple[NDArray[np.float32] | None, dict[str, NDArray[Any]]]:
        """Return those of the next edges, in types that graph files have."""
        with np.errstate(over="ignore"):  # the build refuses what becomes infinite
            weight = None if self._weight is None else self._weight(count).astype(np.float32, copy=False)
            data = {name: carried(take(count)) for name, take in self._data.items()}
        return weight, data


class WithData:
    """An `EdgeStream` that adds arrays [E, ...] by name to the edges of another one, in their order.

    Marks are those of the other stream, with the number of edges before them.
    """

    def __init__(self, stream: EdgeStream, data: Mapping[str, Array]) -> None:
        self.where, self.nodes, self.total = stream.where, stream.nodes, stream.total
        self._stream, self._data = stream, data
        for array in data.values():
            if not array.shape or array.dtype.kind not in "biuf":
                raise InputError(f"{array.where} is {array}; expected numbers [edges, ...]")

    def blocks(self, mark: Any = None, progress: Callable[[int], None] | None = None) -> Iterator[EdgeBlock]:
        """Yield the edges, as `EdgeStream` has it. Raises InputError where their number is not that of the data."""
        of_stream, done = mark or (None, 0)
        with ExitStack() as files:
            carried = _Carried(files, done, None, self._data)
            blocks = self._stream.blocks(of_stream, progress)
            for block in blocks:
                high = done + len(block)
                if any(len(each) < high for each in self._data.values()):
                    self._check(high + sum(map(len, blocks)))
                _, data = carried.next(len(block))
                done = high
                behind = None if block.mark is None else [block.mark, done]
                yield replace(block, data={**block.data, **data}, mark=behind)
        self._check(done)
        self.nodes = self._stream.nodes

    def _check(self, edges: int) -> None:
        for array in self._data.values():
            if len(array) != edges:
                raise InputError(f"{array.where} is of {len(array)} edges; {self.where} lists {edges}")


def carried(values: NDArray[Any]) -> NDArray[Any]:
    """Return data of edges in a type that graph files have."""
    return values.astype(CARRIED.get(values.dtype.name, values.dtype), copy=False)


def offsets(indptr: Array, total: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield (first row, offsets int64 [rows + 1]) in runs of rows.

    Raises InputError unless offsets begin with 0, never decrease and end with ``total``.
    """
    rows = len(indptr) - 1
    where, _, name = indptr.where.rpartition(": ")
    with indptr.reading() as take:
        last = take(1).astype(np.int64)
        for row in range(0, rows, ROWS):
            part = np.concatenate([last, take(min(ROWS, rows - row)).astype(np.int64, copy=False)])
            checks.offsets(where, name, part, row=row, rows=rows, total=total)
            yield row, part
            last = part[-1:]


def in_range(array: Array, ids: NDArray[Any], low: int, limit: int) -> NDArray[np.int64]:
    """Return ids, of entry ``low`` of an array on, as int64. Raises InputError for one that is not below ``limit``."""
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= limit):
        at = checks.first((ids < 0) | (ids >= limit)) or 0
        raise InputError(f"{array.where} has {ids[at]} at entry {low + at}; expected 0 .. {limit - 1}")
    return ids.astype(np.int64, copy=False)


def rows_of(indptr: NDArray[np.int64], low: int, high: int) -> NDArray[np.int64]:
    """Return the row of each of the entries low .. high - 1, which are within ``indptr``."""
    first = int(np.searchsorted(indptr, low, side="right")) - 1
    last = int(np.searchsorted(indptr, high, side="left"))
    ends = np.clip(indptr[first : last + 1], low, high)
    return np.repeat(np.arange(first, last, dtype=np.int64), np.diff(ends))
