"""The times that a halo's kernel keeps where the meter asks for them: whose they are, their order, and their cost."""

from __future__ import annotations

import cases
import numpy as np
import pytest
from gpu.pes.played import Played

RANKS, CALLS = 3, 2


def nowhere(rank: int, peer: int) -> bool:
    return rank == peer


def made(rng, engine, **more) -> Played:
    case = cases.ordinary(rng, RANKS)
    x = rng.standard_normal((case.nodes, 7)).astype(np.float32)
    return Played(engine, case, x, transfer="halo", **more)


def chunks_between(played: Played) -> np.ndarray:
    """Chunks that rank p gets of rank q, at [p, q], from the edges: of 128 bytes, so of four rows of 32."""
    found = np.zeros((RANKS, RANKS), int)
    sources, destinations = played.edge_lists()
    owners = np.searchsorted(played.case.bounds, np.arange(played.case.nodes), side="right") - 1
    for p in range(RANKS):
        rows = np.unique(sources[owners[destinations] == p])
        found[p] = -(-np.bincount(owners[rows], minlength=RANKS) // 4)
        found[p, p] = 0
    return found


@pytest.mark.parametrize("pointers", [True, False])
def test_chunks_are_packed_then_seen_within_the_kernels_of_both(rng, engine, pointers):
    """All ranks' kernels run by one clock: that of the shim."""
    played = made(rng, engine, **({} if pointers else {"reaches": nowhere}))
    plain = played.aggregate(rng)
    for backend in played.backends:
        backend.stream.meter.kernels = []
    sets = [played.rows, played.rows]
    assert all(out.tobytes() == plain.tobytes() for out in played.calls(rng, sets))
    wanted = chunks_between(played)
    assert wanted.sum() > 3 * RANKS  # some of several chunks
    kept = [[read() for read in backend.stream.meter.kernels] for backend in played.backends]
    assert [len(each) for each in kept] == [CALLS] * RANKS
    for call in range(CALLS):
        times = [each[call] for each in kept]
        for p, mine in enumerate(times):
            assert mine.began < mine.ended and not np.any(mine.to == p) and not np.any(mine.owners == p)
            assert np.all(mine.began <= mine.pushed[:, 0]) and np.all(mine.pushed[:, 0] < mine.pushed[:, 1])
            assert np.all(mine.pushed[:, 1] <= mine.ended) and np.all(mine.seen <= mine.ended)
            for q, other in enumerate(times):
                packed, seen = other.pushed[other.to == p, 1], mine.seen[mine.owners == q]
                assert len(packed) == len(seen) == wanted[p, q]
                assert np.all(packed <= seen)
    first, second = zip(*kept, strict=True)
    for p in range(RANKS):
        assert first[p].ended <= second[p].began


def test_a_call_that_is_not_profiled_keeps_no_times(rng, engine, monkeypatch):
    played = made(rng, engine)
    uploads = []
    plain = played.aggregate(rng)
    monkeypatch.setattr(engine.arrays, "uploaded", lambda array: uploads.append(array) or array.copy())
    assert played.aggregate(rng).tobytes() == plain.tobytes() and uploads == []
    for backend in played.backends:
        backend.stream.meter.kernels = []
    played.aggregate(rng)
    assert len(uploads) == 3 * RANKS
