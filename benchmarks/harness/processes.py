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


def output(command: Sequence[object], what: str) -> str:
    """Run a command and return its standard output. what: its name in the message.

    Raises InputError with its name, exit code and last line of standard error if it fails.
    """
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no message"]
        raise InputError(f"{what}: exit code {done.returncode}: {said[-1].strip()}")
    return done.stdout


def train(folder: Path, tree: dict[str, dict[str, Any]], ranks: int = 1) -> dict[str, Any]:
    """Run `mgg train` on so many ranks; return summary.json, with "process_ms": from the start to the end of all.

    folder: for the job file, to which names of files are relative, and for the runs. tree: sections of the job file.

    Raises InputError if it fails.
    """
    sections = tree | {"run": {"folder": str(folder / "runs")} | tree.get("run", {})}
    (folder / "job.toml").write_text(tomli_w.dumps(sections))
    launch = [] if ranks == 1 else ["launch", "-n", ranks]
    began = time.perf_counter()
    mgg = [sys.executable, "-m", "mgg_hpc", *launch, "train", folder / "job.toml", "--no-progress"]
    output(mgg, "mgg train")
    seconds = time.perf_counter() - began
    summary: dict[str, Any] = json.loads((folder / "runs" / "latest" / "summary.json").read_text())
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
