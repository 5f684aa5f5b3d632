"""Which lines and branches of mgg_hpc a group of parts executes, in all of its processes, and how two groups compare.

    python tests/suite/coverage_of.py run build/coverage-test test        run the parts of `make test`
    python tests/suite/coverage_of.py compare build/coverage-all build/coverage-test

`compare` prints how many of the lines and branches that the first run executed the second one did too, and the files
with the most that it did not. A process that is killed tells nothing; the tests of a limit on the size of files fail
here, since the limit holds for what coverage writes too.
"""

from __future__ import annotations

import argparse
import os
import site
import sys
from collections import defaultdict
from pathlib import Path

import coverage

sys.path.insert(0, str(Path(__file__).parents[1]))

from suite import run

ROOT = Path(__file__).parents[2]
CONFIGURATION = (
    "[run]\nbranch = True\nparallel = True\nsigterm = True\nsource = {source}\ndata_file = {data}\n"
)
START = "import coverage; coverage.process_startup()\n"
MOST_FILES = 20

Arcs = dict[str, set[tuple[int, int]]]


def main() -> int:
    """Run or compare, as the command line asks; returns the exit code."""
    parser = argparse.ArgumentParser(description="Lines and branches of mgg_hpc that tests execute.")
    verbs = parser.add_subparsers(required=True, dest="verb")
    started = verbs.add_parser("run", help="run groups of parts and keep what they execute")
    started.add_argument("folder", type=Path)
    started.add_argument("groups", nargs="+", choices=run.GROUPS)
    compared = verbs.add_parser("compare", help="compare two runs")
    compared.add_argument("whole", type=Path)
    compared.add_argument("part", type=Path)
    chosen = parser.parse_args()
    if chosen.verb == "run":
        return measured(chosen.folder.resolve(), chosen.groups)
    print("\n".join(comparison(arcs_of(chosen.whole), arcs_of(chosen.part))))
    return 0


def measured(folder: Path, groups: list[str]) -> int:
    """Run parts while every Python of this environment records what it executes into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    configuration = folder / "coveragerc"
    configuration.write_text(CONFIGURATION.format(source=ROOT / "mgg_hpc", data=folder / ".coverage"))
    os.environ["COVERAGE_PROCESS_START"] = str(configuration)
    hook = Path(site.getsitepackages()[0]) / "mgg_coverage.pth"
    hook.write_text(START)
    try:
        code = run.main(groups)
    finally:
        hook.unlink()
    data = coverage.Coverage(config_file=str(configuration))
    data.combine([str(folder)])
    data.save()
    return code


def arcs_of(folder: Path) -> Arcs:
    """Return the jumps between lines of each file of mgg_hpc, as coverage.py has them (negative: in and out)."""
    data = coverage.CoverageData(str(folder / ".coverage"))
    data.read()
    found: Arcs = {}
    for file in data.measured_files():
        found[file.partition("/mgg_hpc/")[2]] = set(data.arcs(file) or ())
    return found


def comparison(whole: Arcs, part: Arcs) -> list[str]:
    """Return what to print: the shares of lines and of branches of ``whole`` that are in ``part``, and files."""
    lines: list[int] = [0, 0]
    branches: list[int] = [0, 0]
    missed: dict[str, tuple[int, list[int]]] = {}
    for file, arcs in whole.items():
        others = part.get(file, set())
        here, there = _lines(arcs), _lines(others)
        exits = defaultdict(set)
        for source, target in arcs | others:
            exits[source].add(target)
        forks = {arc for arc in arcs if arc[0] > 0 and len(exits[arc[0]]) > 1}
        lines[0], lines[1] = lines[0] + len(here & there), lines[1] + len(here)
        branches[0], branches[1] = branches[0] + len(forks & others), branches[1] + len(forks)
        count = len(here - there) + len(forks - others)
        if count:
            missed[file] = count, sorted(here - there)
    most = sorted(missed.items(), key=lambda item: -item[1][0])[:MOST_FILES]
    both = [a + b for a, b in zip(lines, branches, strict=True)]
    shown = [
        f"{what}: {count} of {total} ({100 * count / max(1, total):.2f}%)"
        for what, (count, total) in (("lines", lines), ("branches", branches), ("both", both))
    ]
    return shown + [f"{file}: {count} missed; lines {numbers}" for file, (count, numbers) in most]


def _lines(arcs: set[tuple[int, int]]) -> set[int]:
    return {line for arc in arcs for line in arc if line > 0}


if __name__ == "__main__":
    sys.exit(main())
