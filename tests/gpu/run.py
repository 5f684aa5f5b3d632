"""The table of cases on this machine's GPU, or on the shim: one table printed, and written as JSON.

    python tests/gpu/run.py --json result.json                      on the GPU (make gpu-test)
    python tests/gpu/run.py --remote-share 0.5                      half of all rows as if another GPU had them
    python tests/gpu/run.py --device shim --few                     on the host, at a few widths

Exit code 0: all cases passed; 1: some did not; 2: there is no GPU, or no GPU kernels.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parents[2]))

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from gpu import table
from gpu.engine import Engine
from mgg_hpc.errors import InputError

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


def engine_of(arguments: argparse.Namespace, folder: str) -> Engine:
    """The GPU, or the shim, which is compiled first unless a module is given."""
    if arguments.device == "cuda":
        return Engine.gpu()
    if arguments.library:
        return Engine.shim(arguments.library)
    from shim.build import Build

    return Engine.shim(Build("g++", Path(folder)).whole())


def run(engine: Engine, arguments: argparse.Namespace) -> Iterator[Line]:
    """Every case, a line for each operation and type."""
    lines: dict[tuple[str, str], list[table.Entry]] = {}
    for entry in table.entries(whole=not arguments.few):
        lines.setdefault((entry.operation, entry.dtype), []).append(entry)
    quiet = not sys.stderr.isatty()
    console = Console(stderr=True)
    for number, (key, entries) in enumerate(
        track(lines.items(), "cases", console=console, disable=quiet, transient=True)
    ):
        line, rng = Line(*key), np.random.default_rng([arguments.seed, number])
        began = time.perf_counter()
        for entry in entries:
            line.cases += 1
            try:
                worst = table.check(engine, entry, rng, arguments.remote_share)
            except (AssertionError, RuntimeError, ValueError) as error:
                line.failures.append(f"{entry}: {str(error).partition(chr(10))[0]}")
                if not engine.answers():
                    line.failures.append("the GPU answers no more; what follows was not run")
                    yield line
                    return
            else:
                line.passed += 1
                line.worst = max(line.worst, worst)
        line.seconds = time.perf_counter() - began
        yield line


def show(about: dict, lines: list[Line], arguments: argparse.Namespace) -> None:
    """The table, and the first failures."""
    console = Console(width=None if Console().is_terminal else 100, highlight=False)
    cuts = (
        "3 PEs"
        if arguments.remote_share is None
        else f"2 PEs, {arguments.remote_share:.0%} of the rows remote"
    )
    made = Table(title=f"{about['name']}: the table of cases, {cuts} in one process, seed {arguments.seed}")
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


def share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError
    return value


def main(words: list[str]) -> int:
    """See above."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "shim"), default="cuda")
    parser.add_argument("--library", type=Path, help="a _cuda that was built for the shim")
    parser.add_argument(
        "--remote-share", type=share, help="0 .. 1; of two PEs, what the second owns of all rows"
    )
    parser.add_argument("--few", action="store_true", help="every case, but a few widths")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the result to this file")
    arguments = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="mgg-shim-") as folder:
        try:
            engine = engine_of(arguments, folder)
        except InputError as error:
            print(f"gpu-test: {error}", file=sys.stderr)
            return 2
        began = time.perf_counter()
        about = engine.about()  # before anything can fail
        lines = list(run(engine, arguments))
    show(about, lines, arguments)
    if arguments.json:
        found = {
            "format": "mgg-gpu-test",
            "version": 1,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": about,
            "remote_share": arguments.remote_share,
            "few": arguments.few,
            "seed": arguments.seed,
            "seconds": time.perf_counter() - began,
            "lines": [asdict(line) for line in lines],
        }
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")
    return int(any(line.failures for line in lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
