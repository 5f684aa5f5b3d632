"""The document of a benchmark, as JSON, as Markdown and on the terminal."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ....data.graph import Graph
from . import machine
from .libraries import Libraries
from .options import BenchOptions
from .timing import Worker

Spread = dict[str, float]


def first_line(error: Exception) -> str:
    """Return the first line of an error that is not a rule, as CuPy's errors begin with."""
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if any(map(str.isalnum, line))), type(error).__name__)


@dataclass(frozen=True)
class Sheet:
    """A table: its title, column names, and rows of as many cells."""

    title: str
    columns: list[str]
    rows: list[list[str]]


def begin(benchmark: str, options: BenchOptions, device: Any = None) -> dict[str, Any]:
    """Return the fields that every document begins with. device: its GPU (harness/gpu.py), or None."""
    found = {
        "format": "mgg-bench",
        "version": 1,
        "benchmark": benchmark,
        "command": command(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine.describe(),
        "threads": options.threads,
        "turns": options.turns,
        "notes": [],
    }
    if device is not None:
        found |= {"device": device.module.limits(), "copy_gb_per_s": device.copy_gb_per_s()}
    return found


def about(graph: Graph) -> dict[str, Any]:
    """Return a graph's name and size, as documents have them."""
    return {"graph": graph.name, "nodes": graph.nodes, "edges": graph.edges}


def command() -> str:
    """Return the command line of this process: `mgg`, or a program of the tests."""
    program = Path(sys.argv[0])
    if program.suffix != ".py" or program.name == "__main__.py":
        return shlex.join(["mgg", *sys.argv[1:]])
    return shlex.join(["python", os.path.relpath(program), *sys.argv[1:]])


def comparison(benchmark: str, options: BenchOptions, libraries: Libraries) -> dict[str, Any]:
    """Return the beginning of a document about workers, whose pages are alike."""
    workers = {"pages": options.pages, "contestants": libraries.about, "notes": list(libraries.missing)}
    return begin(benchmark, options) | workers


def huge_shares(workers: Iterable[Worker]) -> dict[str, float]:
    """Return the share of each worker's anonymous memory that lies in huge pages, 0 .. 1."""
    held = {worker.name: worker.need("memory") for worker in workers}
    return {name: memory["huge"] / max(1, memory["anonymous"]) for name, memory in held.items()}


def cell(spread: Spread | None, places: int = 1) -> str:
    """Return the median and the extremes: "12.3 (11.9 .. 14.0)"; "-" where nothing was measured."""
    if spread is None:
        return "-"
    low, middle, high = (f"{spread[key]:.{places}f}" for key in ("min", "median", "max"))
    return f"{middle} ({low} .. {high})"


def cells(spreads: Mapping[str, Spread], names: Iterable[str], places: int = 1) -> list[str]:
    """Return the cell of each name."""
    return [cell(spreads.get(name), places) for name in names]


def preamble(found: dict[str, Any]) -> list[str]:
    """Return the lines that say how the document was measured."""
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


def show(lines: Iterable[str], sheets: Iterable[Sheet]) -> None:
    """Print lines and tables."""
    console = Console(width=None if Console().is_terminal else 120, highlight=False)
    for line in lines:
        console.print(line, markup=False)
    for sheet in sheets:
        table = Table(title=sheet.title)
        for position, column in enumerate(sheet.columns):
            table.add_column(column, justify="right" if position else "left")
        for row in sheet.rows:
            table.add_row(*(value.replace(" (", "\n(") for value in row))  # extremes below their median
        console.print(table)


def finish(
    found: dict[str, Any],
    sheets: list[Sheet],
    options: BenchOptions,
    draw: Callable[[dict[str, Any], Path], None] | None = None,
) -> None:
    """Print the document, and write the files that were requested. draw: draws its picture."""
    show(preamble(found), sheets)
    write(found, sheets, options)
    if options.plot and draw:
        draw(found, options.plot)


def write(found: dict[str, Any], sheets: list[Sheet], options: BenchOptions) -> None:
    """Write the document and its tables where they were requested, each whole or not at all."""
    for path, text in (
        (options.json, lambda: json.dumps(found, indent=2) + "\n"),
        (options.table, lambda: markdown(found, sheets)),
    ):
        if path is not None:
            written = path.with_name(f"{path.name}.part")
            written.write_text(text())
            written.replace(path)


def markdown(found: dict[str, Any], sheets: Iterable[Sheet]) -> str:
    """Return the document as Markdown."""
    first, *rest = preamble(found)
    date, _, command = first.partition(": ")
    lines = [
        f"# mgg bench {found['benchmark']}",
        "",
        f"    {command}",
        "",
        *(f"- {line}" for line in (date, *rest)),
    ]
    return "\n".join([*lines, *tables(sheets)]) + "\n"


def tables(sheets: Iterable[Sheet]) -> list[str]:
    """Return the lines of tables in Markdown, each below its title."""
    lines = []
    for sheet in sheets:
        ruler = ["---"] + ["---:"] * (len(sheet.columns) - 1)
        lines += ["", f"## {sheet.title}", "", *map(_line, (sheet.columns, ruler, *sheet.rows))]
    return lines


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
