"""Messages of a halo on GPUs: runs of rows that one rank sends another, with a signal each.

The rows of a halo in one round (halo.py) lie in the receiver's staging memory by rank, then row, and are cut into
messages of as many rows on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .layout import ARRIVAL, PUSH
from .workload import Plan, prefix_sum

MESSAGE_BYTES = 128 << 10  # at most; a signal costs little then, and the first rows arrive soon


@dataclass(frozen=True)
class HaloMessages:
    """Messages of one call of the transfer "halo" on GPUs: runs of rows that one rank sends another.

    pushes: PUSH [K], messages to other ranks, in the order in which they leave. send_rows: int32, rows of this rank, to
    which ``first`` and ``rows`` of a push refer. arrivals: ARRIVAL [A], messages to this rank, in the order in which
    edges need them. owners: int32, ranks that push to this one. signals: words of each rank; the last P of them, from
    ``credits`` on, are credits.
    """

    pushes: NDArray[np.void]
    send_rows: NDArray[np.int32]
    arrivals: NDArray[np.void]
    owners: NDArray[np.int32]
    signals: int
    credits: int

    @property
    def origins(self) -> NDArray[np.int32]:
        """Rank that pushes each arrival, int32 [A]."""
        each = self.credits // (self.signals - self.credits)  # signals of each rank
        return (self.arrivals["signal"] // max(1, each)).astype(np.int32)


def extent(plan: Plan) -> tuple[int, int] | None:
    """Return `HaloLists.capacity` and `HaloLists.most_sent` of a plan with a halo, or None for other plans."""
    return None if plan.lists is None else (plan.lists.capacity, plan.lists.most_sent)


def crosses(plan: Plan) -> bool:
    """Return whether this rank sends or receives any rows of a halo."""
    return plan.lists is not None and bool(plan.lists.send_counts.any() or plan.lists.receive_counts.any())


def rows_a_message(row_bytes: int, message_bytes: int = MESSAGE_BYTES) -> int:
    """Return the number of rows in a message, at least one."""
    return max(1, message_bytes // row_bytes)


def in_messages(plan: Plan, rows: int, fewest: int) -> HaloMessages:
    """Cut a halo into messages of up to ``rows`` rows.

    fewest: rows of a message at the widest row format, which fixes the number of signals. A signal belongs to one
    sender in all calls, whatever the size of their messages; it is set in the order of the calls. Raises ValueError
    unless the plan has a halo in one round.
    """
    lists, rank = plan.lists, plan.rank
    if lists is None or lists.rounds != 1:
        raise ValueError("halo: GPUs take a plan of one round (exchange.halo_in_rounds with 1)")
    ranks = lists.send_counts.shape[1]
    each = -(-lists.capacity // fewest)  # signals of each owner
    sent, staged = prefix_sum(lists.send_counts[0]), prefix_sum(lists.receive_counts[0])
    pushes, arrivals = [], []
    for step in range(1, ranks):
        # Ranks begin with those after them, and so rows come from those before, in the order of the plan's edges.
        pe = (rank + step) % ranks
        total, place = int(lists.send_counts[0, pe]), int(lists.send_places[0, pe])
        for number, first in enumerate(range(0, total, rows)):
            begin = int(sent[pe]) + first
            pushes.append((begin, min(rows, total - first), place + first, begin, pe, rank * each + number))
        pe = (rank - step) % ranks
        total = int(lists.receive_counts[0, pe])
        for number, first in enumerate(range(0, total, rows)):
            arrivals.append((int(staged[pe]) + first, min(rows, total - first), pe * each + number, 0))
    return HaloMessages(
        np.array(pushes, dtype=PUSH),
        lists.send_rows,
        np.array(arrivals, dtype=ARRIVAL),
        np.flatnonzero(lists.receive_counts[0]).astype(np.int32),
        ranks * each + ranks,
        ranks * each,
    )
