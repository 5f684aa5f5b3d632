"""Runs that are killed at random instants: they go on, end with the bits of a run that was not, and leave nothing."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from pathlib import Path

import jobs
import numpy as np
import pytest

from torture.launched import Launched, assert_same_runs, epochs_lost, metrics, wait_for_line
from torture.report import record

EPOCHS, EVERY = 60, 4
VICTIMS = ("rank", "all", "launcher")
MODELS = {
    "gcn": {"hidden": 16, "norm": "batch"},
    "gat": {
        "name": "gat",
        "hidden": 4,
        "heads": 2,
        "attention_dropout": 0.2,
        "input": "learned",
        "embedding": 8,
    },
}


def write_job(folder: Path, model: str) -> list[object]:
    """Write a graph and a job that goes on with its latest run; returns the words of `mgg` that train it."""
    jobs.write_job(
        folder,
        jobs.blocks(3000, features=16),
        model=MODELS[model] | {"dropout": 0.4},
        train={"epochs": EPOCHS, "seed": 7},
        plan={
            "transfer": "halo",
            "ps": 256,
            "wpb": 16,
        },  # "auto" measures, and may choose others in another run
        run={"folder": "runs", "resume": "auto", "threads": 1},
        # Every checkpoint is kept, so that the states of many epochs can be compared.
        checkpoint={"every_epochs": EVERY, "keep": EPOCHS},
    )
    return ["train", "job.toml", "--no-progress"]


def kill_at_random(
    job: Launched, run: Path, what: str, startup: float, rng: np.random.Generator
) -> set[Path]:
    """Kill a job while it starts, or within some epochs of its training; return the segments that it had.

    Returns early where the job ends before that.
    """
    if rng.random() < 0.3:
        time.sleep(rng.uniform(0.0, startup))
    elif wait_for_line(job, run, len(metrics(run)) + int(rng.integers(1, 12))):
        time.sleep(rng.uniform(0.0, 0.05))
    mapped = job.mapped()
    if job.process.poll() is None:
        job.kill(what, rng)
    job.wait(20)
    return mapped


@pytest.mark.trials(1, torture=50)
@pytest.mark.parametrize(
    ("model", "ranks"),
    [
        pytest.param("gcn", 2, marks=pytest.mark.long),
        pytest.param("gat", 2, marks=pytest.mark.torture),
        pytest.param("gcn", 4, marks=pytest.mark.torture),
        pytest.param("gat", 4, marks=pytest.mark.torture),
    ],
)
def test_a_run_that_is_killed_at_random_instants_ends_as_one_that_was_not(
    tmp_path, rng, trials, model, ranks
):
    """A run is killed again and again; each start goes on with it. At its end it is compared, and the next begins."""
    began = time.monotonic()
    words = ["launch", "-n", ranks, *write_job(tmp_path, model)]
    assert Launched(tmp_path, *words).wait() == 0
    whole = (tmp_path / "runs").rename(tmp_path / "whole") / "001"
    startup = Launched(tmp_path, "launch", "-n", ranks, "train", "job.toml", "--dry-run")
    assert startup.wait() == 0
    seconds = time.monotonic() - startup.began
    victims, killed, lost, segments = itertools.cycle(VICTIMS), Counter(), [0], set()
    for number in itertools.count(1):
        run = tmp_path / "runs" / "001"
        while sum(killed.values()) < trials:
            what = next(victims)
            job = Launched(tmp_path, *words)
            segments |= kill_at_random(job, run, what, seconds, rng)
            if job.process.returncode == 0:
                break
            assert job.process.returncode in (1, -9, 137), job.said()
            killed[what] += 1
            lost.append(epochs_lost(run, EVERY))
        last = Launched(tmp_path, *words)
        assert last.wait() == 0, last.said()
        assert assert_same_runs(whole, run, EPOCHS) > 0
        if sum(killed.values()) >= trials:
            break
        run.parent.rename(tmp_path / f"runs-{number}")
    time.sleep(2.1)  # a younger segment may belong to a job that starts
    assert Launched(tmp_path, *words).wait() == 0  # has finished; what it finds of killed jobs is removed
    assert [path for path in segments if path.exists()] == []
    record(
        f"SIGKILL at random instants, {model} on {ranks} ranks",
        sum(killed.values()),
        0,
        seconds=time.monotonic() - began,
        victims=dict(killed),
        epochs_lost={"most": max(lost), "mean": round(float(np.mean(lost)), 2), "interval": EVERY},
    )
