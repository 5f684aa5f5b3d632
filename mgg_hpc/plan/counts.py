"""Count what each rank of a job would sum and move, from one rank's slice of the graph at a time.

No plan is built: counts are taken from the edges themselves, in time and memory of one rank's slice and, where that has
more edges than the graph has nodes, of one number for each node. They equal what plans and transports count
(`workload.split`, `halo.in_rounds`, `Meter`), which tests check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from . import halo
from .layout import SEGMENT
from .ranges import owner_of

PACKET_BYTES = (
    128 << 10
)  # most that a message of a halo holds (cuda/runtime/halo_exchange.h; halo_schedule.CHUNK_BYTES)
SAMPLED = 1 << 18  # edges of a rank whose reuse is measured
MARKED = 8  # marks are used up to this many for each edge; beyond, sorting takes less

Slice = tuple[NDArray[np.int64], NDArray[np.integer]]


@dataclass(frozen=True)
class Reuse:
    """The mean number of distinct rows that a run of edges reads, for runs of several lengths.

    lengths: float64 [K], edges of a run, ascending, the last one all of the rank's. distinct: float64 [K].

    The share of edges whose row was last read long ago is the slope of this curve (Denning, "The working set model for
    program behavior", CACM 1968): what a cache of so many rows misses.
    """

    lengths: NDArray[np.float64]
    distinct: NDArray[np.float64]

    def beyond(self, rows: float) -> float:
        """Return the share of edges whose row was last read more than ``rows`` distinct rows ago."""
        edges, most = self.lengths[-1], self.distinct[-1]
        if rows >= most or not edges:
            return 0.0
        slopes = np.diff(self.distinct, prepend=0) / np.diff(self.lengths, prepend=0)
        at = int(np.searchsorted(self.distinct, rows, side="right"))
        # A row that is read for the first time in a pass was last read in the pass before.
        return float(np.clip(slopes[min(at, len(slopes) - 1)], most / edges, 1.0))


@dataclass(frozen=True, eq=False)
class RankCounts:
    """One rank's part of an aggregation over P ranks, with a halo in W rounds.

    rows: of the rank. edges: int64 [P], by the owner of the source. halo: int32 [W, P], distinct remote rows by round
    and owner. uses: int64 [2, K]: numbers of edges that use a remote row, and how many rows have each of them.
    segments: of a plan by "direct" or "get", and by "halo". reuse: of all rows that the edges read.
    """

    rank: int
    rows: int
    edges: NDArray[np.int64]
    halo: NDArray[np.int32]
    uses: NDArray[np.int64]
    segments: dict[str, int]
    reuse: Reuse

    @property
    def local_edges(self) -> int:
        """Number of edges whose source this rank owns."""
        return int(self.edges[self.rank])

    @property
    def remote_edges(self) -> int:
        """Number of edges whose source another rank owns."""
        return int(self.edges.sum()) - self.local_edges

    @property
    def halo_rows(self) -> int:
        """Number of distinct remote rows."""
        return int(self.halo.sum())

    def plan_nbytes(self, transfer: str) -> tuple[int, int]:
        """Return the bytes of a plan's segments, and of its indices and halo."""
        return self.segments[transfer] * SEGMENT.itemsize, 4 * (int(self.edges.sum()) + self.halo_rows)


@dataclass(frozen=True, eq=False)
class Traffic:
    """Counts of the rows that all ranks move in one aggregation. ranks: one entry for each rank, in order."""

    ranks: Sequence[RankCounts]

    @property
    def rounds(self) -> int:
        """Number of rounds of a halo."""
        return len(self.ranks[0].halo)

    def sent(self) -> NDArray[np.int64]:
        """Return the rows that each rank pushes in a halo, int64 [P]."""
        return np.sum([each.halo.sum(axis=0, dtype=np.int64) for each in self.ranks], axis=0)

    def rows(self, transfer: str) -> NDArray[np.int64]:
        """Return the remote rows that each rank counts, int64 [P]: those of its edges, or that it pushes in a halo."""
        if transfer == "halo":
            return self.sent()
        return np.array([each.remote_edges for each in self.ranks], dtype=np.int64)

    def messages(self, transfer: str, row_bytes: int) -> NDArray[np.int64]:
        """Return the messages that each rank sends or asks for, int64 [P]: packets of a halo, or a row each."""
        if transfer == "direct":
            return np.zeros(len(self.ranks), dtype=np.int64)
        if transfer == "get":
            return self.rows("get")
        each = max(1, PACKET_BYTES // row_bytes)
        return np.sum([(-(-part.halo.astype(np.int64) // each)).sum(axis=0) for part in self.ranks], axis=0)

    def peers(self) -> NDArray[np.int64]:
        """Return from how many ranks each rank needs rows, int64 [P]."""
        return np.array([np.count_nonzero(each.halo.any(axis=0)) for each in self.ranks], dtype=np.int64)

    def between(self, ranks_a_node: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (edges, halo rows) of each rank whose owner is on another node, int64 [P] each."""
        node = np.arange(len(self.ranks)) // ranks_a_node
        far = [node != node[each.rank] for each in self.ranks]
        edges = [int(each.edges[there].sum()) for each, there in zip(self.ranks, far, strict=True)]
        rows = [int(each.halo[:, there].sum()) for each, there in zip(self.ranks, far, strict=True)]
        return np.array(edges, dtype=np.int64), np.array(rows, dtype=np.int64)


def of_all_ranks(
    bounds: NDArray[np.int64], read: Callable[[int], Slice], rounds: int | None = None
) -> Traffic:
    """Count every rank's part, one after another.

    read: returns a rank's in-edge CSR (indptr int64 [n + 1] from 0, indices [E] global). It may be called twice for a
    rank of a small halo. rounds: of a halo; None: by the largest one, as ranks on CPUs do.
    """
    ranks = len(bounds) - 1
    count, found = rounds or 1, []
    for rank in range(ranks):
        made = of_rank(rank, bounds, *read(rank), rounds=rounds)
        count = max(count, len(made.halo))
        found.append(made)
    # Ranks counted before the largest halo was known may have taken fewer rounds.
    for rank, made in enumerate(found):
        if len(made.halo) != count:
            found[rank] = of_rank(rank, bounds, *read(rank), rounds=count)
    return Traffic(found)


def of_rank(
    rank: int,
    bounds: NDArray[np.int64],
    indptr: NDArray[np.int64],
    indices: NDArray[np.integer],
    *,
    rounds: int | None = None,
) -> RankCounts:
    """Count one rank's part. Arrays as for `workload.split`. rounds: of its halo; None: as its size asks for."""
    ranks, first, last = len(bounds) - 1, int(bounds[rank]), int(bounds[rank + 1])
    sources, used = _distinct(indices, int(bounds[-1]))
    owner = owner_of(bounds, sources)
    edges = np.bincount(owner, used, minlength=ranks).astype(np.int64)
    remote = (sources < first) | (sources >= last)
    rows, uses = sources[remote], used[remote]
    count = rounds or halo.round_count(len(rows))
    round_of = halo.rounds_of(uses, count)
    by_round = np.bincount(round_of * ranks + owner[remote], minlength=count * ranks).reshape(count, ranks)
    values = np.bincount(uses) if len(uses) else np.zeros(0, np.int64)
    present = np.flatnonzero(values)
    return RankCounts(
        rank=rank,
        rows=last - first,
        edges=edges,
        halo=by_round.astype(np.int32),
        uses=np.array([present, values[present]], dtype=np.int64),
        segments=_segments(rank, bounds, indptr, indices, rows, round_of, count),
        reuse=reuse_of(indices, len(sources)),
    )


def of_transposed(bounds: NDArray[np.int64], read: Callable[[int], Slice], forward: Traffic) -> Traffic:
    """Count every rank's part over the reversed edges of a directed graph, whose forward counts are given.

    Edges and rows are exact. Not so the order in which rows are read, for which the forward's stands; the rows of a
    pair of ranks by round, which are taken as equally many in each, so that messages of a halo may be off by a few; and
    the segments of a halo, which are counted by owner and not by round.
    """
    ranks, rounds = len(bounds) - 1, forward.rounds
    edges, distinct = np.zeros((ranks, ranks), np.int64), np.zeros((ranks, ranks), np.int64)
    segments, summed = np.zeros(ranks, np.int64), np.zeros(int(bounds[-1]), dtype=bool)
    uses: list[list[NDArray[np.int64]]] = [[] for _ in range(ranks)]
    for rank in range(ranks):
        indptr, indices = read(rank)
        owner = owner_of(bounds, indices)
        summed[indices] = True
        pairs, often = np.unique(
            owner * (len(indptr) - 1) + np.repeat(np.arange(len(indptr) - 1), np.diff(indptr)),
            return_counts=True,
        )
        edges[:, rank] = np.bincount(owner, minlength=ranks)
        of_pair = pairs // max(1, len(indptr) - 1)
        distinct[:, rank] = np.bincount(of_pair, minlength=ranks)
        segments += np.bincount(owner_of(bounds, _distinct(indices, int(bounds[-1]))[0]), minlength=ranks)
        for other in np.flatnonzero(distinct[:, rank]).tolist():
            if other != rank:
                uses[other].append(np.array(np.unique(often[of_pair == other], return_counts=True)))
    np.fill_diagonal(distinct, 0)
    empty = np.add.reduceat(np.append(~summed, False).astype(np.int64), bounds[:-1]) * (np.diff(bounds) > 0)
    found = []
    for rank, same in enumerate(forward.ranks):
        share = (distinct[rank] * np.arange(1, rounds + 1)[:, None]) // rounds
        several = int(empty[rank] + segments[rank])
        found.append(
            RankCounts(
                rank=rank,
                rows=same.rows,
                edges=edges[rank],
                halo=np.diff(share, axis=0, prepend=0).astype(np.int32),
                uses=np.concatenate([np.zeros((2, 0), np.int64), *uses[rank]], axis=1),
                segments=dict.fromkeys(same.segments, several),
                reuse=same.reuse,
            )
        )
    return Traffic(found)


def _distinct(indices: NDArray[np.integer], nodes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct values, ascending, and how often each occurs, int64 both."""
    if nodes > MARKED * len(indices):
        values, often = np.unique(indices, return_counts=True)
        return values.astype(np.int64), often.astype(np.int64)
    often = np.bincount(indices, minlength=nodes)
    values = np.flatnonzero(often)
    return values, often[values]


def _segments(
    rank: int,
    bounds: NDArray[np.int64],
    indptr: NDArray[np.int64],
    indices: NDArray[np.integer],
    rows: NDArray[np.int64],
    round_of: NDArray[np.int64],
    rounds: int,
) -> dict[str, int]:
    """Return the number of segments of a plan by each transfer: of destinations and chunks that share edges.

    rows: the halo, ascending global numbers, and round_of the round of each.
    """
    degree = np.diff(indptr)
    destination = np.repeat(np.arange(len(degree)), degree)
    if bounds[-1] <= MARKED * len(indices):  # a table of nodes is faster than a search for each edge
        owner = np.repeat(np.arange(len(bounds) - 1, dtype=np.int32), np.diff(bounds))[indices]
        rounds_by_node = np.zeros(int(bounds[-1]), dtype=np.int8)
        rounds_by_node[rows] = round_of
        remote = owner != rank
        chunk = rounds_by_node[indices[remote]]
    else:
        owner = owner_of(bounds, indices)
        remote = owner != rank
        chunk = round_of[np.searchsorted(rows, indices[remote])]
    local = np.count_nonzero(np.bincount(destination[~remote], minlength=len(degree)))
    alone = int(np.count_nonzero(degree == 0)) + local
    direct = int(alone + _pairs(destination[remote], owner[remote], len(bounds) - 1))
    return {"direct": direct, "get": direct, "halo": int(alone + _pairs(destination[remote], chunk, rounds))}


def _pairs(a: NDArray[np.integer], b: NDArray[np.integer], limit: int) -> int:
    """Return the number of distinct pairs of values; those of b are below ``limit``."""
    if not len(a):
        return 0
    key = a * limit + b
    size = (int(a[-1]) + 1) * limit  # a ascends
    if size > MARKED * len(a):
        return len(np.unique(key))
    marks = np.zeros(size, dtype=bool)
    marks[key] = True
    return int(np.count_nonzero(marks))


def reuse_of(indices: NDArray[np.integer], distinct: int) -> Reuse:
    """Measure the reuse of rows on SAMPLED edges from the middle of a rank's, in the order of its CSR.

    distinct: of all edges.
    """
    edges = len(indices)
    if not edges:
        return Reuse(np.zeros(1), np.zeros(1))
    start = max(0, (edges - SAMPLED) // 2)
    sample = indices[start : start + SAMPLED]
    order = np.argsort(sample, kind="stable")
    before = np.full(len(sample), -1, dtype=np.int64)  # place of the same row's last use
    same = sample[order[1:]] == sample[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    place = np.arange(len(sample))
    lengths: list[float] = []
    found: list[float] = []
    length = 256
    while length < len(sample):
        runs = len(sample) // length
        whole = place[: runs * length]
        new = before[: runs * length] < whole - whole % length
        lengths.append(length)
        found.append(np.count_nonzero(new) / runs)
        length *= 2
    if len(sample) < edges:
        lengths.append(len(sample))
        found.append(int(np.count_nonzero(before < 0)))
    lengths.append(edges)
    found.append(distinct)
    return Reuse(np.array(lengths, float), np.maximum.accumulate(np.array(found, float)))
