"""Damaged files and checkpoints end no process by a signal, hang none, and are read or refused in one line."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from data.hdf5 import mutants as graph_files
from torture.report import record
from training.checkpoints import checkpoint_mutants as checkpoints

from damaged import files
from damaged.watched import Worker, serve


class Writer(NamedTuple):
    """What makes the mutants of a format, and reads them.

    makes: given a folder for originals, return make(seed, path), which writes a mutant and returns what was done.
    worker: the module that reads mutants, and makes the originals first where ``prepares``. taken: lower and upper
    limit of the share of mutants that are taken, since most changes matter and some do not.
    """

    what: str
    makes: Callable[[Path], Callable[[int, Path], str]]
    worker: str
    taken: tuple[float, float]
    prepares: bool = False


def _file(format_: str, what: str, taken: tuple[float, float]) -> Writer:
    return Writer(f"{what}, {format_}", lambda folder: partial(files.make, format_), "damaged.files", taken)


WRITERS = {name: _file(name, "arrays", (0.02, 0.9)) for name in (*files.ARRAYS, *files.FOLDERS)}
WRITERS |= {name: _file(name, "text files", (0.0, 0.9)) for name in files.TEXTS}
WRITERS["graph.h5"] = Writer(
    "graph files", lambda folder: graph_files.Originals(folder).make, "data.hdf5.mutants", (0.05, 0.5)
)
WRITERS["checkpoint"] = Writer(
    "checkpoints",
    lambda folder: checkpoints.Originals(folder).make,
    "training.checkpoints.checkpoint_mutants",
    (0.0, 0.5),
    prepares=True,
)
TRIALS = dict.fromkeys(WRITERS, 2000) | {"graph.h5": 1400, "checkpoint": 600}
MARKS = {name: [pytest.mark.trials(20, torture=count)] for name, count in TRIALS.items()}
MARKS["checkpoint"].append(pytest.mark.slow)


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS[name]) for name in WRITERS])
def test_mutants_are_read_or_refused_in_one_line(name, trials, tmp_path, rng):
    writer, path = WRITERS[name], tmp_path / name
    with Worker(writer.worker, *[str(tmp_path)] * writer.prepares) as worker:
        worker.start()
        make, began, failures, taken, slowest = writer.makes(tmp_path), time.monotonic(), [], 0, 0.0
        for seed in rng.integers(2**62, size=trials).tolist():
            story, asked = make(seed, path), time.monotonic()
            answer = worker.ask(path)
            slowest = max(slowest, time.monotonic() - asked)
            taken += answer.kind == "taken"
            if answer.failed:
                failures.append(f"{story}: {answer.kind}: {answer.said}")
            if path.is_dir():
                shutil.rmtree(path)
    seconds = round(time.monotonic() - began, 1)
    record(
        f"mutants of {writer.what}",
        trials,
        len(failures),
        seconds=seconds,
        taken=taken,
        slowest=round(slowest, 2),
    )
    assert not failures, "\n".join(failures)
    # Both limits leave room for four standard deviations of the count.
    for count, share in ((taken, writer.taken[0]), (trials - taken, 1 - writer.taken[1])):
        assert count >= share * trials - 4 * (share * trials) ** 0.5


@pytest.mark.slow
def test_a_worker_that_dies_or_hangs_is_seen_and_replaced(tmp_path):
    with Worker("damaged.test_mutants") as worker:
        assert worker.ask(tmp_path / "fine").kind == "taken"
        crash, hang = worker.ask(tmp_path / "crash"), worker.ask(tmp_path / "hang", limit=0.5)
        assert (crash.kind, crash.said) == ("crash", "exit code -11")
        assert hang.kind == "hang"
        for name, kind in [
            ("raise", "error"),
            ("unnamed", "unnamed"),
            ("refuse", "refused"),
            ("memory", "error"),
        ]:
            assert worker.ask(tmp_path / name).kind == kind


def _misbehave(path) -> None:
    """Return the outcome of reading the file of this name, in a worker of the test above."""
    import ctypes

    from mgg_hpc.errors import InputError

    if path.name == "crash":
        ctypes.string_at(0)
    elif path.name == "hang":
        time.sleep(60)
    elif path.name == "raise":
        raise KeyError(path.name)
    elif path.name == "memory":
        bytearray(1 << 40)
    elif path.name != "fine":
        raise InputError("something" if path.name == "unnamed" else f"{path}: is damaged")


if __name__ == "__main__":
    serve(_misbehave)
