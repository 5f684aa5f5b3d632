"""The times that a halo's kernel keeps where the meter asks for them: whose they are, their order, and their cost."""

from __future__ import annotations

import cases
import numpy as np
import pytest
from gpu.pes.played import Played

RANKS, CALLS = 3, 2


@pytest.mark.parametrize("pointers", [True, False])
def test_chunks_are_packed_then_seen_within_the_kernels_of_both(rng, engine, monkeypatch, pointers):
    """All ranks' kernels run by one clock: that of the shim. A call that is not profiled keeps no times."""
    case = cases.ordinary(rng, RANKS)
    x = rng.standard_normal((case.nodes, 7)).astype(np.float32)
    played = Played(engine, case, x, transfer="halo", reaches=lambda rank, peer: pointers or rank == peer)
    uploads, plain = [], played.aggregate(rng)
    monkeypatch.setattr(engine.arrays, "uploaded", lambda array: uploads.append(array) or array.copy())
    assert played.aggregate(rng).tobytes() == plain.tobytes() and uploads == []
    for backend in played.backends:
        backend.profiling.kernels = []
    found = played.calls(rng, [played.rows] * CALLS)
    assert all(out.tobytes() == plain.tobytes() for out in found) and len(uploads) >= 3 * RANKS
    kept = [[read() for read in backend.profiling.kernels] for backend in played.backends]
    assert [len(each) for each in kept] == [CALLS] * RANKS
    source, destination = played.edge_lists()
    owner = np.searchsorted(case.bounds, np.arange(case.nodes), side="right") - 1
    halos = [np.unique(source[owner[destination] == p]) for p in range(RANKS)]
    chunks = [
        -(-np.bincount(owner[rows], minlength=RANKS) // 4) for rows in halos
    ]  # of four rows of 32 bytes
    assert sum(map(sum, chunks)) > 3 * RANKS  # some of several chunks
    for times in zip(*kept, strict=True):
        for p, mine in enumerate(times):
            assert mine.began < mine.ended and not np.any(mine.to == p) and not np.any(mine.owners == p)
            assert np.all(mine.began <= mine.pushed[:, 0]) and np.all(mine.pushed[:, 0] < mine.pushed[:, 1])
            assert np.all(mine.pushed[:, 1] <= mine.ended) and np.all(mine.seen <= mine.ended)
            for q, other in enumerate(times):
                packed, seen = other.pushed[other.to == p, 1], mine.seen[mine.owners == q]
                assert len(packed) == len(seen) == (chunks[p][q] if p != q else 0)
                assert np.all(packed <= seen)
    for first, second in kept:
        assert first.ended <= second.began
