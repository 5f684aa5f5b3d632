"""The terminal of a job: consoles for its results, and what it is doing, which goes to stderr."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from ..runtime import exit_code
from ..runtime.launch import TERMINAL

PATIENCE = 1.0  # seconds before a terminal shows what a job is doing
FORWARDED = 0.1  # seconds in which a launcher passes on what a rank has written
EVERY = 30.0  # seconds between lines where there is no terminal


def console(*, stderr: bool = False) -> Console:
    """Return a console that prints names and paths unchanged; in a file tables have at most 110 columns.

    A terminal may be at the other end of a launcher's pipe.
    """
    plain: dict[str, Any] = {"stderr": stderr, "highlight": False, "markup": False, "emoji": False}
    columns = os.environ.get(TERMINAL, "")
    if columns.isdecimal() and (stderr or os.environ.get("TTY_COMPATIBLE") != "0"):
        return Console(force_terminal=True, width=int(columns), **plain)
    return Console(width=None if Console(stderr=stderr).is_terminal else 110, **plain)


def print_line(text: str) -> None:
    """Print a line on stdout."""
    console().print(text, soft_wrap=True)


def duration(seconds: float) -> str:
    """Return a time as text: "3.1 s" ("3 s" of an int), "12 min 05 s", "3 h 07 min"."""
    if seconds < 60:
        return f"{seconds} s" if isinstance(seconds, int) else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class _TimeLeft(ProgressColumn):
    """The estimated time until a task is complete."""

    def render(self, task: Task) -> Text:
        left = task.time_remaining
        return Text("" if left is None or task.finished else f"{duration(round(left))} left")


class Screen:
    """Tells what a job is doing: a spinner and then a bar on a terminal, elsewhere a line every 30 s.

    It is a context manager; at its end nothing moves any more. Only the first rank shows anything.

    shown: True to show a bar anywhere, False to show nothing, None to show a bar if stderr is a terminal, else lines.
    """

    def __init__(self, shown: bool | None = None) -> None:
        self._console = console(stderr=True)
        if shown is None and self._console.is_terminal:
            shown = True
        self._shown = shown if exit_code.is_first() else False
        self._spinner = self._console.status("")
        self._line: Callable[[], str] = str
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._tell, daemon=True)

    def __enter__(self) -> Screen:
        if self._shown is None or (self._shown and self._console.is_terminal):
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self._spinner.stop()
        self._settle()

    def _settle(self) -> None:
        """Let a launcher, whose pipes for stdout and stderr are two, show on the terminal what was written so far."""
        if self._shown and TERMINAL in os.environ:
            sys.stdout.flush()
            time.sleep(FORWARDED)

    def _tell(self) -> None:
        if self._shown:
            if not self._ended.wait(PATIENCE):
                self._spinner.start()
            return
        while not self._ended.wait(EVERY):
            exit_code.write(self._line())

    def doing(self, what: str) -> None:
        """Say what goes on until the next call, such as "reading the graph"."""
        began = time.monotonic()
        self._spinner.update(Text(f"{what} ..."))
        self._line = lambda: f"{what}, for {duration(time.monotonic() - began)}"

    def hide(self) -> None:
        """Remove the spinner, for results that are to be printed."""
        if self._shown:
            self._end()

    @contextmanager
    def epochs(
        self, total: int, done: int = 0, label: str = "epoch", *, stays: bool = True
    ) -> Iterator[Callable[..., None]]:
        """Show a bar over epochs; yield a function that updates it: show(completed, note=).

        total, done: number of all epochs, and of those complete at the beginning. stays: leave the bar at its end.
        completed: number of complete epochs, which may have a fraction. note: the last epoch's scores, "" to leave
        them.
        """
        self.hide()
        columns = (
            TextColumn("{task.description}"),
            MofNCompleteColumn(),
            BarColumn(),  # as far as the others leave room
            _TimeLeft(),
            TextColumn("{task.fields[note]}"),
        )
        bar = Progress(
            *columns,
            console=self._console,
            refresh_per_second=8,
            transient=not stays,
            disable=not self._shown,
        )
        task = bar.add_task(label, total=total, completed=done, note="")
        began, at, noted = time.monotonic(), float(done), ""

        def show(completed: float, note: str = "") -> None:
            nonlocal at, noted
            at, noted = completed, note or noted
            bar.update(task, completed=at, note=noted)

        def line() -> str:
            left = (total - at) * (time.monotonic() - began) / (at - done) if at > done else None
            facts = [f"{label} {int(at)} of {total}", *noted.split("  ")]
            return ", ".join(filter(None, [*facts, "" if left is None else f"{duration(round(left))} left"]))

        self._line = line
        with bar:
            yield show
        self._settle()
