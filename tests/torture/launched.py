"""Training runs in processes of their own, which tests kill, stop and signal."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import time
import uuid
from contextlib import suppress
from pathlib import Path

import jobs
import numpy as np
import programs
import safetensors.torch
import torch

from mgg_hpc.runtime import exit_code, leftovers
from mgg_hpc.training.checkpoints import folders, state
from mgg_hpc.training.checkpoints.weights import ROWS, WEIGHTS

MARK = "MGG_TORTURE_JOB"  # variable that all processes of a job have, with a value of its own
LONGEST = 120.0  # seconds that any run of these tests may take


class Launched:
    """A command of `mgg`, usually `launch`, in a session of its own, with all processes that it starts."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        self.mark = uuid.uuid4().hex
        self._said = (folder / f"said-{self.mark[:8]}").open("w+")
        self.began = time.monotonic()
        scratch = folder / "scratch"
        scratch.mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [str(jobs.MGG), *map(str, arguments)],
            cwd=folder,
            env=jobs.clean_environment() | {MARK: self.mark, "TMPDIR": str(scratch)},
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def processes(self) -> dict[int, list[bytes]]:
        """Return the running processes of this job with their environments."""
        mark = f"{MARK}={self.mark}".encode()
        found = {}
        for path in Path("/proc").iterdir():
            with suppress(OSError):
                if path.name.isdigit():
                    variables = (path / "environ").read_bytes().split(b"\0")
                    if mark in variables:
                        found[int(path.name)] = variables
        return found

    def has_launcher(self) -> bool:
        """Return whether `mgg launch` has started the ranks' launcher, and not only programs that it asks things."""
        status = f"{exit_code.STATUS}=".encode()
        return any(each.startswith(status) for variables in self.processes().values() for each in variables)

    def ranks(self) -> list[int]:
        """Return the processes that are ranks, in the order of their ranks."""
        names = tuple(f"{name}=".encode() for name in exit_code.RANK_VARIABLES)
        found = {}
        for process, variables in self.processes().items():
            for variable in variables:
                if variable.startswith(names):
                    found[int(variable.partition(b"=")[2])] = process
        return [found[rank] for rank in sorted(found)]

    def mapped(self) -> set[Path]:
        """Return the files of shared memory that the job maps or holds open now."""
        names = (leftovers.files_of(Path(f"/proc/{number}"), "/dev/shm/") for number in self.processes())
        return {Path(name) for each in names for name in each}

    def kill(self, what: str, rng: np.random.Generator) -> None:
        """End a "rank" drawn at random, "all" processes at once, or the "launcher", and wait until all have ended."""
        if what == "launcher":
            victims = [self.process.pid]
        elif what == "all":
            victims = [self.process.pid, *self.processes()]
        else:
            ranks = self.ranks()
            victims = [ranks[rng.integers(len(ranks))]] if ranks else [self.process.pid]
        for victim in victims:
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)

    def wait(self, seconds: float = LONGEST) -> int:
        """Return the exit code. Raises AssertionError with what was said if the job does not end in time."""
        try:
            return self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end within {seconds} s\n{self.said()}") from None
        finally:
            if self.process.poll() is None:
                self.close()

    def said(self) -> str:
        """Return what the job has written to stdout and stderr so far."""
        self._said.seek(0)
        return self._said.read()

    def close(self) -> None:
        """End whatever still runs."""
        for number in (self.process.pid, *self.processes()):
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        self.process.wait()


def metrics(run: Path) -> list[list[str]]:
    """Return the whole lines of metrics.csv without times; none where there is no file yet."""
    path = run / "metrics.csv"
    if not path.exists():
        return []
    whole = path.read_text().rpartition("\n")[0].splitlines()
    return [
        [value for name, value in line.items() if not name.endswith("_ms")] for line in csv.DictReader(whole)
    ]


def contents(run: Path, epoch: int) -> dict[str, torch.Tensor]:
    """Return all tensors of a checkpoint but times: weights, moments and chosen weights, learned rows by node."""
    folder = run / "checkpoints" / folders.name_of(epoch)
    folders.verify(folder, epoch)
    _, found = state.read(folder)
    found = {name: value for name, value in found.items() if not name.startswith("times.")}
    ids = [np.load(path) for path in sorted(folder.glob("rows.*.ids.npy"))]
    if ids:
        names = {path.name.split(".", 2)[2].removesuffix(".npy") for path in folder.glob("rows.*.npy")}
        rows = state.read_rows(folder, names - {state.IDS}, np.arange(sum(map(len, ids))))
        found |= {f"rows.{name}": torch.from_numpy(array) for name, array in rows.items()}
    return found


def saved(run: Path) -> int:
    """Return the epoch of a run's newest sound checkpoint, or 0."""
    found = folders.newest(run / "checkpoints") if run.is_dir() else None
    return found.at.epoch if found else 0


def epochs_lost(run: Path, every: int) -> int:
    """Return how many epochs of a run that was killed just now are not saved.

    Checks that they are no more than an interval between checkpoints, unless one was being written at that moment.
    """
    lost, epoch = len(metrics(run)) - saved(run), saved(run)
    newest = run / "checkpoints" / folders.name_of(epoch) / folders.MANIFEST
    just_written = epoch and time.time() - newest.stat().st_mtime < 1.0
    assert lost <= every or folders.drafts(run / "checkpoints") or just_written, (lost, epoch)
    return lost


def assert_same_runs(one: Path, other: Path, epochs: int) -> int:
    """Check that two runs have the same bits: metrics, chosen weights, and the state of every epoch that both kept.

    Returns the number of those epochs.
    """
    assert metrics(one) == metrics(other)
    assert [int(line[0]) for line in metrics(one)] == list(range(1, epochs + 1)), "a line is lost or doubled"
    weights = [run / "checkpoints" / WEIGHTS for run in (one, other)]
    if any(path.exists() for path in weights):  # jobs of clicks have none but those of checkpoints
        assert_same(*map(safetensors.torch.load_file, weights))
    learned = [run / "checkpoints" / ROWS for run in (one, other)]
    assert learned[0].exists() == learned[1].exists()
    assert not learned[0].exists() or learned[0].read_bytes() == learned[1].read_bytes()
    common = {path.name for path in (one / "checkpoints").glob("epoch-*")}
    common &= {path.name for path in (other / "checkpoints").glob("epoch-*")}
    for name in common:
        assert_same(*(contents(run, int(name.removeprefix("epoch-"))) for run in (one, other)))
    return len(common)


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    """Check that two states have the same tensors, bit by bit."""
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


def wait_for_line(job: Launched, run: Path, epoch: int) -> bool:
    """Wait until metrics.csv has the line of an epoch; return False if the job ends before."""

    def has() -> bool:
        return len(metrics(run)) >= epoch or job.process.poll() is not None

    programs.wait_until(has, LONGEST, job.said)
    return job.process.poll() is None
