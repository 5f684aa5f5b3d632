"""Runs that are stopped and resumed: the same bits on the same ranks, equal to rounding on others, nothing lost."""

from __future__ import annotations

import contextlib
import csv
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from jobs import blocks, write_job
from mpi4py import MPI
from torture.report import record

from mgg_hpc import config
from mgg_hpc.data import writer
from mgg_hpc.errors import StoppedBySignal
from mgg_hpc.runtime import signals
from mgg_hpc.training import train
from mgg_hpc.training.checkpoints import folders, resume, state
from mgg_hpc.training.checkpoints.capture import ADAM, CHOSEN, MODEL

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
}
# "auto" may choose another one for the second of two runs, and so other bits.
TRANSFERS = {"gcn": "halo", "gat": "direct", "gin": "get"}


@pytest.fixture
def stop(comm):
    """with stop(5): a signal comes to the last rank as epoch 5 ends; stop(5, 2): after batch 2 of the one after it.

    ranks: of which one gets it. [default: all]
    """

    @contextlib.contextmanager
    def stop(epoch: int, batch: int = 0, ranks: int = comm.size) -> Iterator[None]:
        after_epoch, after_batch = train.Saver.after_epoch, train.Saver.after_batch

        def signalled(saver: train.Saver, now: int, **more: bool) -> None:
            if now == epoch and not batch and comm.rank == ranks - 1:
                signals._note(signal.SIGTERM, None)
            after_epoch(saver, now, **more)

        def signalled_within(saver: train.Saver, now: int, batches: int) -> None:
            if (now, batches) == (epoch, batch) and comm.rank == ranks - 1:
                signals._note(signal.SIGTERM, None)
            after_batch(saver, now, batches)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(signals, "_first", [])
            patch.setattr(train.Saver, "after_epoch", signalled)
            patch.setattr(train.Saver, "after_batch", signalled_within)
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


def metrics(run: Path) -> list[list[str]]:
    """The lines of metrics.csv without times."""
    with (run / "metrics.csv").open(newline="") as file:
        return [
            [value for name, value in line.items() if not name.endswith("_ms")]
            for line in csv.DictReader(file)
        ]


def tensors(run: Path, epoch: int, batch: int = 0) -> dict[str, torch.Tensor]:
    """All that a checkpoint holds but times: its tensors, and the rows of all nodes by their ids."""
    folder = run / "checkpoints" / folders.name_of(epoch, batch)
    folders.verify(folder, epoch, batch)
    _, found = state.read(folder)
    found = {name: value for name, value in found.items() if name.startswith((MODEL, ADAM, CHOSEN))}
    if list(folder.glob("rows.*")):
        rows = state.read_rows(folder, ("rows", "first", "second", "chosen"), np.arange(blocks().nodes))
        found |= {f"input.{name}": torch.from_numpy(array) for name, array in rows.items()}
    return found


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    """Every bit is the same."""
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_a_resumed_run_is_the_run_that_was_never_stopped(mgg, folder, job, stop, model):
    sections = {"checkpoint": {"every_epochs": EPOCHS - 1}, "plan": {"transfer": TRANSFERS[model]}}
    assert mgg("train", job("whole", MODELS[model], **sections)).codes == {0}
    path = job("parts", MODELS[model], **sections)
    with stop(5):
        stopped = mgg("train", path)
    assert stopped.codes == {3}
    assert "after epoch 5, which is saved; mgg resume" in "".join(stopped.err)
    resumed = mgg("resume", folder / "parts")
    assert resumed.codes == {0}
    assert "going on after epoch 5" in resumed.out[0]
    assert "rounding" not in resumed.out[0]
    one, other = folder / "whole" / "001", folder / "parts" / "001"
    assert metrics(one) == metrics(other)
    assert len(metrics(one)) == EPOCHS
    assert_same(tensors(one, EPOCHS - 1), tensors(other, EPOCHS - 1))
    kept = [json.loads((run / "summary.json").read_text()) for run in (one, other)]
    for name in ("best_epoch", "val_accuracy", "test_accuracy", "final_loss", "bytes", "epochs"):
        assert kept[0][name] == kept[1][name], name
    assert (folder / "parts" / "latest").readlink() == Path("001")


BATCHES = {"mode": "sampled", "fanouts": [3, 4], "batch_size": 5, "epochs": 4, "seed": 5}


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("place", [(0, 2), (2, 3)])
@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_a_run_that_was_stopped_within_an_epoch_goes_on_with_the_same_bits(
    mgg, folder, job, stop, model, place
):
    dense = {"gcn": MODELS["gcn"], "gat": MODELS["gat"] | {"input": "features"}}[model]
    sections = {"train": BATCHES, "plan": {"transfer": TRANSFERS[model]}}
    assert mgg("train", job("whole", dense, **sections)).codes == {0}
    path = job("parts", dense, **sections)
    with stop(*place):
        stopped = mgg("train", path)
    assert stopped.codes == {3}
    where = f"batch {place[1]} of epoch {place[0] + 1}"
    assert f"after {where}, which is saved; mgg resume" in "".join(stopped.err)
    one, other = folder / "whole" / "001", folder / "parts" / "001"
    assert len(metrics(other)) == place[0]
    assert [each.name for each in (other / "checkpoints").glob("epoch*")] == [folders.name_of(*place)]
    folders.verify(other / "checkpoints" / folders.name_of(*place), *place)
    resumed = mgg("resume", folder / "parts")
    assert resumed.codes == {0}
    assert f"going on after {where} of" in resumed.out[0] and "rounding" not in resumed.out[0]
    assert metrics(one) == metrics(other) and len(metrics(one)) == BATCHES["epochs"]
    assert_same(tensors(one, BATCHES["epochs"]), tensors(other, BATCHES["epochs"]))


@pytest.mark.slow
@pytest.mark.parametrize("model", [pytest.param("gcn", marks=pytest.mark.long), "gat"])
def test_any_number_of_ranks_goes_on_with_a_run_of_any_other(comm, folder, job, monkeypatch, model):
    """Losses are equal to rounding; moments, weights and learned rows are the same when they are read."""
    settings = config.load(job("whole", MODELS[model], train={"dtype": "float64"}))
    monkeypatch.setattr(train.resume, "write", lambda line: None)
    first_part = 4
    for before, afters in others(comm.size).items():
        name = folder / f"from{before}"
        mine = _on(comm, before)
        if mine is not None:
            short = _with(settings, epochs=first_part + 1, folder=name, every=first_part)
            train._train(short, mine, None, train.Shown(dry_run=False, bar=False, profile=False))
        comm.Barrier()
        written = tensors(name / "001", first_part)
        for after in afters:
            comm.Barrier()
            if comm.rank == 0:
                (name / "001" / "summary.json").unlink(missing_ok=True)
                for epoch in range(first_part + 1, EPOCHS):
                    folders.discard(name / "001" / "checkpoints" / folders.name_of(epoch))
            comm.Barrier()
            group = _on(comm, after)
            if group is not None:
                longer = _with(settings, epochs=EPOCHS, folder=name, every=first_part)
                resumed, taken = resume.load(group, name / "001", longer)
                assert resumed.at == (first_part, 0)
                taken = _with(taken, epochs=first_part + 3, folder=name, every=0)
                train._train(taken, group, resumed, train.Shown(dry_run=False, bar=False, profile=False))
                assert_same(written, tensors(name / "001", first_part))
            comm.Barrier()
            losses = np.array([float(line[1]) for line in metrics(name / "001")])
            if comm.rank == 0:
                reference = folder / "losses.npy"
                if not reference.exists():
                    np.save(reference, losses)
                np.testing.assert_allclose(losses, np.load(reference), rtol=1e-10)
            comm.Barrier()
    if comm.rank == 0:
        pairs = sum(map(len, others(comm.size).values()))
        record(f"from 1 or {comm.size} ranks to others, {model}", pairs, 0)


@pytest.mark.long
def test_any_number_of_ranks_goes_on_within_an_epoch_of_any_other(comm, folder, job, stop):
    settings = config.load(job("whole", {"hidden": 9}, train=BATCHES | {"dtype": "float64"}))
    shown, epochs = train.Shown(dry_run=False, bar=False, profile=False), BATCHES["epochs"]
    whole = _with(settings, epochs=epochs, folder=folder / "whole", every=1)
    train._train(whole, comm, None, shown)
    comm.Barrier()
    wanted = [float(line[1]) for line in metrics(folder / "whole" / "001")]
    for before, afters in others(comm.size).items():
        for after in afters:
            name = folder / f"from{before}to{after}"
            mine = _with(settings, epochs=epochs, folder=name, every=1)
            group = _on(comm, before)
            if group is not None:
                with (
                    stop(1, 2, before),
                    pytest.raises(StoppedBySignal, match=r"after batch 2 of epoch 2, which"),
                ):
                    train._train(mine, group, None, shown)
            comm.Barrier()
            group = _on(comm, after)
            if group is not None:
                resumed, taken = resume.load(group, name / "001", mine)
                assert resumed.at == (1, 2)
                train._train(taken, group, resumed, shown)
            comm.Barrier()
            found = [float(line[1]) for line in metrics(name / "001")]
            np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=0)


def others(size: int) -> dict[int, list[int]]:
    """Return numbers of ranks that a run is stopped on, and those that go on with it."""
    return {1: [size], size: sorted({1, size - 1})} if size > 1 else {1: [1]}


def _on(comm: MPI.Intracomm, ranks: int) -> MPI.Intracomm | None:
    """A communicator of the first ranks; None on the others. Collective."""
    group = comm.Split(0 if comm.rank < ranks else MPI.UNDEFINED)
    return None if group == MPI.COMM_NULL else group


def _with(settings: config.Settings, *, epochs: int, folder: Path, every: int) -> config.Settings:
    tree = msgspec.to_builtins(settings)
    tree["train"]["epochs"], tree["run"]["folder"] = epochs, str(folder)
    tree["checkpoint"] = {"every_epochs": every}
    return config.from_tree(tree, "test")


def test_one_command_begins_goes_on_and_finds_that_it_has_finished(mgg, folder, job, stop):
    path = job("auto", MODELS["gcn"], run={"resume": "auto"})
    with stop(3):
        assert mgg("train", path).codes == {3}
    assert mgg("train", path).codes == {0}
    done = mgg("train", path)
    assert done.codes == {0} and "has finished" in done.out[0]
    assert len(metrics(folder / "auto" / "001")) == EPOCHS
    assert not (folder / "auto" / "002").exists()
    assert mgg("resume", folder / "auto", "--set", f"train.epochs={EPOCHS + 3}").codes == {0}
    assert len(metrics(folder / "auto" / "001")) == EPOCHS + 3


def test_a_signal_before_the_first_epoch_says_that_there_was_nothing_to_save(mgg, folder, job, monkeypatch):
    monkeypatch.setattr(signals, "came", lambda: True)
    stopped = mgg("train", job("early", MODELS["gcn"]))
    assert stopped.codes == {3}
    assert "before training began; there was nothing to save" in "".join(stopped.err)
    assert not (folder / "early").exists()


def test_another_job_and_another_graph_are_refused_by_name(mgg, folder, job, stop, first):
    path = job("mine", MODELS["gcn"])
    with stop(3):
        assert mgg("train", path).codes == {3}
    refused = mgg("resume", folder / "mine", "--set", "train.learning_rate=0.5").refused()
    assert "was started with train.learning_rate = 0.01, and now it is 0.5" in refused
    refused = mgg("resume", folder / "mine", "--set", "model.hidden=4").refused()
    assert "was started with model.hidden = 9, and now it is 4" in refused
    kept = (folder / "g.h5").read_bytes()
    first(lambda: writer.write(folder / "g.h5", blocks(seed=9), force=True))
    assert "but" in (refused := mgg("resume", folder / "mine").refused()) and "was training on" in refused
    first(lambda: (folder / "g.h5").write_bytes(kept))
    assert mgg("resume", folder / "mine").codes == {0}


@pytest.mark.slow
def test_a_renumbered_copy_is_the_same_graph(mgg, folder, job, stop, first):
    path = job("order", MODELS["gat"])
    with stop(3):
        assert mgg("train", path).codes == {3}
    first(lambda: mgg_partition(folder / "g.h5"))
    assert mgg("resume", folder / "order").codes == {0}
    assert mgg("predict", folder / "order", "-o", folder / "out.h5").codes == {0}
    losses = [float(line[1]) for line in metrics(folder / "order" / "001")]
    assert len(losses) == EPOCHS


def mgg_partition(path: Path) -> None:
    """Renumber a file's rows."""
    from mgg_hpc.tools.partition import process_partition

    process_partition(path, parts=None, method="edges", renumbering="degree")


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


def test_a_damaged_checkpoint_is_passed_over_with_a_word(mgg, folder, job, stop, first):
    path = job("flip", MODELS["gcn"], checkpoint={"every_epochs": 2})
    with stop(5):
        assert mgg("train", path).codes == {3}
    # The one before is of epoch 4, or of epoch 2 where that one took longer to write than two epochs.
    before, newest = sorted((folder / "flip" / "001" / "checkpoints").glob("epoch-*"))
    assert newest.name == folders.name_of(5)

    def flip() -> None:
        content = bytearray((newest / state.TENSORS).read_bytes())
        content[-3] ^= 4
        (newest / state.TENSORS).write_bytes(content)

    first(flip)
    resumed = mgg("resume", folder / "flip")
    assert resumed.codes == {0}
    assert "damaged (state.safetensors has other bytes than were written)" in "".join(resumed.err)
    assert f"going on after epoch {int(before.name[-7:])} " in resumed.out[0]
    assert len(metrics(folder / "flip" / "001")) == EPOCHS


def test_runs_are_private_whatever_the_umask_is(mgg, folder, job):
    assert mgg("train", job("private", MODELS["gat"], checkpoint={"every_epochs": 5})).codes == {0}
    for path in (folder / "private" / "001").rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_a_finished_run_trains_on_from_its_end(mgg, folder, job):
    """Without a checkpoint between, since a run that ends writes its last state."""
    plan = {"transfer": "direct"}
    longer = job("longer", MODELS["gcn"], train={"epochs": EPOCHS + 4, "seed": 5}, plan=plan)
    assert mgg("train", longer).codes == {0}
    assert mgg("train", job("on", MODELS["gcn"], plan=plan)).codes == {0}
    resumed = mgg("resume", folder / "on", "--set", f"train.epochs={EPOCHS + 4}")
    assert resumed.codes == {0} and f"going on after epoch {EPOCHS} " in resumed.out[0]
    one, other = folder / "longer" / "001", folder / "on" / "001"
    assert metrics(one) == metrics(other)
    assert_same(tensors(one, EPOCHS + 4), tensors(other, EPOCHS + 4))


def test_a_finished_run_without_checkpoints_is_not_begun_again(mgg, folder, job):
    never = {"every_epochs": 0, "every_minutes": 0}
    assert mgg("train", job("none", MODELS["gcn"], checkpoint=never)).codes == {0}
    lines = metrics(folder / "none" / "001")
    refused = mgg("resume", folder / "none", "--set", f"train.epochs={EPOCHS + 4}").refused()
    assert "has finished without a checkpoint" in refused
    assert metrics(folder / "none" / "001") == lines


def test_a_run_whose_checkpoints_are_all_damaged_is_not_begun_again(mgg, folder, job, stop, first):
    with stop(5):
        assert mgg("train", job("gone", MODELS["gcn"])).codes == {3}
    lines = metrics(folder / "gone" / "001")
    (only,) = (folder / "gone" / "001" / "checkpoints").glob("epoch-*")
    first(lambda: (only / state.TENSORS).write_bytes(b""))
    refused = mgg("resume", folder / "gone").refused()
    assert "no checkpoint is sound (state.safetensors " in refused
    assert metrics(folder / "gone" / "001") == lines


def test_a_signal_within_the_first_epoch_saves_it(comm, mgg, folder, job, monkeypatch):
    run_epoch = train._epoch

    def signalled(trainer: train.Trainer, history: train.History, epoch: int, *others: object) -> object:
        if epoch == 1 and comm.rank == comm.size - 1:
            signals._note(signal.SIGTERM, None)
        return run_epoch(trainer, history, epoch, *others)

    monkeypatch.setattr(train, "_epoch", signalled)
    stopped = mgg("train", job("first", MODELS["gcn"]))
    assert stopped.codes == {3} and "after epoch 1, which is saved" in "".join(stopped.err)
    assert len(metrics(folder / "first" / "001")) == 1
