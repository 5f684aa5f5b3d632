"""What a part of `make gpu-test` finds: lines of cases, printed as a table and written as JSON."""

from __future__ import annotations

import argparse
import faulthandler
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from mgg_hpc.errors import InputError

from .pes.engine import Engine

SHOWN = 20  # failures; all are in the JSON
CASE = "case: "  # begins the line that is printed before a case runs
CASE_SECONDS = 15.0  # a case that takes longer hangs
PATIENCE = {"cuda": 1, "shim": 4}  # times as long, where other programs use the same cores


@contextmanager
def case(name: object, seconds: float) -> Iterator[None]:
    """Print the case before it runs; end this process with the stacks of its threads where it does not end in time.

    A kernel that hangs may hold the interpreter, so the watch is faulthandler's, which needs none.
    """
    print(f"{CASE}{name}", flush=True)
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


HUNG = re.compile(r"^Timeout \((?:\d+:)?(\S+?)(?:\.0+)?\)!", re.MULTILINE)  # faulthandler's words


def last_case(said: str) -> str:
    """Return the case that a program began last, by what it has printed; "" where there is none."""
    return next((line[len(CASE) :] for line in reversed(said.splitlines()) if line.startswith(CASE)), "")


def why_failed(said: str, code: int, document: Path) -> str:
    """Return why a program failed: the case that hung, its document's first failure, or its last line."""
    if hung := HUNG.search(said):
        return f"{last_case(said)}: did not end within {hung[1].removeprefix('00:').lstrip('0')} s"
    if failures := [failure for line in lines_of(document) for failure in line["failures"]]:
        return str(failures[0])
    crashed = last_case(said)
    return f"{last_line(said)} (exit code {code}{f', in {crashed}' if crashed else ''})"


def last_line(said: str) -> str:
    """Return what a program said last, beside the names of cases."""
    lines = (line.strip() for line in reversed(said.splitlines()) if not line.startswith(CASE))
    return next((line for line in lines if any(map(str.isalnum, line))), "nothing was said")


def lines_of(document: Path) -> list[dict[str, Any]]:
    """Return the lines of a part's document, or none where there is no whole one."""
    try:
        return list(json.loads(document.read_text()).get("lines", []))
    except (OSError, ValueError):
        return []


@dataclass
class Line:
    """An operation over rows of one type: its cases, and the worst error as a share of what is allowed."""

    operation: str
    dtype: str
    cases: int = 0
    passed: int = 0
    worst: float = 0.0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # cases that could not be, with the reason

    def add(self, name: object, worst: float | None, failure: str = "") -> None:
        """Add a case: its worst error, or None, or why it failed."""
        self.cases += 1
        if failure or worst is None:
            self.failures.append(f"{name}: {failure.partition(chr(10))[0]}")
        else:
            self.passed += 1
            self.worst = max(self.worst, worst)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the seconds of what runs meanwhile."""
        began = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - began


class Report:
    """The lines of a part. about: the device; kept: what else the JSON says."""

    def __init__(self, arguments: argparse.Namespace, about: dict[str, Any], **kept: object) -> None:
        self._path, self.about, self._kept = arguments.json, about, kept
        self._began = time.perf_counter()
        self._lines: dict[tuple[str, str], Line] = {}

    def line(self, operation: str, dtype: str) -> Line:
        """Return the line of an operation and a type, made when it is first asked for."""
        return self._lines.setdefault((operation, dtype), Line(operation, dtype))

    def write(self) -> None:
        """Write what there is as JSON, where a file is asked for."""
        if self._path is not None:
            lines = [asdict(line) for line in self._lines.values()]
            seconds = time.perf_counter() - self._began
            content = {"machine": self.about, **self._kept, "seconds": seconds, "lines": lines}
            write_json(self._path, "mgg-gpu-test", content)

    def code(self) -> int:
        """Return 1 where anything has failed, or nothing was there to fail."""
        return int(not self._lines or any(line.failures or not line.cases for line in self._lines.values()))

    def finish(self, title: str) -> int:
        """Write everything and print it: the table, the first failures, and the number of cases. Return `code`."""
        self.write()
        lines = list(self._lines.values())
        console, table = console_and_table(
            f"{self.about['name']}: {title}",
            ("operation", "rows"),
            ("cases", "passed", "worst error / bound", "s"),
        )
        for line in lines:
            counts = str(line.cases), str(line.passed)
            table.add_row(line.operation, line.dtype, *counts, f"{line.worst:.3f}", f"{line.seconds:.1f}")
        console.print(table)
        failures = [failure for line in lines for failure in line.failures]
        for failure in failures[:SHOWN]:
            console.print(failure, markup=False)
        for name in (each for line in lines for each in line.left_out):
            console.print(f"left out: {name}", markup=False)
        if len(failures) > SHOWN:
            console.print(f"and {len(failures) - SHOWN} more")
        passed, cases = sum(line.passed for line in lines), sum(line.cases for line in lines)
        console.print(f"{passed} passed, {cases - passed} failed")
        return self.code()


def case_seconds(arguments: argparse.Namespace, usual: float = CASE_SECONDS) -> float:
    """Return how long a case may take: what was asked for, or what is usual on a GPU, and more over the shim."""
    return float(arguments.case_seconds or usual * PATIENCE[arguments.device])


def console_and_table(title: str, left: tuple[str, ...], right: tuple[str, ...]) -> tuple[Console, Table]:
    """Return where to print, and a table of columns aligned to the left and to the right."""
    console = Console(width=None if Console().is_terminal else 110, highlight=False)
    table = Table(title=title)
    for column in left:
        table.add_column(column)
    for column in right:
        table.add_column(column, justify="right")
    return console, table


def write_json(path: Path, format: str, content: dict[str, Any]) -> None:
    """Write a document of gpu-test: whole, or not at all."""
    head = {"format": format, "version": 1, "date": datetime.now(UTC).isoformat(timespec="seconds")}
    written = path.with_suffix(".part")
    written.write_text(json.dumps(head | content, indent=2) + "\n")
    written.rename(path)


def parser(text: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options that all parts have."""
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--device", choices=("cuda", "shim"), default="cuda")
    made.add_argument(
        "--library", type=Path, help="another _cuda than the package's; of the shim, one that is built"
    )
    made.add_argument("--few", action="store_true", help="every case, but a few widths")
    made.add_argument(
        "--small", action="store_true", help="each kernel or path once or twice, at one type and width"
    )
    made.add_argument(
        "--case-seconds", type=float, help="a case that takes longer hangs, and ends the program"
    )
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--json", type=Path, help="write the result to this file")
    return made


@contextmanager
def engine_of(arguments: argparse.Namespace) -> Iterator[Engine]:
    """The GPU, or the shim, which is compiled first unless a module is given. Raises InputError without a GPU."""
    if arguments.device == "cuda":
        yield Engine.gpu(arguments.library)
        return
    with tempfile.TemporaryDirectory(prefix="mgg-shim-") as folder:
        library = arguments.library
        if library is None:
            from shim.build import Build

            library = Build("g++", Path(folder)).whole()
        yield Engine.shim(library)


def code_of(part: Callable[[], int]) -> int:
    """Run a part; 2, and one line that says why, where it cannot run."""
    try:
        return part()
    except InputError as error:
        print(f"gpu-test: {error}", file=sys.stderr)
        return 2
