"""DLRM of one process: its formula, hashes and scores; what is refused; and training on real clicks."""

from __future__ import annotations

import json
import re
from functools import partial

import numpy as np
import pytest
import tomli_w
import torch
from data.graphs import refused
from jobs import click_job, click_tree
from mpi4py import MPI
from sklearn.metrics import log_loss, roc_auc_score

from mgg_hpc import config
from mgg_hpc.__main__ import main
from mgg_hpc.data.clicks.criteo import MISSING, Clicks
from mgg_hpc.data.clicks.generate import draw_clicks
from mgg_hpc.data.clicks.store import open_clicks, write_clicks
from mgg_hpc.errors import InputError
from mgg_hpc.nn.embedding.optimizers import SGD
from mgg_hpc.runtime import backends
from mgg_hpc.training.checkpoints import folders
from mgg_hpc.training.dlrm.job import DlrmJob, hashed
from mgg_hpc.training.dlrm.model import DLRM, feature
from mgg_hpc.training.metrics import click_scores


def test_logits_are_those_of_the_formula(rng):
    model = DLRM(3, 11, 4, [6], [5], SGD(0.1))
    dense, ids = rng.random((7, 13)), rng.integers(0, 11, (3, 7))
    one = torch.ones(7, dtype=torch.int64)
    bags = {feature(table): (torch.from_numpy(each), one) for table, each in enumerate(ids)}
    found = model(torch.from_numpy(dense.astype("f4")), bags).detach()
    state = {name: value.detach().double().numpy() for name, value in model.named_parameters()}
    tables = {name: value.double().numpy() for name, value in model.tables.gathered().items()}

    def layer(name: str, x: np.ndarray) -> np.ndarray:
        return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    x = np.maximum(layer("bottom.2", np.maximum(layer("bottom.0", dense), 0)), 0)
    vectors = [x, *(tables[f"embedding_bags.table_{table}.weight"][each] for table, each in enumerate(ids))]
    pairs = [(vectors[i] * vectors[j]).sum(1) for i in range(4) for j in range(i)]
    top = layer("top.2", np.maximum(layer("top.0", np.column_stack([x, *pairs])), 0))[:, 0]
    np.testing.assert_allclose(found, top, rtol=1e-4, atol=1e-6)


def test_a_hash_depends_on_the_word_alone_and_missing_ones_have_row_0(rng):
    words = rng.integers(1, 1 << 32, (50, 26)).astype(np.uint32)
    words[rng.random((50, 26)) < 0.3] = 0
    rows = hashed(Clicks(np.zeros(50, "i1"), np.zeros((50, 13), "i4"), words), 1000)
    assert [[0 if not word else 1 + int(word) % 999 for word in row] for row in words] == rows.T.tolist()


def test_scores_are_those_of_scikit_learn(rng):
    y, logits = rng.random(500) < 0.2, rng.standard_normal(500).round(1).astype("f4")
    found = click_scores(MPI.COMM_SELF, logits, y)
    share = y.mean()
    base = -share * np.log(share) - (1 - share) * np.log(1 - share)
    loss = log_loss(y, 1 / (1 + np.exp(-logits.astype(float))))
    np.testing.assert_allclose(found, [roc_auc_score(y, logits), loss, loss / base], rtol=1e-9)
    assert click_scores(MPI.COMM_SELF, logits, np.zeros(500, bool)).normalised_entropy == 0


def test_batches_hold_each_row_once(tmp_path):
    write_clicks(tmp_path / "c.h5", [partial(draw_clicks, 1000)])
    keys = {"dlrm.rows": 50, "dlrm.batch_size": 64, "dlrm.columns": [2, 26]}
    settings = config.from_tree(click_tree(tmp_path, **keys), "job")
    with open_clicks(tmp_path / "c.h5") as file:
        job = DlrmJob(settings, MPI.COMM_SELF, file)
        every = file.read(0, 1000)
        dense = np.where(every.dense == MISSING, 0, every.dense).clip(0)
        first, second = (list(job.batches(epoch)) for epoch in (1, 2))

        def of(batches: list) -> np.ndarray:
            return np.rint(np.expm1(torch.cat([each.dense for each in batches]).double().numpy())).astype(int)

        assert sorted(map(tuple, of(first))) == sorted(map(tuple, dense[:900]))
        assert [each.total for each in first].count(64) == 14 and sum(each.total for each in first) == 900
        assert not torch.equal(first[0].dense, second[0].dense)
        later = list(job.batches(1, 5))
        assert all(torch.equal(a.dense, b.dense) for a, b in zip(first[5:], later, strict=True))
        tested = list(job.test_batches())
        assert np.array_equal(of(tested), dense[900:])
        (bags,) = tested[0].bags.bags.values()
        rows = hashed(file.read(900, 964), 50)[[1, 25]]
        assert np.array_equal(bags.ids, np.concatenate([rows[0], 50 + rows[1]]))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"dlrm.data": "none.h5"}, "none.h5: is no file of clicks"),
        ({"dlrm.data": "job.toml"}, "job.toml: is no file of clicks"),
        ({"graph.file": "c.h5"}, "has graph.file and dlrm.data"),
        ({"dlrm.columns": [3, 3]}, "dlrm.columns are [3, 3]; expected distinct ones"),
        ({"dlrm.columns": [27]}, "dlrm.columns is [27]; it must be"),
        ({"dlrm.rows": 1}, "dlrm.rows is 1; it must be a whole number, at least 2"),
        ({"dlrm.test": 0.999}, "no row is left to train on"),
        ({"dlrm.test": "day"}, "has one log, and dlrm.test is"),
        ({"dlrm.test": "week"}, "dlrm.test is 'week'; it must be"),
        ({"dlrm.learning_rate": 1e6, "dlrm.optimizer": "sgd"}, "lower dlrm.learning_rate"),
        ({"model.hidden": 5}, "model.hidden is 5, which is for jobs of graphs"),
        ({"train.dtype": "float64"}, "train.dtype is 'float64', which is for"),
        ({"run.share_gpu": True}, "run.share_gpu is True, which is for jobs of"),
        ({"features.near": "1G"}, "features.near is '1G', which is for jobs of"),
        (
            {"dlrm.data": "", "graph.file": "c.h5"},
            "dlrm.rows is 20, which is for jobs of clicks; it lacks dlrm",
        ),
        ({"run.backend": "shmem"}, "run.backend: shmem is for jobs of graphs"),
        ({"run.backend": "cuda"}, "no GPU here"),
        ({"dlrm.rows": 1 << 36}, "and their copy for checkpoints, need 65.0 TiB on this node"),
        ({"dlrm.memory": 9, "dlrm.rows": 1 << 36}, "rows of embeddings by score needs 48.8 TiB"),
        ({"dlrm.scratch": "/tmp"}, "set dlrm.memory too"),
        ({"dlrm.memory": 9, "dlrm.scratch": "/no"}, "scratch folder /no: No such file"),
        ({"dlrm.memory": "9 balls"}, "dlrm.memory is '9 balls'; it must be"),
        ({"dlrm.dat": "c.h5"}, "unknown key dlrm.dat; did you mean dlrm.data?"),
    ],
)
def test_what_does_not_fit_ends_with_2(tmp_path, capsys, monkeypatch, keys, message):
    def gpu(name, *_):
        if name == "cuda":
            raise InputError("no GPU here")
        return None, ""

    monkeypatch.setattr(backends, "_gpu", gpu)
    assert main(["train", click_job(tmp_path, **keys)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not [*tmp_path.glob("runs/*")] or "learning_rate" in message


def test_the_last_day_is_for_tests(tmp_path):
    write_clicks(tmp_path / "c.h5", [partial(draw_clicks, 100), partial(draw_clicks, 30)])
    settings = config.from_tree({"dlrm": {"rows": 9, "test": "day", "batch_size": 50}}, "job")
    with open_clicks(tmp_path / "c.h5") as file:
        job = DlrmJob(settings, MPI.COMM_SELF, file)
        assert (job.train_rows, job.steps, sum(each.total for each in job.test_batches())) == (100, 2, 30)


def test_a_file_without_labels_is_refused(tmp_path):
    import h5py

    write_clicks(tmp_path / "c.h5", [partial(draw_clicks, 30)])
    with h5py.File(tmp_path / "c.h5", "r+") as file:
        del file["click/label"]
    with refused("/click/label is missing"), open_clicks(tmp_path / "c.h5"):
        pass


@pytest.mark.data
def test_real_clicks_are_learned(data_folder, tmp_path, capsys):
    """The log loss of the training rows falls below that of the base rate, 0.513."""
    held = np.load(data_folder / "criteo_tiny" / "criteo_tiny.npz")
    write_clicks(tmp_path / "c.h5", [lambda: [Clicks(held["label"], held["dense"], held["cat"])]])
    small = {"rows": 2000, "dim": 8, "bottom": [32], "top": [32], "batch_size": 128, "test": 0}
    tree = click_tree(
        tmp_path, **{f"dlrm.{key}": value for key, value in small.items()}, **{"train.epochs": 2}
    )
    job = tmp_path / "job.toml"
    job.write_text(tomli_w.dumps(tree))
    assert main(["train", str(job)]) == 0
    assert "normalised entropy" in capsys.readouterr().out
    summary = json.loads((tmp_path / "runs" / "001" / "summary.json").read_text())
    assert summary["log_loss"] < 0.45 and summary["auc"] > 0.8 and summary["normalised_entropy"] < 0.9
    assert summary["format"] == "mgg-summary" and summary["bytes"]["remote"] == 0 < summary["bytes"]["local"]
    assert (
        main(["runs", str(tmp_path / "runs")]) == 0 and f"AUC {summary['auc']:.4f}" in capsys.readouterr().out
    )
    run = tmp_path / "runs" / "001"
    for words in (["predict", run, "-o", "p.npz"], ["report", run, "-o", "r.html"], ["tune", job]):
        capsys.readouterr()
        assert main([str(word) for word in words]) == 2
        assert "this command is for jobs of graphs" in capsys.readouterr().err
    for words in ("--dry-run", "--profile", "--dry-run --as-ranks=4"):
        assert main(["train", str(job), *words.split()]) == 2
        assert f"{words.split()[-1].partition('=')[0]} shows plans of graphs" in capsys.readouterr().err


def test_seeds_are_trained_and_compared(tmp_path, capsys):
    job = click_job(tmp_path)
    assert main(["train", job, "--seeds=2"]) == 0
    out = capsys.readouterr().out
    paths = [tmp_path / "runs" / f"seed-{seed}" / "001" / "summary.json" for seed in (0, 1)]
    first, second = (json.loads(path.read_text()) for path in paths)
    assert first["auc"] != second["auc"]
    assert f"AUC                 {(first['auc'] + second['auc']) / 2:.4f} ± " in out
    assert main(["train", job, "--seeds=2"]) == 0
    assert capsys.readouterr().out.count("as before") == 2
    write_clicks(tmp_path / "c.h5", [partial(draw_clicks, 300, seed=1)], force=True)
    assert main(["train", job, "--seeds=2"]) == 2
    assert "was trained on other clicks than" in capsys.readouterr().err


def test_a_run_goes_on_with_the_same_clicks_wherever_they_lie(tmp_path, capsys, monkeypatch):
    """The job file of a resumed run is its last one, drafts are removed, and other clicks are refused."""
    job = click_job(tmp_path, **{"checkpoint.every_epochs": 1})
    assert main(["train", job]) == 0
    run = (tmp_path / "runs" / "001").resolve()
    with open_clicks(tmp_path / "c.h5") as file:
        assert json.loads((run / "summary.json").read_text())["uuid"] == file.uuid
    started = []
    monkeypatch.setattr("mgg_hpc.runtime.launch.process_launch", lambda *each: started.append(each) or 0)
    for words in (["train", job], ["resume", str(run)]):
        assert main(["launch", "-n", "2", *words]) == 0 and started.pop()[1] == tuple(words)
    (tmp_path / "c.h5").rename(tmp_path / "moved.h5")
    folders.draft(run / "checkpoints", 7)
    on = ["resume", str(run), f"--set=dlrm.data={tmp_path}/moved.h5", "--set=train.epochs"]
    assert (
        main([*on[:2], "--set=train.epochs=2"]) == 2
        and "c.h5: is no file of clicks" in capsys.readouterr().err
    )
    assert main([f"{on[-1]}=2" if word == on[-1] else word for word in on]) == 0
    assert f"going on after epoch 1 of {run}" in capsys.readouterr().out
    kept = config.load(run / "job.toml", of_run=True, clicks=True)
    assert (kept.train.epochs, kept.dlrm.data) == (2, str(tmp_path / "moved.h5"))
    assert not folders.drafts(run / "checkpoints")
    assert (
        main(["resume", str(run), "--set=train.epochs=3", "--set=dlrm.memory=4096"]) == 0
    )  # it knows the new place
    write_clicks(tmp_path / "moved.h5", [partial(draw_clicks, 300, seed=1)], force=True)
    capsys.readouterr()
    for words, message in (
        (
            ["--set=train.epochs=4"],
            f"moved.h5: is clicks .*, but {run} was training on .* --set dlrm.data=FILE",
        ),
        (["--set=train.epochs=4", "--set=dlrm.dim=5"], "was started with dlrm.dim = 4, and now it is 5"),
        (["--set=dlrm.data=''", "--set=graph.file=g.h5"], "no such|cannot be|g.h5"),
    ):
        assert main(["resume", str(run), *words]) == 2
        error = capsys.readouterr().err
        assert re.search(message, error) and error.count("\n") == 1
    assert config.load(run / "job.toml", of_run=True, clicks=True).train.epochs == 3
    for each in (run / "checkpoints").glob("epoch-*"):
        folders.discard(each)
    assert main(["resume", str(run), "--set=train.epochs=4"]) == 2
    assert "has finished without a checkpoint" in capsys.readouterr().err
