"""A run on batches that is killed within an epoch goes on from a checkpoint between two batches, with the same bits."""

from __future__ import annotations

import csv
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from jobs import MGG, blocks, clean_environment, run, write_job
from safetensors.numpy import load_file

from mgg_hpc.training.checkpoints import folders

EPOCHS = 6


def lines(folder: Path) -> list[list[str]]:
    """The lines of metrics.csv without times."""
    with (folder / "runs" / "001" / "metrics.csv").open(newline="") as file:
        return [
            [value for name, value in line.items() if not name.endswith("_ms")]
            for line in csv.DictReader(file)
        ]


def killed_within_an_epoch(job: Path, folder: Path) -> folders.Position:
    """Start a run, kill it once a checkpoint between two batches is newer than an epoch; returns where that one is."""
    process = subprocess.Popen(
        [MGG, "train", job], cwd=folder, env=clean_environment(), stdout=subprocess.DEVNULL
    )
    kept, end = folder / "runs" / "001" / "checkpoints", time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        if list(kept.glob("epoch-*[1-9]-batch-*")):
            break
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    found = folders.newest(kept)
    assert found is not None
    return found.at


@pytest.mark.long
def test_a_run_that_was_killed_within_an_epoch_goes_on_with_the_same_bits(tmp_path):
    train = {"mode": "sampled", "fanouts": [3, 3], "batch_size": 1, "epochs": EPOCHS}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    often = {"checkpoint": {"every_minutes": 1e-4, "keep": 1}}
    for folder in (whole, parts):
        folder.mkdir()
        threads = {"folder": str(folder / "runs"), "threads": 1}
        write_job(folder, blocks(1200), train=train, run=threads, **(often if folder == parts else {}))
    assert run("train", whole / "job.toml").returncode == 0
    at = killed_within_an_epoch(parts / "job.toml", parts)
    resumed = run("resume", parts / "runs")
    assert resumed.returncode == 0 and f"going on after {at} of" in resumed.stdout
    assert lines(whole) == lines(parts) and len(lines(parts)) == EPOCHS
    one, other = (load_file(each / "runs/001/checkpoints/model.safetensors") for each in (whole, parts))
    assert one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)
