"""Where rows are placed: slots by score, and how many rows are replicated."""

from __future__ import annotations

import numpy as np
import pytest

from mgg_hpc.runtime.tiers.place import placed, replicated, slot_type


@pytest.mark.parametrize("places", [False, True])
def test_slots_are_those_of_the_order(rng, places):
    order, place = rng.permutation(50), rng.permutation(50) if places else None
    slots = placed(order, 7, place)
    for row in range(50):
        at = order.tolist().index(row)
        assert slots[row] == (at if at < 7 else 7 + (row if place is None else place[row]))
    assert (slot_type((1 << 31) - 1), slot_type(1 << 31)) == (np.int32, np.int64)


def cost(near: int, reads: np.ndarray, room: int, ranks: int, host: int, costs: dict[str, float]) -> float:
    """Seconds of all reads, row by row."""
    tiers = ["near"] * near + ["peers"] * (ranks * (min(room, len(reads)) - near)) + ["host"] * host
    tiers += ["file"] * len(reads)
    return sum(read * costs[name] for read, name in zip(reads, tiers, strict=False))


def test_as_many_rows_are_replicated_as_cost_least(rng):
    for _ in range(20):
        count, room, ranks, host = (int(each) for each in rng.integers(1, 40, 4))
        reads = np.sort(rng.random(count) ** 4)[::-1]
        costs = dict(
            zip(("near", "peers", "host", "file"), np.sort(rng.random(4) ** 3).tolist(), strict=True)
        )
        problem = (reads, room, ranks, host, costs)
        every = [cost(near, *problem) for near in range(min(room, count) + 1)]
        assert every[replicated(*problem)] == pytest.approx(min(every), rel=1e-12)
