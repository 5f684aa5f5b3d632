"""The workload of one rank: its edges split by owner into chunks, and by destination into segments.

MGG (OSDI '23, section 4.1): each destination's neighbours are divided into local and remote ones, and each group into
neighbour partitions of at most ``ps``. Here a group is a chunk (source rows that become readable together), and a
segment has all edges of one destination into it; schedules choose the order of segments, and cut them.
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

CHUNKS = 32  # runs of rows that threads take while a plan is built


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
class SplitEdges:
    """The edges of one rank, divided by the owners of their sources: what its plans are made from.

    destinations: number of the rank's rows, n.
    owners: int32 [C], this rank first, then the rank before it, the one before that, and so on round.
    rows: int64 [C], rows of each owner.
    runs: C pairs of int32 arrays, for each owner the destinations that have edges from it, ascending, and how many.
    empty: int64, destinations without any edge.
    indices: int32 [E], the sources' rows within their owners, by owner, then destination, then place in the CSR.
    edge: int64 [E], the place of each edge in the CSR, or None if it was not asked for.
    halo: the distinct remote rows, int32 offsets into their owners' rows, ascending for each owner.
    halo_bounds: int64 [P + 1]; owner p's part of ``halo`` is halo_bounds[p] .. halo_bounds[p + 1] - 1.
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
    def local_edges(self) -> int:
        """Number of edges whose source this rank owns."""
        return int(self.runs[0][1].sum(dtype=np.int64))

    @property
    def remote_edges(self) -> int:
        """Number of edges whose source another rank owns."""
        return len(self.indices) - self.local_edges

    @property
    def plan_nbytes(self) -> int:
        """Bytes of a plan of these edges and of its schedule."""
        segments = len(self.empty) + sum(len(destinations) for destinations, _ in self.runs)
        return 2 * segments * SEGMENT.itemsize + self.indices.nbytes + self.halo.nbytes


@dataclass(frozen=True, eq=False)
class Plan:
    """The workload of one rank, for ``n`` destinations and ``E`` edges.

    chunks: CHUNK [C], the owned rows first, then one for each peer that rows are needed from (the rank before this
    one, the one before that, and so on round), or one for each round of the halo.
    segments: SEGMENT [S], by chunk, then destination. A destination without edges has one of count 0.
    indices: int32 [E], the source's row within its chunk.
    edge: int64 [E], the place of each edge in the CSR that the plan was made from, or None if it was not asked for.
    halo, halo_bounds: the distinct remote rows, as in `SplitEdges`.
    transfer: how remote rows reach the kernel: "direct" or "get" from their owners, "halo" in rounds (halo.py);
    "none" for a matrix whose rows this rank holds itself. lists: what crosses, with "halo".
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

    def csr(self, chunk: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return one chunk's edges as CSR over all destinations: indptr [n + 1], and rows within the chunk."""
        first, count = self.chunks[chunk]["first_segment"], self.chunks[chunk]["segments"]
        segments = self.segments[first : first + count]
        degree = np.bincount(segments["destination"], segments["count"], self.destinations).astype(np.int64)
        start = int(segments["first_edge"][0]) if count else 0
        return prefix_sum(degree), self.indices[start : start + int(degree.sum())]


def prefix_sum(counts: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return 0, c0, c0 + c1, ...: int64, one longer than ``counts``."""
    total = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=total[1:])
    return total


def build(
    rank: int,
    bounds: NDArray[np.int64],
    indptr: NDArray[np.int64],
    indices: NDArray[np.integer],
    *,
    keep_edges: bool = False,
) -> Plan:
    """Build the plan of a rank that reads remote rows on their owners. Arguments and errors as for `split`."""
    return direct(split(rank, bounds, indptr, indices, keep_edges=keep_edges))


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
    keep_edges: remember each edge's place in the CSR (for weights). finds_halo: False leaves ``halo`` empty.
    Takes O(E) time, and memory for the result alone. Raises InputError for a rank of 2^31 rows or more.
    """
    if int(np.diff(bounds).max()) >= 1 << 31:
        raise InputError(
            f"a rank would own {int(np.diff(bounds).max()):,} rows, of at most 2^31 - 1; use more ranks"
        )
    kernels, ranks = native.load(), len(bounds) - 1
    cuts = row_cuts(indptr)
    edges, runs = np.zeros((2, len(cuts) - 1, ranks), np.int64)
    bounds, indices = np.ascontiguousarray(bounds, np.int64), np.ascontiguousarray(indices)
    kernels.count_owners(bounds, indptr, indices, cuts, edges.reshape(-1), runs.reshape(-1))
    used = [pe for pe in range(ranks) if pe == rank or edges[:, pe].any()]
    # Own rows first, then those of the rank before, and so on in a circle, so that no rank is read first by all.
    owners = np.array(sorted(used, key=lambda pe: (rank - pe) % ranks), dtype=np.int32)
    destinations, counts = np.empty((2, int(runs.sum())), np.int32)
    offsets = np.empty(len(indices), np.int32)
    place = np.empty(len(indices) if keep_edges else 0, np.int64)
    starts = places(edges, owners), places(runs, owners)
    kernels.split_edges(
        bounds,
        indptr,
        indices,
        cuts,
        *(each.reshape(-1) for each in starts),
        offsets,
        destinations,
        counts,
        place,
    )
    ends, run_ends = (np.cumsum(each.sum(axis=0)[owners]) for each in (edges, runs))
    halo = [np.zeros(0, np.int32)] * ranks
    others = zip(owners[1:].tolist(), ends[:-1].tolist(), ends[1:].tolist(), strict=True)
    for pe, first, last in others if finds_halo else ():
        halo[pe] = kernels.distinct_rows(offsets[first:last], int(bounds[pe + 1] - bounds[pe]))
    return SplitEdges(
        rank=rank,
        destinations=len(indptr) - 1,
        owners=owners,
        rows=bounds[owners + 1] - bounds[owners],
        runs=list(zip(*(np.split(each, run_ends[:-1]) for each in (destinations, counts)), strict=True)),
        empty=np.flatnonzero(np.diff(indptr) == 0),
        indices=offsets,
        edge=place if keep_edges else None,
        halo=np.concatenate(halo),
        halo_bounds=prefix_sum(np.array([len(part) for part in halo], dtype=np.int64)),
    )


def row_cuts(indptr: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return cuts of rows, int64 [C + 1], into runs of about as many edges each, which threads take."""
    targets = np.linspace(0, int(indptr[-1]), CHUNKS + 1).astype(np.int64)
    return np.unique(np.append(np.searchsorted(indptr, targets[:-1]), [0, len(indptr) - 1]))


def places(counts: NDArray[np.int64], order: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return where each chunk's entries of each part begin, [C, P], from how many there are; parts lie in an order."""
    total = counts.sum(axis=0)
    first = np.zeros(len(total), np.int64)
    first[order] = prefix_sum(total[order])[:-1]
    return np.ascontiguousarray(first + np.cumsum(counts, axis=0) - counts)


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
    """Build the plan of a sparse matrix [n, columns] times rows that this rank holds itself: one owned chunk."""
    degree = np.diff(indptr)
    filled, empty = np.flatnonzero(degree).astype(np.int32), np.flatnonzero(degree == 0)
    chunks = np.zeros(1, dtype=CHUNK)
    chunks["kind"], chunks["pe"], chunks["rows"] = OWNED, rank, columns
    return Plan(
        rank=rank,
        destinations=len(degree),
        chunks=chunks,
        segments=joined_segments(chunks, [(filled, degree[filled])], empty),
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
    """Return the segments of all chunks, one for each run, and enter their places into ``chunks``.

    runs: for each chunk the destinations that have edges into it, ascending, and how many, in the order of the edges.
    empty: destinations without any edge at all, which get a segment of count 0 in the first chunk. Raises InputError
    for a count that 32 bits do not hold.
    """
    if any(count.max(initial=0) >= 1 << 31 for _, count in runs):
        raise InputError("a row has more than 2^31 - 1 in-edges from one rank; merge its duplicate edges")
    lengths = np.array([len(count) for _, count in runs], dtype=np.int64)
    lengths[0] += len(empty)
    segments = np.zeros(int(lengths.sum()), dtype=SEGMENT)
    chunks["segments"], chunks["first_segment"] = lengths, prefix_sum(lengths)[:-1]
    first_edge = 0
    for chunk, (destination, count) in enumerate(runs):
        mine = segments[chunks["first_segment"][chunk] :][: lengths[chunk]]
        starts = first_edge + prefix_sum(count)
        mine["chunk"], first_edge = chunk, int(starts[-1])
        if chunk == 0 and len(empty):  # both are ascending, and are merged
            filled: Any = np.arange(len(count)) + np.searchsorted(empty, destination)
            mine["destination"][np.arange(len(empty)) + np.searchsorted(destination, empty)] = empty
            mine["first_edge"][filled], mine["destination"][filled], mine["count"][filled] = (
                starts[:-1],
                destination,
                count,
            )
        else:
            mine["first_edge"], mine["destination"], mine["count"] = starts[:-1], destination, count
    return segments
