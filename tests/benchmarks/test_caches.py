"""Caches that are replayed, beside ones that look through all of their rows at each read."""

from __future__ import annotations

import numpy as np
import pytest
from harness.caches import CACHES


def lru(reads: list[int], room: int) -> list[bool]:
    """A read hits if fewer than ``room`` other rows were read since the last one of its row."""
    last: dict[int, int] = {}
    hits = []
    for at, row in enumerate(reads):
        hits.append(row in last and len(set(reads[last[row] : at])) <= room)
        last[row] = at
    return hits


def sieve(reads: list[int], room: int) -> list[bool]:
    """The paper's Algorithm 1, on a list of [row, visited] from the newest to the oldest."""
    queue: list[list[int]] = []
    hand, hits = None, []
    for row in reads:
        found = next((each for each in queue if each[0] == row), None)
        hits.append(found is not None)
        if found is not None:
            found[1] = 1
            continue
        if len(queue) == room:
            at = len(queue) - 1 if hand is None else next(i for i, each in enumerate(queue) if each is hand)
            while queue[at][1]:
                queue[at][1] = 0
                at = at - 1 if at else len(queue) - 1
            hand = queue[at - 1] if at else None
            del queue[at]
        queue.insert(0, [row, 0])
    return hits


@pytest.mark.parametrize(("name", "wanted"), [("LRU cache", lru), ("SIEVE cache", sieve)])
def test_hits_are_those_of_a_cache_that_looks_everywhere(rng, name, wanted):
    for room in (1, 2, 7, 40):
        reads = np.minimum(rng.geometric(0.05, 1500), 60)
        found, cache = wanted(reads.tolist(), room), CACHES[name](room)
        batches = np.split(np.arange(len(reads)), np.sort(rng.integers(0, len(reads), 20)))
        assert [cache.read(reads[batch]) for batch in batches] == [
            sum(found[at] for at in batch) for batch in batches
        ]
        assert 0 < sum(found) < len(reads)
    assert CACHES[name](0).read(reads) == 0
