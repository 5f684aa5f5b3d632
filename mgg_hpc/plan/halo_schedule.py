"""What crosses in one call of the transfer `halo` on GPUs: the chunks that a rank pushes, and those that arrive.

A chunk is a run of rows that one rank sends another, with a signal of its own. The rows of a halo in one round
(halo.py) lie in the receiver's staging by rank, then row, and are cut into chunks of as many rows on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .layout import ARRIVAL, CHUNK, HALO, PUSH
from .workload import HaloLists, Plan, prefix_sum

CHUNK_BYTES = 128 << 10  # a signal's cost is little then, and the first rows are there soon


@dataclass(frozen=True)
class HaloSchedule:
    """What crosses in a call over rows of one size.

    pushes: PUSH [K], in the order in which they leave. send_rows: int32, what their ``first`` and ``rows`` count: rows
    of this rank, or of its staging where ``after`` says so. arrivals: ARRIVAL [A], in the order in which edges need
    them. owners: int32, the ranks that push to this one. signals: words of each rank; the last P of them, from
    ``credits`` on, are credits.
    """

    pushes: NDArray[np.void]
    send_rows: NDArray[np.int32]
    arrivals: NDArray[np.void]
    owners: NDArray[np.int32]
    signals: int
    credits: int


@dataclass(frozen=True, eq=False)
class RingPlan(Plan):
    """A plan whose remote rows come as whole partitions, each passed on from rank to rank: NCCL's pattern.

    (MGG on arXiv, figure 2.) A rank's staging holds the rows of the rank before it, then of the one before that, and
    so on. bounds: int64 [P + 1], who owns which rows.
    """

    bounds: NDArray[np.int64] = field(default_factory=lambda: np.zeros(2, np.int64))

    def place(self, rank: int, owner: int) -> int:
        """Where ``owner``'s rows begin in the staging of ``rank``."""
        ranks = len(self.bounds) - 1
        before = [(rank - step) % ranks for step in range(1, (rank - owner) % ranks)]
        return sum(int(self.bounds[pe + 1] - self.bounds[pe]) for pe in before)

    @property
    def capacity(self) -> int:
        """Rows of the largest staging; no rank sends more."""
        return int(self.bounds[-1] - np.diff(self.bounds).min(initial=int(self.bounds[-1])))

    @property
    def sent(self) -> int:
        """Rows that this rank sends: all but the next one's own."""
        after = (self.rank + 1) % (len(self.bounds) - 1)
        return int(self.bounds[-1] - (self.bounds[after + 1] - self.bounds[after]))


def extent(plan: Plan) -> tuple[int, int] | None:
    """(rows of the largest staging, rows that a rank sends at most) of a plan whose rows are pushed; else None."""
    if isinstance(plan, RingPlan):
        return plan.capacity, plan.capacity
    return None if plan.lists is None else (plan.lists.capacity, plan.lists.most_sent)


def crosses(plan: Plan) -> bool:
    """Whether this rank sends or receives any rows."""
    if isinstance(plan, RingPlan):
        return len(plan.bounds) > 2
    return plan.lists is not None and bool(plan.lists.send_counts.any() or plan.lists.receive_counts.any())


def rows_a_chunk(row_bytes: int, chunk_bytes: int = CHUNK_BYTES) -> int:
    """Rows of a chunk, at least one."""
    return max(1, chunk_bytes // row_bytes)


def lists_of(plan: Plan) -> HaloLists:
    """The lists of a halo in one round. Raises ValueError for any other plan."""
    if plan.lists is None or plan.lists.rounds != 1:
        raise ValueError("halo: GPUs take a plan of one round (exchange.halo_in_rounds with 1)")
    return plan.lists


def in_chunks(plan: Plan, rows: int, fewest: int) -> HaloSchedule:
    """What crosses for chunks of up to ``rows`` rows, where other calls have ``fewest`` or more.

    A signal belongs to one sender in all calls, whatever their chunks are: it sets them in the order of the calls.
    Raises ValueError for a plan without a halo in one round.
    """
    if isinstance(plan, RingPlan):
        return _ring_in_chunks(plan, rows, fewest)
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
            pushes.append((begin, count, place, begin, pe, rank * each + chunk, -1, 0))
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


def ring(plan: Plan, bounds: NDArray[np.int64]) -> RingPlan:
    """The same sums as those of ``plan``, which reads rows on their owners."""
    chunks = np.zeros(2, dtype=CHUNK)
    chunks[0] = plan.chunks[0]
    segments, indices, local = plan.segments.copy(), plan.indices.copy(), int(chunks[0]["segments"])
    others = int(bounds[-1] - (bounds[plan.rank + 1] - bounds[plan.rank]))
    chunks[1] = (HALO, plan.rank, 0, others, local, len(segments) - local)
    segments["chunk"][local:] = 1
    fields = {each: getattr(plan, each) for each in Plan.__dataclass_fields__}
    changed = {"chunks": chunks, "segments": segments, "indices": indices, "transfer": "ring"}
    made = RingPlan(**fields | changed, bounds=bounds)
    for chunk in plan.chunks[1:]:
        mine = segments[chunk["first_segment"] : chunk["first_segment"] + chunk["segments"]]
        first = int(mine["first_edge"][0])
        count = int(mine["count"].sum(dtype=np.int64))
        indices[first : first + count] += np.int32(made.place(plan.rank, int(chunk["pe"])))
    return made


def _ring_in_chunks(plan: RingPlan, rows: int, fewest: int) -> HaloSchedule:
    bounds, rank = plan.bounds, plan.rank
    ranks = len(bounds) - 1
    sizes = np.diff(bounds)
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    # The next rank's signals are numbered in the order in which partitions reach it, as this one's are.
    pushes, arrivals, sent, signal, own_signal = [], [], 0, 0, 0
    for step in range(ranks - 1):
        owner, place = (rank - step) % ranks, plan.place(after, (rank - step) % ranks)
        for first in range(0, int(sizes[owner]), rows):
            count = min(rows, int(sizes[owner]) - first)
            wait = -1 if step == 0 else own_signal
            own_signal += step > 0
            pushes.append((sent, count, place + first, sent, after, signal, wait, 0))
            sent, signal = sent + count, signal + 1
    signal, begin = 0, 0
    for step in range(1, ranks):
        owner = (rank - step) % ranks
        for first in range(0, int(sizes[owner]), rows):
            count = min(rows, int(sizes[owner]) - first)
            arrivals.append((begin + first, count, signal, 0))
            signal += 1
        begin += int(sizes[owner])
    staged = begin - int(sizes[after]) if ranks > 1 else 0
    send_rows = np.concatenate([np.arange(sizes[rank]), np.arange(staged)]).astype(np.int32)
    words = int((-(-sizes // fewest)).sum())
    owners = np.array([before] if arrivals else [], dtype=np.int32)
    made = np.array(pushes, dtype=PUSH), np.array(arrivals, dtype=ARRIVAL)
    return HaloSchedule(made[0], send_rows, made[1], owners, words + ranks, words)
