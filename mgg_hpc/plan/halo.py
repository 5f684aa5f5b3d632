"""The halo in rounds: each distinct remote row arrives once, instead of being read on its owner by every edge.

The rows that most edges need come first, so that each round that arrives gives the most to sum while the rest is on
its way, and the last one gives the least. (With hubs a tenth of the rows can hold half of the edges.)
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .layout import CHUNK, HALO, OWNED
from .workload import HaloLists, Plan, SplitEdges, joined_segments, prefix_sum

# With more rounds, cutting destinations into more pieces costs more than the shorter last round saves.
MOST_ROUNDS = 8
ROWS_PER_ROUND = 512  # fewer are not worth a round of their own


@dataclass(frozen=True, eq=False)
class Requests:
    """Rows that a rank requests from the owners of its halo.

    counts: int64 [W, P]. places: int64 [W, P], where each part begins in this rank's staging.
    rows: a list of P int32 arrays, the owners' rows by round.
    """

    counts: NDArray[np.int64]
    places: NDArray[np.int64]
    rows: list[NDArray[np.int32]]


def round_count(largest_halo: int) -> int:
    """Return the number of rounds for ranks whose largest halo has this many rows: 1 .. MOST_ROUNDS."""
    return int(np.clip(largest_halo // ROWS_PER_ROUND, 1, MOST_ROUNDS))


def uses(edges: SplitEdges) -> NDArray[np.int64]:
    """Return the number of edges that use each row of the halo, int64 [H]."""
    return np.bincount(_remote_edges(edges)[0], minlength=len(edges.halo))


def rounds_of(used: NDArray[np.integer], rounds: int) -> NDArray[np.int64]:
    """Return the round of each row of a halo, int64 [H], from the number of edges that use it, [H]."""
    by_use = np.argsort(-used, kind="stable")
    round_of = np.empty(len(used), dtype=np.int64)
    round_of[by_use] = np.arange(len(by_use)) * rounds // max(1, len(by_use))
    return round_of


def in_rounds(edges: SplitEdges, rounds: int) -> tuple[Plan, NDArray[np.int64], Requests]:
    """Build the plan that sums the owned rows and then ``rounds`` chunks of arriving rows.

    Returns the plan (without its lists, which need the other ranks' answers), the order int64 [E] of its edges (its
    edge i is edge order[i] of ``edges``), and what to ask of the other ranks. Takes O(E log E) time.
    """
    ranks = len(edges.halo_bounds) - 1
    pe_of = np.repeat(np.arange(ranks), np.diff(edges.halo_bounds))
    position, destination = _remote_edges(edges)
    used = np.bincount(position, minlength=len(edges.halo))
    round_of = rounds_of(used, rounds)
    arrival = np.lexsort((edges.halo, pe_of, round_of))
    place = np.empty(len(arrival), dtype=np.int64)
    place[arrival] = np.arange(len(arrival))
    counts = np.bincount(round_of * ranks + pe_of, minlength=rounds * ranks).reshape(rounds, ranks)
    starts = prefix_sum(counts.sum(axis=1))

    local = edges.local_edges
    edge_round = round_of[position]
    moved = np.lexsort((destination, edge_round))
    chunks = np.zeros(1 + rounds, dtype=CHUNK)
    chunks["kind"], chunks["pe"] = HALO, edges.rank
    chunks["kind"][0], chunks["rows"][0] = OWNED, edges.rows[0]
    chunks["first_row"][1:], chunks["rows"][1:] = starts[:-1], np.diff(starts)
    ends = np.searchsorted(edge_round[moved], np.arange(rounds + 1))
    arriving = [
        np.unique(destination[moved[first:last]], return_counts=True)
        for first, last in itertools.pairwise(ends)
    ]
    new_index = (place[position] - starts[edge_round])[moved].astype(np.int32)
    order = np.concatenate([np.arange(local), local + moved])
    made = Plan(
        rank=edges.rank,
        destinations=edges.destinations,
        chunks=chunks,
        segments=joined_segments(chunks, [edges.runs[0], *arriving], edges.empty),
        indices=np.concatenate([edges.indices[:local], new_index]),
        edge=None if edges.edge is None else edges.edge[order],
        halo=edges.halo,
        halo_bounds=edges.halo_bounds,
        transfer="halo",
    )
    sorted_pe, sorted_row = pe_of[arrival], edges.halo[arrival]
    rows = [sorted_row[sorted_pe == pe] for pe in range(ranks)]
    places = prefix_sum(counts.reshape(-1))[:-1].reshape(rounds, ranks)
    return made, order, Requests(counts, places, rows)


def _remote_edges(edges: SplitEdges) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return for each remote edge, in order, its source's position in the halo, and its destination."""
    positions, destinations = [np.zeros(0, np.int64)], [np.zeros(0, np.int32)]
    first = edges.local_edges
    for owner, (destination, count) in zip(edges.owners[1:], edges.runs[1:], strict=True):
        last = first + int(count.sum(dtype=np.int64))
        low, high = edges.halo_bounds[owner], edges.halo_bounds[owner + 1]
        positions.append(low + np.searchsorted(edges.halo[low:high], edges.indices[first:last]))
        destinations.append(np.repeat(destination, count))
        first = last
    return np.concatenate(positions), np.concatenate(destinations)


def answer(
    asked: list[NDArray[np.int32]], counts: NDArray[np.int64], places: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """Return (send_rows, send_counts, send_places) from what every rank requests of this one.

    asked: a list of P int32 arrays, rows of this rank by round. counts, places: int64 [P, W] of the same.
    """
    cuts = [prefix_sum(each) for each in counts]
    parts = [
        asked[pe][cuts[pe][number] : cuts[pe][number + 1]]
        for number in range(counts.shape[1])
        for pe in range(len(counts))
    ]
    rows = np.concatenate([np.zeros(0, np.int32), *parts])
    return rows, np.ascontiguousarray(counts.T), np.ascontiguousarray(places.T)


def of_all_ranks(ranks: Sequence[SplitEdges], count: int) -> list[tuple[Plan, NDArray[np.int64]]]:
    """Return what `runtime.exchange.halo_in_rounds` does, where one process has the edges of all ranks."""
    made = [in_rounds(edges, count) for edges in ranks]
    requests = [request for _, _, request in made]
    capacity = max(int(request.counts.sum()) for request in requests)
    answers = [
        answer(
            [each.rows[rank] for each in requests],
            np.array([each.counts[:, rank] for each in requests]),
            np.array([each.places[:, rank] for each in requests]),
        )
        for rank in range(len(ranks))
    ]
    most_sent = max(len(rows) for rows, _, _ in answers)
    return [
        (replace(plan, lists=HaloLists(request.counts, *lists, capacity, most_sent)), order)
        for (plan, order, request), lists in zip(made, answers, strict=True)
    ]
