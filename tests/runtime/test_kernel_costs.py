"""Seconds of an action are those of the slowest rank in its fastest turn: with made-up clocks of two ranks."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from mgg_hpc.runtime import cores, kernel_costs


@pytest.mark.parametrize("shared", [False, True])
def test_an_action_takes_what_it_takes_on_the_slowest_rank(rng, monkeypatch, shared):
    """Where ranks share cores, from the first one's begin to the last one's end, for the four times it runs."""
    turns, repeats = 5, 4 if shared else 1
    waits, takes = rng.uniform(1, 2, (2, turns, 2))
    clock = SimpleNamespace(now=0.0)
    taken, waited = iter(np.repeat(takes[:, 0], repeats).tolist()), iter(waits[:, 0].tolist())

    def passes(values):
        clock.now += next(values)

    other = np.cumsum(np.stack([waits[:, 1], takes[:, 1] * repeats], axis=1).ravel()).reshape(turns, 2)
    every = []
    comm = SimpleNamespace(size=2, allgather=lambda mine: every.extend([mine, other.tolist()]) or every)
    monkeypatch.setattr(kernel_costs.mpi, "barrier", lambda comm: passes(waited))
    monkeypatch.setattr(kernel_costs, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    monkeypatch.setattr(cores, "available", lambda: 1 if shared else 2)
    found = kernel_costs.slowest(comm, lambda: passes(taken), turns)
    mine = every[0]
    if shared:
        wanted = min(max(a[1], b[1]) - min(a[0], b[0]) for a, b in zip(mine, other, strict=True)) / 4
    else:
        wanted = takes.max(axis=1).min()
    assert found == pytest.approx(wanted, rel=1e-12)
