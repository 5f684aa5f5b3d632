"""The workload of one rank: its edges, divided by source into chunks and by destination into segments.

MGG (OSDI '23, section 4.1) divides the in-neighbours of each destination into local and remote ones, and each group
into neighbour partitions of at most ``ps``. Here a group is a chunk (source rows that become readable together), and a
segment holds all edges from one chunk to one destination. Schedules choose the order of segments, and cut them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data import native
from ..errors import InputError
from .layout import CHUNK, DIRECT, OWNED, SEGMENT

PIECES = 32  # pieces of a rank's rows that threads work on while a plan is built


@dataclass(frozen=True, eq=False)
class HaloLists:
    """Rows that are sent and received in one aggregation, for W rounds and P ranks.

    receive_counts: int64 [W, P], rows that arrive from each rank in each round. They lie in this rank's staging memory
    by round, then rank, then row.
    send_rows: int32, rows of this rank that others need, by round, then rank. send_counts: int64 [W, P].
    send_places: int64 [W, P], the first row of each part in the receiver's staging memory.
    capacity: largest number of rows in any rank's staging memory. most_sent: largest number of rows that a rank sends.
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
class SplitEdges:
    """The edges of one rank, divided by the owners of their sources; plans are made from them.

    destinations: number of the rank's rows, n.
    owners: int32 [C], this rank first, then the rank before it, the one before that, and so on in a circle.
    rows: int64 [C], number of rows of each owner.
    runs: C pairs of int32 arrays, the destinations that have edges from each owner, ascending, and how many edges.
    empty: int64, destinations without any edge.
    indices: int32 [E], rows of the sources within their owners, by owner, then destination, then position in the CSR.
    edge: int64 [E], position of each edge in the CSR, or None if they were not kept.
    halo: distinct remote rows, int32 offsets into their owners' rows, ascending for each owner.
    halo_bounds: int64 [P + 1]; the rows of owner p are ``halo[halo_bounds[p]:halo_bounds[p + 1]]``.
    """

    rank: int
    destinations: int
    owners: NDArray[np.int32]
    rows: NDArray[np.int64]
    runs: list[tuple[NDArray[np.int32], NDArray[np.int32]]]
    empty: NDArray[np.int64]
    indices: NDArray[np.int32]
    edge: NDArray[np.int64] | None
    halo: NDArray[np.int32]
    halo_bounds: NDArray[np.int64]

    @cached_property
    def edge_bounds(self) -> NDArray[np.int64]:
        """Bounds of each owner's edges, int64 [C + 1]."""
        return prefix_sum(np.array([count.sum(dtype=np.int64) for _, count in self.runs]))

    @property
    def local_edges(self) -> int:
        """Number of edges whose source this rank owns."""
        return int(self.edge_bounds[1])

    @property
    def remote_edges(self) -> int:
        """Number of edges whose source another rank owns."""
        return len(self.indices) - self.local_edges

    @property
    def segments(self) -> int:
        """Number of segments of a plan that reads rows on their owners."""
        return len(self.empty) + sum(len(destinations) for destinations, _ in self.runs)

    @property
    def plan_nbytes(self) -> int:
        """Bytes of a plan of these edges and of its schedule."""
        return 2 * self.segments * SEGMENT.itemsize + self.indices.nbytes + self.halo.nbytes


@dataclass(frozen=True, eq=False)
class Plan:
    """The workload of one rank, for ``n`` destinations and ``E`` edges.

    chunks: CHUNK [C], the owned rows first, then one for each peer that rows are needed from (in the order of
    `SplitEdges.owners`), or one for each round of the halo.
    segments: SEGMENT [S], by chunk, then destination. A destination without edges has one of count 0.
    indices: int32 [E], row of each source within its chunk.
    edge: int64 [E], position of each edge in the CSR that the plan was made from, or None if they were not kept.
    halo, halo_bounds: distinct remote rows, as in `SplitEdges`.
    transfer: how kernels reach remote rows: "direct" or "get" from their owners, "halo" in rounds (halo.py), "stream"
    in chunks of a store (grid.py), "none" if this rank holds all rows. lists: rows that are exchanged, for "halo".
    """

    rank: int
    destinations: int
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

    def partitions(self, ps: int) -> tuple[int, int]:
        """Return the numbers of local and remote neighbour partitions of at most ``ps`` edges (MGG, section 4.1).

        A destination without edges counts as one local partition.
        """
        pieces = np.maximum(1, -(-self.segments["count"].astype(np.int64) // ps))
        local = int(self.chunks[0]["segments"])
        return int(pieces[:local].sum()), int(pieces[local:].sum())


def prefix_sum(counts: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return 0, c0, c0 + c1, ...: int64, one longer than ``counts``."""
    total = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=total[1:])
    return total


def split(
    rank: int,
    bounds: NDArray[np.int64],
    indptr: NDArray[np.int64],
    indices: NDArray[np.integer],
    *,
    keep_edges: bool = False,
    finds_halo: bool = True,
) -> SplitEdges:
    """Divide the edges of ``rank``, which owns rows bounds[rank] .. bounds[rank + 1] - 1, by the owners of sources.

    indptr: int64 [n + 1] and indices [E]: in-edge CSR of the owned rows, global source ids in 0 .. bounds[-1] - 1.
    keep_edges: keep the position of each edge in the CSR (for weights). finds_halo: False leaves ``halo`` empty.
    Takes O(E) time, and memory for the result alone. Raises InputError for a rank of 2^31 rows or more.
    """
    if int(np.diff(bounds).max()) >= 1 << 31:
        raise InputError(
            f"a rank would own {int(np.diff(bounds).max()):,} nodes, of at most 2^31 - 1; use more ranks"
        )
    bounds, indices = np.ascontiguousarray(bounds, np.int64), np.ascontiguousarray(indices)
    owners, rows, destinations, counts, run_bounds, edge, halo, halo_bounds = native.load().split_edges(
        rank, bounds, indptr, indices, PIECES, keep_edges, finds_halo
    )
    cuts = run_bounds[1:-1]
    return SplitEdges(
        rank=rank,
        destinations=len(indptr) - 1,
        owners=owners,
        rows=bounds[owners + 1] - bounds[owners],
        runs=list(zip(np.split(destinations, cuts), np.split(counts, cuts), strict=True)),
        empty=np.flatnonzero(np.diff(indptr) == 0),
        indices=rows,
        edge=edge,
        halo=halo,
        halo_bounds=halo_bounds,
    )


def direct(edges: SplitEdges, transfer: str = "direct") -> Plan:
    """Build the plan that reads remote rows on their owners, by "direct" or "get"."""
    chunks = np.zeros(len(edges.owners), dtype=CHUNK)
    chunks["kind"] = np.where(edges.owners == edges.rank, OWNED, DIRECT)
    chunks["pe"], chunks["rows"] = edges.owners, edges.rows
    return Plan(
        rank=edges.rank,
        destinations=edges.destinations,
        chunks=chunks,
        segments=joined_segments(chunks, edges.runs, edges.empty),
        indices=edges.indices,
        edge=edges.edge,
        halo=edges.halo,
        halo_bounds=edges.halo_bounds,
        transfer=transfer,
    )


def rectangular(rank: int, indptr: NDArray[np.int64], indices: NDArray[np.int32], columns: int) -> Plan:
    """Build the plan of a sparse matrix [n, columns] times rows that this rank holds itself."""
    degree = np.diff(indptr)
    filled, empty = np.flatnonzero(degree).astype(np.int32), np.flatnonzero(degree == 0)
    chunk = np.zeros(1, dtype=CHUNK)
    segments = joined_segments(chunk, [(filled, degree[filled])], empty)
    return held_plan(rank, segments, indices, destinations=len(degree), rows=columns)


def held_plan(
    rank: int, segments: NDArray[np.void], indices: NDArray[np.int32], *, destinations: int, rows: int
) -> Plan:
    """Return a plan over ``rows`` rows that this rank holds itself: one owned chunk with all segments."""
    chunks = np.zeros(1, dtype=CHUNK)
    chunks["kind"], chunks["pe"], chunks["rows"], chunks["segments"] = OWNED, rank, rows, len(segments)
    return Plan(
        rank=rank,
        destinations=destinations,
        chunks=chunks,
        segments=segments,
        indices=indices,
        edge=None,
        halo=np.zeros(0, np.int32),
        halo_bounds=np.zeros(rank + 2, np.int64),
        transfer="none",
    )


def joined_segments(
    chunks: NDArray[np.void],
    runs: Sequence[tuple[NDArray[np.integer], NDArray[np.integer]]],
    empty: NDArray[np.int64],
) -> NDArray[np.void]:
    """Return the segments of all chunks, one for each run, and enter their positions into ``chunks``.

    runs: for each chunk the destinations that have edges from it, ascending, and how many, in the order of the edges.
    empty: destinations without any edge at all, which get a segment of count 0 in the first chunk. Raises InputError
    for a count that 32 bits do not hold.
    """
    if any(count.max(initial=0) >= 1 << 31 for _, count in runs):
        raise InputError("a node has more than 2^31 - 1 in-edges from one rank; merge its duplicate edges")
    chunks["segments"] = [len(count) for _, count in runs]
    chunks["segments"][0] += len(empty)
    ends = prefix_sum(chunks["segments"])
    chunks["first_segment"] = ends[:-1]
    segments = np.zeros(int(ends[-1]), dtype=SEGMENT)
    first_edge = 0
    for chunk, (destination, count) in enumerate(runs):
        mine: NDArray[np.void] = segments[ends[chunk] : ends[chunk + 1]]
        filled: Any = slice(None)
        if chunk == 0 and len(empty):  # both are ascending, and are merged
            filled = np.arange(len(count)) + np.searchsorted(empty, destination)
            mine["destination"][np.arange(len(empty)) + np.searchsorted(destination, empty)] = empty
        starts = first_edge + prefix_sum(count)
        mine["chunk"], first_edge = chunk, int(starts[-1])
        for name, values in (("first_edge", starts[:-1]), ("destination", destination), ("count", count)):
            mine[name][filled] = values
    return segments
