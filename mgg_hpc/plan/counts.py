"""Count what each rank of a job would sum and move, from one rank's slice of the graph at a time.

Plans are made for one rank after another, and their sizes kept: it takes the time and memory of one rank's plans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from . import halo, workload

# Most bytes of a message of a halo (cuda/runtime/halo_exchange.h; halo_schedule.CHUNK_BYTES).
PACKET_BYTES = 128 << 10

Slice = tuple[NDArray[np.int64], NDArray[np.integer]]


@dataclass(frozen=True, eq=False)
class RankCounts:
    """One rank's part of an aggregation over P ranks, with a halo in W rounds.

    rows: of the rank. edges: int64 [P], by the owner of the source. halo: int64 [W, P], distinct remote rows by round
    and owner. uses: int64 [2, K], numbers of edges that use a remote row, and how many rows have each of them;
    local_uses: the same of the rank's own rows. segments: of a plan by "direct" or "get", and by "halo".
    """

    rank: int
    rows: int
    edges: NDArray[np.int64]
    halo: NDArray[np.int64]
    uses: NDArray[np.int64]
    local_uses: NDArray[np.int64]
    segments: dict[str, int]

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
        return np.sum([each.halo.sum(axis=0) for each in self.ranks], axis=0)

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
        return np.sum([(-(-part.halo // each)).sum(axis=0) for part in self.ranks], axis=0)

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
    found = [of_rank(rank, bounds, *read(rank), rounds=rounds) for rank in range(len(bounds) - 1)]
    most = max(len(each.halo) for each in found)
    for rank, made in enumerate(found):
        if len(made.halo) != most:
            found[rank] = of_rank(rank, bounds, *read(rank), rounds=most)
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
    edges = workload.split(rank, bounds, indptr, indices)
    plan, _, asked = halo.in_rounds(edges, rounds or halo.round_count(len(edges.halo)), ordered=False)
    by_owner = np.zeros(len(bounds) - 1, dtype=np.int64)
    by_owner[edges.owners] = [int(count.sum(dtype=np.int64)) for _, count in edges.runs]
    alone = len(edges.empty) + sum(len(destinations) for destinations, _ in edges.runs)
    return RankCounts(
        rank=rank,
        rows=int(bounds[rank + 1] - bounds[rank]),
        edges=by_owner,
        halo=asked.counts,
        uses=_tally(halo.uses(edges)),
        local_uses=_tally(_local(edges)),
        segments={"direct": alone, "get": alone, "halo": len(plan.segments)},
    )


def of_transposed(bounds: NDArray[np.int64], read: Callable[[int], Slice], forward: Traffic) -> Traffic:
    """Count every rank's part over the reversed edges of a directed graph, whose forward counts are given.

    Edges and rows are exact. Not so the rows of a pair of ranks by round, which are taken as equally many in each, so
    that messages of a halo may be off by a few; and the segments of a halo, which are counted by owner, not by round.
    """
    ranks, rounds = len(bounds) - 1, forward.rounds
    edges, distinct = np.zeros((2, ranks, ranks), np.int64)
    segments, summed = np.zeros(ranks, np.int64), np.zeros(int(bounds[-1]), dtype=bool)
    uses: list[list[NDArray[np.int64]]] = [[] for _ in range(ranks)]
    local_uses = []
    for rank in range(ranks):
        indptr, indices = read(rank)
        summed[indices] = True
        made = workload.split(rank, bounds, indptr, indices)
        segments += np.diff(made.halo_bounds)
        segments[rank] += len(_local(made))
        local_uses.append(_tally(made.runs[0][1]))
        for owner, (destinations, count) in zip(made.owners.tolist(), made.runs, strict=True):
            edges[owner, rank] = count.sum(dtype=np.int64)
            if owner != rank:
                distinct[owner, rank] = len(destinations)
                uses[owner].append(_tally(count))
    segments += np.diff(
        np.searchsorted(np.flatnonzero(~summed), bounds)
    )  # rows without an edge have one each
    share = (distinct[:, None] * np.arange(1, rounds + 1)[:, None]) // rounds  # [P, W, P]
    return Traffic(
        [
            RankCounts(
                rank=rank,
                rows=same.rows,
                edges=edges[rank],
                halo=np.diff(share[rank], axis=0, prepend=0),
                uses=np.concatenate([np.zeros((2, 0), np.int64), *uses[rank]], axis=1),
                local_uses=local_uses[rank],
                segments=dict.fromkeys(same.segments, int(segments[rank])),
            )
            for rank, same in enumerate(forward.ranks)
        ]
    )


def _local(edges: workload.SplitEdges) -> NDArray[np.int64]:
    """Return the number of edges that use each of the rank's own rows that any edge uses, int64."""
    often = np.bincount(edges.indices[: edges.local_edges])
    return often[often > 0]


def _tally(values: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the distinct values, and how often each occurs, int64 [2, K]."""
    return np.array(np.unique(values, return_counts=True), dtype=np.int64)
