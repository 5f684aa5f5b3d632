"""Measurements that decide are those of the slowest rank, in its best turn: by made-up clocks."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime import mpi, probe
from mgg_hpc.runtime.streaming import bandwidth

TURNS = 5
# Seconds of each turn on three ranks. The second is the slowest; each has one turn that is much shorter than all
# others, and longer ones, in which other work ran.
TAKEN = np.array([[3.0, 1.0, 9.0, 2.0, 3.0], [5.0, 6.0, 4.0, 40.0, 5.0], [2.0, 2.0, 2.0, 0.1, 8.0]])


class Clock:
    """A clock that goes on by what an action takes, and by nothing else."""

    def __init__(self, monkeypatch, *modules):
        self.now = 100.0
        for module in modules:
            monkeypatch.setattr(module.time, "perf_counter", lambda: self.now)

    def passes(self, seconds):
        self.now += seconds


class Comm:
    """The communicator of one rank, to which the others' values were told before."""

    def __init__(self, told, rank=0, size=3):
        self.told, self.rank, self.size = told, rank, size

    def allgather(self, mine):
        return [*self.told, mine]

    def bcast(self, value):
        return value

    def Barrier(self):  # noqa: N802
        pass


def turns(clock, taken):
    """An action that takes these seconds, call by call."""
    rest = iter(taken)
    return lambda: clock.passes(next(rest))


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.setattr(mpi, "barrier", lambda comm: None)


def test_a_probe_takes_each_ranks_best_turn_and_then_the_slowest(monkeypatch):
    format, told = RowFormat(np.dtype(np.float32), 4), []
    rows, plan = SimpleNamespace(format=format), SimpleNamespace(destinations=1)
    monkeypatch.setattr(probe, "TURNS", TURNS)
    for taken in TAKEN[[0, 2, 1]]:
        clock = Clock(monkeypatch, probe)
        action = turns(clock, taken)
        backend = SimpleNamespace(
            memory=SimpleNamespace(padded=lambda count, format: np.empty((count, 4), np.float32)),
            stream=SimpleNamespace(finish=action),
            publish=lambda rows, clock=clock: clock.passes(
                1000
            ),  # peers are waited for before the clock starts
            aggregate=lambda *arguments: None,
        )
        found = probe._time(Comm(told), backend, plan, rows)
        told.append(taken.min())
    assert found == TAKEN.min(axis=1).max() == 4.0


def test_a_bandwidth_is_that_of_the_best_copy(monkeypatch):
    monkeypatch.setattr(bandwidth, "NBYTES", 1000)
    clock = iter(np.cumsum([0, 5e-7, 0, 2e-7, 0, 9e-7, 0, 4e-7, 0, 8e-7, 0, 1e-6]))
    monkeypatch.setattr(bandwidth.time, "perf_counter", lambda: next(clock))
    alone, together = bandwidth.copy_bandwidth(Comm([7.0, 2.0]))
    assert alone == pytest.approx(1000 / 2e-7 / 1e9)
    assert together == pytest.approx(7.0 + 2.0 + 1000 / 4e-7 / 1e9)
