"""A rank that fails, dies or stops: the job ends on all ranks, says why, and leaves nothing."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections import Counter
from pathlib import Path

import jobs
import pytest

from torture import faulty
from torture.launched import Launched, wait_for_line
from torture.report import record

KINDS = ("raise", "exit", "segv", "kill")
SOON = 5.0  # seconds between the fault and the end of the job
EPOCHS = 400


def write_job(folder: Path, **run: object) -> list[str]:
    """Write a graph and a job; returns the words of `mgg` that train it."""
    jobs.write_job(
        folder,
        jobs.blocks(2000),
        train={"epochs": EPOCHS},
        run={"folder": "runs", "threads": 1} | run,
        checkpoint={"every_epochs": 3},
    )
    return ["train", "job.toml", "--no-progress"]


@pytest.mark.long
@pytest.mark.trials(2, torture=100)
def test_a_fault_of_any_rank_ends_the_job(tmp_path, rng, trials):
    began = time.monotonic()
    words, slowest, counts, segments = write_job(tmp_path), 0.0, Counter(), set()
    kinds = itertools.islice(itertools.cycle(rng.permutation(KINDS)), trials)
    for number, kind in enumerate(kinds):
        ranks = int(rng.integers(1, 5))
        stamp = tmp_path / f"stamp{number}"
        fault = [kind, rng.integers(ranks), 1 + rng.integers(20), stamp]
        job = Launched(tmp_path, "launch", "-n", ranks, Path(faulty.__file__), *fault, *words)
        while job.process.poll() is None and not stamp.exists():
            segments |= job.mapped()
            time.sleep(0.02)
        code = job.wait()
        seconds = time.time() - float(stamp.read_text())
        slowest = max(slowest, seconds)
        assert code not in (0, 2, 3), job.said()
        assert seconds < SOON, (kind, job.said())
        assert "mgg: error: " in job.said()
        assert kind != "raise" or "ZeroDivisionError: planted" in job.said()
        assert job.processes() == {}
        counts[kind] += 1
    time.sleep(2.1)  # a younger segment may belong to a job that starts
    assert Launched(tmp_path, "launch", "-n", 1, *words, "--dry-run").wait() == 0
    assert [path for path in segments if path.exists()] == []
    seconds = time.monotonic() - began
    record("faults of a rank", trials, 0, seconds=seconds, kinds=dict(counts), slowest=round(slowest, 2))


@pytest.mark.long
@pytest.mark.trials(1, torture=10)
def test_a_stopped_rank_is_named_by_the_watchdog(tmp_path, rng, trials):
    """The others print where they are, and the job ends soon after the limit."""
    began, limit, slowest = time.monotonic(), 3, 0.0
    words = write_job(tmp_path, watchdog=limit)
    for _ in range(trials):
        job = Launched(tmp_path, "launch", "-n", 2, *words)
        run = next_run(tmp_path)
        assert wait_for_line(job, run, int(rng.integers(1, 20)))
        stopped = job.ranks()[rng.integers(2)]
        os.kill(stopped, signal.SIGSTOP)
        since = time.monotonic()
        assert job.wait(limit + 2 * SOON) == 1, job.said()
        slowest = max(slowest, time.monotonic() - since)
        said = job.said()
        assert f"has made no progress for {limit} s; its last step: epoch " in said
        assert "most recent call first" in said and "in fit" in said, said
        assert job.processes() == {}
    seconds = time.monotonic() - began
    record(f"SIGSTOP of a rank, limit {limit} s", trials, 0, seconds=seconds, slowest=round(slowest, 2))


@pytest.mark.long
@pytest.mark.trials(1, torture=10)
def test_a_pause_within_the_limit_changes_nothing(tmp_path, rng, trials):
    began, limit = time.monotonic(), 8
    words = write_job(tmp_path, watchdog=limit)
    for _ in range(trials):
        job = Launched(tmp_path, "launch", "-n", 2, *words)
        assert wait_for_line(job, next_run(tmp_path), int(rng.integers(1, 20)))
        paused = job.ranks()[rng.integers(2)]
        os.kill(paused, signal.SIGSTOP)
        time.sleep(limit / 2)
        os.kill(paused, signal.SIGCONT)
        assert job.wait() == 0, job.said()
    seconds = time.monotonic() - began
    record(f"pauses of {limit / 2:g} s, limit {limit} s", trials, 0, seconds=seconds)


def next_run(folder: Path) -> Path:
    """Return the folder that the run which has just been started will have."""
    taken = [int(path.name) for path in (folder / "runs").glob("0*")] if (folder / "runs").exists() else []
    return folder / "runs" / f"{max(taken, default=0) + 1:03d}"
