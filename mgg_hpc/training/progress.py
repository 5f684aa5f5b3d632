"""The progress bar, which rank 0 shows on stderr, and the times of a run's phases."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

TERMINAL = "MGG_TERMINAL"  # columns of the launcher's terminal: ranks write to a pipe that leads there


def console() -> Console:
    """stderr as the user sees it, through a launcher's pipe too."""
    columns = os.environ.get(TERMINAL, "")
    if columns.isdigit():
        return Console(stderr=True, force_terminal=True, width=int(columns))
    return Console(stderr=True)


class Epochs:
    """Counts epochs on a bar, or nowhere."""

    def __init__(self, bar: Progress | None, total: int) -> None:
        self._bar = bar
        self._task = bar.add_task("training", total=total, note="") if bar else None

    def step(self, note: str) -> None:
        """One epoch is done."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, advance=1, note=note)


@contextmanager
def epochs(total: int, shown: bool | None) -> Iterator[Epochs]:
    """A bar over ``total`` epochs. shown: yes, no, or None for yes where stderr is a terminal."""
    screen = console()
    if not (screen.is_terminal if shown is None else shown):
        yield Epochs(None, total)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=screen, refresh_per_second=8) as bar:
        yield Epochs(bar, total)
    sys.stderr.flush()


class PhaseTimer:
    """Seconds of each phase of a run, in the order in which the phases came.

    seconds: dict of float, by the name of the phase.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    def end(self, name: str) -> None:
        """Add the time since the end of the phase before to that of phase ``name``."""
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now

    def skip(self) -> None:
        """Leave out the time since the end of the phase before."""
        self._since = time.perf_counter()
