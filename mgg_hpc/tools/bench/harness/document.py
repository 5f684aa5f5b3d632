"""What a benchmark found, as JSON, as Markdown and on the terminal; and the options that all benchmarks have."""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ....errors import InputError
from . import machine, plots
from .libraries import Field

Spread = dict[str, float]

LARGEST_WIDTH = 2**16


@dataclass(frozen=True)
class Options:
    """Who takes part, how often, with which threads and pages, and which files are written."""

    peers: str
    peers_env: Path | None
    threads: int
    turns: int
    pages: str
    json: Path | None
    table: Path | None
    plot: Path | None

    def check(self) -> None:
        """Raises InputError for a file that cannot be written, before anything is measured."""
        for path in (self.json, self.table, self.plot):
            if path is not None and not path.absolute().parent.is_dir():
                raise InputError(f"{path}: there is no folder {path.parent}")
        if self.plot is not None:
            plots.load()


def words_of(option: str, text: str, known: tuple[str, ...]) -> list[str]:
    """The words in a comma-separated list. Raises InputError for one that is not known."""
    found = [word.strip() for word in text.split(",")]
    for word in found:
        if word not in known:
            raise InputError(f"--{option} {text}: {word!r} is not one of {', '.join(known)}")
    return found


def widths_of(text: str) -> list[int]:
    """The numbers in a comma-separated list. Raises InputError for anything else."""
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if not (word.isdigit() and 1 <= int(word) <= LARGEST_WIDTH):
            raise InputError(
                f"--widths {text}: {word!r} is no width; expected numbers of 1 .. {LARGEST_WIDTH}"
            )
    return [int(word) for word in words]


def first_line(error: Exception) -> str:
    """The first line of an error that says something: CuPy's begin with a rule."""
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if any(map(str.isalnum, line))), type(error).__name__)


@dataclass(frozen=True)
class Sheet:
    """A table: its title, column names, and rows of as many cells."""

    title: str
    columns: list[str]
    rows: list[list[str]]


def begin(benchmark: str, threads: int, turns: int) -> dict[str, Any]:
    """What every document begins with."""
    return {
        "format": "mgg-bench",
        "version": 1,
        "benchmark": benchmark,
        "command": command(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine.describe(),
        "threads": threads,
        "turns": turns,
        "notes": [],
    }


def command() -> str:
    """Return the command line of this process: `mgg`, or a program of the tests."""
    program = Path(sys.argv[0])
    if program.suffix != ".py" or program.name == "__main__.py":
        return shlex.join(["mgg", *sys.argv[1:]])
    return shlex.join(["python", os.path.relpath(program), *sys.argv[1:]])


def refuse_ranks() -> None:
    """Raises InputError under a launcher: workers are processes of one machine, and two contests spoil both."""
    if int(os.environ.get("MGG_RANKS", "1")) > 1:
        raise InputError(
            "this benchmark runs by itself, without a launcher; for ranks there is mgg bench overlap"
        )


def comparison(benchmark: str, options: Options, field: Field) -> dict[str, Any]:
    """The beginning of a document about workers, whose pages are alike."""
    return begin(benchmark, options.threads, options.turns) | {
        "pages": options.pages,
        "contestants": field.about,
        "notes": list(field.missing),
    }


def shares(memory: dict[str, int]) -> float:
    """The share of a process's anonymous memory that lies in huge pages, 0 .. 1."""
    return memory["huge"] / max(1, memory["anonymous"])


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of positive values."""
    return math.exp(sum(map(math.log, values)) / len(values))


def cell(spread: Spread, places: int = 1) -> str:
    """ "12.3 (11.9 .. 14.0)": the median and the extremes."""
    low, middle, high = (f"{spread[key]:.{places}f}" for key in ("min", "median", "max"))
    return f"{middle} ({low} .. {high})"


def preamble(found: dict[str, Any]) -> list[str]:
    """The lines that say how it was measured."""
    machine_line = ", ".join(f"{key} {value}" for key, value in found["machine"].items() if value != "")
    lines = [f"{found['date']}: {found['command']}", f"machine: {machine_line}"]
    if "device" in found:
        device = found["device"]
        versions = (device["driver"], device["runtime"])
        driver, runtime = (f"{version // 1000}.{version % 1000 // 10}" for version in versions)
        lines.append(
            f"device: {device['name']}, {device['multiprocessors']} multiprocessors, "
            f"{device['memory_bytes'] / 2**30:.0f} GiB, driver for CUDA {driver}, runtime {runtime}; "
            f"copies {found['copy_gb_per_s']:,.0f} GB/s"
        )
        sets = ", each over all sets of rows" if found["benchmark"] == "aggregate" else ""
        turns_line = [f"{found['turns']} turns each (A B A B){sets}"] if found["turns"] else []
        return [*lines, *turns_line, *found["notes"]]
    turns = f"{found['threads']} threads, {found['turns']} turns each (A B A B)"
    if "contestants" in found:
        policy = {"huge": "huge pages by madvise", "small": "4 KiB pages"}[found["pages"]]
        lines.append(f"libraries: {', '.join(found['contestants'].values())}")
        turns += f", {policy} for all of them"
    return [*lines, turns, *found["notes"]]


def finish(
    found: dict[str, Any],
    sheets: list[Sheet],
    options: Options,
    draw: Callable[[dict[str, Any], Path], None] | None = None,
) -> None:
    """Print the document, and write the files that were asked for. draw: draws its picture."""
    console = Console(width=None if Console().is_terminal else 120, highlight=False)
    for line in preamble(found):
        console.print(line, markup=False)
    for sheet in sheets:
        table = Table(title=sheet.title)
        for position, column in enumerate(sheet.columns):
            table.add_column(column, justify="right" if position else "left")
        for row in sheet.rows:
            table.add_row(*(value.replace(" (", "\n(") for value in row))  # extremes below their median
        console.print(table)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    if options.table:
        options.table.write_text(markdown(found, sheets))
    if options.plot and draw:
        draw(found, options.plot)


def markdown(found: dict[str, Any], sheets: list[Sheet]) -> str:
    """The document as Markdown."""
    first, *rest = preamble(found)
    date, _, command = first.partition(": ")
    lines = [f"# mgg bench {found['benchmark']}", "", f"    {command}", "", f"- {date}"]
    lines += [f"- {line}" for line in rest]
    for sheet in sheets:
        lines += ["", f"## {sheet.title}", "", _line(sheet.columns)]
        lines.append(_line(["---"] + ["---:"] * (len(sheet.columns) - 1)))
        lines += [_line(row) for row in sheet.rows]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
