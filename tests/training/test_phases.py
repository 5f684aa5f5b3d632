"""The phases of a run's epochs: exclusive times by a clock that tests turn, and the table over ranks."""

from __future__ import annotations

import numpy as np
import pytest

from mgg_hpc.nn import spans
from mgg_hpc.nn.spans import span
from mgg_hpc.runtime.backends.base import Meter
from mgg_hpc.training import report
from mgg_hpc.training.profile import phases
from mgg_hpc.training.profile.phases import Phases, breakdown


@pytest.fixture
def clock(monkeypatch):
    """Makes time pass in spans and between them, and says how much."""

    class Clock:
        now = 0.0

        def passes(self, seconds):
            self.now += seconds

        def perf_counter(self):
            return self.now

    made = Clock()
    monkeypatch.setattr(spans, "time", made)
    monkeypatch.setattr(phases, "time", made)
    return made


def test_stages_have_their_own_time_and_evaluation_all_of_its_own(clock, rng):
    took = dict(zip("abcdefgh", rng.uniform(0.1, 9, 8), strict=True))
    waited = 0.5 * took["b"]
    counted = Phases("cpu")
    with counted.counted():
        clock.passes(took["a"])  # between spans
        with span("epoch 3"), span("step"), spans.layer("layer 1"):
            with span("forward: aggregate"):
                clock.passes(took["b"])
            clock.passes(took["c"])
            with span("forward: transform"):
                clock.passes(took["d"])
        with span("evaluate"):
            clock.passes(took["e"])
            with span("forward: aggregate"):
                clock.passes(took["f"])
        with span("checkpoint"):
            clock.passes(took["g"])
        with counted.profiling():
            clock.passes(took["h"])
        counted.add(Meter(waited=waited), 0.0, 0.0)
    clock.passes(100)  # after the last epoch
    found = counted.seconds()
    expected = {
        "aggregate": took["b"] - waited,
        "wait for peers": waited,
        "dense": took["c"] + took["d"],
        "evaluate": took["e"] + took["f"],
        "checkpoint": took["g"],
        "profiler": took["h"],
        "other": took["a"],
    }
    assert {name: seconds for name, seconds in found.items() if seconds} == pytest.approx(expected)
    assert sum(found.values()) == pytest.approx(sum(took.values())) and counted.epochs == 1


def test_a_gpu_s_phases_are_those_of_its_stream(clock):
    counted = Phases("cuda")
    with counted.counted():
        clock.passes(10)
        counted.add(Meter(seconds=2.0), 5.0, 3.0)
    found = counted.seconds()
    assert found == {"aggregate": 2.0, "rest of the step": 3.0, "evaluate": 3.0, "other": 2.0}


def test_no_span_is_counted_outside(clock):
    counted = Phases("cpu")
    with counted.counted():
        pass
    with span("step"):
        clock.passes(1)
    assert sum(counted.seconds().values()) == 0


def test_the_breakdown_over_ranks_is_numpy_s(rng):
    times = rng.uniform(0, 9, (3, 5))
    ranks = [dict(zip("abcde", each.tolist(), strict=True)) for each in times]
    for column, row in zip(times.T, breakdown(ranks), strict=True):
        expected = (
            column.min(),
            np.mean(column),
            column.max(),
            column.sum() / times.sum(),
            column.max() / column.mean(),
        )
        names = ("min", "mean", "max", "share", "imbalance")
        assert [row[name] for name in names] == pytest.approx(expected)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_table_has_ranks_columns_where_there_are_several(capsys, ranks):
    parts = [{"aggregate": 30.0 + 20 * rank, "checkpoint": 0.0, "other": 10.0} for rank in range(ranks)]
    summary = {"ranks": ranks, "timed_epochs": 7, "per_rank": [{"phases_ms": each} for each in parts]}
    report.print_phases(summary)
    said = capsys.readouterr().out
    assert "7 epochs" in said and "checkpoint" not in said
    assert ("imbalance" in said) == (ranks == 2)
    line = next(line for line in said.splitlines() if "aggregate" in line)
    cells = [cell.strip() for cell in line.strip("│").split("│")]
    assert cells == (
        ["aggregate", "30.0", "75.0%"]
        if ranks == 1
        else ["aggregate", "30.0", "40.0", "50.0", "80.0%", "1.25"]
    )
