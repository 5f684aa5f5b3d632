"""When checkpoints begin, what is said of them, which are kept, and which one a user's loop goes on from."""

from __future__ import annotations

import math
import threading
from types import SimpleNamespace

import pytest
import torch
from mpi4py import MPI

import mgg_hpc as mgg
from mgg_hpc.config import CheckpointSettings, PlanSettings
from mgg_hpc.errors import InputError, StoppedBySignal
from mgg_hpc.runtime import signals
from mgg_hpc.training.checkpoints import folders, resume
from mgg_hpc.training.checkpoints import saver as savers
from mgg_hpc.training.checkpoints.folders import START, Position
from mgg_hpc.training.checkpoints.state import State


@pytest.fixture
def saver(tmp_path):
    """saver(...): a saver for a folder with these settings."""

    def saver(comm=MPI.COMM_SELF, folder=tmp_path, newest=START, *, when=None, **more):
        when = CheckpointSettings(**(when or {}))
        given = {"all_write": False, "newest": newest, "command": "mgg resume r"} | more
        return savers.Saver(comm, when, folder, **given)

    return saver


def after(saver, epoch, batch=0):
    """Do as a training does after an epoch, or a batch of the next one."""
    at = Position(epoch, batch)
    if saver.wants(at):
        saver.save(at, State({"epoch": epoch, "batch": batch}, {}, None, {}))


def test_a_checkpoint_that_is_due_while_another_is_written_begins_after_the_next_batch(saver, tmp_path):
    written = threading.Event()
    metrics = SimpleNamespace(sync=written.wait)
    made = saver(when={"every_epochs": 1, "every_minutes": 0}, metrics=metrics)
    after(made, 0, 1)
    after(made, 1)
    after(made, 2)  # due, and the checkpoint of epoch 1 is not written yet
    written.set()
    made.finish()
    assert [each.name for each in tmp_path.glob("epoch*")] == [folders.name_of(1)]
    for batch in (3, 4):
        after(made, 2, batch)
    made.finish()
    after(made, 2, 5)  # none is due
    made.finish()
    names = {each.name for each in tmp_path.glob("epoch*")}
    assert names == {folders.name_of(*at) for at in (Position(1), Position(2, 3))}


def test_a_checkpoint_is_due_by_the_clock_of_rank_0_from_the_last_one_on(saver, monkeypatch):
    clock, when = SimpleNamespace(now=1000.0), {"every_epochs": 0, "every_minutes": 2.0}
    monkeypatch.setattr(savers, "time", SimpleNamespace(monotonic=lambda: clock.now))
    made, began = saver(when=when), []
    for epoch, clock.now in enumerate((1119.0, 1120.0, 1121.0, 1239.0, 1240.5, 1359.0, 1361.0), 1):
        after(made, epoch)
        began.append(made._latest.epoch)
        made.finish()
    assert began == [0, 2, 2, 2, 5, 5, 7]
    other = saver(SimpleNamespace(rank=1, size=2), when=when)
    clock.now = math.inf
    assert not other._is_due(Position(9))


@pytest.mark.parametrize(
    ("newest", "can_write", "error", "told"),
    [
        (START, True, StoppedBySignal, "after epoch 3, which is saved; mgg resume r goes on from there"),
        (Position(2), False, InputError, r"could not be saved \(.*\); mgg resume r goes on from epoch 2"),
        (START, False, InputError, r"could not be saved \(.*\); nothing is saved"),
    ],
)
def test_a_stopped_run_says_what_is_saved(saver, newest, can_write, error, told, tmp_path, monkeypatch):
    monkeypatch.setattr(signals, "came", lambda: True)
    waits, folder = [], tmp_path if can_write else tmp_path / "absent"
    made = saver(folder=folder, newest=newest, dog=SimpleNamespace(step=waits.append))
    with pytest.raises(error, match=f"{told}$"):
        after(made, 3)
    assert waits == ["saving the state of epoch 3"]


def test_what_is_newer_than_the_last_checkpoint_goes(tmp_path):
    """It was damaged when the run went on from an earlier one; the number that is kept does not count it."""
    for epoch in (2, 4, 9):
        folders.commit(folders.draft(tmp_path, epoch), epoch, {})
    folders.prune(tmp_path, keep=1, newest=Position(4))
    assert [path.name for path in tmp_path.iterdir()] == [folders.name_of(4)]


def test_the_plan_of_a_checkpoint_counts_where_nothing_else_is_asked_for():
    auto = PlanSettings()
    kept, job = PlanSettings("halo", 64, 8, 4), PlanSettings("direct", 128, 8, 2)
    assert resume.plan_of(kept, job, auto) == resume.plan_of(kept, job, job) == kept
    assert resume.plan_of(None, job, job) == auto
    streamed, lower = PlanSettings("direct", memory="2G", scratch="here"), PlanSettings("direct", memory=7)
    assert resume.plan_of(None, streamed, streamed) == PlanSettings(memory="2G", scratch="here")
    assert resume.plan_of(streamed, streamed, lower) == lower
    assert resume.plan_of(kept, job, PlanSettings("get", 128, 8, 2)) == PlanSettings("get", 64, 8, 4)


def run(folder, last: int) -> dict[int, float]:
    """The weight after each epoch that was run, of a model whose epochs add 1."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    found = {}
    with mgg.checkpointed(model, optimizer, folder, keep=3) as state:
        for epoch in state.epochs(last):
            with torch.no_grad():
                model.weight += 1
            found[epoch] = model.weight.item()
    return found


@pytest.mark.parametrize("damaged", [0, 1])
def test_a_loop_passes_over_a_damaged_checkpoint_and_names_it(tmp_path, capfd, damaged):
    folder = tmp_path / "state"
    assert run(folder, 3) == {1: 1.0, 2: 2.0, 3: 3.0}
    made = sorted(path for path in folder.iterdir() if path.is_dir())  # an epoch may pass while one is saved
    sound, spoilt = made[: len(made) - damaged], made[len(made) - damaged :]
    for each in spoilt:
        (tensors,) = each.glob("*.safetensors")
        whole = bytearray(tensors.read_bytes())
        whole[-1] ^= 1
        tensors.write_bytes(whole)
    capfd.readouterr()
    last = int(sound[-1].name.partition("-")[2]) if sound else 0
    assert run(folder, 4) == {epoch: float(epoch) for epoch in range(last + 1, 5)}
    told = [line for line in capfd.readouterr().err.splitlines() if line.startswith("mgg: warning: ")]
    assert len(told) == damaged and all(spoilt[0].name in line for line in told)
