"""Processes that measure a library each: this package, and those that it is compared with (`worker.py`)."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from harness.results import Results, Row, output_files, words_of
from mgg_hpc.cli.options import together
from mgg_hpc.data.graph import Graph
from mgg_hpc.errors import InputError
from mgg_hpc.runtime import cores, mpi
from mgg_hpc.runtime.timing import interleaved

from . import options
from .plots import draw

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = Path(".venv-peers")  # made by `make bench-peers`
WORKER = [str(Path(__file__).with_name("worker.py"))]
BREATH = 0.01  # seconds before a worker's turn, in which threads that spin for more work go to sleep


@dataclass(frozen=True)
class Comparison:
    """This package beside other libraries: settings that all workers share, and the results.

    device: "cpu" or "cuda". pages: "huge" or "small". peers: other libraries. files: of the results.
    """

    device: str
    threads: int
    turns: int
    pages: str
    environment: Path | None
    peers: list[str]
    results: Results
    files: tuple[Path, ...]

    @contextlib.contextmanager
    def started(self) -> Iterator[tuple[list[Worker], Path]]:
        """Start the processes of this package, which is the first, and of other libraries; they end with the context.

        Yields the workers, and a folder for their files, which is removed. A note for each library has its version, or
        why it is left out.
        """
        with contextlib.ExitStack() as stack:
            workers = []
            for name in ("mgg", *self.peers):
                worker = stack.enter_context(Worker(name, self))
                reply = worker.need("about") if name == "mgg" else worker.ask("about")
                if "about" in reply:
                    workers.append(worker)
                    self.note(f"{name}: {reply['about']}")
                else:
                    why = reply.get("missing") or reply["failed"]
                    self.note(f"{name} is left out: {why}; `make bench-peers` installs the libraries")
            yield workers, stack.enter_context(workspace())

    def note(self, line: str) -> None:
        """Add a note to the results that is not there yet."""
        if line not in self.results.notes:
            self.results.notes.append(line)

    def prepared(
        self, case: str, workers: Sequence[Worker], task: str, inputs: Mapping[str, Any], accept: Any
    ) -> dict[str, Worker]:
        """Have workers prepare a task, call each run once, and return the runs by name.

        case: begins a note for each run that cannot take part. accept: takes a worker and a run's name, after its first
        call, and returns why the run is left out, or "". Raises InputError where mgg fails.
        """
        runs = {}
        for worker in workers:
            reply = worker.ask("prepare", task=task, inputs=dict(inputs))
            for run in reply.get("runs", [worker.name]):
                problem = (
                    reply.get("failed") or worker.ask("run", name=run).get("failed") or accept(worker, run)
                )
                if problem and worker.name == "mgg":
                    raise InputError(f"mgg failed: {problem}")
                if problem:
                    self.note(f"{case}: {run} is left out: {problem}")
                else:
                    runs[run] = worker
        return runs

    def add(
        self, ms: Mapping[str, Sequence[float]], more: Mapping[str, Row] | None = None, **columns: Any
    ) -> None:
        """Add the rows of a case (`Results.compare`), and write the files: what is measured stays."""
        self.results.compare(ms, more, **columns)
        self.results.write(self.files, draw)


def comparison(name: str, peers: Mapping[str, Sequence[str]], turns: int = 9) -> Any:
    """Return the decorator that adds the options of a `Comparison`, which the command takes as ``bench``.

    name: of the results. peers: libraries that can take part, by device.
    """
    device = click.Choice(list(peers))
    pages = "Page size of all processes: 2 MiB or 4 KiB."
    environment = "Environment that has the other libraries. [default: .venv-peers]"
    added = together(
        output_files(),
        click.option("--device", type=device, default="cpu", help="Processor; cuda: the first GPU."),
        options.threads("Of each library. [default: all cores]"),
        options.turns(turns),
        click.option("--pages", type=click.Choice(["huge", "small"]), default="huge", help=pages),
        click.option("--peers", help='Other libraries, or "none". [default: all of the device]'),
        click.option("--peers-env", type=click.Path(path_type=Path), help=environment),
    )

    def add(command: Any) -> Any:
        @functools.wraps(command)
        def called(*, device: str, peers_env: Path | None, **given: Any) -> Any:
            if mpi.launched():
                raise InputError("this benchmark runs by itself, without a launcher")
            known = peers[device]
            chosen = words_of("peers", given.pop("peers") or ",".join(known), known, none=True)
            threads, turns, pages, files = (
                given.pop(each) for each in ("threads", "turns", "pages", "files")
            )
            about = {"device": device, "threads": threads or cores.available()}
            results = Results(name, **about, **({} if device == "cuda" else {"pages": pages}))
            bench = Comparison(device, about["threads"], turns, pages, peers_env, chosen, results, files)
            return command(bench=bench, **given)

        return added(called)

    return add


def interpreter(environment: Path | None) -> Path:
    """Return the Python that has the other libraries: of ``environment``, else of .venv-peers, else this one.

    Raises InputError for an environment that is given and is not there.
    """
    if environment is not None and not (environment / "bin" / "python").exists():
        raise InputError(
            f"--peers-env {environment}: no Python environment (bin/python); try `make bench-peers`"
        )
    for folder in [environment] if environment else [Path.cwd() / ENVIRONMENT, ROOT / ENVIRONMENT]:
        if (python := folder / "bin" / "python").exists():
            return python.absolute()
    return Path(sys.executable)


def variables(same: Comparison) -> dict[str, str]:
    """Return the environment of every worker: threads of all their libraries, and pages.

    huge: NumPy and glibc ask for huge pages (madvise) for each large allocation. small: the process refuses them
    (worker.py). Idle threads of Intel's OpenMP would spin through the next worker's turn: they sleep at once.
    """
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    chosen = dict.fromkeys(names, str(same.threads))
    chosen |= {"MKL_DYNAMIC": "FALSE", "KMP_BLOCKTIME": "0", "PYTHONWARNINGS": "ignore"}
    if same.pages == "huge":
        chosen["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
    left_out = ("OMP_", "KMP_", "GOMP_", "GLIBC_TUNABLES")
    return {name: value for name, value in os.environ.items() if not name.startswith(left_out)} | chosen


@dataclass
class Worker:
    """The process of a library, which runs a module of peers/. Use it within ``with``."""

    name: str
    same: Comparison
    process: subprocess.Popen[str] = field(init=False, repr=False)

    def __enter__(self) -> Worker:
        self.errors = tempfile.TemporaryFile("w+")
        python = Path(sys.executable) if self.name == "mgg" else interpreter(self.same.environment)
        same = self.same
        self.process = subprocess.Popen(
            [python, *WORKER, self.name, str(same.threads), same.pages, same.device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            start_new_session=True,  # so that programs it has started, such as GAPBS, are ended too
            env=variables(same),
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin and self.process.stdout
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.process.stdout.close()
        self.errors.close()

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """Return the reply to one request. Raises InputError if the process has ended."""
        assert self.process.stdin and self.process.stdout
        with contextlib.suppress(BrokenPipeError):  # then there is no reply either
            print(json.dumps({"do": do, **request}), file=self.process.stdin, flush=True)
        if line := self.process.stdout.readline():
            return json.loads(line)
        code = self.process.wait()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self.errors.seek(0)
        last = self.errors.read().strip().rpartition("\n")[2].strip()
        how += f" ({last})" if last else ""
        raise InputError(f"{self.name} {how} while it was asked to {do}; leave it out of --peers")

    def need(self, do: str, **request: Any) -> dict[str, Any]:
        """Return the reply to a request that must not fail. Raises InputError if it does."""
        reply = self.ask(do, **request)
        if problem := reply.get("failed") or reply.get("missing"):
            raise InputError(f"{self.name} failed: {problem}")
        return reply

    def ms(self, run: str) -> float:
        """Return the milliseconds of one call of a prepared run."""
        return float(self.need("run", name=run)["ms"])

    def result(self, run: str, folder: Path) -> np.ndarray:
        """Return the last value of a run, as float32; it is handed over in a file of ``folder``."""
        file = folder / "result.npy"
        self.need("result", name=run, file=str(file))
        return np.load(file)


def check_losses(losses: Mapping[str, float], apart: float) -> None:
    """Raise AssertionError where a loss is further from mgg's than this part of the smaller one."""
    ours = losses["mgg"]
    for name, loss in losses.items():
        if not abs(loss - ours) <= apart * min(loss, ours):
            raise AssertionError(f"after as many epochs {name}'s loss is {loss:.6g}, and mgg's {ours:.6g}")


def in_turns(runs: Mapping[str, Worker], turns: int, steps: int = 1) -> dict[str, list[float]]:
    """Return the milliseconds of each run in each turn. steps: calls in a row, of which the median counts."""

    def median(worker: Worker, run: str) -> float:
        return statistics.median(worker.ms(run) for _ in range(steps))

    return interleaved(
        {run: partial(median, worker, run) for run, worker in runs.items()}, turns, pause=BREATH
    )


def write(folder: Path, **arrays: np.ndarray) -> dict[str, str]:
    """Write arrays for workers, a file each, and return the files by name."""
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return {name: str(folder / f"{name}.npy") for name in arrays}


def write_edges(graph: Graph, folder: Path) -> dict[str, str]:
    """Write a graph's in-edges: indptr int64 [N+1], indices int32 [E]."""
    return write(folder, indptr=graph.indptr, indices=graph.indices.astype(np.int32, copy=False))


@contextlib.contextmanager
def workspace() -> Iterator[Path]:
    """Make a folder for files of workers; it is removed with the context."""
    with tempfile.TemporaryDirectory(prefix="mgg-bench-") as name:
        yield Path(name)
