"""The progress bar, which rank 0 shows on stderr, and the times of a run's phases."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..runtime.launch import TERMINAL


def console() -> Console:
    """Return a console on stderr with the width of the user's terminal, through a launcher's pipe too."""
    columns = os.environ.get(TERMINAL, "")
    if columns.isdecimal():
        return Console(stderr=True, force_terminal=True, width=int(columns))
    return Console(stderr=True)


class Shows:
    """A bar over epochs; nothing where none is shown."""

    def __init__(self, bar: Progress | None, total: int, done: int) -> None:
        self._bar, self._done = bar, done
        self._task = None if bar is None else bar.add_task("training", total=total, completed=done, note="")

    def advance(self, note: str) -> None:
        """Advance by an epoch, and show a note."""
        self._done += 1
        self._update(self._done, note=note)

    def within(self, done: float) -> None:
        """Show that so many epochs are done, and a part of the next one."""
        self._update(done)

    def _update(self, completed: float, **fields: str) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=completed, **fields)  # type: ignore[arg-type]


@contextmanager
def epochs(total: int, shown: bool | None, done: int = 0) -> Iterator[Shows]:
    """Show a bar over ``total`` epochs.

    done: epochs that are over when it begins. shown: yes, no, or None for yes where stderr is a terminal.
    """
    screen = console()
    if not (screen.is_terminal if shown is None else shown):
        yield Shows(None, total, done)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=screen, refresh_per_second=8) as bar:
        yield Shows(bar, total, done)
    sys.stderr.flush()


class PhaseTimer:
    """Seconds of each phase of a run by name, in the order of the phases. between: called after each."""

    def __init__(self, between: Callable[[], None] = lambda: None) -> None:
        self.seconds: dict[str, float] = {}
        self._between = between
        self._since = time.perf_counter()

    def end(self, name: str, *, last: bool = False) -> None:
        """Add the time since the last phase ended to those of phase ``name``. last: nothing is called after it."""
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now
        if not last:
            self._between()

    def skip(self) -> None:
        """Leave out the time since the last phase ended."""
        self._since = time.perf_counter()
