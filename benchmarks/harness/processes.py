"""Programs and trainings that a benchmark runs to their end, and the memory of processes."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import tomli_w

from mgg_hpc.errors import InputError
from mgg_hpc.training.run_folder import SUMMARY

LATEST = Path("runs", "latest")  # in the folder that `train` is given


def output(command: Sequence[object], what: str) -> str:
    """Run a command and return its standard output. what: its name in the message.

    Raises InputError with its name, exit code and last line of standard error if it fails.
    """
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no message"]
        raise InputError(f"{what}: exit code {done.returncode}: {said[-1].strip()}")
    return done.stdout


def train(
    folder: Path, job: Path | dict[str, dict[str, Any]], ranks: int = 1, keys: Sequence[str] = ()
) -> dict[str, Any]:
    """Run `mgg train` on so many ranks; return summary.json, with "process_ms": from the start to the end of all.

    folder: for the runs. job: a job file, or its sections, in which names of files are relative to ``folder``. keys:
    SECTION.KEY=VALUE that are set in it.

    Raises InputError if it fails.
    """
    if not isinstance(job, Path):
        (folder / "job.toml").write_text(tomli_w.dumps(job))
        job = folder / "job.toml"
    sets = [f"--set={key}" for key in (*keys, f"run.folder={folder / 'runs'}")]
    launch = [] if ranks == 1 else ["launch", "-n", ranks]
    began = time.perf_counter()
    output(
        [sys.executable, "-m", "mgg_hpc", *launch, "train", job, "--no-progress", *sets], f"mgg train {job}"
    )
    seconds = time.perf_counter() - began
    summary: dict[str, Any] = json.loads((folder / LATEST / SUMMARY).read_text())
    return summary | {"process_ms": 1e3 * seconds}


def alone(function: Any, *arguments: Any) -> Any:
    """Return the value of a function in a process of its own, whose memory no other run has touched."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def status(name: str) -> int:
    """Return a line of this process's status in bytes: VmRSS, what is resident, or VmHWM, the peak of it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def peak_from_now() -> None:
    """Let VmHWM be the peak from here on."""
    Path("/proc/self/clear_refs").write_text("5")  # of proc(5): the peak is what is resident now
