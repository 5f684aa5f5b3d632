"""The memory of processes that a benchmark measures."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any


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
