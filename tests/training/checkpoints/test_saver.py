"""When checkpoints begin, and what is said of them."""

from __future__ import annotations

import threading

import pytest
from mpi4py import MPI

from mgg_hpc.config import CheckpointSettings
from mgg_hpc.errors import InputError, StoppedBySignal
from mgg_hpc.runtime import signals
from mgg_hpc.training.checkpoints import folders
from mgg_hpc.training.checkpoints.folders import START, Position
from mgg_hpc.training.checkpoints.saver import Saver
from mgg_hpc.training.checkpoints.state import State


def test_a_checkpoint_that_is_due_while_another_is_written_begins_after_the_next_batch(tmp_path):
    written = threading.Event()
    saver = Saver(
        MPI.COMM_SELF,
        CheckpointSettings(every_epochs=1, every_minutes=0),
        tmp_path,
        lambda at: State({"epoch": at.epoch, "batch": at.batch}, {}, None, {}),
        apart=False,
        sound=START,
        again="",
        before=written.wait,
    )
    saver.after_batch(0, 1)
    saver.after_epoch(1)
    saver.after_epoch(2)  # due, and that of epoch 1 is not written yet
    written.set()
    saver.finish()
    assert [each.name for each in tmp_path.glob("epoch*")] == [folders.name_of(1)]
    saver.after_batch(2, 3)
    saver.after_batch(2, 4)
    saver.finish()
    saver.after_batch(2, 5)  # none is due
    saver.finish()
    names = {each.name for each in tmp_path.glob("epoch*")}
    assert names == {folders.name_of(*at) for at in (Position(1), Position(2, 3))}


@pytest.mark.parametrize(
    ("sound", "can_write", "error", "told"),
    [
        (START, True, StoppedBySignal, "after epoch 3, which is saved; mgg resume r goes on from there"),
        (Position(2), False, InputError, r"could not be saved \(.*\); mgg resume r goes on from epoch 2"),
        (START, False, InputError, r"could not be saved \(.*\); nothing is saved"),
    ],
)
def test_a_stopped_run_says_what_is_saved(sound, can_write, error, told, tmp_path, monkeypatch):
    monkeypatch.setattr(signals, "came", lambda: True)
    waits = []
    saver = Saver(
        MPI.COMM_SELF,
        CheckpointSettings(),
        tmp_path if can_write else tmp_path / "absent",
        lambda at: State({"epoch": at.epoch}, {}, None, {}),
        apart=False,
        sound=sound,
        again="mgg resume r",
        waits=waits.append,
    )
    with pytest.raises(error, match=f"{told}$"):
        saver.after_epoch(3)
    assert waits == ["saving the state of epoch 3"]
