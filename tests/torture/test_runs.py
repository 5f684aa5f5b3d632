"""Runs that are killed, signalled, stopped, or have a rank that fails, at random moments.

They end soon and say why, or go on with the bits of a run that was not disturbed; nothing is left in shared memory.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import time
from collections import Counter
from pathlib import Path

import jobs
import numpy as np
import programs
import pytest

from torture import faulty
from torture.launched import Launched, assert_same_runs, epochs_lost, metrics, saved, wait_for_line
from torture.report import recorded

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


def assert_gone(folder: Path, segments: set[Path], words: list[object]) -> None:
    """Check that the next job removes what was left of killed ones in shared memory."""
    time.sleep(2.1)  # a younger segment may belong to a job that starts
    assert Launched(folder, *words).wait() == 0
    assert [path for path in segments if path.exists()] == []


def startup(folder: Path, words: list[object]) -> float:
    """Return the seconds that a job takes before it trains."""
    job = Launched(folder, *words, "--dry-run")
    assert job.wait() == 0
    return time.monotonic() - job.began


# ---- kills ----------------------------------------------------------------------------------------------

EPOCHS, EVERY = 60, 4
VICTIMS = ("rank", "all", "launcher")


def kill_at_random(
    job: Launched, run: Path, what: str, seconds: float, rng: np.random.Generator
) -> set[Path]:
    """Kill a job while it starts, or within some epochs of its training; return the segments that it had.

    Returns early where the job ends before that.
    """
    if rng.random() < 0.3:
        time.sleep(rng.uniform(0.0, seconds))
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
        *(pytest.param(name, 2, marks=pytest.mark.long) for name in ("gcn", "dlrm")),
        *(pytest.param(*each, marks=pytest.mark.torture) for each in (("gat", 2), ("gcn", 4), ("gat", 4))),
    ],
)
def test_a_run_that_is_killed_at_random_instants_ends_as_one_that_was_not(
    tmp_path, rng, trials, model, ranks
):
    """A run is killed again and again; each start goes on with it. At its end it is compared, and the next begins."""
    # Every checkpoint is kept, so that the states of many epochs can be compared.
    kept = {"every_epochs": EVERY, "keep": EPOCHS}
    if model == "dlrm":
        keys = {"train.epochs": EPOCHS, "run.resume": "auto"}
        jobs.click_job(tmp_path, **keys, **{f"checkpoint.{key}": value for key, value in kept.items()})
    else:
        jobs.write_job(
            tmp_path,
            jobs.blocks(3000, features=16),
            model=MODELS[model] | {"dropout": 0.4},
            train={"epochs": EPOCHS, "seed": 7},
            # "auto" measures, and may choose others in another run
            plan={"transfer": "halo", "ps": 256, "wpb": 16},
            run={"folder": "runs", "resume": "auto", "threads": 1},
            checkpoint=kept,
        )
    words, run = ["launch", "-n", ranks, "train", "job.toml", "--no-progress"], tmp_path / "runs" / "001"
    job = Launched(tmp_path, *words)
    assert wait_for_line(job, run, 1)
    seconds = time.monotonic() - job.began
    assert job.wait() == 0
    whole = (tmp_path / "runs").rename(tmp_path / "whole") / "001"
    victims, killed, lost, segments = itertools.cycle(VICTIMS), Counter(), [0], set()
    with recorded(f"SIGKILL at random instants, {model} on {ranks} ranks", trials) as found:
        for number in itertools.count(1):
            while killed.total() < trials:
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
            if killed.total() >= trials:
                break
            run.parent.rename(tmp_path / f"runs-{number}")
        assert_gone(tmp_path, segments, words)  # the run has finished
        found["victims"] = dict(killed)
        found["epochs_lost"] = {"most": max(lost), "mean": round(float(np.mean(lost)), 2), "interval": EVERY}


# ---- signals --------------------------------------------------------------------------------------------

SOON = 15.0  # seconds between a signal and the end of the job
ASKING = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
STOPPED = r"mgg: stopped by \S+(?: \S+)? "
COMMAND = r"mgg launch -n 2 resume \S*runs/001"
SAVED = re.compile(STOPPED + rf"after epoch (\d+), which is saved; {COMMAND} goes on from there")
EARLY = re.compile(STOPPED + r"before training began; (there was nothing to save|epoch \d+ is saved)")


@pytest.mark.long
@pytest.mark.trials(2, torture=100)
def test_a_signal_at_any_moment_saves_and_ends_with_3(tmp_path, rng, trials):
    """While it starts, reads, trains or saves; every second trial has a second signal, a moment after the first."""
    jobs.write_job(
        tmp_path,
        jobs.blocks(2000),
        model={"input": "learned", "embedding": 32},
        train={"epochs": 100_000},
        run={"folder": "runs", "resume": "auto", "threads": 1},
        checkpoint={"every_epochs": 2},
    )
    words = ["launch", "-n", 2, "train", "job.toml", "--no-progress"]
    seconds, slowest, when, run = startup(tmp_path, words), 0.0, Counter(), tmp_path / "runs" / "001"
    with recorded("signals at random moments", trials) as found:
        for number in range(trials):
            first, second = (ASKING[at] for at in rng.integers(len(ASKING), size=2))
            job = Launched(tmp_path, *words)
            if number % 2:
                # Before `mgg launch` has started the ranks' launcher, it ends as any program does.
                programs.wait_until(lambda job=job: job.has_launcher(), SOON, job.said)
                time.sleep(rng.uniform(0.0, seconds))
            elif wait_for_line(job, run, len(metrics(run)) + int(rng.integers(1, 9))):
                time.sleep(rng.uniform(0.0, 0.03))
            job.process.send_signal(first)
            sent = time.monotonic()
            if rng.random() < 0.5:
                time.sleep(rng.uniform(0.0, 0.05))
                job.process.send_signal(second)
            code = job.wait(4 * SOON)
            slowest = max(slowest, time.monotonic() - sent)
            assert code == 3, (first, code, job.said())
            assert slowest < SOON, job.said()
            done = SAVED.search(job.said())
            if done:
                assert int(done[1]) == saved(run) == len(metrics(run))
            else:
                assert EARLY.search(job.said()), job.said()
            when["after an epoch" if done else "before the first epoch"] += 1
        assert len(metrics(run)) > 0 or trials < 2
        assert [int(line[0]) for line in metrics(run)] == list(range(1, len(metrics(run)) + 1))
        found |= {"when": dict(when), "slowest": round(slowest, 2)}


# ---- ranks that fail, die or stop -----------------------------------------------------------------------

KINDS = ("raise", "exit", "segv", "kill")
AT_ONCE = 5.0  # seconds between a fault and the end of the job


def write_short(folder: Path, **run: object) -> list[str]:
    """Write a graph and a job; returns the words of `mgg` that train it."""
    options = {"run": {"folder": "runs", "threads": 1} | run, "checkpoint": {"every_epochs": 3}}
    jobs.write_job(folder, jobs.blocks(2000), train={"epochs": 400}, **options)
    return ["train", "job.toml", "--no-progress"]


@pytest.mark.long
@pytest.mark.trials(2, torture=100)
def test_a_fault_of_any_rank_ends_the_job(tmp_path, rng, trials):
    """On all ranks, with the reason."""
    words, slowest, counts, segments = write_short(tmp_path), 0.0, Counter(), set()
    kinds = itertools.islice(itertools.cycle(rng.permutation(KINDS)), trials)
    with recorded("faults of a rank", trials) as found:
        for number, kind in enumerate(kinds):
            ranks = int(rng.integers(1, 5))
            stamp = tmp_path / f"stamp{number}"
            fault = [kind, rng.integers(ranks), 1 + rng.integers(20), stamp]
            job = Launched(tmp_path, "launch", "-n", ranks, Path(faulty.__file__), *fault, *words)
            while job.process.poll() is None and not stamp.exists():
                segments |= job.mapped()
                time.sleep(0.02)
            code = job.wait()
            slowest = max(slowest, time.time() - float(stamp.read_text()))
            assert code not in (0, 2, 3), job.said()
            assert slowest < AT_ONCE, (kind, job.said())
            assert "mgg: error: " in job.said()
            assert kind != "raise" or "ZeroDivisionError: planted" in job.said()
            assert job.processes() == {}
            counts[kind] += 1
        assert_gone(tmp_path, segments, ["launch", "-n", 1, *words, "--dry-run"])
        found |= {"kinds": dict(counts), "slowest": round(slowest, 2)}


@pytest.mark.long
@pytest.mark.trials(1, torture=10)
@pytest.mark.parametrize(("limit", "pause"), [(3, None), (8, 4)], ids=["for ever", "a while"])
def test_a_stopped_rank_is_named_by_the_watchdog(tmp_path, rng, trials, limit, pause):
    """The others print where they are, and the job ends soon after the limit; a pause within it changes nothing."""
    words = write_short(tmp_path, watchdog=limit)
    name = f"a rank that pauses for {pause} s" if pause else "SIGSTOP of a rank"
    with recorded(f"{name}, limit {limit} s", trials):
        for number in range(1, trials + 1):
            job = Launched(tmp_path, "launch", "-n", 2, *words)
            assert wait_for_line(job, tmp_path / "runs" / f"{number:03d}", int(rng.integers(1, 20)))
            stopped = job.ranks()[rng.integers(2)]
            os.kill(stopped, signal.SIGSTOP)
            if pause:
                time.sleep(pause)
                os.kill(stopped, signal.SIGCONT)
                assert job.wait() == 0, job.said()
                continue
            assert job.wait(limit + 2 * AT_ONCE) == 1, job.said()
            said = job.said()
            assert f"has made no progress for {limit} s; its last step: epoch " in said
            assert "most recent call first" in said and "in fit" in said, said
            assert job.processes() == {}
