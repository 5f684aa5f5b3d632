"""First half of a build: gather a stream's edges in runs, each grouped by ranges of destinations (buckets)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from .. import native, symmetry
from ..edge_stream import EdgeBlock, EdgeStream
from .work import Progress, WorkFolder, read_column

BUCKETS = 4096  # per run: few enough that the caches hold the write position of each
NARROW = 2**32  # a run stores ids below this in 4 bytes
PACKED = 16 << 20  # bytes of weights and edge data that are packed at a time
LEAST_EDGES, MOST_EDGES = 1 << 16, 1 << 25  # per run that is written; larger ones were measured to be slower
WEIGHT = "weight"  # name of the weight in `data_type`; no edge data has this name
NO_DATA = np.dtype([])

Columns = tuple[NDArray[Any], NDArray[Any], NDArray[np.uint8]]  # destinations, sources, packed data


def data_type(block: EdgeBlock) -> np.dtype[Any]:
    """Return the structured dtype of one edge's weight and data. Its itemsize is 0 if edges have neither."""
    weight = [] if block.weight is None else [(WEIGHT, "<f4", ())]
    data = [(name, each.dtype.str, each.shape[1:]) for name, each in sorted(block.data.items())]
    return np.dtype([*weight, *data])


def packed(block: EdgeBlock, part: slice, dtype: np.dtype[Any]) -> NDArray[np.uint8]:
    """Return weights and data of k edges of a block as consecutive records: uint8 [k * dtype.itemsize].

    part: slice of the block's edges. dtype: `data_type` of the block.
    """
    rows = np.empty(part.stop - part.start, dtype)
    for name in dtype.names or ():
        values = block.weight if name == WEIGHT else block.data[name]
        assert values is not None
        rows[name] = values[part]
    return rows.view(np.uint8) if dtype.itemsize else np.empty(0, np.uint8)


def unpacked(data: NDArray[np.uint8], dtype: np.dtype[Any]) -> dict[str, NDArray[Any]]:
    """Return the weights and data of k edges as arrays [k, ...] by name: the inverse of `packed`.

    data: uint8 [k * dtype.itemsize]. dtype: `data_type` of the edges.
    """
    if not dtype.itemsize:
        return {}
    rows: Any = data.view(dtype)
    return {name: np.ascontiguousarray(rows[name]) for name in dtype.names or ()}


@dataclass(frozen=True, eq=False)
class Run:
    """Edges grouped into B buckets, in memory (``held``) or in a file.

    An edge belongs to the bucket (key - base) >> shift. The key is the destination, or the source for the edges
    of one row that do not fit into memory. Base is the lower bound of the run's keys.

    Fields: offsets: int64 [B + 1], bounds of the buckets. dtype: dtype of ids. width: bytes of an edge's packed
    data.
    """

    shift: int
    offsets: NDArray[np.int64]
    dtype: np.dtype[Any]
    width: int
    file: Path | None = None
    held: Columns | None = None

    @property
    def count(self) -> int:
        """Number of edges."""
        return int(self.offsets[-1])

    def starts(self, buckets: Any, shift: int) -> NDArray[np.int64]:
        """Return the number of the first edge of each of ``buckets``, which are 2**shift keys wide.

        shift: at least the run's own. For buckets after the run's last one this is its number of edges.
        """
        buckets = np.asarray(buckets) << (shift - self.shift)
        return self.offsets[np.minimum(buckets, len(self.offsets) - 1)]

    def section(self, low: int, high: int, shift: int) -> tuple[Columns, NDArray[np.int64]]:
        """Return the edges of buckets low .. high - 1 of 2**shift keys, and their bounds [high - low + 1]."""
        offsets = self.starts(np.arange(low, high + 1), shift)
        return self.edges(int(offsets[0]), int(offsets[-1])), offsets - offsets[0]

    def edges(self, first: int, last: int) -> Columns:
        """Return destinations, sources and packed data of edges first .. last - 1."""
        part, of_data = slice(first, last), slice(first * self.width, last * self.width)
        if self.held is not None:
            return self.held[0][part], self.held[1][part], self.held[2][of_data]
        assert self.file is not None
        size = self.count * self.dtype.itemsize
        return (
            read_column(self.file, self.dtype, (), 0, first, last),
            read_column(self.file, self.dtype, (), size, first, last),
            read_column(self.file, np.dtype(np.uint8), (), 2 * size, of_data.start, of_data.stop),
        )

    def stored(self, work: WorkFolder, name: str) -> Run:
        """Write a run that is in memory to a new file of the folder, and return it as a run in that file."""
        assert self.held is not None
        return Run(self.shift, self.offsets, self.dtype, self.width, work.write(name, self.held))

    def describe(self) -> dict[str, Any]:
        """Return the manifest's entry for a run in a file, from which `described` opens it again."""
        assert self.file is not None
        facts = {"shift": self.shift, "dtype": self.dtype.str, "width": self.width}
        return {"file": self.file.name, "offsets": self.offsets.tolist(), **facts}


def described(work: WorkFolder, facts: Mapping[str, Any]) -> Run:
    """Return the run in a file from ``facts``, its entry in the manifest, which `Run.describe` made."""
    offsets = np.array(facts["offsets"], dtype=np.int64)
    return Run(facts["shift"], offsets, np.dtype(facts["dtype"]), facts["width"], work.file(facts["file"]))


def grouped(columns: Columns, width: int, base: int, largest: int, *, by_source: bool = False) -> Run:
    """Return edges grouped into buckets of their keys, base .. largest, as a run in memory.

    width: bytes of an edge's packed data. by_source: take sources as keys instead of destinations.
    """
    destinations, sources, data = columns
    keys, others = (sources, destinations) if by_source else (destinations, sources)
    shift = max(0, (largest - base).bit_length() - (BUCKETS - 1).bit_length())
    offsets = np.empty(((largest - base) >> shift) + 2, np.int64)
    out = np.empty_like(keys), np.empty_like(others), np.empty_like(data)
    native.load().scatter_edges(keys, others, data, width, base, shift, *out, offsets)
    held = (out[1], out[0], out[2]) if by_source else out
    return Run(shift, offsets, keys.dtype, width, held=held)


class Gatherer:
    """Gathers a stream's edges in runs of bounded size; if there are several, writes them to the work folder.

    Args: memory: bytes for a run and its grouped copy. symmetric: True to add each edge's reverse. loops: True
    to keep self loops. detect: True to compute ``imbalance``. check: called once with the edges' `data_type`
    before any is gathered; may raise InputError.

    Attributes: runs: runs so far. listed: number of edges read from the stream so far. smallest, largest:
    smallest and largest id so far, -1 before the first edge. dtype: `data_type` of the edges, None before the
    first. imbalance: sum of `symmetry.imbalance` over the listed edges, without the reverses that were added.
    rounded: sum of `EdgeBlock.rounded` so far.
    """

    def __init__(
        self,
        work: WorkFolder,
        memory: int,
        *,
        symmetric: bool,
        loops: bool,
        detect: bool,
        check: Callable[[np.dtype[Any]], None],
    ) -> None:
        self._work, self._memory, self._symmetric, self._loops = work, memory, symmetric, loops
        self._detect, self._check = detect, check
        self.runs: list[Run] = []
        self.rounded = Counter[str]()
        self.dtype: np.dtype[Any] | None = None
        self.smallest, self.largest, self.listed, self.imbalance = -1, -1, 0, 0
        self._ids: np.dtype[Any] = np.dtype(np.uint32)
        self._at, self._columns = 0, self._room()

    def gather(self, stream: EdgeStream, progress: Progress) -> None:
        """Read all edges of a stream, or those that an earlier, interrupted build had not written.

        Raises InputError for an id out of range.
        """
        state = self._work.state
        if state.get("runs") is not None:
            self.runs = [described(self._work, facts) for facts in state["runs"]]
            self.smallest, self.largest, self.listed = state["smallest"], state["largest"], state["listed"]
            self.rounded, self.imbalance = Counter(state["rounded"]), state["imbalance"]
            self.dtype = np.dtype([(name, kind, tuple(shape)) for name, kind, shape in state["data"]])
        if state.get("gathered"):
            return

        def report(done: int) -> None:
            progress("reading", done, stream.total)

        for block in stream.blocks(state.get("mark"), report):
            if len(block):
                self._take(stream, block)
        if self.runs or (self._at and self._work.made):
            self._flush(None, last=True)
        elif self._at:  # all edges fit: nothing has to be written
            self.runs.append(self._grouped())
        self._columns = self._room()  # frees the edges
        if self._work.made and self.runs and self.runs[0].held is None:
            self._work.keep(gathered=True)

    def _take(self, stream: EdgeStream, block: EdgeBlock) -> None:
        dtype = data_type(block)
        if self.dtype is None:
            self._check(dtype)
            self.dtype = dtype
        elif self.dtype != dtype:
            raise InputError(f"{stream.where}: the data of its edges changes after edge {self.listed}")
        smallest, largest = _checked(stream, block, self.listed)
        self.smallest = min(self.smallest, smallest) if self.listed else smallest
        self.largest = max(self.largest, largest)
        if self.largest >= NARROW and self._ids.itemsize == 4:
            self._flush(None)
            self._ids = np.dtype(np.uint64)
        sources, destinations = _plain(block.sources, block.destinations)
        if self._detect:
            ends = destinations.astype(np.int64, copy=False), sources.astype(np.int64, copy=False)
            self.imbalance += symmetry.imbalance(symmetry.EdgeSlice(*ends, block.weight))
            self.imbalance %= 2**64
        copies, done = 2 if self._symmetric else 1, 0
        most = max(1, PACKED // max(1, dtype.itemsize))
        while done < len(block):
            if not len(self._columns[0]):
                self._columns = self._room()
            count = min(len(block) - done, most, (len(self._columns[0]) - self._at) // copies)
            part = slice(done, done + count)
            edges = sources[part], destinations[part], packed(block, part, dtype)
            rules = dtype.itemsize, self._symmetric, not self._loops
            self._at = native.load().append_edges(*edges, self._at, *self._columns, *rules)
            done += count
            if done < len(block) and len(self._columns[0]) - self._at < copies:
                self._flush(None)  # within a block, from where no stream can go on
        self.listed += len(block)
        self.rounded.update(block.rounded)
        if len(self._columns[0]) - self._at < 2 * copies * len(block):
            self._flush(block.mark)  # before the next block might not fit

    def _room(self) -> Columns:
        """Return uninitialised sources, destinations and packed data for a run; empty before any block."""
        edges, width = 0, 0
        if self.dtype is not None:
            width = self.dtype.itemsize
            edges = self._memory // (2 * (2 * self._ids.itemsize + width))
            edges = min(max(edges, LEAST_EDGES), MOST_EDGES)
        return np.empty(edges, self._ids), np.empty(edges, self._ids), np.empty(edges * width, np.uint8)

    def _grouped(self) -> Run:
        width = 0 if self.dtype is None else self.dtype.itemsize
        sources, destinations, data = self._columns
        columns = destinations[: self._at], sources[: self._at], data[: self._at * width]
        return grouped(columns, width, 0, max(self.largest, 0))

    def _flush(self, mark: Any, *, last: bool = False) -> None:
        """Write the edges in memory to a file as a run, and record in the manifest how far the stream was read.

        mark: `EdgeBlock.mark` from which a later build can continue; None writes no manifest, unless ``last``.
        last: True after the stream's last edge.
        """
        if self._at:
            self.runs.append(self._grouped().stored(self._work, f"run{len(self.runs)}"))
            self._at = 0
        if (mark is not None or last) and self.dtype is not None:
            fields: Mapping[str, Any] = self.dtype.fields or {}
            self._work.keep(
                runs=[run.describe() for run in self.runs],
                smallest=self.smallest,
                largest=self.largest,
                listed=self.listed,
                imbalance=self.imbalance,
                rounded=self.rounded,
                data=[[name, each[0].base.str, list(each[0].shape)] for name, each in fields.items()],
                mark=mark,
            )
        self._columns = self._room()


def _plain(*ends: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """Return ids as contiguous arrays of one dtype that the native module supports: int32, int64 or uint32."""
    kind = ends[0].dtype
    same = all(ids.dtype == kind for ids in ends) and kind in (np.int32, np.int64, np.uint32)
    return tuple(np.ascontiguousarray(ids, kind if same else np.int64) for ids in ends)


def _checked(stream: EdgeStream, block: EdgeBlock, listed: int) -> tuple[int, int]:
    """Return the smallest and the largest id of a block. Raises InputError for an id out of range.

    listed: number of the block's first edge in the stream, for the error message.
    """
    smallest, largest, limit = 2**63, -1, 2**63 if stream.nodes is None else stream.nodes
    for ids in (block.sources, block.destinations):
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= limit:
            at = int(np.flatnonzero((ids < 0) | (ids.astype(np.uint64) >= limit))[0])
            expected = "0 or more" if stream.nodes is None else f"0 .. {limit - 1}"
            raise InputError(
                f"{stream.where}: edge {listed + at} has the node id {ids[at]}; expected {expected}"
            )
        smallest, largest = min(smallest, low), max(largest, high)
    return smallest, largest
