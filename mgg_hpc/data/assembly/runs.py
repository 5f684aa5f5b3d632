"""The first half of a build: edges of a stream, gathered in runs that are grouped by buckets of rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from .. import native
from ..edge_stream import EdgeBlock, EdgeStream
from .work import Progress, WorkFolder, read_column

BUCKETS = 4096  # of a run; each has a write position of its own in the caches
NARROW = 2**32  # ids below take 4 bytes in a run
PACKED = 16 << 20  # bytes of edges' data that are put edge by edge at a time
LEAST_EDGES, MOST_EDGES = 1 << 16, 1 << 25  # of a run that is written; larger ones were measured to be slower


@dataclass(frozen=True)
class PayloadLayout:
    """Layout of an edge's data in a run: (name, dtype, shape of one edge) of each array; the weight's name is ""."""

    fields: tuple[tuple[str, str, tuple[int, ...]], ...] = ()

    @staticmethod
    def of(block: EdgeBlock) -> PayloadLayout:
        """Return the layout of a block's data."""
        weight = [] if block.weight is None else [("", "<f4", ())]
        data = [(name, each.dtype.str, tuple(each.shape[1:])) for name, each in sorted(block.data.items())]
        return PayloadLayout((*weight, *data))

    @property
    def width(self) -> int:
        """Bytes of one edge."""
        return sum(math.prod(shape) * np.dtype(dtype).itemsize for _, dtype, shape in self.fields)

    def pack(self, block: EdgeBlock, part: slice) -> NDArray[np.uint8]:
        """Return the bytes of the data of a part of a block, k edges: uint8 [k * width], edge by edge."""
        if not self.fields:
            return np.zeros(0, np.uint8)
        given = [block.weight if not name else block.data[name] for name, _, _ in self.fields]
        arrays = [array[part] for array in given if array is not None]
        columns = [
            np.ascontiguousarray(array, dtype).view(np.uint8).reshape(len(array), -1)
            for array, (_, dtype, _) in zip(arrays, self.fields, strict=True)
        ]
        return np.concatenate(columns, axis=1).reshape(-1)

    def unpack(self, payload: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """Return the arrays [k, ...] by name, from the bytes of k edges."""
        if not self.fields:
            return {}
        rows, at, found = payload.reshape(-1, self.width), 0, {}
        for name, dtype, shape in self.fields:
            size = math.prod(shape) * np.dtype(dtype).itemsize
            column = np.ascontiguousarray(rows[:, at : at + size])
            found[name] = column.reshape(-1).view(dtype).reshape(len(rows), *shape)
            at += size
        return found


@dataclass(frozen=True, eq=False)
class Section:
    """Edges that are grouped by buckets: destinations, sources, payload uint8, offsets int64 [B + 1]."""

    destinations: NDArray[np.unsignedinteger]
    sources: NDArray[np.unsignedinteger]
    payload: NDArray[np.uint8]
    offsets: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Run:
    """A run of ``count`` edges that are grouped by ``key >> shift``; offsets: int64 [B + 1]. In a file, or in memory.

    by_source: the key is the source, of edges to one row; otherwise it is the destination, less ``base``.
    """

    count: int
    shift: int
    base: int
    dtype: np.dtype
    width: int
    offsets: NDArray[np.int64]
    file: Any = None
    held: tuple[NDArray[Any], NDArray[Any], NDArray[np.uint8]] | None = None

    def section(self, low: int, high: int, step: int) -> Section:
        """Return the edges of ``high - low`` coarser buckets, each of ``step`` of this run's, from low * step on."""
        ends = np.minimum(np.arange(low, high + 1) * step, len(self.offsets) - 1)
        offsets = self.offsets[ends]
        first, last = int(offsets[0]), int(offsets[-1])
        return Section(*self.edges(first, last), offsets - first)

    def edges(self, first: int, last: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.uint8]]:
        """Return (destinations, sources, payload) of edges first .. last - 1."""
        if self.held is not None:
            destinations, sources, payload = self.held
            return (
                destinations[first:last],
                sources[first:last],
                payload[first * self.width : last * self.width],
            )
        item = self.dtype.itemsize
        starts = (0, self.count * item, 2 * self.count * item)
        destinations, sources = (
            read_column(self.file, self.dtype, (), each, first, last) for each in starts[:2]
        )
        payload = read_column(
            self.file, np.dtype(np.uint8), (), starts[2], first * self.width, last * self.width
        )
        return destinations, sources, payload

    def describe(self) -> dict[str, Any]:
        """Return what the manifest keeps of a run in a file."""
        facts = {"count": self.count, "shift": self.shift, "dtype": self.dtype.str, "width": self.width}
        return {"file": self.file.name, "offsets": self.offsets.tolist(), **facts}


def described(work: WorkFolder, facts: Mapping[str, Any]) -> Run:
    """Return the run that a manifest describes."""
    offsets = np.array(facts["offsets"], dtype=np.int64)
    dtype = np.dtype(facts["dtype"])
    return Run(facts["count"], facts["shift"], 0, dtype, facts["width"], offsets, work.file(facts["file"]))


def grouped(
    columns: tuple[NDArray[Any], NDArray[Any], NDArray[np.uint8]],
    width: int,
    base: int,
    largest: int,
    *,
    by_source: bool,
) -> Run:
    """Group edges (destinations, sources, payload) by buckets of their key; largest: the largest key."""
    destinations, sources, payload = columns
    keys, others = (sources, destinations) if by_source else (destinations, sources)
    shift = max(0, (largest - base).bit_length() - (BUCKETS - 1).bit_length())
    offsets = np.empty(((largest - base) >> shift) + 2, np.int64)
    out = np.empty_like(keys), np.empty_like(others), np.empty_like(payload)
    native.load().scatter_edges(keys, others, payload, width, base, shift, *out, offsets)
    held = (out[1], out[0], out[2]) if by_source else out
    return Run(len(keys), shift, base, keys.dtype, width, offsets, held=held)


def stored(run: Run, work: WorkFolder, name: str) -> Run:
    """Return the same run, in a file of the folder."""
    assert run.held is not None
    path = work.write(name, list(run.held))
    return Run(run.count, run.shift, run.base, run.dtype, run.width, run.offsets, file=path)


class Gatherer:
    """Gathers a stream's edges in runs of bounded memory. runs: so far. largest: id so far, -1 without edges.

    memory: bytes for a run and its grouped copy. symmetric: add each edge's reverse. loops: keep self loops.
    """

    def __init__(self, work: WorkFolder, memory: int, *, symmetric: bool, loops: bool) -> None:
        self._work, self._memory, self._symmetric, self._loops = work, memory, symmetric, loops
        self.runs: list[Run] = []
        self.layout: PayloadLayout | None = None
        self.largest, self.listed = -1, 0
        self._dtype: np.dtype = np.dtype(np.uint32)
        self._at, self._columns = 0, self._room(0)

    def gather(self, stream: EdgeStream, progress: Progress) -> None:
        """Take all edges of a stream, from where an earlier process was. Raises InputError for an id out of range."""
        state = self._work.state
        if state.get("runs") is not None:
            self.runs = [described(self._work, facts) for facts in state["runs"]]
            self.largest, self.listed = state["largest"], state["listed"]
            self.layout = PayloadLayout(
                tuple((name, dtype, tuple(shape)) for name, dtype, shape in state["layout"])
            )
        if state.get("gathered"):
            return

        def report(done: int) -> None:
            progress("reading", done, stream.total)

        mark = state.get("mark")
        for block in stream.blocks(mark, report):
            if len(block):
                self._take(stream, block)
            mark = block.mark
        if self.runs or (self._at and self._work.made):
            self._flush(None, last=True)
        elif self._at:  # all edges fit: nothing has to be written
            self.runs.append(self._grouped())
        self._columns = self._room(0)
        if self._work.made and self.runs and self.runs[0].held is None:
            self._work.keep(gathered=True)

    def _take(self, stream: EdgeStream, block: EdgeBlock) -> None:
        layout = PayloadLayout.of(block)
        if self.layout is None:
            self.layout = layout
        elif self.layout != layout:
            raise InputError(f"{stream.where}: the data of its edges changes behind edge {self.listed}")
        self.largest = max(self.largest, _checked(stream, block, self.listed))
        if self.largest >= NARROW and self._dtype.itemsize == 4:
            self._flush(None)
            self._dtype = np.dtype(np.uint64)
        sources, destinations = _plain(block.sources, block.destinations)
        copies, done = 2 if self._symmetric else 1, 0
        packed = max(1, PACKED // max(1, layout.width))
        while done < len(block):
            if not len(self._columns[0]):
                self._columns = self._room(layout.width)
            count = min(len(block) - done, packed, (len(self._columns[0]) - self._at) // copies)
            part = slice(done, done + count)
            self._at = native.load().append_edges(
                sources[part],
                destinations[part],
                layout.pack(block, part),
                self._at,
                *self._columns,
                layout.width,
                self._symmetric,
                not self._loops,
            )
            done += count
            if done < len(block) and len(self._columns[0]) - self._at < copies:
                self._flush(None)  # within a block, from where no stream can go on
        self.listed += len(block)
        if len(self._columns[0]) - self._at < 2 * copies * len(block):
            self._flush(block.mark)  # before the next block might not fit

    def _room(self, width: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.uint8]]:
        """Return empty columns of a run; of no length before the first block."""
        edges = self._memory // (2 * (2 * self._dtype.itemsize + width)) if self.layout is not None else 0
        edges = min(max(edges, LEAST_EDGES), MOST_EDGES) if self.layout is not None else 0
        return np.empty(edges, self._dtype), np.empty(edges, self._dtype), np.empty(edges * width, np.uint8)

    def _grouped(self) -> Run:
        width = self.layout.width if self.layout is not None else 0
        sources, destinations, payload = self._columns
        columns = destinations[: self._at], sources[: self._at], payload[: self._at * width]
        return grouped(columns, width, 0, max(self.largest, 0), by_source=False)

    def _flush(self, mark: Any, *, last: bool = False) -> None:
        """Write the edges so far as a run. mark: from where the stream goes on behind them, if it can."""
        if self._at:
            self.runs.append(stored(self._grouped(), self._work, f"run{len(self.runs)}"))
            self._at = 0
        if (mark is not None or last) and self.layout is not None:
            self._work.keep(
                runs=[run.describe() for run in self.runs],
                largest=self.largest,
                listed=self.listed,
                layout=[list(each) for each in self.layout.fields],
                mark=mark,
            )
        self._columns = self._room(self.layout.width if self.layout is not None else 0)


def _plain(*ends: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """Return ids in one of the types that the native module takes, the same for both ends."""
    kind = ends[0].dtype
    same = all(ids.dtype == kind for ids in ends) and kind in (np.int32, np.int64, np.uint32)
    return tuple(np.ascontiguousarray(ids, kind if same else np.int64) for ids in ends)


def _checked(stream: EdgeStream, block: EdgeBlock, listed: int) -> int:
    """Return the largest id of a block. Raises InputError for one that is negative, or no node."""
    largest, limit = -1, 2**63 if stream.nodes is None else stream.nodes
    for ids in (block.sources, block.destinations):
        high = int(ids.max())
        if int(ids.min()) < 0 or high >= limit:
            at = int(np.flatnonzero((ids < 0) | (ids.astype(np.uint64) >= limit))[0])
            expected = "0 or more" if stream.nodes is None else f"0 .. {limit - 1}"
            raise InputError(
                f"{stream.where}: edge {listed + at} has the node id {ids[at]}; expected {expected}"
            )
        largest = max(largest, high)
    return largest
