"""The table of cases on this machine's GPU, or on the shim: one table printed, and written as JSON.

    python tests/gpu/run.py --json result.json                      on the GPU (make gpu-test)
    python tests/gpu/run.py --remote-share 0.5                      half of all rows as if another GPU had them
    python tests/gpu/run.py --operations get,halo --small           a few of them, over small graphs
    python tests/gpu/run.py --device shim --few                     on the host, at a few widths

Exit code 0: all cases passed; 1: some did not; 2: there is no GPU, or no GPU kernels.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parents[2]))

import numpy as np
from rich.console import Console
from rich.progress import track

from gpu import result
from gpu.pes import table
from gpu.pes.engine import Engine
from gpu.result import Line
from mgg_hpc.errors import InputError


def run(engine: Engine, arguments: argparse.Namespace) -> Iterator[Line]:
    """Every case, a line for each operation and type."""
    lines: dict[tuple[str, str], list[table.Entry]] = {}
    for entry in table.entries(whole=not arguments.few, small=arguments.small):
        if not arguments.operations or entry.operation in arguments.operations:
            lines.setdefault((entry.operation, entry.dtype), []).append(entry)
    quiet = not sys.stderr.isatty()
    console = Console(stderr=True)
    for number, (key, entries) in enumerate(
        track(lines.items(), "cases", console=console, disable=quiet, transient=True)
    ):
        line, rng = Line(*key), np.random.default_rng([arguments.seed, number])
        began = time.perf_counter()
        for entry in entries:
            try:
                line.add(entry, table.check(engine, entry, rng, arguments.remote_share))
            except (AssertionError, RuntimeError, ValueError) as error:
                line.add(entry, None, str(error))
                if not engine.answers():
                    line.failures.append("the GPU answers no more; what follows was not run")
                    yield line
                    return
        line.seconds = time.perf_counter() - began
        yield line


def share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError
    return value


def operations(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in table.OPERATIONS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r}; expected {', '.join(table.OPERATIONS)}")
    return names


def main(words: list[str]) -> int:
    """See above."""
    parser = result.parser(__doc__)
    parser.add_argument(
        "--remote-share", type=share, help="0 .. 1; of two PEs, what the second owns of all rows"
    )
    parser.add_argument("--operations", type=operations, help="these only, separated by commas")
    parser.add_argument("--small", action="store_true", help="each once: two graphs, one type and width")
    arguments = parser.parse_args(words)
    try:
        with result.engine_of(arguments) as engine:
            began = time.perf_counter()
            about = engine.about()  # before anything can fail
            engine.repeats = 3 if arguments.small else engine.repeats
            lines = list(run(engine, arguments))
    except InputError as error:
        print(f"gpu-test: {error}", file=sys.stderr)
        return 2
    cuts = "3 PEs"
    if arguments.remote_share is not None:
        cuts = f"2 PEs, {arguments.remote_share:.0%} of the rows remote"
    result.show(f"{about['name']}: the table of cases, {cuts} in one process, seed {arguments.seed}", lines)
    kept = {name: getattr(arguments, name) for name in ("remote_share", "few", "seed")}
    result.write(arguments.json, about, lines, time.perf_counter() - began, **kept)
    return int(result.failed(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
