"""Signals at random moments: the job saves what it has and ends with 3, soon."""

from __future__ import annotations

import re
import signal
import time
from collections import Counter

import jobs
import numpy as np
import programs
import pytest

from torture.launched import Launched, metrics, saved, wait_for_line
from torture.report import record

SOON = 15.0  # seconds between a signal and the end of the job
ASKING = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
SAVED = re.compile(
    r"mgg: stopped by \S+(?: \S+)? after epoch (\d+), which is saved; mgg resume \S*runs/001 goes on from there"
)
EARLY = re.compile(
    r"mgg: stopped by \S+(?: \S+)? before training began; (there was nothing to save|epoch \d+ is saved)"
)


@pytest.mark.long
@pytest.mark.trials(2, torture=100)
def test_a_signal_at_any_moment_saves_and_ends_with_3(tmp_path, rng, trials):
    """While it starts, reads, trains or saves; every second trial has a second signal, a moment after the first."""
    began = time.monotonic()
    jobs.write_job(
        tmp_path,
        jobs.blocks(2000),
        model={"input": "learned", "embedding": 32},
        train={"epochs": 100_000},
        run={"folder": "runs", "resume": "auto", "threads": 1},
        checkpoint={"every_epochs": 2},
    )
    words = ["launch", "-n", 2, "train", "job.toml", "--no-progress"]
    startup = Launched(tmp_path, *words, "--dry-run")
    assert startup.wait() == 0
    seconds = time.monotonic() - startup.began
    slowest, when, run = 0.0, Counter(), tmp_path / "runs" / "001"
    for number in range(trials):
        first, second = (ASKING[at] for at in rng.integers(len(ASKING), size=2))
        job = Launched(tmp_path, *words)
        if number % 2:
            # Before `mgg launch` has started the ranks' launcher, it ends as any program does.
            programs.wait_until(lambda job=job: job.has_launcher(), SOON, job.said)
            time.sleep(rng.uniform(0.0, seconds))
        elif wait_for_line(job, run, len(metrics(run)) + int(rng.integers(1, 9))):
            time.sleep(rng.uniform(0.0, 0.03))
        job.send(first)
        sent = time.monotonic()
        if rng.random() < 0.5:
            time.sleep(rng.uniform(0.0, 0.05))
            job.send(second)
        code = job.wait(4 * SOON)
        slowest = max(slowest, time.monotonic() - sent)
        assert code == 3, (first, code, job.said())
        assert time.monotonic() - sent < SOON, job.said()
        done = SAVED.search(job.said())
        if done:
            assert int(done[1]) == saved(run) == len(metrics(run))
        else:
            assert EARLY.search(job.said()), job.said()
        when["after an epoch" if done else "before the first epoch"] += 1
    assert len(metrics(run)) > 0 or trials < 2
    assert [int(line[0]) for line in metrics(run)] == list(np.arange(1, len(metrics(run)) + 1))
    seconds = time.monotonic() - began
    record(
        "signals at random moments", trials, 0, seconds=seconds, when=dict(when), slowest=round(slowest, 2)
    )
