"""Training and prediction by `mgg launch`, processes and all: exit codes, single lines, nothing left."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import time

import numpy as np
import programs
import pytest
from jobs import blocks, call, files, python, run, write_job
from torture.launched import Launched, assert_same_runs

from mgg_hpc.__main__ import main
from mgg_hpc.data import writer
from mgg_hpc.runtime import cores
from mgg_hpc.training import run_folder
from mgg_hpc.training.checkpoints import folders


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
    assert capsys.readouterr().err == f"mgg: error: {message}\n"


@pytest.mark.slow
def test_without_validation_rows_the_last_weights_are_kept(tmp_path):
    """And predict refuses a graph that took the place of the one that was trained on."""
    graph = blocks()
    graph = dataclasses.replace(graph, train=graph.train | graph.val, val=np.zeros_like(graph.val))
    write_job(tmp_path, graph, train={"epochs": 7, "patience": 2})
    done = call("train", "job.toml", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "the last one's weights are kept, as there are no validation nodes" in done.stdout
    summary = json.loads((tmp_path / "runs" / "latest" / "summary.json").read_text())
    assert (summary["best_epoch"], summary["epochs"]) == (7, 7)
    writer.write(tmp_path / "g.h5", blocks(seed=4), force=True)
    done = call("predict", "runs", "-o", "p.h5", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "but 001 was trained on" in done.stderr
    assert not (tmp_path / "p.h5").exists()


def test_launch_runs_only_what_ranks_share(tmp_path):
    done = call("launch", "-n", "2", "generate", "sbm", "-o", "g.h5", folder=tmp_path)
    assert (done.returncode, files(tmp_path)) == (2, {})
    assert done.stderr.startswith("mgg: error: mgg launch: generate is not for several ranks; ")


@pytest.mark.slow
def test_a_model_beyond_memory_is_refused_with_both_numbers(tmp_path, monkeypatch, capsys):
    job = write_job(tmp_path, blocks(2000), model={"hidden": 16384}, run={"folder": str(tmp_path / "runs")})
    monkeypatch.setattr(cores, "memory_available", lambda: 64 << 20)
    assert main(["train", str(job)]) == 2
    message = capsys.readouterr().err
    found = re.search(r"needs ([\d.]+) GiB more .* and 0\.1 GiB are available; use more nodes", message)
    # Hidden rows, their gradient and what of it passes ReLU, at least.
    rows = 2000 * 16384 * 4 / 2**30
    assert found and 3 * rows <= float(found[1]) + 0.05 and float(found[1]) <= 6 * rows
    assert not (tmp_path / "runs").exists()


TRAIN = """
import json, sys
from mgg_hpc.__main__ import main
code = main(["train", "job.toml"])
print(json.dumps([code, [name for name in sys.modules if name in ("torch._dynamo", "sympy")]]))
"""


@pytest.mark.slow
def test_training_imports_neither_torchs_compiler_nor_its_symbols(tmp_path):
    write_job(tmp_path, blocks(), train={"epochs": 2})
    done = python("-c", TRAIN, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [0, []]


@pytest.mark.long
@pytest.mark.parametrize(("ranks", "prepare"), [(1, "cpu"), (2, "hybrid")])
def test_a_run_that_was_killed_within_an_epoch_goes_on_with_the_same_bits(
    tmp_path, monkeypatch, rng, ranks, prepare
):
    """From a checkpoint between two batches. The next job removes what was left in shared memory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    train = {"mode": "sampled", "fanouts": [3, 3], "batch_size": 1, "epochs": 6, "prepare": prepare}
    whole, parts, launch = tmp_path / "whole", tmp_path / "parts", ("launch", "-n", str(ranks))
    often = {"checkpoint": {"every_minutes": 1e-4, "keep": 1}}
    for folder in (whole, parts):
        folder.mkdir()
        threads = {"folder": str(folder / "runs"), "threads": 1}
        more = often if folder == parts else {}
        # Sums by another transfer round otherwise, and each job would time them.
        write_job(folder, blocks(1200), train=train, run=threads, plan={"transfer": "direct"}, **more)
    assert run(*launch, "train", whole / "job.toml").returncode == 0
    job, kept = Launched(parts, *launch, "train", parts / "job.toml"), parts / "runs/001/checkpoints"
    # Until a checkpoint between two batches is newer than an epoch.
    programs.wait_until(lambda: list(kept.glob("epoch-*[1-9]-batch-*")), 60, job.said)
    segments = job.mapped()
    job.kill("all", rng)
    assert job.wait() == -9
    programs.wait_until(lambda: not job.processes(), 10, job.said)
    at = folders.newest(kept).at
    time.sleep(2.1)  # a younger segment may belong to a job that starts
    resumed = run(*launch, "resume", parts / "runs")
    assert resumed.returncode == 0 and f"going on after {at} of" in resumed.stdout
    assert_same_runs(whole / "runs/001", parts / "runs/001", 6)
    assert [path for path in segments if path.exists()] == []
    assert folders.drafts(kept) == []
