"""Phases of a run's epochs: exclusive times by a clock that tests turn, and over ranks; stamps of halo exchanges."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from mgg_hpc.nn import spans
from mgg_hpc.nn.spans import span
from mgg_hpc.runtime.backends.base import Meter
from mgg_hpc.training.profile import phases, trace
from mgg_hpc.training.profile.phases import Phases, breakdown


class Clock:
    """Time that tests let pass."""

    now = 0.0

    def passes(self, seconds):
        self.now += seconds

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
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
    with span("step"):  # after the last epoch
        clock.passes(100)
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


def test_the_breakdown_over_ranks_is_numpy_s(rng):
    times = rng.uniform(0, 9, (3, 5))
    ranks = [dict(zip("abcde", each.tolist(), strict=True)) for each in times]
    for column, row in zip(times.T, breakdown(ranks), strict=True):
        wanted = {"min": column.min(), "mean": np.mean(column), "max": column.max()}
        wanted |= {"share": column.sum() / times.sum(), "imbalance": column.max() / column.mean()}
        assert {name: row[name] for name in wanted} == pytest.approx(wanted)
    (nothing,) = breakdown([{"a": 0.0}, {"a": 0.0}])
    assert nothing | {"phase": ""} == dict.fromkeys(wanted, 0.0) | {"phase": "", "imbalance": 1.0}


def test_events_of_halo_exchanges_are_where_their_stamps_are(rng):
    rounds, ranks, began, ended = 2, 3, 10.0, 20.0
    times = np.sort(rng.uniform(began, ended, 4 * rounds)).reshape(rounds, 4)
    waits, arrived, pushed = times[:, 2], times[:, 3], np.zeros((rounds, ranks))
    pushed[:, [0, 2]] = times[:, :2]
    values = [began, ended, *waits, *arrived, *pushed.ravel()]
    found = trace.unpacked(values, rounds, ranks)
    assert (found.began, found.ended) == (began, ended)
    for name, wanted in (("waits", waits), ("arrived", arrived), ("pushed", pushed)):
        np.testing.assert_array_equal(getattr(found, name), wanted)

    plan = SimpleNamespace(lists=SimpleNamespace(rounds=rounds))
    # Unix time is so much later, and the trace begins at 5 s of the stamps' clock.
    offset, base = 1000.0, 1005.0
    made = [
        each for each in trace.exchange_events([(plan, values)], ranks, offset, base, 7) if each["ph"] == "X"
    ]
    wanted = []
    for turn in range(rounds):
        before = began if turn == 0 else pushed[turn - 1].max()
        wanted += [(f"halo: push round {turn + 1} to rank {to}", before, pushed[turn, to]) for to in (0, 2)]
        wanted.append((f"halo: wait for round {turn + 1}", waits[turn], arrived[turn]))
    assert [each["name"] for each in made] == [name for name, *_ in wanted]
    for event, (_, low, high) in zip(made, wanted, strict=True):
        assert (event["ts"], event["dur"]) == pytest.approx(((low - 5) * 1e6, (high - low) * 1e6))
        assert event["pid"] == 7 and event["args"]["call"] == 0
    assert list(trace.exchange_events([], ranks, offset, base, 7)) == []
