"""Workers' processes, and taking turns (baselines/worker.py is the other end)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ....errors import InputError

WORKER = Path(__file__).parents[1] / "baselines" / "worker.py"
PAGES = ("huge", "small")
BREATH = 0.01  # seconds between turns: threads that spin for more work go to sleep


def environment(threads: int, pages: str) -> dict[str, str]:
    """The same for every worker: threads of all their libraries, and pages.

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
    """One process: ``python`` runs ``module`` as worker.py says. Use it within ``with``."""

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
        """The reply to one request. Raises InputError if the process has ended."""
        assert self.process.stdin and self.process.stdout
        with contextlib.suppress(BrokenPipeError):  # then there is no reply either
            print(json.dumps({"do": do, **request}), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise InputError(f"{self.name} {self._end()} while it was asked to {do}; leave it out of --peers")
        return json.loads(line)

    def need(self, do: str, **request: Any) -> dict[str, Any]:
        """The reply to a request that must not fail. Raises InputError if it does."""
        reply = self.ask(do, **request)
        if problem := reply.get("failed") or reply.get("missing"):
            raise InputError(f"{self.name} failed: {problem}")
        return reply

    def _end(self) -> str:
        """How the process ended, and the last that it said."""
        code = self.process.wait()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self.errors.seek(0)
        said = self.errors.read().strip().splitlines()
        return f"{how} ({said[-1].strip()})" if said else how


@dataclass
class Run:
    """Something that takes turns: a run of a worker, and its times in ms."""

    worker: Worker
    name: str
    ms: list[float] = field(default_factory=list)

    def once(self) -> float:
        """One turn, in ms."""
        return self.worker.need("run", name=self.name)["ms"]


def take_turns(runs: Sequence[Run], turns: int) -> None:
    """A B C, A B C, ...: what slows the machine for a while slows all of them."""
    for _ in range(turns):
        for run in runs:
            time.sleep(BREATH)
            run.ms.append(run.once())


def spread(values: Sequence[float]) -> dict[str, float]:
    """min, median and max."""
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def ratios(slow: Sequence[float], fast: Sequence[float]) -> dict[str, float]:
    """The spread of how many times as fast, turn by turn."""
    return spread([s / f for s, f in zip(slow, fast, strict=True)])


@contextlib.contextmanager
def workspace() -> Iterator[Path]:
    """A folder for what workers hand each other as .npy files."""
    with tempfile.TemporaryDirectory(prefix="mgg-bench-") as name:
        yield Path(name)
