"""DLRM on several ranks: the losses of one rank, and runs that are stopped and resumed."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
from jobs import click_tree
from mpi4py import MPI
from sklearn.metrics import roc_auc_score

from mgg_hpc import config
from mgg_hpc.data.clicks.generate import draw_clicks
from mgg_hpc.data.clicks.store import open_clicks, write_clicks
from mgg_hpc.errors import InputError, StoppedBySignal
from mgg_hpc.nn.embedding import rows
from mgg_hpc.runtime.exchange import send
from mgg_hpc.training import metrics, train
from mgg_hpc.training.checkpoints.saver import Saver
from mgg_hpc.training.screen import Screen

pytestmark = pytest.mark.mpi
EPOCHS = 3
SHOWN = train.Shown(Screen(False), whole=False)


@pytest.fixture
def settings(folder, first):
    """A function that returns a job whose run's folder has this name."""
    first(lambda: write_clicks(folder / "c.h5", [partial(draw_clicks, 1500)]))

    def settings(name: str, optimizer: str, **tiers: object) -> config.Settings:
        small = {"rows": 300, "dim": 5, "bottom": [9], "top": [9], "batch_size": 200, "learning_rate": 0.05}
        keys = {f"dlrm.{key}": value for key, value in (small | {"optimizer": optimizer} | tiers).items()}
        keys |= {
            "run.folder": str(folder / name),
            "run.resume": "auto",
            "train.epochs": EPOCHS,
            "train.seed": 3,
        }
        keys |= {"checkpoint.every_epochs": 1, "checkpoint.every_minutes": 0}
        return config.from_tree(click_tree(folder, **keys), "job")

    return settings


def losses(folder, name: str) -> np.ndarray:
    """Loss and scores of each epoch."""
    return np.loadtxt(folder / name / "001" / "metrics.csv", delimiter=",", skiprows=1)[:, :5]


def stopped(comm, settings, epoch: int, batch: int) -> None:
    """Train until a signal comes at a position."""
    wants = Saver.wants
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            Saver,
            "wants",
            lambda saver, at, **more: _signal(patched, at == (epoch, batch)) or wants(saver, at, **more),
        )
        with pytest.raises(StoppedBySignal, match="is saved"):
            train.train(settings, comm, SHOWN)


def _signal(patched, comes: bool) -> None:
    if comes:
        patched.setattr("mgg_hpc.training.checkpoints.saver.signals.came", lambda: True)


@pytest.mark.parametrize(
    "optimizer",
    [
        *(pytest.param(name, marks=pytest.mark.long) for name in ("sgd", "adagrad")),
        pytest.param("rowwise_adagrad", marks=pytest.mark.slow),
    ],
)
def test_losses_are_those_of_one_rank_and_resumed_runs_have_the_same_bits(comm, folder, settings, optimizer):
    train.train(settings("all", optimizer), comm, SHOWN)
    if comm.rank == 0:
        train.train(settings("one", optimizer), MPI.COMM_SELF, SHOWN)
    comm.Barrier()
    expected = losses(folder, "all")
    assert len(expected) == EPOCHS and expected[-1, 1] < expected[0, 1]
    np.testing.assert_allclose(losses(folder, "one"), expected, rtol=1e-5)
    for name, position in (("epoch", (1, 0)), ("batch", (1, 4))):
        stopped(comm, settings(name, optimizer), *position)
        train.train(settings(name, optimizer), comm, SHOWN)
        assert np.array_equal(losses(folder, name), expected)
    # A checkpoint of all ranks is taken by one, and one of one rank by all.
    stopped(comm, settings("fewer", optimizer), 1, 2)
    if comm.rank == 0:
        train.train(settings("fewer", optimizer), MPI.COMM_SELF, SHOWN)
        stopped(MPI.COMM_SELF, settings("more", optimizer), 2, 0)
    comm.Barrier()
    train.train(settings("more", optimizer), comm, SHOWN)
    for name in ("fewer", "more"):
        np.testing.assert_allclose(losses(folder, name), expected, rtol=1e-5)
        assert json.loads((folder / name / "001" / "summary.json").read_text())["epochs"] == EPOCHS


def distinct(folder, ranks: int) -> int:
    """Return how many rows of tables an epoch reads: the distinct ones of each rank's part of each batch."""
    with open_clicks(folder / "c.h5") as file:
        words = file.read(0, 1350).category.astype(np.int64)
    rows = np.where(words == 0, 0, 1 + words % 299) + 300 * np.arange(26)
    batches = [rows[first : first + 200] for first in range(0, 1350, 200)]
    parts = [
        batch[len(batch) * r // ranks : len(batch) * (r + 1) // ranks]
        for batch in batches
        for r in range(ranks)
    ]
    return sum(len(np.unique(part)) for part in parts)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
def test_tables_in_tiers_have_the_same_bits_and_are_resumed(comm, folder, settings, optimizer, monkeypatch):
    """Losses of tables whose rows of most reads are in memory are those of tables in memory."""
    monkeypatch.setattr(rows, "PART", 1000 * 24)  # what is saved is copied in parts
    tiers = {"memory": "40K", "scratch": str(folder)}
    train.train(settings("all", optimizer), comm, SHOWN)
    train.train(settings("tiers", optimizer, **tiers), comm, SHOWN)
    expected = losses(folder, "all")
    assert np.array_equal(losses(folder, "tiers"), expected)
    summary = json.loads((folder / "tiers" / "001" / "summary.json").read_text())
    assert summary["backend"] == ("mpi" if comm.size > 1 else "serial")
    assert sum(summary["bytes"].values()) == 20 * distinct(folder, comm.size)  # of an epoch
    assert (summary["bytes"]["remote"] > 0) == (comm.size > 1)
    read = summary["tiers"]["read"]
    share = comm.size * (40 << 10) / (26 * 300 * 32)  # of the rows, which are 32 bytes each
    assert share < read["near"] < 1 and read["near"] + read["file"] == pytest.approx(1)
    stopped(comm, settings("stopped", optimizer, **tiers), 1, 2)
    train.train(settings("stopped", optimizer, **tiers), comm, SHOWN)
    assert np.array_equal(losses(folder, "stopped"), expected)
    assert not list(folder.glob("mgg-*"))


@pytest.mark.parametrize("kind", ["ties", "distinct", "alike", "one rank has all", "one class", "apart"])
def test_the_area_of_all_ranks_is_that_of_scikit_learn(comm, rng, monkeypatch, kind):
    """No rank takes more than its share of distinct margins."""
    taken = []
    monkeypatch.setattr(metrics, "send", lambda *each: taken.append(found := send(*each)) or found)
    margins, y = rng.standard_normal(3000).astype("f4"), rng.random(3000) < 0.3
    owner = rng.integers(comm.size, size=3000)
    if kind == "ties":
        margins = margins.round(1)
    elif kind == "alike":
        margins[:] = 0.5
    elif kind == "one rank has all":
        owner[:] = comm.size - 1
    elif kind == "one class":
        y[:] = True
        assert metrics.area(comm, margins[:0], y[:0]) == 0  # of no rows at all
        taken.clear()
    elif kind == "apart":
        owner = np.argsort(np.argsort(-margins)) * comm.size // 3000
    mine = owner == comm.rank
    found = metrics.click_scores(comm, margins[mine], y[mine])
    np.testing.assert_allclose(found, metrics.click_scores(MPI.COMM_SELF, margins, y), rtol=1e-12)
    expected = 0.0 if kind == "one class" else roc_auc_score(y, margins)
    assert found.auc == pytest.approx(expected, rel=1e-12)
    assert sum(map(len, taken[:4:2])) <= 2 * comm.size + 1.2 * 3000 / comm.size


def test_a_full_scratch_disk_costs_the_checkpoint_alone(comm, folder, settings, monkeypatch, capfd):
    """One rank has no room for its copy: all ranks go on without a checkpoint; a signal ends them without one."""

    def full(path, nbytes):
        raise InputError(f"the scratch folder {path} has no room for {nbytes} bytes")

    monkeypatch.setattr(rows, "PART", 1000 * 24)
    if comm.rank == comm.size - 1:
        monkeypatch.setattr(rows, "scratch_file", full)
    job = settings("full", "sgd", memory="40K", scratch=str(folder))
    train.train(job, comm, SHOWN)
    run = folder / "full" / "001"
    assert len(losses(folder, "full")) == EPOCHS and not list((run / "checkpoints").glob("epoch-*"))
    said = capfd.readouterr().err
    if comm.rank == 0:
        assert said.count("was not written (the scratch folder") == EPOCHS and "there is none yet" in said
    with monkeypatch.context() as patched:
        patched.setattr("mgg_hpc.training.checkpoints.saver.signals.came", lambda: True)
        with pytest.raises(InputError, match=r"could not be saved \(the scratch folder.*nothing is saved"):
            train.train(settings("stopped", "sgd", memory="40K", scratch=str(folder)), comm, SHOWN)
