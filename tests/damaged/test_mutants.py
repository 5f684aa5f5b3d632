"""Damaged files and checkpoints end no process by a signal, hang none, and are read or refused in one line."""

from __future__ import annotations

import contextlib
import functools
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from torture.report import record
from training.checkpoints import checkpoint_mutants as checkpoints

from damaged import files
from damaged.watched import Worker


class Kind(NamedTuple):
    """A kind of mutants. makes: given a folder for originals, return make(seed, path), which tells what was done.

    worker: the module that reads them, and makes the originals first where ``prepares``. taken: lower and upper limit
    of the share of mutants that are taken, since most changes matter and some do not.
    """

    what: str
    makes: Callable[[Path], Callable[[int, Path], str]]
    taken: tuple[float, float]
    worker: str
    torture: int = 2000
    prepares: bool = False


def _file(name: str) -> Kind:
    what, least = ("text files", 0.0) if name in files.TEXTS else ("arrays", 0.02)
    return Kind(f"{what}, {name}", lambda _: partial(files.make, name), (least, 0.9), "damaged.files")


KINDS = {
    **{name: _file(name) for name in files.FORMATS},
    "checkpoint": Kind(
        "checkpoints", lambda at: checkpoints.Originals(at).make, (0.0, 0.5), checkpoints.__name__, 600, True
    ),
}
MARKED = [
    pytest.param(
        name, marks=[pytest.mark.trials(20, torture=kind.torture), *[pytest.mark.slow] * kind.prepares]
    )
    for name, kind in KINDS.items()
]


@pytest.fixture(scope="module")
def worker_of():
    """Return a worker of a module with arguments, which is kept for the tests that follow."""
    with contextlib.ExitStack() as stack:
        yield functools.cache(lambda *words: stack.enter_context(Worker(*words)))


@pytest.mark.parametrize("name", MARKED)
def test_mutants_are_read_or_refused_in_one_line(name, worker_of, trials, tmp_path, rng):
    kind, path = KINDS[name], tmp_path / name
    worker = worker_of(kind.worker, *[str(tmp_path)] * kind.prepares)
    worker.start()
    make, began, failures, taken, slowest = kind.makes(tmp_path), time.monotonic(), [], 0, 0.0
    for seed in rng.integers(2**62, size=trials).tolist():
        story, asked = make(seed, path), time.monotonic()
        answer = worker.ask(path)
        slowest = max(slowest, time.monotonic() - asked)
        taken += answer.kind == "taken"
        if answer.kind not in ("taken", "refused"):
            failures.append(f"{story}: {answer.kind}: {answer.said}")
        if path.is_dir():
            shutil.rmtree(path)
    times = {"seconds": round(time.monotonic() - began, 1), "slowest": round(slowest, 2)}
    record(f"mutants of {kind.what}", trials, len(failures), taken=taken, **times)
    assert not failures, "\n".join(failures)
    # Both limits leave room for four standard deviations of the count.
    for count, share in ((taken, kind.taken[0]), (trials - taken, 1 - kind.taken[1])):
        assert count >= share * trials - 4 * (share * trials) ** 0.5
