"""Times and choices are those of the slowest rank, and of all ranks together: with made-up ranks, clocks and rounds."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from mpi4py import MPI

from mgg_hpc.config import CheckpointSettings, Settings, TrainSettings
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.plan.tune import REPEATS
from mgg_hpc.runtime.backends.arguments import Geometry
from mgg_hpc.runtime.backends.base import Meter
from mgg_hpc.training import train
from mgg_hpc.training.checkpoints import saver as savers
from mgg_hpc.training.checkpoints.folders import START
from mgg_hpc.training.checkpoints.state import State
from mgg_hpc.training.history import History
from mgg_hpc.training.profile import overlap
from mgg_hpc.training.tuning import tuner as tuning
from mgg_hpc.training.tuning.offline import _found
from mgg_hpc.training.tuning.target import Target

FORMAT = RowFormat(np.dtype(np.float32), 4)


class Plan(SimpleNamespace):
    """What stands for a plan."""

    __hash__ = object.__hash__


class Others:
    """Three ranks, of which this is one; ``told(mine)`` is what the other two say."""

    size = 3

    def __init__(self, told, rank=1):
        self.told, self.rank = told, rank

    def allgather(self, mine):
        others = list(self.told(mine))
        return [*others[: self.rank], mine, *others[self.rank :]]


def tuner_of(comm, targets):
    """A tuner that has waited long enough, on ranks whose backends hold any geometry."""
    made = tuning.Tuner.__new__(tuning.Tuner)
    stream = SimpleNamespace(finish=lambda: None)
    backend = SimpleNamespace(stream=stream, retune=lambda *given: None, options=SimpleNamespace(threads=2))
    backend.capabilities = SimpleNamespace(keeps_bits=True)
    made._job, made.targets, made._folder = SimpleNamespace(comm=comm, backend=backend), targets, None
    made._waited, made._replayed = tuning.WARM_UP, SimpleNamespace()
    return made


def target_of(plan):
    knobs = [tuning.Knob("wpb", (8, 16, 32))]
    made = Target(plan, FORMAT, [(1, "forward")], {"of": "one"}, knobs, Geometry(4, 0, 16))
    made.search = tuning.Search(made.knobs, made.start)
    return made


def test_a_search_is_told_the_times_of_the_slowest_rank(monkeypatch):
    """Here 8 is the fastest on this rank and in the mean, and 32 is the fastest on the slowest one."""
    monkeypatch.setattr(tuning.user_cache, "write", lambda *given: None)
    plan = Plan(transfer="halo")
    target = target_of(plan)
    mine, slowest = {8: 1.0, 16: 3.0, 32: 4.0}, {8: 9.0, 16: 8.0, 32: 7.0}
    setting = {}

    def told(mine):
        if mine is True:  # the backend holds the geometry
            return [True, True]
        return [[slowest[setting["now"]]], [0.5 * seconds for seconds in mine]]

    made = tuner_of(Others(told), [target])
    for epoch in range(1, 100):
        if not made.searching:
            break
        (setting["now"],) = target.search.setting
        made.before(epoch)
        meter = Meter(calls={(plan, FORMAT.row_bytes): mine[setting["now"]]})
        made.after(meter)
    assert all(step.seconds == slowest[step.setting[0]] for step in target.search.steps)
    assert target.geometry.wpb == 32 and target.gain == pytest.approx(1 / 8)
    assert _found(target, target.search).ms == 7000 and _found(target, target.search).default_ms == 8000


def test_a_setting_that_was_lucky_in_one_round_is_not_taken(monkeypatch):
    """8 takes 1 s in one epoch, and as long as the others in all others."""
    monkeypatch.setattr(tuning.user_cache, "write", lambda *given: None)
    plan = Plan(transfer="halo")
    target, seen = target_of(plan), []
    made = tuner_of(Others(lambda told: [told, told]), [target])
    while made.searching:
        (wpb,) = target.search.setting
        made.before(len(seen) + 1)
        seen.append(wpb)
        lucky = wpb == 8 and seen.count(8) == 1
        made.after(Meter(calls={(plan, FORMAT.row_bytes): 1.0 if lucky else 2.0}))
    assert seen.count(8) > REPEATS and target.geometry.wpb == 16 and target.gain == 0


def test_what_one_rank_has_most_of_counts():
    """Whether a search is worthwhile, and how large blocks may be: by the rank with most edges."""
    plan = SimpleNamespace(local_edges=10, remote_edges=20)
    for most in (tuning.WORTHWHILE - 1, tuning.WORTHWHILE):
        job = SimpleNamespace(
            layers=[SimpleNamespace(forward=plan)], comm=Others(lambda mine, most=most: [most, 0])
        )
        assert tuning._is_large(job) == (most >= tuning.WORTHWHILE)
    allowed = tuner_of(Others(lambda mine: [100_000, 0]), [])._allowed(target_of(plan))
    assert allowed((8,)) and allowed((100_000 // 4,)) and not allowed((100_000 // 4 + 1,))
    assert tuner_of(Others(lambda mine: [0, 0]), [])._allowed(target_of(plan))((1 << 9 - 2,))


def test_a_geometry_is_taken_where_every_rank_holds_it():
    for others in ([True, True], [True, False], [False, False]):
        made = tuner_of(Others(lambda mine, others=others: others), [])
        set_to = []
        made._job.backend.retune = lambda plan, format, geometry, set_to=set_to: set_to.append(geometry)
        target = target_of(SimpleNamespace())
        assert made._retune(target, Geometry(4, 0, 8)) == all(others)
        assert set_to[-1] == (Geometry(4, 0, 8) if all(others) else target.geometry)


@pytest.mark.parametrize("rank", range(3))
def test_what_a_layer_hides_is_of_the_fastest_turn_of_the_slowest_rank(monkeypatch, rank):
    """The first turn counts nothing; each rank is the fastest, and the slowest, in some turn."""
    turns = {
        "transfer": [[0.0, 5.0, 4.0, 9.0], [0.0, 1.0, 6.0, 2.0], [0.0, 1.0, 2.0, 8.0]],
        "both": [[0.0, 7.0, 1.0, 1.0], [0.0, 8.0, 9.0, 1.0], [0.0, 1.0, 1.0, 9.5]],
        "sums": [[0.0, 4.0, 9.0, 9.0], [0.0, 3.0, 1.0, 1.0], [0.0, 3.5, 1.0, 1.0]],
    }
    every = [{name: ranks[of][1:] for name, ranks in turns.items()} for of in range(3)]
    monkeypatch.setattr(overlap, "take_turns", lambda runs, count: {name: turns[name][rank] for name in runs})
    monkeypatch.setattr(overlap, "_has_room", lambda job, each: True)

    def told(mine):
        return [each for each in every if each != mine] if isinstance(mine, dict) else [mine, mine]

    alone = SimpleNamespace(transfer_only=None, compute_only=None)
    memory = SimpleNamespace(padded=lambda *given: None)
    backend = SimpleNamespace(memory=memory, phases=lambda *given, **named: alone)
    job = SimpleNamespace(backend=backend, comm=Others(told, rank))
    graph = SimpleNamespace(exchange=lambda width: (SimpleNamespace(format=FORMAT), None))
    plan = SimpleNamespace(remote_edges=1, destinations=1)
    found = overlap._measured(job, graph, overlap.LayerExchange(1, "forward", plan, None, 4))
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


def test_a_checkpoint_is_due_by_the_clock_of_rank_0_from_the_last_one_on(tmp_path, monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(savers, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def made(comm):
        return savers.Saver(
            comm,
            CheckpointSettings(every_epochs=0, every_minutes=2.0),
            tmp_path,
            lambda at: State({"epoch": at.epoch}, {}, None, {}),
            apart=False,
            sound=START,
            again="",
        )

    saver, began = made(MPI.COMM_SELF), []
    for epoch, clock.now in enumerate((1119.0, 1120.0, 1121.0, 1239.0, 1240.5, 1359.0, 1361.0), 1):
        saver.after_epoch(epoch)
        began.append(saver._latest.epoch)
        saver.finish()
    assert began == [0, 2, 2, 2, 5, 5, 7]
    other = made(SimpleNamespace(rank=1, size=2))
    clock.now = math.inf
    assert not other._is_due(savers.Position(9))
