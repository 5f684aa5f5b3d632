"""Count the rows that each rank of a job would sum and move, reading one rank's slice of the graph at a time.

Plans are made for one rank after another, and only their sizes are kept, so that memory is needed for one
rank's plans only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from . import halo, halo_messages, workload
from .workload import SplitEdges

Slice = tuple[NDArray[np.int64], NDArray[np.integer]]
Tally = NDArray[np.int64]  # [2, K]: distinct values, and how often each occurs


@dataclass(frozen=True, eq=False)
class RankCounts:
    """Counts of one rank's part of an aggregation over P ranks, with a halo exchange in W rounds.

    rows: number of the rank's rows. edges: int64 [P], number of edges by the owner of their source. halo: int64
    [W, P], number of distinct remote rows by round and owner. uses: Tally of how many edges read each remote
    row that is read at all. local_uses: the same for the rank's own rows. segments: number of segments of the
    rank's plan, by transfer.
    """

    rank: int
    rows: int
    edges: NDArray[np.int64]
    halo: NDArray[np.int64]
    uses: Tally
    local_uses: Tally
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
        """Number of rounds of the halo exchange."""
        return len(self.ranks[0].halo)

    def rows(self, transfer: str) -> NDArray[np.int64]:
        """Return the number of rows that each rank moves, int64 [P].

        With transfer "halo" these are the rows that it pushes, else those that it reads, one per remote edge.
        """
        if transfer == "halo":
            return np.sum([each.halo.sum(axis=0) for each in self.ranks], axis=0)
        return np.array([each.remote_edges for each in self.ranks], dtype=np.int64)

    def messages(self, transfer: str, row_bytes: int) -> NDArray[np.int64]:
        """Return the number of messages of each rank, int64 [P].

        These are the pushes of transfer "halo", one per row for "get", and none for "direct".
        """
        if transfer == "direct":
            return np.zeros(len(self.ranks), dtype=np.int64)
        if transfer == "get":
            return self.rows("get")
        each = halo_messages.rows_a_message(row_bytes)
        return np.sum([(-(-part.halo // each)).sum(axis=0) for part in self.ranks], axis=0)

    def peers(self) -> NDArray[np.int64]:
        """Return the number of ranks from which each rank needs rows, int64 [P]."""
        return np.array([np.count_nonzero(each.halo.any(axis=0)) for each in self.ranks], dtype=np.int64)

    def between(self, ranks_a_node: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return each rank's numbers of edges and of halo rows that come from other hosts, int64 [P] each.

        ranks_a_node: number of consecutive ranks on each host.
        """
        node = np.arange(len(self.ranks)) // ranks_a_node
        counts = [
            (each.edges[far].sum(), each.halo[:, far].sum())
            for each in self.ranks
            for far in [node != node[each.rank]]
        ]
        edges, rows = np.array(counts, dtype=np.int64).T
        return edges, rows


def count_ranks(
    bounds: NDArray[np.int64], read: Callable[[int], Slice], rounds: int | None = None
) -> Traffic:
    """Count every rank's part of an aggregation, one rank after another.

    bounds: int64 [P + 1]. read: returns a rank's in-edge CSR (indptr int64 [n + 1] from 0, indices [E] of the
    whole graph); it may be called twice for a rank. rounds: number of rounds of the halo exchange. [default:
    what the largest halo needs, as ranks on CPUs choose it]
    """
    found = [count_rank(rank, bounds, *read(rank), rounds=rounds) for rank in range(len(bounds) - 1)]
    most = max(len(each.halo) for each in found)
    for rank, counted in enumerate(found):
        if len(counted.halo) != most:
            found[rank] = count_rank(rank, bounds, *read(rank), rounds=most)
    return Traffic(found)


def count_rank(
    rank: int,
    bounds: NDArray[np.int64],
    indptr: NDArray[np.int64],
    indices: NDArray[np.integer],
    *,
    rounds: int | None = None,
) -> RankCounts:
    """Count one rank's part of an aggregation. bounds, indptr, indices: as for `workload.split`.

    rounds: number of rounds of the halo exchange. [default: chosen by the size of this rank's halo]
    """
    edges = workload.split(rank, bounds, indptr, indices)
    plan, _, requests = halo.in_rounds(edges, rounds or halo.round_count(len(edges.halo)), ordered=False)
    by_owner = np.zeros(len(bounds) - 1, dtype=np.int64)
    by_owner[edges.owners] = np.diff(edges.edge_bounds)
    return RankCounts(
        rank=rank,
        rows=int(bounds[rank + 1] - bounds[rank]),
        edges=by_owner,
        halo=requests.counts,
        uses=_tally(halo.uses(edges)),
        local_uses=_tally(_local_uses(edges)),
        segments={"direct": edges.segments, "get": edges.segments, "halo": len(plan.segments)},
    )


def count_reversed(bounds: NDArray[np.int64], read: Callable[[int], Slice], forward: Traffic) -> Traffic:
    """Count every rank's part of an aggregation over the reversed edges of a directed graph.

    bounds, read: as for `count_ranks`. forward: counts of the edges in their own direction. Numbers of edges
    and rows are exact. Numbers of messages may be off by a few, since the rows of each pair of ranks are
    divided evenly among rounds; segments of a halo are counted per owner, not per round.
    """
    ranks, rounds = len(bounds) - 1, forward.rounds
    edges, distinct = np.zeros((2, ranks, ranks), np.int64)
    segments, summed = np.zeros(ranks, np.int64), np.zeros(int(bounds[-1]), dtype=bool)
    uses: list[list[Tally]] = [[np.zeros((2, 0), np.int64)] for _ in range(ranks)]
    local_uses = []
    for rank in range(ranks):
        indptr, indices = read(rank)
        summed[indices] = True
        part = workload.split(rank, bounds, indptr, indices)
        segments += np.diff(part.halo_bounds)
        segments[rank] += len(_local_uses(part))
        local_uses.append(_tally(part.runs[0][1]))
        edges[part.owners, rank] = np.diff(part.edge_bounds)
        for owner, (destinations, count) in zip(part.owners[1:].tolist(), part.runs[1:], strict=True):
            distinct[owner, rank] = len(destinations)
            uses[owner].append(_tally(count))
    # Rows without an edge have a segment each.
    segments += np.diff(np.searchsorted(np.flatnonzero(~summed), bounds))
    share = (distinct[:, None] * np.arange(1, rounds + 1)[:, None]) // rounds  # [P, W, P]
    return Traffic(
        [
            RankCounts(
                rank=rank,
                rows=same.rows,
                edges=edges[rank],
                halo=np.diff(share[rank], axis=0, prepend=0),
                uses=np.concatenate(uses[rank], axis=1),
                local_uses=local_uses[rank],
                segments=dict.fromkeys(same.segments, int(segments[rank])),
            )
            for rank, same in enumerate(forward.ranks)
        ]
    )


def _local_uses(edges: SplitEdges) -> NDArray[np.int64]:
    """Return how many edges read each of the rank's own rows, int64; rows that no edge reads are left out."""
    often = np.bincount(edges.indices[: edges.local_edges])
    return often[often > 0]


def _tally(values: NDArray[np.integer]) -> Tally:
    return np.array(np.unique(values, return_counts=True), dtype=np.int64)
