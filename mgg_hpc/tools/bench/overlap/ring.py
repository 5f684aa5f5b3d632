"""Whole partitions that go round the ranks, each passed on to the next: NCCL's pattern (MGG on arXiv, figure 2)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ....plan.halo_schedule import HaloSchedule
from ....plan.layout import ARRIVAL, CHUNK, HALO, PUSH
from ....plan.workload import HaloLists, Plan


@dataclass(frozen=True, eq=False)
class RingPlan(Plan):
    """A plan whose remote rows come as whole partitions, each passed on from rank to rank.

    A rank's staging holds the rows of the rank before it, then of the one before that, and so on.
    bounds: int64 [P + 1], rank r owns rows bounds[r] .. bounds[r + 1] - 1.
    """

    bounds: NDArray[np.int64] = field(default_factory=lambda: np.zeros(2, np.int64))

    def place(self, rank: int, owner: int) -> int:
        """Return where ``owner``'s rows begin in the staging of ``rank``."""
        ranks = len(self.bounds) - 1
        before = [(rank - step) % ranks for step in range(1, (rank - owner) % ranks)]
        return sum(int(self.bounds[pe + 1] - self.bounds[pe]) for pe in before)


def _lists(rank: int, bounds: NDArray[np.int64]) -> HaloLists:
    """Return the rows that cross; a rank sends its own rows, and then all that arrive but the next rank's own."""
    sizes, ranks = np.diff(bounds), len(bounds) - 1
    after, before, total = (rank + 1) % ranks, (rank - 1) % ranks, int(bounds[-1])
    sent, received = np.zeros((2, 1, ranks), dtype=np.int64)
    passed_on = 0
    if ranks > 1:
        passed_on = total - int(sizes[rank] + sizes[after])
        sent[0, after], received[0, before] = sizes[rank] + passed_on, total - sizes[rank]
    send_rows = np.concatenate([np.arange(sizes[rank]), np.arange(passed_on)]).astype(np.int32)
    capacity = int(total - sizes.min(initial=total))
    return HaloLists(received, send_rows, sent, np.zeros_like(sent), capacity, capacity)


def ring(plan: Plan, bounds: NDArray[np.int64]) -> RingPlan:
    """Return a plan of the same sums as ``plan``, which reads rows on their owners."""
    chunks = np.zeros(2, dtype=CHUNK)
    chunks[0] = plan.chunks[0]
    segments, indices, local = plan.segments.copy(), plan.indices.copy(), int(chunks[0]["segments"])
    others = int(bounds[-1] - (bounds[plan.rank + 1] - bounds[plan.rank]))
    chunks[1] = (HALO, plan.rank, 0, others, local, len(segments) - local)
    segments["chunk"][local:] = 1
    fields = {each: getattr(plan, each) for each in Plan.__dataclass_fields__}
    changed = {"chunks": chunks, "segments": segments, "indices": indices, "transfer": "ring"}
    made = RingPlan(**fields | changed | {"lists": _lists(plan.rank, bounds)}, bounds=bounds)
    for chunk in plan.chunks[1:]:
        mine = segments[chunk["first_segment"] : chunk["first_segment"] + chunk["segments"]]
        first = int(mine["first_edge"][0])
        count = int(mine["count"].sum(dtype=np.int64))
        indices[first : first + count] += np.int32(made.place(plan.rank, int(chunk["pe"])))
    return made


def in_chunks(plan: RingPlan, rows: int, fewest: int) -> HaloSchedule:
    """Return the crossing rows in chunks of up to ``rows`` rows; see `halo_schedule.in_chunks`.

    A rank's pushes are its own rows' chunks, and then one for each chunk that has arrived, in the same order: a push
    that passes rows on waits for the signal of the chunk that it consists of (cuda/bench/studies.cu).
    """
    assert plan.lists is not None
    rank, sizes = plan.rank, np.diff(plan.bounds)
    ranks = len(sizes)
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    pushes: list[tuple[int, ...]] = []
    arrivals: list[tuple[int, ...]] = []
    sent = 0
    for step in range(ranks - 1):
        owner = (rank - step) % ranks
        place = plan.place(after, owner)
        for first in range(0, int(sizes[owner]), rows):
            count = min(rows, int(sizes[owner]) - first)
            pushes.append((sent, count, place + first, sent, after, len(pushes)))
            sent += count
    begin = 0
    for step in range(1, ranks):
        owner = (rank - step) % ranks
        for first in range(0, int(sizes[owner]), rows):
            arrivals.append((begin + first, min(rows, int(sizes[owner]) - first), len(arrivals), 0))
        begin += int(sizes[owner])
    words = int((-(-sizes // fewest)).sum())
    return HaloSchedule(
        np.array(pushes, dtype=PUSH),
        plan.lists.send_rows,
        np.array(arrivals, dtype=ARRIVAL),
        np.array([before] if arrivals else [], dtype=np.int32),
        words + ranks,
        words,
    )
