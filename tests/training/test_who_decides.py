"""Times and choices are those of the slowest rank, and of all ranks together: with made-up ranks, clocks and rounds."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from mgg_hpc.config import Settings, TrainSettings
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.arguments import Geometry
from mgg_hpc.runtime.backends.base import Meter
from mgg_hpc.training import train
from mgg_hpc.training.history import History
from mgg_hpc.training.job import Exchange
from mgg_hpc.training.profile import overlap
from mgg_hpc.training.tuning import tuner as tuning
from mgg_hpc.training.tuning.offline import _found
from mgg_hpc.training.tuning.target import Target

FORMAT = RowFormat(np.dtype(np.float32), 4)


class Others:
    """Three ranks, of which this is one; ``told(mine)`` is what the other two say."""

    size = 3

    def __init__(self, told, rank=1):
        self.told, self.rank = told, rank

    def allgather(self, mine):
        others = list(self.told(mine))
        return [*others[: self.rank], mine, *others[self.rank :]]


def tuner_of(told, targets=()):
    """A tuner that has waited long enough, on ranks whose backends hold any geometry."""
    made = tuning.Tuner.__new__(tuning.Tuner)
    stream = SimpleNamespace(finish=lambda: None)
    backend = SimpleNamespace(stream=stream, retune=lambda *given: None, options=SimpleNamespace(threads=2))
    made._job = SimpleNamespace(comm=Others(told), backend=backend)
    made.targets, made._folder = targets, None
    made._waited, made._replayed, made._keeps_bits = tuning.WARM_UP, SimpleNamespace(), True
    return made


@pytest.fixture
def target(monkeypatch):
    """A search for the best of three settings."""
    monkeypatch.setattr(tuning.user_cache, "write", lambda *given: None)
    plan = type("Plan", (), {"transfer": "halo", "local_edges": 10, "remote_edges": 20})()
    made = Target(
        plan, FORMAT, [(1, "forward")], {"of": "one"}, [tuning.Knob("wpb", (8, 16, 32))], Geometry(4, 0, 16)
    )
    made.search = tuning.Search(made.knobs, made.start)
    return made


def test_a_search_is_told_the_times_of_the_slowest_rank(target):
    """Here 8 is the fastest on this rank and in the mean, and 32 is the fastest on the slowest one."""
    mine, slowest = {8: 1.0, 16: 3.0, 32: 4.0}, {8: 9.0, 16: 8.0, 32: 7.0}
    seen = []

    def told(mine):
        if mine is True:  # the backend holds the geometry
            return [True, True]
        return [[slowest[seen[-1]]], [0.5 * seconds for seconds in mine]]

    made = tuner_of(told, [target])
    while made.searching:
        seen.append(target.search.setting[0])
        made.before(len(seen))
        made.after(Meter(calls={(target.plan, FORMAT.row_bytes): mine[seen[-1]]}))
    assert all(step.seconds == slowest[step.setting[0]] for step in target.search.steps)
    assert target.geometry.wpb == 32 and target.gain == pytest.approx(1 / 8)
    assert (_found(target).ms, _found(target).default_ms) == (7000, 8000)


def test_what_one_rank_has_most_of_counts(target):
    """Whether a search is worthwhile, and how large blocks may be: by the rank with most edges."""
    layers = [SimpleNamespace(forward=target.plan)]
    for most in (tuning.WORTHWHILE - 1, tuning.WORTHWHILE):
        comm = Others(lambda mine, most=most: [most, 0])
        assert tuning._is_large(SimpleNamespace(layers=layers, comm=comm)) == (most >= tuning.WORTHWHILE)
    allowed = tuner_of(lambda mine: [100_000, 0])._allowed(target)
    assert allowed((8,)) and allowed((100_000 // 4,)) and not allowed((100_000 // 4 + 1,))
    assert tuner_of(lambda mine: [0, 0])._allowed(target)((1 << 9 - 2,))


@pytest.mark.parametrize("rank", range(3))
def test_what_a_layer_hides_is_of_the_fastest_turn_of_the_slowest_rank(monkeypatch, rank):
    """The first turn counts nothing; each rank is the fastest, and the slowest, in some turn."""
    turns = {
        "transfer": [[0.0, 5.0, 4.0, 9.0], [0.0, 1.0, 6.0, 2.0], [0.0, 1.0, 2.0, 8.0]],
        "both": [[0.0, 7.0, 1.0, 1.0], [0.0, 8.0, 9.0, 1.0], [0.0, 1.0, 1.0, 9.5]],
        "sums": [[0.0, 4.0, 9.0, 9.0], [0.0, 3.0, 1.0, 1.0], [0.0, 3.5, 1.0, 1.0]],
    }
    every = [{name: ranks[of][1:] for name, ranks in turns.items()} for of in range(3)]
    monkeypatch.setattr(
        overlap, "interleaved", lambda runs, count: {name: turns[name][rank] for name in runs}
    )
    monkeypatch.setattr(overlap, "_has_room", lambda job, each: True)

    def told(mine):
        return [each for each in every if each != mine] if isinstance(mine, dict) else [mine, mine]

    alone = SimpleNamespace(transfer_only=None, compute_only=None)
    memory = SimpleNamespace(padded=lambda *given: None)
    profiling = SimpleNamespace(phases=lambda *given, **named: alone)
    backend = SimpleNamespace(memory=memory, profiling=profiling)
    job = SimpleNamespace(backend=backend, comm=Others(told, rank))
    graph = SimpleNamespace(exchange=lambda width: (SimpleNamespace(format=FORMAT), None))
    plan = SimpleNamespace(remote_edges=1, destinations=1)
    found = overlap._measured(job, graph, Exchange(1, "forward", plan, None, FORMAT))
    wanted = {"transfer_ms": 5000.0, "both_ms": 8000.0, "sums_ms": 4000.0, "hidden_share": 0.25}
    assert found == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("select", "patience", "best", "ends"),
    [
        ("best", 0, 1, 9),
        ("best", 3, 2, 5),
        ("best", 1, 4, 5),
        ("last", 3, 2, 9),
        ("best", 7, 2, 9),
        ("best", 8, 1, 9),
    ],
)
def test_training_ends_after_patience_epochs_without_a_better_one(select, patience, best, ends):
    settings = Settings(train=TrainSettings(epochs=9, patience=patience))
    job, history = SimpleNamespace(settings=settings, select=select), History(best_epoch=best)
    over = [epoch for epoch in range(best, 12) if train._is_over(job, history, epoch)]
    assert over[0] == ends and over == list(range(ends, 12))
