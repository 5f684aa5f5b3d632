"""Streams of edges over arrays in files: sources and destinations, or compressed rows; data of edges from arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from .. import checks
from ..edge_stream import EdgeBlock, EdgeStream, Imported
from ..graph import whole_ids
from .npy import NUMBERS, Array, open_array

BLOCK_EDGES = 1 << 20
ROWS = 1 << 20  # number of offsets that are read at a time
STORED_AS = {"float64": np.float32, "bool": np.uint8}  # for dtypes that graph files do not have


def open_edge_arrays(path: Path, *, nodes: int | None = None, counted: str = "") -> Imported:
    """Open a .npy file of edges, an array of integers [2, E] (sources, destinations) or [E, 2], as a stream.

    Args: nodes: number of nodes. [default: the largest id plus one] counted: where ``nodes`` was found, for
    messages.

    Raises InputError for an array of another type or shape. Reading the stream raises it for an id that is not
    an integer.
    """
    name, array = path.name.removesuffix(".npy") or "graph", open_array(path)
    edges = PairedEdges(str(path), ends_of(array), nodes, counted=counted)
    square = f"{path} [2, 2]: the first row has the sources, the second one the destinations"
    from_one = "node 0 has no edge; if the ids begin at 1, subtract 1 from them"
    return Imported(name, edges, directed=None, from_one=from_one, notes=[square] * (array.shape == (2, 2)))


def ends_of(edges: Array) -> tuple[Array, ...]:
    """Return an array of edges as the argument ``ends`` of `PairedEdges`. edges: integers [2, E] or [E, 2].

    Raises InputError for other types and shapes.
    """
    shape = edges.shape
    if len(shape) != 2 or 2 not in shape or edges.dtype.kind not in "iuf":
        raise InputError(f"{edges.where} is {edges}; expected integers [2, edges] or [edges, 2]")
    count = math.prod(shape) // 2
    if (shape[0] == 2) == edges.column_major:  # the two ends of an edge are stored next to each other
        return (edges.stored(count, 2),)
    return edges.stored(count), edges.stored(count, start=count)


class PairedEdges:
    """An `EdgeStream` over two arrays [E], sources and destinations, or over one array [E, 2].

    Marks are edge numbers. Args: nodes: number of nodes. [default: the largest id plus one] weight: numbers
    [E]. data: further arrays [E, ...] by name. counted: where ``nodes`` was found, for the message about an id
    that is too large; if empty, the build raises that error instead of this stream.
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
        self._counted, self._ends, self._weight, self._data = counted, ends, weight, data or {}

    def blocks(self, mark: Any = None, progress: Callable[[int], None] | None = None) -> Iterator[EdgeBlock]:
        """Yield the edges, as `EdgeStream.blocks`. Raises InputError for an invalid id."""
        begin = mark or 0
        with ExitStack() as files:
            ends = [files.enter_context(each.reading(begin)) for each in self._ends]
            data = _EdgeData(files, begin, self._weight, self._data)
            for low in range(begin, self.total, BLOCK_EDGES):
                high = min(low + BLOCK_EDGES, self.total)
                found = [take(high - low) for take in ends]
                sources, destinations = found if len(found) == 2 else found[0].T
                sources = self._checked(low, "source", sources)
                destinations = self._checked(low, "destination", destinations)
                yield EdgeBlock(sources, destinations, **data.take(high - low), mark=high)
                if progress:
                    progress(high)

    def _checked(self, low: int, end: str, ids: NDArray[Any]) -> NDArray[np.int64]:
        """Return ids as int64. Raises InputError for an id that is out of range or not an integer.

        low: number of the first edge. end: "source" or "destination", for messages.
        """
        limit, reason = 2**63, "2**63 - 1"
        ids = whole_ids(f"{self.where}: edge", low, ids, f" has the {end}")
        bad = ids.astype(np.int64, copy=False) < 0  # ids from 2**63 on are negative as int64
        if self._counted and self.nodes is not None and not bad.any():
            limit, reason = self.nodes, f"{self.nodes - 1}, since {self._counted}"
            bad = ids >= limit
        at = checks.first(bad)
        if at is not None:
            raise InputError(f"{self.where}: edge {low + at} has the {end} {ids[at]}; expected 0 .. {reason}")
        return np.ascontiguousarray(ids, np.int64)


class CompressedEdges:
    """An `EdgeStream` over a CSR, offsets [N + 1] and ids [E]: row v lists the sources of edges to v.

    Marks are entry numbers. Args: by_source: True if row v lists the destinations of edges from v instead.
    weight: numbers [E]. data: further arrays [E, ...] by name.
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
        self._weight, self._data = weight, data or {}

    def blocks(self, mark: Any = None, progress: Callable[[int], None] | None = None) -> Iterator[EdgeBlock]:
        """Yield the edges, as `EdgeStream.blocks`. Raises InputError for wrong offsets, and ids out of range."""
        begin = mark or 0
        with ExitStack() as files:
            take = files.enter_context(self._indices.reading(begin))
            data = _EdgeData(files, begin, self._weight, self._data)
            for row, indptr in offset_runs(self._indptr, self.total):
                for low in range(max(begin, int(indptr[0])), int(indptr[-1]), BLOCK_EDGES):
                    high = min(low + BLOCK_EDGES, int(indptr[-1]))
                    ids = in_range(self._indices, take(high - low), low, len(self._indptr) - 1)
                    rows = row + rows_of(indptr, low, high)
                    sources, destinations = (rows, ids) if self._by_source else (ids, rows)
                    yield EdgeBlock(sources, destinations, **data.take(high - low), mark=high)
                    if progress:
                        progress(high)


class WithData:
    """An `EdgeStream` that adds edge data from arrays [E, ...], by name, to the edges of another stream.

    Entry i of an array belongs to the i-th edge. An array named "weight", [E], gives the weights, which the
    other stream must not have then. A mark is [the other stream's mark, number of edges before it].
    """

    def __init__(self, stream: EdgeStream, data: Mapping[str, Array]) -> None:
        self.where, self.nodes, self.total = stream.where, stream.nodes, stream.total
        self._stream, self._arrays, self._weight = stream, data, data.get("weight")
        self._data = {name: array for name, array in data.items() if name != "weight"}
        for array in data.values():
            if not array.shape or array.dtype.kind not in NUMBERS:
                raise InputError(f"{array.where} is {array}; expected numbers [edges, ...]")
        if self._weight is not None and len(self._weight.shape) != 1:
            raise InputError(f"{self._weight.where} is {self._weight}; expected weights [edges]")

    def blocks(self, mark: Any = None, progress: Callable[[int], None] | None = None) -> Iterator[EdgeBlock]:
        """Yield the edges, as `EdgeStream.blocks`. Raises InputError if an array has not one entry per edge."""
        of_stream, done = mark or (None, 0)
        with ExitStack() as files:
            data = _EdgeData(files, done, self._weight, self._data)
            blocks = self._stream.blocks(of_stream, progress)
            for block in blocks:
                if any(len(each) < done + len(block) for each in self._arrays.values()):
                    self._check(done + len(block) + sum(map(len, blocks)))
                if self._weight is not None and block.weight is not None:
                    raise InputError(
                        f"{self.where} has weights, and {self._weight.where} others; give one of them"
                    )
                found = data.take(len(block))
                done += len(block)
                yield replace(
                    block,
                    weight=found["weight"] if block.weight is None else block.weight,
                    data={**block.data, **found["data"]},
                    mark=None if block.mark is None else [block.mark, done],
                    rounded={**block.rounded, **found["rounded"]},
                )
        self._check(done)
        self.nodes = self._stream.nodes

    def _check(self, edges: int) -> None:
        for array in self._arrays.values():
            if len(array) != edges:
                raise InputError(f"{array.where} is of {len(array)} edges; {self.where} lists {edges}")


class NodesOfTable:
    """An `EdgeStream` that checks whether a table of nodes was read with its header as a row.

    It passes on another stream's edges, and compares their largest id with the table's number of rows. table:
    name for messages. rows: number of the table's rows. numbered: True if its first row is 0, 1, 2, ..., the
    header that pandas writes above columns without names. A mark is [the other stream's mark, largest id before
    it].
    """

    def __init__(self, stream: EdgeStream, table: str, rows: int, *, numbered: bool = False) -> None:
        self.where, self.nodes, self.total = stream.where, stream.nodes, stream.total
        self._stream, self._table, self._rows, self._numbered = stream, table, rows, numbered

    def blocks(self, mark: Any = None, progress: Callable[[int], None] | None = None) -> Iterator[EdgeBlock]:
        """Yield the edges, as `EdgeStream.blocks`.

        Raises InputError if the table has exactly one row more than there are nodes or, with ``numbered``, any
        number more.
        """
        if self.nodes not in (None, self._rows):
            self._check(self.nodes)
        of_stream, largest = mark or (None, -1)
        for block in self._stream.blocks(of_stream, progress):
            if len(block):
                largest = max(largest, int(block.sources.max()), int(block.destinations.max()))
            yield replace(block, mark=None if block.mark is None else [block.mark, largest])
        self._check(largest + 1)

    def _check(self, nodes: int) -> None:
        if nodes == self._rows - 1 or (self._numbered and nodes < self._rows):
            raise InputError(
                f"{self._table} has {self._rows} rows, and {self.where} has {nodes} nodes; --header if the first line "
                f"names the columns, --no-header or --nodes {self._rows} if the last nodes have no edges"
            )


class _EdgeData:
    """Reads weights and edge data from arrays, from edge ``low`` on, in the dtypes of graph files."""

    def __init__(self, files: ExitStack, low: int, weight: Array | None, data: Mapping[str, Array]) -> None:
        self._where, self._low = "" if weight is None else weight.where, low
        self._weight = None if weight is None else files.enter_context(weight.reading(low))
        self._data = {name: files.enter_context(each.reading(low)) for name, each in data.items()}

    def take(self, count: int) -> dict[str, Any]:
        """Return weight, data and rounded of `EdgeBlock` for the next ``count`` edges, by these names."""
        given = {name: take(count) for name, take in self._data.items()}
        weight = None if self._weight is None else self._weight(count)
        with np.errstate(over="ignore"):  # the build refuses values that become infinite
            found = {name: each.astype(_stored_as(each), copy=False) for name, each in given.items()}
            single = None if weight is None else self._in_single(weight)
        rounded = {name: count_rounded(given[name], each) for name, each in found.items()}
        if weight is not None and single is not None:
            rounded["weight"] = count_rounded(weight, single)
        return {"weight": single, "data": found, "rounded": rounded}

    def _in_single(self, given: NDArray[Any]) -> NDArray[np.float32]:
        """Return weights as float32. Raises InputError for a weight that is not 0 but becomes 0."""
        weight = given.astype(np.float32, copy=False)
        if weight is not given:
            at = checks.first((weight == 0) & (given != 0))
            if at is not None:
                raise InputError(
                    f"{self._where} has {given[at]} at entry {self._low + at}, which is 0 in single precision"
                )
        self._low += len(given)
        return weight


def count_rounded(given: NDArray[Any], stored: NDArray[Any]) -> int:
    """Return how many integers changed their value when they were converted to a narrower floating-point type.

    given, stored: the numbers before and after the conversion. Infinite and fractional numbers are not counted.
    """
    if stored.dtype.kind != "f" or np.can_cast(given.dtype, stored.dtype) or not given.size:
        return 0
    with np.errstate(invalid="ignore"):
        large = np.isfinite(stored) & ((given > _exact(stored.dtype)) | (given < -_exact(stored.dtype)))
        exact = given[large].astype(np.longdouble)  # holds all of int64
        return int(np.count_nonzero((exact == np.floor(exact)) & (exact != stored[large])))


def _exact(dtype: Any) -> int:
    """Return the number up to which a floating-point type represents every integer."""
    return 2 ** (int(np.finfo(dtype).nmant) + 1)


def rounding(what: str, count: int, dtype: Any = np.float32) -> str:
    """Return the note that ``count`` integers were rounded. what: their name in it, such as "the weights"."""
    verb = "was" if count == 1 else "were"
    return (
        f"{count:,} of {what} {verb} rounded: {np.dtype(dtype)} does not hold all whole numbers beyond "
        f"{_exact(dtype):,}"
    )


def _stored_as(values: NDArray[Any]) -> Any:
    """Return the dtype in which a graph file stores edge data of the dtype of ``values``."""
    return STORED_AS.get(values.dtype.name, values.dtype)


def offset_runs(indptr: Array, total: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Read the offsets of a CSR block by block; yield (first row, int64 [rows + 1]) for each block of rows.

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
    """Return ids as int64, checked to be integers in 0 .. limit - 1. Raises InputError for another one.

    array: where the ids were read, and low: position of ids[0] in it; both are for messages.
    """
    ids = whole_ids(f"{array.where}: entry", low, ids, " is")
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= limit):
        at = checks.first((ids < 0) | (ids >= limit)) or 0
        raise InputError(f"{array.where} has {ids[at]} at entry {low + at}; expected 0 .. {limit - 1}")
    return ids.astype(np.int64, copy=False)


def rows_of(
    indptr: NDArray[np.int64], low: int, high: int, dtype: np.dtype[Any] | type = np.int64
) -> NDArray[Any]:
    """Return the row of each of the entries low .. high - 1. indptr: offsets [rows + 1] of a CSR."""
    first = int(np.searchsorted(indptr, low, side="right")) - 1
    last = int(np.searchsorted(indptr, high, side="left"))
    ends = np.clip(indptr[first : last + 1], low, high)
    return np.repeat(np.arange(first, last, dtype=dtype), np.diff(ends))
