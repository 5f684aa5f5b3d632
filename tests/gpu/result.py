"""What a part of `make gpu-test` found: lines of cases, printed as a table and written as JSON."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from .pes.engine import Engine

SHOWN = 20  # failures; all are in the JSON


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

    def add(self, name: object, worst: float | None, failure: str = "") -> None:
        """A case: its worst error, or None and why it failed."""
        self.cases += 1
        if worst is None:
            self.failures.append(f"{name}: {failure.partition(chr(10))[0]}")
        else:
            self.passed += 1
            self.worst = max(self.worst, worst)


def parser(text: str | None) -> argparse.ArgumentParser:
    """The options that all parts have."""
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--device", choices=("cuda", "shim"), default="cuda")
    made.add_argument(
        "--library", type=Path, help="another _cuda than the package's; of the shim, one that is built"
    )
    made.add_argument("--few", action="store_true", help="every case, but a few widths")
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


def show(title: str, lines: list[Line]) -> None:
    """The table, the first failures, and how many cases there were."""
    console = Console(width=None if Console().is_terminal else 100, highlight=False)
    made = Table(title=title)
    for column in ("operation", "rows"):
        made.add_column(column)
    for column in ("cases", "passed", "worst error / bound", "s"):
        made.add_column(column, justify="right")
    for line in lines:
        counts = str(line.cases), str(line.passed)
        made.add_row(line.operation, line.dtype, *counts, f"{line.worst:.3f}", f"{line.seconds:.1f}")
    console.print(made)
    failures = [failure for line in lines for failure in line.failures]
    for failure in failures[:SHOWN]:
        console.print(failure, markup=False)
    if len(failures) > SHOWN:
        console.print(f"and {len(failures) - SHOWN} more")
    passed, cases = sum(line.passed for line in lines), sum(line.cases for line in lines)
    console.print(f"{passed} passed, {cases - passed} failed")


def write(path: Path | None, about: dict, lines: list[Line], seconds: float, **more: object) -> None:
    """The same as JSON, where a file is asked for."""
    if path is None:
        return
    found = {
        "format": "mgg-gpu-test",
        "version": 1,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": about,
        **more,
        "seconds": seconds,
        "lines": [asdict(line) for line in lines],
    }
    written = path.with_suffix(".part")
    written.write_text(json.dumps(found, indent=2) + "\n")
    written.rename(path)


def failed(lines: list[Line]) -> bool:
    """Whether anything has failed, or nothing was there to fail."""
    return not lines or any(line.failures or not line.cases for line in lines)
