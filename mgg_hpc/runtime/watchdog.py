"""End a job that makes no progress: a rank that waits for one that is gone would wait for ever."""

from __future__ import annotations

import faulthandler
import functools
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from ..errors import FAILED
from . import exit_code

_CHECKS = 20  # number of checks within the allowed time
_OTHERS_SECONDS = 1.0  # time for the other ranks to print their last step
_Called = TypeVar("_Called", bound=Callable[..., Any])


@dataclass(frozen=True)
class Limit:
    """Time that a step may take, in seconds; 0 for no limit.

    A repeated step, once one has been measured, may take ``factor`` times the longest so far, and at least ``least``
    seconds. With a factor of 0 its limit stays ``seconds``.
    """

    seconds: float
    factor: float = 0.0
    least: float = 0.0

    def repeated(self, longest: float) -> float:
        """Return the limit of a repeated step. longest: seconds of the longest so far, 0 if none was measured."""
        measured = self.factor > 0 and longest > 0
        return max(self.least, self.factor * longest) if measured else self.seconds


AUTO = Limit(3600.0, factor=20.0, least=60.0)


def _abort() -> None:
    """End all ranks, even those that wait inside a library."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.COMM_WORLD.Abort(FAILED)
    os._exit(FAILED)


class Watchdog:
    """Ends the job if a step of this rank takes longer than its limit within ``with``.

    Every rank has one. When a rank is gone all others wait, so each prints its last step and where its Python is, and
    then the first ends the job. A thread checks, since a rank that waits inside a library runs no Python.
    """

    def __init__(self, rank: int, limit: Limit, end: Callable[[], None] = _abort) -> None:
        self._rank, self._limit, self._end = rank, limit, end
        self._last, self._since, self._repeats = "starting", time.monotonic(), False
        self._longest = 0.0  # of the repeated steps
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def step(self, what: str, *, repeats: bool = False) -> None:
        """Record progress. what: name of the step that begins now. repeats: True for one of many alike, as an epoch."""
        now = time.monotonic()
        if self._repeats:
            self._longest = max(self._longest, now - self._since)
        self._last, self._since, self._repeats = what, now, repeats

    def idle(self) -> None:
        """Record the end of a step after which there is no limit until the next one begins."""
        self.step(self._last)
        self._since = math.inf

    @property
    def seconds(self) -> float:
        """Limit of the present step, in seconds."""
        return self._limit.repeated(self._longest) if self._repeats else self._limit.seconds

    def __enter__(self) -> Watchdog:
        if self._since < math.inf:
            self.step(self._last)
        if self._limit.seconds > 0:
            began = (time.monotonic(),)
            self._thread = threading.Thread(target=self._watch, args=began, name="watchdog", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self, checked: float) -> None:
        while not self._done.wait(pause := min(self.seconds, self._limit.least or self.seconds) / _CHECKS):
            limit, passed = self.seconds, time.monotonic() - checked
            checked += passed
            # A check that comes late means that this process was stopped meanwhile, by Ctrl-Z or a suspended job.
            if passed > max(2 * pause, 1.0):
                self._since = min(self._since + passed - pause, checked)
            if checked - self._since < limit:
                continue
            stuck = f"rank {self._rank} has made no progress for {limit:g} s"
            exit_code.write(f"mgg: error: {stuck}; its last step: {self._last}")
            _print_stacks()
            if not self._done.wait(_OTHERS_SECONDS):
                exit_code.save(FAILED)
                self._end()
            return


# ---- programs with loops of their own


class _Calls(threading.local):
    """How many collective calls of a thread are within one another."""

    depth = 0


_calls = _Calls()
_watching: list[Watchdog] = []  # the watchdog of this process's calls, if there is one


def watch_calls(rank: int, seconds: float) -> None:
    """End the job if a `calling` takes longer than so many seconds, 0 for no limit. The last use of this decides."""
    while _watching:
        _watching.pop().__exit__()
    if seconds > 0:
        dog = Watchdog(rank, Limit(seconds))
        dog.idle()
        _watching.append(dog.__enter__())


class calling:  # noqa: N801 - a context manager
    """Name the collective call that this rank is in, where it may wait for other ranks."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        _calls.depth += 1
        if _watching and _calls.depth == 1:
            _watching[0].step(self.name)

    def __exit__(self, *error: object) -> None:
        _calls.depth -= 1
        if _watching and _calls.depth == 0:
            _watching[0].idle()


def collective(name: str) -> Callable[[_Called], _Called]:
    """Decorate a function that all ranks call: it is a `calling` of this name."""

    def decorated(function: _Called) -> _Called:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            with calling(name):
                return function(*args, **options)

        return cast("_Called", call)

    return decorated


def _print_stacks() -> None:
    """Print where each Python thread of this process is."""
    try:
        faulthandler.dump_traceback(sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):  # no stderr, or one that is no file
        return
