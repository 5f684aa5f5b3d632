"""What one rank sums: its edges split by owner into chunks, and by destination into segments.

MGG (OSDI '23, section 3): each destination's neighbours are divided into local and remote ones, and each group into
neighbour partitions of at most ``ps``. Here a group is a chunk (source rows that become readable together), a
partition is a segment, and schedules only choose the order in which segments are taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .layout import CHUNK, DIRECT, OWNED, SEGMENT
from .ranges import owner_of


@dataclass(frozen=True, eq=False)
class Plan:
    """The workload of one rank, for ``n`` destinations and ``E`` edges.

    chunks: CHUNK [C], the owned rows first, then one for each peer that rows are needed from, by rank.
    segments: SEGMENT [S], by chunk, then destination, then edge. A destination without edges has one of count 0.
    indices: int32 [E], the source's row within its chunk.
    edge: int64 [E], the place of each edge in the CSR that the plan was made from; None where nobody asked.
    halo: the distinct remote rows, int32 offsets into their owners' rows, ascending for each owner.
    halo_bounds: int64 [P + 1]; owner p's part of ``halo`` is halo_bounds[p] .. halo_bounds[p + 1] - 1.
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

    @property
    def edges(self) -> int:
        """Edges summed by this rank."""
        return len(self.indices)

    @cached_property
    def local_edges(self) -> int:
        """Edges whose source this rank owns."""
        owned = self.chunks[0]
        mine = self.segments[owned["first_segment"] : owned["first_segment"] + owned["segments"]]
        return int(mine["count"].sum(dtype=np.int64))

    @property
    def remote_edges(self) -> int:
        """Edges whose source another rank owns."""
        return self.edges - self.local_edges

    @property
    def nbytes(self) -> int:
        """Bytes of the plan's arrays."""
        arrays = (self.chunks, self.segments, self.indices, self.edge, self.halo, self.halo_bounds)
        return sum(array.nbytes for array in arrays if array is not None)

    def csr(self, chunk: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """One chunk's edges as CSR over all destinations: indptr [n + 1], rows within the chunk."""
        first, count = self.chunks[chunk]["first_segment"], self.chunks[chunk]["segments"]
        segments = self.segments[first : first + count]
        degree = np.bincount(segments["destination"], segments["count"], self.destinations).astype(np.int64)
        start = int(segments["first_edge"][0]) if count else 0
        return prefix_sum(degree), self.indices[start : start + int(degree.sum())]


def prefix_sum(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, c0, c0 + c1, ...: int64, one longer than ``counts``."""
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
    """The plan of ``rank``, which owns rows bounds[rank] .. bounds[rank + 1] - 1.

    indptr: int64 [n + 1] and indices [E]: in-edge CSR of the owned rows, global source ids in 0 .. bounds[-1] - 1.
    ps: most edges in one segment. keep_edges: remember each edge's place in the CSR (for weights).
    Vectorised: O(E) time, about 40 bytes an edge while it runs. Raises InputError for a rank of 2^31 rows or more.
    """
    if int(np.diff(bounds).max()) >= 1 << 31:
        raise InputError(
            f"a rank would own {int(np.diff(bounds).max()):,} rows, of at most 2^31 - 1; use more ranks"
        )
    owner: NDArray[np.int64] = owner_of(bounds, indices)
    # The owned chunk comes first, then the peers that rows are needed from, by rank.
    others = np.flatnonzero(np.bincount(owner, minlength=len(bounds) - 1))
    pes = np.append(rank, others[others != rank]).astype(np.int32)
    chunk_of = np.zeros(len(bounds) - 1, dtype=np.int32)
    chunk_of[pes] = np.arange(len(pes))
    chunk = chunk_of[owner]
    if len(pes) > 1:  # sorting 16-bit keys takes linear time
        edge = np.argsort(chunk.astype(np.uint16) if len(pes) < 1 << 16 else chunk, kind="stable")
    else:
        edge = np.arange(len(indices), dtype=np.int64)
    chunk = chunk[edge]
    destination = np.repeat(np.arange(len(indptr) - 1, dtype=np.int32), np.diff(indptr))[edge]
    offset = (indices[edge] - bounds[owner[edge]]).astype(np.int32)
    segments, per_chunk = _segments(chunk, destination, len(pes), np.diff(indptr), ps)

    chunks = np.zeros(len(pes), dtype=CHUNK)
    chunks["kind"] = np.where(pes == rank, OWNED, DIRECT)
    chunks["pe"] = pes
    chunks["rows"] = bounds[pes + 1] - bounds[pes]
    chunks["segments"] = per_chunk
    chunks["first_segment"] = prefix_sum(per_chunk)[:-1]
    halo, halo_bounds = _halo(rank, bounds, pes, np.searchsorted(chunk, np.arange(len(pes) + 1)), offset)
    kept = edge if keep_edges else None
    return Plan(rank, len(indptr) - 1, ps, chunks, segments, offset, kept, halo, halo_bounds)


def rectangular(
    rank: int, indptr: NDArray[np.int64], indices: NDArray[np.int32], columns: int, ps: int
) -> Plan:
    """The plan of a sparse matrix [n, columns] times rows that this rank holds itself: one owned chunk."""
    degree = np.diff(indptr)
    destination = np.repeat(np.arange(len(degree), dtype=np.int32), degree)
    segments, per_chunk = _segments(np.zeros(len(indices), np.int32), destination, 1, degree, ps)
    chunks = np.zeros(1, dtype=CHUNK)
    chunks[0] = (OWNED, rank, 0, columns, 0, per_chunk[0])
    nothing = np.zeros(0, np.int32)
    return Plan(rank, len(degree), ps, chunks, segments, indices, None, nothing, np.zeros(rank + 2, np.int64))


def _segments(
    chunk: NDArray[np.int32],
    destination: NDArray[np.int32],
    chunks: int,
    degree: NDArray[np.int64],
    ps: int,
) -> tuple[NDArray[np.void], NDArray[np.int64]]:
    """Runs of equal (chunk, destination), cut at ``ps`` edges; and how many each chunk has."""
    edges = len(chunk)
    starts = np.ones(edges, dtype=bool)
    starts[1:] = (chunk[1:] != chunk[:-1]) | (destination[1:] != destination[:-1])
    first = np.flatnonzero(starts)
    length = np.diff(np.append(first, edges))
    pieces = -(-length // ps)
    run = np.repeat(np.arange(len(first)), pieces)
    piece = np.arange(len(run)) - np.repeat(prefix_sum(pieces)[:-1], pieces)

    empty = np.flatnonzero(degree == 0)
    segments = np.zeros(len(run) + len(empty), dtype=SEGMENT)
    filled = segments[len(empty) :]
    filled["first_edge"] = first[run] + piece * ps
    filled["count"] = np.minimum(ps, length[run] - piece * ps)
    filled["destination"] = destination[first[run]]
    filled["chunk"] = chunk[first[run]]
    segments["destination"][: len(empty)] = empty  # in the owned chunk, where they are put in order below
    owned = len(empty) + int(np.searchsorted(filled["chunk"], 0, side="right"))
    if len(empty):
        segments[:owned] = segments[:owned][np.argsort(segments["destination"][:owned], kind="stable")]
    return segments, np.bincount(segments["chunk"], minlength=chunks).astype(np.int64)


def _halo(
    rank: int,
    bounds: NDArray[np.int64],
    pes: NDArray[np.int32],
    chunk_edges: NDArray[np.int64],
    offset: NDArray[np.int32],
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The distinct rows of each remote chunk, by marking: O(rows + edges)."""
    counts = np.zeros(len(bounds) - 1, dtype=np.int64)
    parts = [np.zeros(0, dtype=np.int32)]
    for index, pe in enumerate(pes):
        if pe == rank:
            continue
        needed = np.zeros(bounds[pe + 1] - bounds[pe], dtype=bool)
        needed[offset[chunk_edges[index] : chunk_edges[index + 1]]] = True
        rows = np.flatnonzero(needed).astype(np.int32)
        counts[pe] = len(rows)
        parts.append(rows)
    return np.concatenate(parts), prefix_sum(counts)
