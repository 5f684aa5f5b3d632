"""Ends a job that makes no progress: a rank that waits for one that is gone would wait for ever."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

from ..errors import FAILED
from . import exit_code

_LOOKS = 20  # number of checks within the allowed time
_OTHERS_SECONDS = 1.0  # time for the other ranks to print their last step


def _abort() -> None:
    """End all ranks, even those that wait inside a library."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.COMM_WORLD.Abort(FAILED)
    os._exit(FAILED)


class Watchdog:
    """Ends the job if this rank makes no step for ``seconds`` within ``with``; 0: never.

    Every rank has one. When a rank is gone all others wait, so each prints its last step, and then the first ends the
    job. A thread checks, since a rank that waits inside a library runs no Python.
    """

    def __init__(self, rank: int, seconds: float, end: Callable[[], None] = _abort) -> None:
        self._rank, self._seconds, self._end = rank, seconds, end
        self._last, self._since = "starting", time.monotonic()
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def step(self, what: str) -> None:
        """Record progress. what: the step that begins now."""
        self._last, self._since = what, time.monotonic()

    def __enter__(self) -> Watchdog:
        self.step(self._last)
        if self._seconds > 0:
            self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(self._seconds / _LOOKS):
            if time.monotonic() - self._since < self._seconds:
                continue
            stuck = f"rank {self._rank} has made no progress for {self._seconds:g} s"
            exit_code.write(f"mgg: error: {stuck}; its last step: {self._last}")
            if not self._done.wait(_OTHERS_SECONDS):
                exit_code.save(FAILED)
                self._end()
            return
