"""The halo: each distinct remote row is sent once, instead of being read on its owner by every edge.

It arrives in rounds. The rows that most edges need come first, so that each round gives the most to sum while the rest
is on its way, and the last one gives the least. (With hubs a tenth of the rows can hold half of the edges.) GPUs take
one round, which they cut into messages (halo_messages.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..data import native
from ..errors import InputError
from . import workload
from .layout import CHUNK, HALO, OWNED
from .workload import Plan, SplitEdges, joined_segments, prefix_sum

# With more rounds, cutting destinations into more pieces costs more than the shorter last round saves.
MOST_ROUNDS = 8
ROWS_PER_ROUND = 512  # fewer are not worth a round of their own


@dataclass(frozen=True, eq=False)
class Requests:
    """Rows that a rank requests from the owners of its halo, for W rounds and P ranks.

    counts: int64 [W, P]. places: int64 [W, P], the first row of each part in this rank's staging memory.
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


def in_rounds(
    edges: SplitEdges, rounds: int, *, ordered: bool = True
) -> tuple[Plan, NDArray[np.int64] | None, Requests]:
    """Build the plan that sums the owned rows and then ``rounds`` chunks of arriving rows.

    Returns the plan (without its lists, which need the other ranks' answers), with ``ordered`` the order int64 [E] of
    its edges (its edge i is edge order[i] of ``edges``), and the rows to request from other ranks. Takes O(E + H log H)
    time for H rows of the halo. Memory beyond the plan: 4 bytes for each remote edge, 8 for each segment, 50 for each
    row of the halo; 8 for each edge with ``ordered``.
    """
    ranks = len(edges.halo_bounds) - 1
    position, used = _positions(edges)
    round_of = np.empty(len(used), dtype=np.int8)
    round_of[np.argsort(-used, kind="stable")] = np.arange(len(used)) * rounds // max(1, len(used))
    del used
    pe_of = np.repeat(np.arange(ranks), np.diff(edges.halo_bounds))
    counts = np.bincount(round_of * np.int64(ranks) + pe_of, minlength=rounds * ranks).reshape(rounds, ranks)
    by_owner = np.argsort(pe_of * rounds + round_of, kind="stable")
    rows = np.split(edges.halo[by_owner], edges.halo_bounds[1:-1])
    del pe_of, by_owner
    starts = prefix_sum(counts.sum(axis=1))
    arrival = np.argsort(round_of, kind="stable")  # within a round by rank, then row, as in the halo
    slot = np.empty(len(arrival), dtype=np.int32)  # of each row of the halo within its round
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
    remote = edges.runs[1:]
    destinations, degrees, run_bounds = native.load().sort_by_round(
        *(np.concatenate([np.zeros(0, np.int32), *(run[part] for run in remote)]) for part in (0, 1)),
        np.array([len(count) for _, count in remote], dtype=np.int64),
        position,
        round_of,
        slot,
        edges.destinations,
        workload.PIECES,
        rounds,
        indices[local:],
        order[local:],
    )
    order[local:] += local
    arriving = zip(*(np.split(each, run_bounds[1:-1]) for each in (destinations, degrees)), strict=True)
    plan = Plan(
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
    places = prefix_sum(counts.reshape(-1))[:-1].reshape(rounds, ranks)
    return plan, order if ordered else None, Requests(counts, places, rows)


def _positions(edges: SplitEdges) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return each remote edge's row of the halo, int32 [R], and the number of edges that use each row, int64 [H].

    Raises InputError for a halo of 2^31 rows or more.
    """
    if len(edges.halo) >= 1 << 31:
        raise InputError(
            f"a rank would need {len(edges.halo):,} remote rows, of at most 2^31 - 1; use more ranks"
        )
    remote, bounds = edges.indices[edges.local_edges :], edges.edge_bounds[1:] - edges.local_edges
    position, used = np.empty(len(remote), np.int32), np.zeros(len(edges.halo), np.int64)
    for owner, rows, first, last in zip(
        edges.owners[1:], edges.rows[1:], bounds[:-1], bounds[1:], strict=True
    ):
        low, high = int(edges.halo_bounds[owner]), int(edges.halo_bounds[owner + 1])
        native.load().halo_positions(
            remote[first:last], edges.halo[low:high], int(rows), low, position[first:last], used
        )
    return position, used


def answer(
    requested: list[NDArray[np.int32]], counts: NDArray[np.int64], places: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """Return (send_rows, send_counts, send_places) of `HaloLists` from the requests of all ranks to this one.

    requested: a list of P int32 arrays, rows of this rank by round. counts, places: int64 [P, W] of the same.
    """
    by_rank = [np.split(rows, np.cumsum(each)[:-1]) for rows, each in zip(requested, counts, strict=True)]
    by_round = [part for parts in zip(*by_rank, strict=True) for part in parts]
    return np.concatenate(by_round), np.ascontiguousarray(counts.T), np.ascontiguousarray(places.T)
