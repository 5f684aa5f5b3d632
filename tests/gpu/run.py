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
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parents[2]))

import numpy as np
import programs

from gpu import result
from gpu.pes import table
from gpu.pes.engine import Engine


def run(engine: Engine, arguments: argparse.Namespace, report: result.Report) -> None:
    """Run every case, with a line for each operation and type."""
    lines: dict[tuple[str, str], list[table.Entry]] = {}
    for entry in table.entries(whole=not arguments.few, small=arguments.small):
        if not arguments.operations or entry.operation in arguments.operations:
            lines.setdefault((entry.operation, entry.dtype), []).append(entry)
    for number, (key, entries) in enumerate(lines.items()):
        line, rng = report.line(*key), np.random.default_rng([arguments.seed, number])
        with line.timed():
            for entry in entries:
                try:
                    with result.case(entry, result.case_seconds(arguments)):
                        worst = table.check(engine, entry, rng, arguments.remote_share)
                    line.add(entry, worst)
                except (AssertionError, RuntimeError, ValueError) as error:
                    line.add(entry, None, str(error))
                    if not engine.answers():
                        line.failures.append("the GPU answers no more; what follows was not run")
                        return
        report.write()  # what was found is there, should the rest hang


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
    parser.add_argument("--repeats", type=int, help="of what must give the same bits each time")
    parser.add_argument("--end-with-parent", action="store_true", help="for tools that start this program")
    arguments = parser.parse_args(words)
    if arguments.end_with_parent:
        programs.end_with_parent()
    kept = {name: getattr(arguments, name) for name in ("remote_share", "few", "seed")}
    cuts = "3 PEs"
    if arguments.remote_share is not None:
        cuts = f"2 PEs, {arguments.remote_share:.0%} of the rows remote"

    def part() -> int:
        with result.engine_of(arguments) as engine:
            report = result.Report(arguments, engine.about(), **kept)  # before anything can fail
            engine.repeats = arguments.repeats or (3 if arguments.small else engine.repeats)
            run(engine, arguments, report)
        return report.finish(f"the table of cases, {cuts} in one process, seed {arguments.seed}")

    return result.code_of(part)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
