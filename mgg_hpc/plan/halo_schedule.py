"""Chunks that a rank pushes, and that arrive, in one call of the transfer `halo` on GPUs.

A chunk is a run of rows that one rank sends another, with a signal of its own. The rows of a halo in one round
(halo.py) lie in the receiver's staging by rank, then row, and are cut into chunks of as many rows on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .layout import ARRIVAL, PUSH
from .workload import HaloLists, Plan, prefix_sum

CHUNK_BYTES = 128 << 10  # a signal's cost is little then, and the first rows are there soon


@dataclass(frozen=True)
class HaloSchedule:
    """Chunks that cross in a call over rows of one size.

    pushes: PUSH [K], in the order in which they leave. send_rows: int32, this rank's rows that their ``first`` and
    ``rows`` count. arrivals: ARRIVAL [A], in the order in which edges need them. owners: int32, the ranks that push to
    this one. signals: words of each rank; the last P of them, from ``credits`` on, are credits.
    """

    pushes: NDArray[np.void]
    send_rows: NDArray[np.int32]
    arrivals: NDArray[np.void]
    owners: NDArray[np.int32]
    signals: int
    credits: int

    @property
    def origins(self) -> NDArray[np.int32]:
        """The rank that pushes each arrival, int32 [A]."""
        each = self.credits // (self.signals - self.credits)  # signals of each rank
        return (self.arrivals["signal"] // max(1, each)).astype(np.int32)


def extent(plan: Plan) -> tuple[int, int] | None:
    """Return (rows of the largest staging, rows that a rank sends at most) of a halo, or None for other plans."""
    return None if plan.lists is None else (plan.lists.capacity, plan.lists.most_sent)


def crosses(plan: Plan) -> bool:
    """Return whether this rank sends or receives any rows."""
    return plan.lists is not None and bool(plan.lists.send_counts.any() or plan.lists.receive_counts.any())


def rows_a_chunk(row_bytes: int, chunk_bytes: int = CHUNK_BYTES) -> int:
    """Return the number of rows in a chunk, at least one."""
    return max(1, chunk_bytes // row_bytes)


def lists_of(plan: Plan) -> HaloLists:
    """Return the lists of a halo in one round. Raises ValueError for any other plan."""
    if plan.lists is None or plan.lists.rounds != 1:
        raise ValueError("halo: GPUs take a plan of one round (exchange.halo_in_rounds with 1)")
    return plan.lists


def in_chunks(plan: Plan, rows: int, fewest: int) -> HaloSchedule:
    """Return what crosses in chunks of up to ``rows`` rows.

    fewest: rows per chunk at the widest format, which fixes the number of signals.

    A signal belongs to one sender in all calls, whatever their chunks are: it sets them in the order of the calls.
    Raises ValueError for a plan without a halo in one round.
    """
    lists, rank = lists_of(plan), plan.rank
    ranks = lists.send_counts.shape[1]
    each = -(-lists.capacity // fewest)  # signals for each owner
    sent, staged = prefix_sum(lists.send_counts[0]), prefix_sum(lists.receive_counts[0])
    pushes, arrivals = [], []
    for step in range(1, ranks):
        # Ranks begin with those after them, and so rows come from those before, in the order of the plan's edges.
        pe = (rank + step) % ranks
        for chunk, first in enumerate(range(0, int(lists.send_counts[0, pe]), rows)):
            count = min(rows, int(lists.send_counts[0, pe]) - first)
            begin, place = int(sent[pe]) + first, int(lists.send_places[0, pe]) + first
            pushes.append((begin, count, place, begin, pe, rank * each + chunk))
        pe = (rank - step) % ranks
        for chunk, first in enumerate(range(0, int(lists.receive_counts[0, pe]), rows)):
            count = min(rows, int(lists.receive_counts[0, pe]) - first)
            arrivals.append((int(staged[pe]) + first, count, pe * each + chunk, 0))
    owners = np.flatnonzero(lists.receive_counts[0]).astype(np.int32)
    return HaloSchedule(
        np.array(pushes, dtype=PUSH),
        lists.send_rows,
        np.array(arrivals, dtype=ARRIVAL),
        owners,
        ranks * each + ranks,
        ranks * each,
    )
