"""Measurements that decide are those of the slowest rank, in its best turn: by made-up clocks."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime import mpi, row_costs

# Seconds of each turn on three ranks. The last is the slowest; each has one turn that is much shorter than all
# others, and longer ones, in which other work ran.
TAKEN = np.array([[3.0, 1.0, 9.0, 2.0, 3.0], [2.0, 2.0, 2.0, 0.1, 8.0], [5.0, 6.0, 4.0, 40.0, 5.0]])


def test_a_probe_takes_each_ranks_best_turn_and_then_the_slowest(monkeypatch):
    now, told = [100.0], []
    monkeypatch.setattr(row_costs, "REPEATS", TAKEN.shape[1])
    monkeypatch.setattr(row_costs.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(mpi, "barrier", lambda comm: None)

    def passes(seconds):
        now[0] += seconds

    rows, plan = SimpleNamespace(format=RowFormat(np.dtype("f4"), 4)), SimpleNamespace(destinations=1)
    for taken in TAKEN:
        rest = iter(taken)
        comm = SimpleNamespace(
            rank=0, size=3, allgather=lambda mine: [*told, mine], bcast=lambda value: value
        )
        backend = SimpleNamespace(
            memory=SimpleNamespace(padded=lambda count, format: np.empty((count, 4), np.float32)),
            stream=SimpleNamespace(finish=lambda rest=rest: passes(next(rest))),
            publish=lambda rows: passes(1000),  # peers are waited for before the clock starts
            aggregate=lambda *arguments: None,
        )
        found = row_costs._seconds(comm, backend, plan, rows)
        told.append(taken.min())
    assert found == TAKEN.min(axis=1).max() == 4.0
