"""Training and prediction by `mgg launch`, processes and all: exit codes, single lines, nothing left."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re

import h5py
import numpy as np
import pytest
from jobs import blocks, call, files, run, write_job

from mgg_hpc.__main__ import main
from mgg_hpc.data import writer
from mgg_hpc.runtime import cores
from mgg_hpc.training import run_folder


@pytest.mark.long
def test_two_ranks_train_and_predict_what_one_rank_predicts(tmp_path):
    write_job(tmp_path, blocks(), train={"epochs": 20, "dtype": "float64"})
    done = run("launch", "-n", "2", "train", "job.toml", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "the file has no partition for 2 ranks: edge-balanced bounds were computed" in done.stdout
    summary = json.loads((tmp_path / "runs" / "latest" / "summary.json").read_text())
    assert (summary["ranks"], summary["backend"], len(summary["peak_rss_bytes"])) == (2, "shm", 2)
    found = []
    for name, launch in (("one.h5", []), ("two.h5", ["launch", "-n", "2"])):
        done = run(*launch, "predict", "runs", "-o", name, folder=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        with h5py.File(tmp_path / name) as file:
            found.append({key: file[key][:] for key in file})
    assert set(found[0]) == {"class", "probability", "embedding"}
    for key, value in found[0].items():
        np.testing.assert_allclose(found[1][key], value, rtol=1e-10, atol=1e-12)


@pytest.mark.long
@pytest.mark.slow
def test_stored_bounds_are_used_without_a_word(tmp_path):
    write_job(tmp_path, blocks())
    assert run("partition", "g.h5", "-n", "2", folder=tmp_path).returncode == 0
    done = run("launch", "-n", "2", "train", "job.toml", folder=tmp_path)
    assert done.returncode == 0
    assert "partition" not in done.stdout + done.stderr


def damaged_features(folder):
    """Change a value of the last rank's rows behind the digest's back."""
    write_job(folder, blocks())
    with h5py.File(folder / "g.h5", "r+") as file:
        file["node/x"][149, 0] += 1


def no_graph(folder):
    write_job(folder, blocks())
    (folder / "g.h5").write_bytes(b"no HDF5")


def job(**sections):
    return lambda folder: write_job(folder, blocks(), **sections)


WRONG = {
    "job": (job(train={"epoch": 3}), "job.toml: unknown key train.epoch; did you mean train.epochs?"),
    "graph": (no_graph, "g.h5 is not a graph file"),
    "features": (damaged_features, "g.h5: /node/x is damaged: the digest of block 0 (entries 0 .. 149)"),
    "folder": (job(run={"folder": "/proc/runs"}), "run.folder: /proc/runs cannot be written to ("),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "ranks"), [*((what, 1) for what in WRONG), pytest.param("features", 2, marks=pytest.mark.long)]
)
def test_wrong_input_is_one_line_and_code_2(tmp_path, ranks, what):
    make, message = WRONG[what]
    make(tmp_path)
    before = files(tmp_path)
    words = ("train", "job.toml")
    done = call(*words, folder=tmp_path) if ranks == 1 else run("launch", "-n", "2", *words, folder=tmp_path)
    assert done.returncode == 2
    assert done.stdout == "" or what == "folder"  # the graph was read before
    assert done.stderr.startswith("mgg: error: ") and done.stderr.count("\n") == 1
    assert message in done.stderr
    assert files(tmp_path) == before and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "number, message",
    [
        (errno.ENOSPC, "no space left on the device for the output"),
        (errno.EFBIG, "the limit on the size of a file is too low for the output"),
    ],
)
def test_a_full_device_is_one_line_and_code_2(tmp_path, monkeypatch, capsys, number, message):
    job = write_job(tmp_path, blocks())

    def full(self, values):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(run_folder.MetricsFile, "add", full)
    assert main(["train", str(job)]) == 2
    text = capsys.readouterr().err
    assert text == f"mgg: error: {message}\n"


@pytest.mark.slow
def test_without_validation_rows_the_last_weights_are_kept(tmp_path):
    graph = blocks()
    graph = dataclasses.replace(graph, train=graph.train | graph.val, val=np.zeros_like(graph.val))
    write_job(tmp_path, graph, train={"epochs": 7, "patience": 2})
    done = call("train", "job.toml", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "the graph has no validation rows: the weights of the last epoch are kept" in done.stdout
    summary = json.loads((tmp_path / "runs" / "latest" / "summary.json").read_text())
    assert (summary["best_epoch"], summary["epochs"]) == (7, 7)


@pytest.mark.slow
def test_predict_refuses_a_graph_that_took_the_place_of_the_trained_one(tmp_path):
    write_job(tmp_path, blocks())
    assert call("train", "job.toml", folder=tmp_path).returncode == 0
    writer.write(tmp_path / "g.h5", blocks(seed=4), force=True)
    done = call("predict", "runs", "-o", "p.h5", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "but 001 was trained on" in done.stderr
    assert not (tmp_path / "p.h5").exists()


def test_launch_runs_only_what_ranks_share(tmp_path):
    done = call("launch", "-n", "2", "generate", "sbm", "-o", "g.h5", folder=tmp_path)
    assert (done.returncode, files(tmp_path)) == (2, {})
    known = "launch runs train, resume, predict, tune, traverse and Python programs (NAME.py)"
    assert done.stderr == f"mgg: error: mgg launch: generate is not for several ranks; {known}\n"


@pytest.mark.slow
def test_a_model_beyond_memory_is_refused_with_both_numbers(tmp_path, monkeypatch, capsys):
    job = write_job(tmp_path, blocks(2000), model={"hidden": 65536}, run={"folder": str(tmp_path / "runs")})
    monkeypatch.setattr(cores, "memory_available", lambda: 64 << 20)
    assert main(["train", str(job)]) == 2
    message = capsys.readouterr().err
    found = re.search(r"needs ([\d.]+) GiB more .* and 0\.1 GiB are available; use more nodes", message)
    # Hidden rows, their gradient and what of it passes ReLU, at least.
    rows = 2000 * 65536 * 4 / 2**30
    assert found and 3 * rows <= float(found[1]) + 0.05 and float(found[1]) <= 6 * rows
    assert not (tmp_path / "runs").exists()


@pytest.mark.long
def test_threads_are_those_of_the_environment_unless_the_job_says(tmp_path, monkeypatch):
    write_job(tmp_path, blocks())
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")  # of nested parallel regions
    done = run("train", "job.toml", "--dry-run", folder=tmp_path)
    assert "1 rank, 3 threads" in done.stdout
    done = run("train", "job.toml", "--dry-run", "--set", "run.threads=1", folder=tmp_path)
    assert "1 rank, 1 thread;" in done.stdout
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    done = run("train", "job.toml", "--dry-run", folder=tmp_path)
    (line,) = (line for line in done.stderr.splitlines() if line and not line.startswith("libgomp: "))
    assert done.returncode == 2
    assert line.startswith(
        "mgg: error: OMP_NUM_THREADS='many' is not a number of threads; set it to 1 or more"
    )
