"""Processes of workers (baselines/worker.py is the other end), and statistics of times."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import InputError
from ....plan.overlap import hidden_share

WORKER = Path(__file__).parents[1] / "baselines" / "worker.py"
BREATH = 0.01  # seconds before a worker's turn, in which threads that spin for more work go to sleep


def environment(threads: int, pages: str) -> dict[str, str]:
    """Return the environment variables of every worker: threads of all their libraries, and pages.

    huge: NumPy and glibc ask for huge pages (madvise) for each large allocation. small: the process refuses them
    (worker.py). Idle threads of Intel's OpenMP would spin through the next worker's turn: they sleep at once.
    """
    same = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    same |= {"MKL_DYNAMIC": "FALSE", "KMP_BLOCKTIME": "0", "PYTHONWARNINGS": "ignore"}
    if pages == "huge":
        same["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
    left_out = ("OMP_", "KMP_", "GOMP_", "GLIBC_TUNABLES")
    return {name: value for name, value in os.environ.items() if not name.startswith(left_out)} | same


@dataclass
class Worker:
    """A worker's process: ``python`` runs ``module`` as worker.py says. Use it within ``with``."""

    name: str
    python: Path
    module: str
    threads: int
    pages: str
    about: str = ""
    process: subprocess.Popen[str] = field(init=False, repr=False)

    def __enter__(self) -> Worker:
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [self.python, WORKER, self.module, str(self.threads), self.pages],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=environment(self.threads, self.pages),
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin and self.process.stdout
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.errors.close()

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """Return the reply to one request. Raises InputError if the process has ended."""
        assert self.process.stdin and self.process.stdout
        with contextlib.suppress(BrokenPipeError):  # then there is no reply either
            print(json.dumps({"do": do, **request}), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise InputError(f"{self.name} {self._end()} while it was asked to {do}; leave it out of --peers")
        return json.loads(line)

    def need(self, do: str, **request: Any) -> dict[str, Any]:
        """Return the reply to a request that must not fail. Raises InputError if it does."""
        reply = self.ask(do, **request)
        if problem := reply.get("failed") or reply.get("missing"):
            raise InputError(f"{self.name} failed: {problem}")
        return reply

    def ms(self, run: str) -> float:
        """Return the milliseconds of one call of a prepared run."""
        return self.need("run", name=run)["ms"]

    def result(self, run: str, folder: Path) -> np.ndarray:
        """Return the last value of a run, as float32; it is handed over in a file of ``folder``."""
        file = folder / "result.npy"
        self.need("result", name=run, file=str(file))
        return np.load(file)

    def _end(self) -> str:
        """Return how the process ended, and its last message."""
        code = self.process.wait()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self.errors.seek(0)
        said = self.errors.read().strip().splitlines()
        return f"{how} ({said[-1].strip()})" if said else how


def in_a_row(worker: Worker, name: str, count: int) -> float:
    """Return the median ms of so many calls of a run in a row: threads that slept take up to 10 ms to wake."""
    return statistics.median(worker.ms(name) for _ in range(count))


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the minimum, the median and the maximum."""
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def ratios(slow: Sequence[float], fast: Sequence[float]) -> dict[str, float]:
    """Return the spread of slow / fast, turn by turn."""
    return spread([s / f for s, f in zip(slow, fast, strict=True)])


def compared(ms: Mapping[str, Sequence[float]], ours: str = "mgg") -> dict[str, Any]:
    """Return the spread of each entry's times, and of how many times as fast as each baseline ours is."""
    return {
        "ms": {name: spread(times) for name, times in ms.items()},
        "speedup": {name: ratios(times, ms[ours]) for name, times in ms.items() if name != ours},
    }


def hidden(ms: Mapping[str, Mapping[str, float]], transfer: str, both: str) -> float:
    """Return the hidden share (`plan.overlap`) of medians, of the sums alone, a transfer alone, and both in one."""
    return hidden_share(*(ms[name]["median"] for name in ("sum", transfer, both)))


@contextlib.contextmanager
def workspace() -> Iterator[Path]:
    """Make a folder for the .npy files of workers; it is removed with the context."""
    with tempfile.TemporaryDirectory(prefix="mgg-bench-") as name:
        yield Path(name)
