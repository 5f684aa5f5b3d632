"""Runs that are stopped and resumed: the same bits on the same ranks, equal to rounding on others, nothing lost."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import user_net
from jobs import blocks, write_job
from mpi4py import MPI
from torture.launched import assert_same_runs, metrics
from torture.report import record

from mgg_hpc import config
from mgg_hpc.__main__ import main
from mgg_hpc.data import writer
from mgg_hpc.errors import StoppedBySignal
from mgg_hpc.runtime import signals
from mgg_hpc.training import train
from mgg_hpc.training.checkpoints import folders, resume, state
from mgg_hpc.training.screen import Screen

pytestmark = pytest.mark.mpi

EPOCHS = 12
MODELS = {
    "gcn": {"hidden": 9, "norm": "batch"},
    "gat": {
        "name": "gat",
        "hidden": 4,
        "heads": 2,
        "attention_dropout": 0.3,
        "input": "learned",
        "embedding": 7,
    },
    "gin": {"name": "gin", "hidden": 8, "norm": "batch", "input": "degree"},
    "plain": {"hidden": 9},
    "user": {
        "module": f"{user_net.__file__}:Net",
        "arguments": {"inputs": 7, "dropout": 0.3},
        "input": "learned",
        "embedding": 7,
    },
}
OPTIMIZED = {
    "optimizer": {"name": "NAdam", "momentum_decay": 0.01},
    "scheduler": {"name": "ReduceLROnPlateau", "patience": 0},
    "clip_norm": 0.5,
    "class_weights": [1, 2, 0.5, 1],
}
# "auto" may choose another one for the second of two runs, and so other bits.
TRANSFERS = {"gcn": "halo", "gat": "direct", "gin": "get", "user": "halo"}


@pytest.fixture
def stop(comm):
    """with stop(5): a signal comes to the last rank as epoch 5 ends; stop(5, 2): after batch 2 of the one after it.

    ranks: of which one gets it. [default: all]
    """

    @contextlib.contextmanager
    def stop(epoch: int, batch: int = 0, ranks: int = comm.size) -> Iterator[None]:
        wants = train.Saver.wants

        def signalled(saver: train.Saver, at: folders.Position, **more: bool) -> bool:
            if at == (epoch, batch) and comm.rank == ranks - 1:
                signals._note(signal.SIGTERM, None)
            return wants(saver, at, **more)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(signals, "_first", [])
            patch.setattr(train.Saver, "wants", signalled)
            yield

    return stop


@pytest.fixture
def job(folder, first):
    """Write graph and job file, the run's folder being ``name``; returns the job file."""

    def job(name: str, model: dict, **more: dict) -> Path:
        sections = {"model": model, "train": {"epochs": EPOCHS, "seed": 5}, **more}
        sections["run"] = {"folder": str(folder / name), "threads": 1} | more.get("run", {})
        first(lambda: write_job(folder, None if (folder / "g.h5").exists() else blocks(), **sections))
        return folder / "job.toml"

    return job


BATCHES = {"mode": "sampled", "fanouts": [3, 4], "batch_size": 5, "epochs": 4, "seed": 5}
STOPPED = [
    ("gcn", (5, 0)),
    ("gat", (5, 0)),
    ("gin", (1, 0)),
    ("gcn", (2, 3)),
    ("gat", (0, 2)),
    ("user", (5, 0)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "at"), STOPPED)
def test_a_resumed_run_is_the_run_that_was_never_stopped(mgg, folder, job, stop, model, at, monkeypatch):
    """After a stop between two epochs, or between two batches of one, also where a device prepares some of these."""
    at = folders.Position(*at)
    sections = {"checkpoint": {"every_epochs": EPOCHS - 1}, "plan": {"transfer": TRANSFERS[model]}}
    chosen, epochs = MODELS[model], EPOCHS
    if model == "user":
        sections["train"] = OPTIMIZED | {"epochs": EPOCHS, "seed": 5}
    if at.batch:
        sections, epochs = sections | {"train": BATCHES}, 4
        chosen = {key: value for key, value in chosen.items() if key not in ("input", "embedding")}
    assert mgg("train", job("whole", chosen, **sections)).codes == {0}
    if at.batch and model == "gcn":
        sections["train"] = BATCHES | {"prepare": "hybrid", "buffer": 2}
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    path = job("parts", chosen, **sections)
    with stop(*at):
        stopped = mgg("train", path)
    assert stopped.codes == {3}
    assert f"after {at}, which is saved; mgg resume" in "".join(stopped.err)
    one, other = folder / "whole" / "001", folder / "parts" / "001"
    assert len(metrics(other)) == at.epoch
    assert [each.name for each in (other / "checkpoints").glob("epoch*")] == [folders.name_of(*at)]
    folders.verify(other / "checkpoints" / folders.name_of(*at), *at)
    tiers = ("--set", "features.near=1K") if at.batch and model == "gat" else ()  # rows may lie elsewhere
    resumed = mgg("resume", folder / "parts", *tiers)
    assert resumed.codes == {0}
    assert f"going on after {at} of" in resumed.out[0] and "rounding" not in resumed.out[0]
    assert assert_same_runs(one, other, epochs) >= 1
    kept = [json.loads((run / "summary.json").read_text()) for run in (one, other)]
    for name in (
        "best_epoch",
        "val_accuracy",
        "test_accuracy",
        "final_loss",
        "epochs",
        *([] if tiers else ["bytes"]),
    ):
        assert kept[0][name] == kept[1][name], name
    assert (folder / "parts" / "latest").readlink() == Path("001")
    for each in other.rglob("*"):  # of all ranks
        assert each.stat().st_mode & 0o777 == (0o700 if each.is_dir() else 0o600), each


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "at"),
    [
        pytest.param("gcn", (4, 0), marks=pytest.mark.long),
        ("gat", (4, 0)),
        ("user", (4, 0)),
        pytest.param("plain", (1, 2), marks=pytest.mark.long),
    ],
)
def test_any_number_of_ranks_goes_on_with_a_run_of_any_other(comm, folder, job, stop, model, at):
    """Losses are equal to rounding, after an epoch and after a batch within one."""
    sections = (BATCHES if at[1] else {"epochs": 7, "seed": 5}) | {"dtype": "float64"}
    sections |= OPTIMIZED if model == "user" else {}
    settings = config.load(job("whole", MODELS[model], train=sections))
    shown = train.Shown(Screen(False))
    train._train(settings, comm, None, shown)
    comm.Barrier()
    wanted = [float(line[1]) for line in metrics(folder / "whole" / "001")]
    pairs = sorted({(1, comm.size), (comm.size, 1), (comm.size, max(1, comm.size - 1))})
    for before, after in pairs:
        name = folder / f"from{before}to{after}"
        mine = msgspec.structs.replace(settings, run=msgspec.structs.replace(settings.run, folder=str(name)))
        if (group := _on(comm, before)) is not None:
            with (
                stop(*at, ranks=before),
                pytest.raises(StoppedBySignal, match=f"after {folders.Position(*at)}"),
            ):
                train._train(mine, group, None, shown)
        comm.Barrier()
        if (group := _on(comm, after)) is not None:
            resumed, taken = resume.load(group, name / "001", mine)
            assert resumed.at == at
            train._train(taken, group, resumed, shown)
        comm.Barrier()
        found = [float(line[1]) for line in metrics(name / "001")]
        np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=0)
    if comm.rank == 0:
        record(f"from 1 or {comm.size} ranks to others, {model}", len(pairs), 0)


def _on(comm: MPI.Intracomm, ranks: int) -> MPI.Intracomm | None:
    """A communicator of the first ranks; None on the others. Collective."""
    group = comm.Split(0 if comm.rank < ranks else MPI.UNDEFINED)
    return None if group == MPI.COMM_NULL else group


@pytest.mark.slow
def test_one_command_begins_goes_on_finds_that_it_has_finished_and_trains_on(mgg, folder, job, stop):
    """From its end, without a checkpoint between, since a run that ends writes its last state."""
    plan = {"transfer": "direct"}
    longer = job("longer", MODELS["gcn"], train={"epochs": EPOCHS + 4, "seed": 5}, plan=plan)
    assert mgg("train", longer).codes == {0}
    path = job("auto", MODELS["gcn"], run={"resume": "auto"}, plan=plan)
    with stop(3):
        assert mgg("train", path).codes == {3}
    assert mgg("train", path).codes == {0}
    done = mgg("train", path)
    assert done.codes == {0} and "has finished" in done.out[0]
    assert len(metrics(folder / "auto" / "001")) == EPOCHS
    assert not (folder / "auto" / "002").exists()
    resumed = mgg("resume", folder / "auto", "--set", f"train.epochs={EPOCHS + 4}")
    assert resumed.codes == {0} and f"going on after epoch {EPOCHS} " in resumed.out[0]
    assert assert_same_runs(folder / "longer" / "001", folder / "auto" / "001", EPOCHS + 4) >= 1


def test_a_signal_before_the_first_epoch_says_that_there_was_nothing_to_save(mgg, folder, job, monkeypatch):
    monkeypatch.setattr(signals, "came", lambda: True)
    stopped = mgg("train", job("early", MODELS["gcn"]))
    assert stopped.codes == {3}
    assert "before training began; there was nothing to save" in "".join(stopped.err)
    assert not (folder / "early").exists()


def test_another_job_and_another_graph_are_refused_by_name_and_a_renumbered_copy_is_the_same(
    mgg, folder, job, stop, first
):
    with stop(3):
        assert mgg("train", job("mine", MODELS["gat"])).codes == {3}
    for change, said in (
        ("train.learning_rate=0.5", "train.learning_rate = 0.01, and now it is 0.5"),
        ("model.hidden=5", "model.hidden = 4, and now it is 5"),
    ):
        refused = mgg("resume", folder / "mine", "--set", change).refused()
        assert f"was started with {said}" in refused
    kept = (folder / "g.h5").read_bytes()
    first(lambda: writer.write(folder / "g.h5", blocks(seed=9), force=True))
    refused = mgg("resume", folder / "mine").refused()
    assert "but" in refused and "was training on" in refused
    first(lambda: (folder / "g.h5").write_bytes(kept))
    first(lambda: main(["partition", str(folder / "g.h5"), "-n", "2", "--order", "degree"]))
    assert mgg("resume", folder / "mine").codes == {0}
    assert mgg("predict", folder / "mine", "-o", folder / "out.h5").codes == {0}
    assert len(metrics(folder / "mine" / "001")) == EPOCHS


def test_a_full_disk_leaves_the_last_checkpoint_and_training_goes_on(mgg, folder, job, monkeypatch):
    """Every second checkpoint cannot be written."""
    count, write_file = [0], folders.write_file

    def full(path: Path, pieces: object) -> folders.Written:
        count[0] += path.name.startswith("state.json")
        if count[0] % 2 == 0:
            raise OSError(28, "No space left on device", str(path))
        return write_file(path, pieces)

    monkeypatch.setattr(folders, "write_file", full)
    done = mgg("train", job("full", MODELS["gcn"], checkpoint={"every_epochs": 1, "keep": 20}))
    assert done.codes == {0}
    said = "".join(done.err)
    assert "was not written (No space left on device" in said
    assert said.count("mgg: warning: ") == said.count("was not written") >= 1
    left = folder / "full" / "001" / "checkpoints"
    assert not list(left.glob(".*")), "no temporary folder stays"
    assert folders.newest(left) is not None


def test_damaged_checkpoints_are_passed_over_with_a_word_and_without_a_sound_one_nothing_is_begun_again(
    mgg, folder, job, stop, first
):
    path = job("flip", MODELS["gcn"], checkpoint={"every_epochs": 2})
    with stop(5):
        assert mgg("train", path).codes == {3}
    run = folder / "flip" / "001"
    # The one before is of epoch 4, or of epoch 2 where that one took longer to write than two epochs.
    before, newest = sorted((run / "checkpoints").glob("epoch-*"))
    assert newest.name == folders.name_of(5)
    lines, sound = metrics(run), (before / state.TENSORS).read_bytes()

    def damage() -> None:
        content = bytearray((newest / state.TENSORS).read_bytes())
        content[-3] ^= 4
        (newest / state.TENSORS).write_bytes(content)
        (before / state.TENSORS).write_bytes(b"")

    first(damage)
    assert "no checkpoint is sound (state.safetensors " in mgg("resume", folder / "flip").refused()
    assert metrics(run) == lines
    first(lambda: (before / state.TENSORS).write_bytes(sound))
    resumed = mgg("resume", folder / "flip")
    assert resumed.codes == {0}
    assert "damaged (state.safetensors has other bytes than were written)" in "".join(resumed.err)
    assert f"going on after epoch {int(before.name[-7:])} " in resumed.out[0]
    assert len(metrics(run)) == EPOCHS


def test_a_finished_run_without_checkpoints_is_not_begun_again(mgg, folder, job):
    never = {"every_epochs": 0, "every_minutes": 0}
    assert mgg("train", job("none", MODELS["gcn"], checkpoint=never)).codes == {0}
    lines = metrics(folder / "none" / "001")
    refused = mgg("resume", folder / "none", "--set", f"train.epochs={EPOCHS + 4}").refused()
    assert "has finished without a checkpoint" in refused
    assert metrics(folder / "none" / "001") == lines
