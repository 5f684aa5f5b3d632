"""The workload of one rank: its edges split by owner into chunks, and by destination into segments.

MGG (OSDI '23, section 4.1): each destination's neighbours are divided into local and remote ones, and each group into
neighbour partitions of at most ``ps``. Here a group is a chunk (source rows that become readable together), a
partition is a segment, and schedules only choose the order in which segments are taken.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .layout import CHUNK, DIRECT, OWNED, SEGMENT
from .ranges import owner_of

BLOCK_EDGES = 1 << 20  # taken at a time while a plan is built


@dataclass(frozen=True, eq=False)
class HaloLists:
    """Rows that cross in one aggregation, for W rounds and P ranks.

    receive_counts: int64 [W, P], rows that come from each rank in each round. They lie in this rank's staging by round,
    then rank, then row.
    send_rows: int32, this rank's rows that others need, by round, then rank. send_counts: int64 [W, P].
    send_places: int64 [W, P], where they begin in the rank's staging, in rows.
    capacity: rows of the largest staging of all ranks. most_sent: rows that a rank sends, at most.
    """

    receive_counts: NDArray[np.int64]
    send_rows: NDArray[np.int32]
    send_counts: NDArray[np.int64]
    send_places: NDArray[np.int64]
    capacity: int
    most_sent: int

    @property
    def rounds(self) -> int:
        """Number of rounds, W."""
        return len(self.receive_counts)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(
            a.nbytes for a in (self.receive_counts, self.send_rows, self.send_counts, self.send_places)
        )


@dataclass(frozen=True, eq=False)
class Plan:
    """The workload of one rank, for ``n`` destinations and ``E`` edges.

    chunks: CHUNK [C], the owned rows first, then one for each peer that rows are needed from: the rank before this
    one, the one before that, and so on round.
    segments: SEGMENT [S], by chunk, then destination, then edge. A destination without edges has one of count 0.
    indices: int32 [E], the source's row within its chunk.
    edge: int64 [E], the place of each edge in the CSR that the plan was made from, or None if it was not asked for.
    halo: the distinct remote rows, int32 offsets into their owners' rows, ascending for each owner.
    halo_bounds: int64 [P + 1]; owner p's part of ``halo`` is halo_bounds[p] .. halo_bounds[p + 1] - 1.
    transfer: how remote rows reach the kernel: "direct" or "get" from their owners, "halo" in rounds (halo.py);
    "none" for a matrix whose rows this rank holds itself. lists: what crosses, with "halo".
    """

    rank: int
    destinations: int
    ps: int
    chunks: NDArray[np.void]
    segments: NDArray[np.void]
    indices: NDArray[np.int32]
    edge: NDArray[np.int64] | None
    halo: NDArray[np.int32]
    halo_bounds: NDArray[np.int64]
    transfer: str = "direct"
    lists: HaloLists | None = None

    @property
    def edges(self) -> int:
        """Number of edges that this rank sums."""
        return len(self.indices)

    @cached_property
    def local_edges(self) -> int:
        """Number of edges whose source this rank owns."""
        owned = self.chunks[0]
        mine = self.segments[owned["first_segment"] : owned["first_segment"] + owned["segments"]]
        return int(mine["count"].sum(dtype=np.int64))

    @property
    def remote_edges(self) -> int:
        """Number of edges whose source another rank owns."""
        return self.edges - self.local_edges

    @property
    def nbytes(self) -> int:
        """Bytes of the plan's arrays."""
        arrays = (self.chunks, self.segments, self.indices, self.edge, self.halo, self.halo_bounds)
        return sum(array.nbytes for array in (*arrays, self.lists) if array is not None)

    def csr(self, chunk: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return one chunk's edges as CSR over all destinations: indptr [n + 1], and rows within the chunk."""
        first, count = self.chunks[chunk]["first_segment"], self.chunks[chunk]["segments"]
        segments = self.segments[first : first + count]
        degree = np.bincount(segments["destination"], segments["count"], self.destinations).astype(np.int64)
        start = int(segments["first_edge"][0]) if count else 0
        return prefix_sum(degree), self.indices[start : start + int(degree.sum())]


def prefix_sum(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return 0, c0, c0 + c1, ...: int64, one longer than ``counts``."""
    total = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=total[1:])
    return total


def build(
    rank: int,
    bounds: NDArray[np.int64],
    indptr: NDArray[np.int64],
    indices: NDArray[np.integer],
    ps: int,
    *,
    keep_edges: bool = False,
) -> Plan:
    """Build the plan of ``rank``, which owns rows bounds[rank] .. bounds[rank + 1] - 1.

    indptr: int64 [n + 1] and indices [E]: in-edge CSR of the owned rows, global source ids in 0 .. bounds[-1] - 1.
    ps: most edges in one segment. keep_edges: remember each edge's place in the CSR (for weights).
    Vectorised, in O(E) time. Raises InputError for a rank of 2^31 rows or more.
    """
    if int(np.diff(bounds).max()) >= 1 << 31:
        raise InputError(
            f"a rank would own {int(np.diff(bounds).max()):,} rows, of at most 2^31 - 1; use more ranks"
        )
    split = _split_by_owner(rank, bounds, indptr, indices, keep_edges)
    used = [pe for pe in range(len(bounds) - 1) if pe == rank or split.offsets[pe]]
    # Own rows first, then those of the rank before, and so on in a circle, so that no rank is read first by all.
    pes = np.array(sorted(used, key=lambda pe: (rank - pe) % (len(bounds) - 1)), dtype=np.int32)
    chunks = np.zeros(len(pes), dtype=CHUNK)
    chunks["kind"] = np.where(pes == rank, OWNED, DIRECT)
    chunks["pe"] = pes
    chunks["rows"] = bounds[pes + 1] - bounds[pes]
    segments, first_edge = [], 0
    for chunk, pe in enumerate(pes):
        destination, count = _joined(split.destinations[pe]), _joined(split.counts[pe])
        empty = np.flatnonzero(np.diff(indptr) == 0) if pe == rank else np.zeros(0, np.int64)
        segments.append(segments_of(chunk, first_edge, destination, count, empty, ps))
        first_edge += int(count.sum(dtype=np.int64))
    chunks["segments"] = [len(part) for part in segments]
    chunks["first_segment"] = prefix_sum(chunks["segments"])[:-1]
    halo = [
        _distinct(_joined(split.offsets[pe]), int(bounds[pe + 1] - bounds[pe])) if pe != rank else _joined([])
        for pe in range(len(bounds) - 1)
    ]
    return Plan(
        rank,
        len(indptr) - 1,
        ps,
        chunks,
        np.concatenate(segments),
        _joined([part for pe in pes for part in split.offsets[pe]]),
        np.concatenate([np.zeros(0, np.int64), *(e for pe in pes for e in split.edges[pe])])
        if keep_edges
        else None,
        _joined(halo),
        prefix_sum(np.array([len(part) for part in halo], dtype=np.int64)),
    )


def rectangular(
    rank: int, indptr: NDArray[np.int64], indices: NDArray[np.int32], columns: int, ps: int
) -> Plan:
    """Build the plan of a sparse matrix [n, columns] times rows that this rank holds itself: one owned chunk."""
    degree = np.diff(indptr)
    filled, empty = np.flatnonzero(degree), np.flatnonzero(degree == 0)
    segments = segments_of(0, 0, filled.astype(np.int32), degree[filled], empty, ps)
    chunks = np.zeros(1, dtype=CHUNK)
    chunks[0] = (OWNED, rank, 0, columns, 0, len(segments))
    nothing = np.zeros(0, np.int32)
    return Plan(
        rank, len(degree), ps, chunks, segments, indices, None, nothing, np.zeros(rank + 2, np.int64), "none"
    )


@dataclass
class _Split:
    """A rank's edges by the rank that owns their source, in pieces: for each of them, arrays in the order of rows.

    offsets: int32, the sources' rows within their owner. edges: int64, places in the CSR, where they were asked for.
    destinations, counts: int32, the rows that have edges from there, and how many.
    """

    offsets: defaultdict[int, list[NDArray[np.int32]]]
    edges: defaultdict[int, list[NDArray[np.int64]]]
    destinations: defaultdict[int, list[NDArray[np.int32]]]
    counts: defaultdict[int, list[NDArray[np.int32]]]


def _split_by_owner(
    rank: int,
    bounds: NDArray[np.int64],
    indptr: NDArray[np.int64],
    indices: NDArray[np.integer],
    keep_edges: bool,
) -> _Split:
    """A block of rows at a time, so that nothing as large as the edges is made but the result."""
    ranks, rows = len(bounds) - 1, len(indptr) - 1
    split = _Split(defaultdict(list), defaultdict(list), defaultdict(list), defaultdict(list))
    low = 0
    while low < rows:
        high = int(np.searchsorted(indptr, indptr[low] + BLOCK_EDGES, side="right")) - 1
        high = min(max(high, low + 1), low + max(1, BLOCK_EDGES // ranks), rows)
        first, last = int(indptr[low]), int(indptr[high])
        owner: NDArray[np.int64] = owner_of(bounds, indices[first:last])
        offset = (indices[first:last] - bounds[owner]).astype(np.int32)
        destination = np.repeat(np.arange(high - low), np.diff(indptr[low : high + 1]))
        count = np.bincount(owner * (high - low) + destination, minlength=ranks * (high - low)).reshape(
            ranks, -1
        )
        # Sorting 16-bit keys takes linear time.
        order = np.argsort(owner.astype(np.uint16) if ranks < 1 << 16 else owner, kind="stable")
        ends = np.cumsum(count.sum(axis=1))
        for pe in np.flatnonzero(np.diff(ends, prepend=0)).tolist():
            mine = order[ends[pe - 1] if pe else 0 : ends[pe]]
            present = np.flatnonzero(count[pe])
            split.offsets[pe].append(offset[mine])
            split.destinations[pe].append((present + low).astype(np.int32))
            split.counts[pe].append(count[pe][present].astype(np.int32))
            if keep_edges:
                split.edges[pe].append(mine + first)
        low = high
    return split


def _joined(parts: list[NDArray[np.int32]]) -> NDArray[np.int32]:
    return np.concatenate([np.zeros(0, np.int32), *parts])


def segments_of(
    chunk: int,
    first_edge: int,
    destination: NDArray[np.int32],
    count: NDArray[Any],
    empty: NDArray[np.int64],
    ps: int,
) -> NDArray[np.void]:
    """One chunk's segments: ``count[i]`` edges of each ``destination[i]``, cut at ``ps``, from ``first_edge`` on.

    Destinations without any edge at all, ``empty``, get one of count 0.
    """
    count = count.astype(np.int64)
    start = first_edge + prefix_sum(count)[:-1]
    pieces = -(-count // ps)
    run = np.repeat(np.arange(len(count)), pieces)
    piece = np.arange(len(run)) - np.repeat(prefix_sum(pieces)[:-1], pieces)
    segments = np.zeros(len(run) + len(empty), dtype=SEGMENT)
    filled = segments[len(empty) :]
    filled["first_edge"] = start[run] + piece * ps
    filled["count"] = np.minimum(ps, count[run] - piece * ps)
    filled["destination"] = destination[run]
    segments["destination"][: len(empty)] = empty
    segments["chunk"] = chunk
    return segments[np.argsort(segments["destination"], kind="stable")] if len(empty) else segments


def _distinct(offsets: NDArray[np.int32], rows: int) -> NDArray[np.int32]:
    """Return the distinct offsets, ascending, by marking: O(rows + edges)."""
    needed = np.zeros(rows, dtype=bool)
    needed[offsets] = True
    return np.flatnonzero(needed).astype(np.int32)
