"""A spinner or a bar on the terminal while work goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from ..data.assembly.work import folder_of


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show ``what`` with a spinner on stderr, if that is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(what):
        yield


@contextmanager
def phases(output: Path | None = None) -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function (phase, done, total) that shows a bar for the present phase on stderr, if that is a terminal.

    output: the graph file that is built; where an error leaves a folder from which the build goes on, say so.
    """
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    try:
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task("", total=None)

            def report(phase: str, done: int, total: int) -> None:
                bar.update(task, description=phase, completed=done, total=total or None)

            yield report
    except BaseException:
        if output is not None and (left := folder_of(output.resolve())).is_dir():
            size = sum(path.stat().st_size for path in left.iterdir())
            print(
                f"mgg: {left} ({size / 2**20:,.0f} MiB) has what was done; the same command goes on from there, and "
                f"'mgg clean {left.parent}' removes it",
                file=sys.stderr,
            )
        raise
