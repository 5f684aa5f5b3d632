"""The results of a benchmark: rows that are printed, and written as CSV, JSON, Markdown or a picture."""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from mgg_hpc import __version__
from mgg_hpc.data.atomic_write import check_output, replacement
from mgg_hpc.errors import InputError
from mgg_hpc.runtime import cores
from mgg_hpc.runtime.timing import ratios, spread
from mgg_hpc.tools import plots

Row = dict[str, Any]
# Columns that tables of times have.
TIMES = ("variant", "median_ms", "min_ms", "max_ms", "relative_time")
PAGE_POLICY = Path("/sys/kernel/mm/transparent_hugepage/enabled")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
TABLES, PICTURES = (".csv", ".json", ".md"), (".png", ".svg", ".pdf")


def output_files(pictures: bool = True) -> Callable[[Any], Any]:
    """Return the decorator that adds ``--output`` to a command, whose parameter is ``files``."""
    kinds = ".csv, .json or .md" + (", or a picture of them (.png, .svg, .pdf)" if pictures else "")
    suffixes = (*TABLES, *(PICTURES if pictures else ()))

    def checked(_: Any, option: click.Option, paths: tuple[Path, ...]) -> tuple[Path, ...]:
        for path in paths:
            if path.suffix not in suffixes:
                raise InputError(f"--output {path}: expected a name that ends in {', '.join(suffixes)}")
            check_output(path, force=True)
            if path.suffix in PICTURES:
                plots.load()
        return paths

    return click.option(
        "-o",
        "--output",
        "files",
        multiple=True,
        type=click.Path(path_type=Path),
        callback=checked,
        help=f"Write the results to this file: {kinds}. Repeatable.",
    )


def command_line() -> str:
    """Return the command of this process, as a user types it."""
    return shlex.join(["python", os.path.relpath(sys.argv[0]), *sys.argv[1:]])


class Results:
    """The rows of a benchmark.

    name: of the benchmark. same: columns that all rows have in common. notes: lines that are printed above the table.
    """

    def __init__(self, name: str, **same: Any) -> None:
        self.name, self.same = name, same
        self.rows: list[Row] = []
        self.notes: list[str] = []
        self.date = datetime.now(UTC).isoformat(timespec="seconds")
        self.machine = machine(gpu=same.get("device") == "cuda")  # before this benchmark loads it

    def add(
        self, variant: str, ms: Sequence[float], first: Sequence[float] | None = None, **columns: Any
    ) -> Row:
        """Add the row of a variant, and return it.

        Args:
            variant: name of what was timed.
            ms: its milliseconds in each turn.
            first: milliseconds of the reference variant in the same turns, which may be more or fewer;
                ``relative_time`` is the median of the ratios of those that both have.
            columns: more columns of the row, whose names end with their units.
        """
        row: Row = {**columns, "variant": variant, "turns": len(ms)}
        row |= {f"{name}_ms": round(value, 4) for name, value in spread(ms).items()}
        if first is not None:
            both = min(len(ms), len(first))
            row["relative_time"] = round(ratios(ms[:both], first[:both])["median"], 4)
        self.rows.append(row)
        return row

    def compare(
        self, taken: Mapping[str, Sequence[float]], more: Mapping[str, Row] | None = None, **columns: Any
    ) -> None:
        """Add a row for each variant; all are compared with the first. more: further columns, by variant."""
        first = next(iter(taken.values()))
        for variant, ms in taken.items():
            self.add(variant, ms, first, **columns, **(more or {}).get(variant, {}))

    def conditions(self) -> list[str]:
        """Return the lines that say how the rows were measured."""
        where = ", ".join(f"{name} {value}" for name, value in self.machine.items() if value != "")
        same = ", ".join(f"{name.replace('_', ' ')} {text(value)}" for name, value in self.same.items())
        turns = sorted({row["turns"] for row in self.rows if row.get("turns")}, reverse=True)
        lines = [f"{self.date}: {command_line()}", f"machine: {where}"]
        measured = [f"medians of {' or '.join(map(str, turns))} turns"] if turns else []
        busy = ["busy machine: measure again"] if self.machine["load"] > self.machine["cores"] else []
        return [*lines, *busy, *([same] if same else []), *measured, *self.notes]

    def columns(self) -> list[str]:
        """Return the names of the columns of the rows, without `same`, in order of their first use."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def show(self, *shown: str) -> None:
        """Print the conditions and the table. shown: columns; without any, all of them."""
        from rich.console import Console
        from rich.table import Table

        console = Console(width=None if Console().is_terminal else 120, highlight=False)
        for line in self.conditions():
            console.print(line, markup=False)
        names = list(shown) or self.columns()
        table = Table(title=self.name)
        for name in names:
            table.add_column(name.replace("_", " "), justify="left" if name in WORDS else "right")
        for row in self.rows:
            table.add_row(*(text(row.get(name)) for name in names))
        console.print(table)

    def write(self, files: Iterable[Path], draw: Callable[[Results], Any] | None = None) -> None:
        """Write each file, whole or not at all. draw: returns a matplotlib figure of the rows."""
        texts = {".csv": self.csv, ".json": self.json, ".md": self.markdown}
        for path in files:
            with replacement(path, force=True, size=0) as written:
                if path.suffix in texts:
                    written.write_text(texts[path.suffix]())
                elif draw is not None:
                    draw(self).savefig(written, dpi=plots.DPI, format=path.suffix.removeprefix("."))

    def csv(self) -> str:
        """Return all columns as CSV, with the date and the processor."""
        written = io.StringIO()
        about = {"benchmark": self.name, "date": self.date, "cpu": self.machine["cpu"], **self.same}
        names = [*about, *self.columns()]
        lines = csv.DictWriter(written, names, restval="", lineterminator="\n")
        lines.writeheader()
        lines.writerows(about | row for row in self.rows)
        return written.getvalue()

    def json(self) -> str:
        """Return the rows and their conditions as JSON."""
        about = {"benchmark": self.name, "command": command_line(), "date": self.date}
        document = about | {"machine": self.machine, **self.same, "notes": self.notes, "rows": self.rows}
        return json.dumps(document, indent=1) + "\n"

    def markdown(self) -> str:
        """Return the conditions and all columns as Markdown."""
        names = self.columns()
        ruler = ["---" if name in WORDS else "---:" for name in names]
        lines = [f"# {self.name}", "", *(f"- {line}" for line in self.conditions()), ""]
        for cells in (names, ruler, *([text(row.get(name)) for name in names] for row in self.rows)):
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines) + "\n"


# Columns whose cells are words.
WORDS = ("variant", "graph", "order", "dtype", "model", "part", "program", "case", "transfer")


def text(value: Any) -> str:
    """Return a cell's text: three digits of a fraction, or all that stand before the point; "" for None."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def words_of(option: str, words: str, known: Iterable[str], *, none: bool = False) -> list[str]:
    """Return the words of a comma-separated list, each once. none: "none" is an empty list. Raises InputError."""
    found = [] if none and words == "none" else [word.strip() for word in words.split(",")]
    known = list(known)
    for word in found:
        if word not in known:
            raise InputError(f"--{option} {words}: {word!r} is not one of {', '.join(known)}")
    return list(dict.fromkeys(found))


def machine(gpu: bool = False) -> dict[str, Any]:
    """Describe this machine: CPU, cores, instruction set, caches, memory, page policy, load and versions.

    gpu: add the name of the first GPU.
    """
    # What commands' help does without.
    from importlib import metadata

    from mgg_hpc.runtime.backends.native import instruction_set

    return {
        "cpu": cores.processor(),
        "cores": cores.available(),
        "instruction_set": instruction_set(),
        "caches": _caches(),
        "memory_gib": round(cores.memory_total() / 2**30, 1),
        "huge_pages": _page_policy(),
        "load": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "mgg": __version__,
        **({"gpu": _gpu()} if gpu else {}),
    }


def _gpu() -> str:
    """Return the name of the first GPU; empty where there is none."""
    import torch

    return str(torch.cuda.get_device_name(0)) if torch.cuda.is_available() else ""


def _caches() -> str:
    """Return the sizes of the first core's data caches, "L1 48K, L2 2048K"; empty where the kernel lists none."""
    found = []
    for entry in sorted(CACHES.glob("index*")):
        kind, level, size = ((entry / name).read_text().strip() for name in ("type", "level", "size"))
        if kind != "Instruction":
            found.append(f"L{level} {size}")
    return ", ".join(found)


def _page_policy() -> str:
    """Return always, madvise or never: the word in brackets."""
    try:
        return PAGE_POLICY.read_text().partition("[")[2].partition("]")[0]
    except OSError:
        return "unknown"
