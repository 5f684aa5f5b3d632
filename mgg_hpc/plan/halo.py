"""The halo in rounds: each distinct remote row arrives once, instead of being read on its owner by every edge.

The rows that most edges need come first, so that each round that arrives gives the most to sum while the rest is on
its way, and the last one gives the least. (With hubs a tenth of the rows can hold half of the edges.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..data import native
from ..errors import InputError
from .layout import CHUNK, HALO, OWNED
from .workload import CHUNKS, HaloLists, Plan, SplitEdges, joined_segments, places, prefix_sum

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
    return _positions(edges)[1]


def rounds_of(used: NDArray[np.integer], rounds: int) -> NDArray[np.int64]:
    """Return the round of each row of a halo, int64 [H], from the number of edges that use it, [H]."""
    by_use = np.argsort(-used, kind="stable")
    round_of = np.empty(len(used), dtype=np.int64)
    round_of[by_use] = np.arange(len(by_use)) * rounds // max(1, len(by_use))
    return round_of


def in_rounds(
    edges: SplitEdges, rounds: int, *, ordered: bool = True
) -> tuple[Plan, NDArray[np.int64] | None, Requests]:
    """Build the plan that sums the owned rows and then ``rounds`` chunks of arriving rows.

    Returns the plan (without its lists, which need the other ranks' answers), with ``ordered`` the order int64 [E] of
    its edges (its edge i is edge order[i] of ``edges``), and what to ask of the other ranks. Takes O(E + H log H) time
    for H rows of the halo, and beside the plan 4 bytes for each remote edge, 8 for each segment, 50 for each row of the
    halo; 8 for each edge with ``ordered``.
    """
    ranks = len(edges.halo_bounds) - 1
    position, used = _positions(edges)
    round_of = rounds_of(used, rounds).astype(np.int8)
    del used
    pe_of = np.repeat(np.arange(ranks), np.diff(edges.halo_bounds))
    counts = np.bincount(round_of * np.int64(ranks) + pe_of, minlength=rounds * ranks).reshape(rounds, ranks)
    starts = prefix_sum(counts.sum(axis=1))
    arrival = np.argsort(round_of, kind="stable")  # within a round by rank, then row, as the halo is
    sorted_pe, sorted_row = pe_of[arrival], edges.halo[arrival]
    rows = [sorted_row[sorted_pe == pe] for pe in range(ranks)]
    del pe_of, sorted_pe, sorted_row
    slot = np.empty(len(arrival), dtype=np.int32)
    slot[arrival] = np.arange(len(arrival)) - np.repeat(starts[:-1], np.diff(starts))
    del arrival

    chunks = np.zeros(1 + rounds, dtype=CHUNK)
    chunks["kind"], chunks["pe"] = HALO, edges.rank
    chunks["kind"][0], chunks["rows"][0] = OWNED, edges.rows[0]
    chunks["first_row"][1:], chunks["rows"][1:] = starts[:-1], np.diff(starts)
    local = edges.local_edges
    indices = np.empty(len(edges.indices), np.int32)
    indices[:local] = edges.indices[:local]
    order = np.arange(len(indices) if ordered or edges.edge is not None else 0)
    arriving = _arriving(edges, position, round_of, slot, rounds, indices[local:], order[local:])
    if len(order):
        order[local:] += local
    made = Plan(
        rank=edges.rank,
        destinations=edges.destinations,
        chunks=chunks,
        segments=joined_segments(chunks, [edges.runs[0], *arriving], edges.empty),
        indices=indices,
        edge=None if edges.edge is None else edges.edge[order],
        halo=edges.halo,
        halo_bounds=edges.halo_bounds,
        transfer="halo",
    )
    at = prefix_sum(counts.reshape(-1))[:-1].reshape(rounds, ranks)
    return made, order if ordered else None, Requests(counts, at, rows)


def _arriving(
    edges: SplitEdges,
    position: NDArray[np.int32],
    round_of: NDArray[np.int8],
    slot: NDArray[np.int32],
    rounds: int,
    indices: NDArray[np.int32],
    order: NDArray[np.int64],
) -> list[tuple[NDArray[np.int32], NDArray[np.int32]]]:
    """Order remote edges by round, then destination; return each round's destinations and numbers of edges.

    position: int32 [R], each remote edge's row of the halo. slot: of each row of the halo within its round. indices,
    order: [R], filled with the edges' slots and the edges themselves; order may be of length 0.
    """
    kernels = native.load()
    remote = edges.runs[1:]
    given = [np.concatenate([np.zeros(0, np.int32), *(run[part] for run in remote)]) for part in (0, 1)]
    lengths = np.array([len(count) for _, count in remote], dtype=np.int64)
    cuts = np.unique(np.linspace(0, edges.destinations, CHUNKS + 1).astype(np.int64))
    count, run = np.zeros((2, len(cuts) - 1, rounds), np.int64)
    kernels.count_rounds(
        *given, lengths, position, round_of, cuts, rounds, count.reshape(-1), run.reshape(-1)
    )
    found = np.empty((2, int(run.sum())), np.int32)
    starts = [places(each, np.arange(rounds)).reshape(-1) for each in (count, run)]
    kernels.place_rounds(
        *given, lengths, position, round_of, slot, cuts, rounds, *starts, indices, *found, order
    )
    ends = np.cumsum(run.sum(axis=0))[:-1]
    return list(zip(*(np.split(part, ends) for part in found), strict=True))


def _positions(edges: SplitEdges) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return each remote edge's place in the halo, int32 [R], and how many edges use each of its rows, int64 [H].

    Raises InputError for a halo of 2^31 rows or more.
    """
    if len(edges.halo) >= 1 << 31:
        raise InputError(
            f"a rank would need {len(edges.halo):,} remote rows, of at most 2^31 - 1; use more ranks"
        )
    kernels, first = native.load(), edges.local_edges
    position, used = np.empty(len(edges.indices) - first, np.int32), np.zeros(len(edges.halo), np.int64)
    at = 0
    for owner, rows, (_, count) in zip(edges.owners[1:], edges.rows[1:], edges.runs[1:], strict=True):
        last = at + int(count.sum(dtype=np.int64))
        low, high = int(edges.halo_bounds[owner]), int(edges.halo_bounds[owner + 1])
        values = edges.indices[first + at : first + last]
        kernels.halo_positions(values, edges.halo[low:high], int(rows), low, position[at:last], used)
        at = last
    return position, used


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


def of_all_ranks(ranks: Sequence[SplitEdges], count: int) -> list[tuple[Plan, NDArray[np.int64] | None]]:
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
