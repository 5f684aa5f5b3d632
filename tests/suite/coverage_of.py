"""Which jumps from line to line of mgg_hpc a group of parts makes, in all of its processes, and how two groups compare.

    python tests/suite/coverage_of.py run build/coverage-test test        run the parts of `make test`
    python tests/suite/coverage_of.py compare build/coverage-all build/coverage-test

`compare` prints how many of the jumps from line to line that the first run made the second one made too, and the files
with the most that it did not make. A process that is killed tells nothing; the tests of a limit on the size of files
fail here, since the limit holds for what coverage writes too.
"""

from __future__ import annotations

import argparse
import os
import site
import sys
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
    parser = argparse.ArgumentParser(description="Jumps from line to line of mgg_hpc that tests make.")
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
    """Return what to print: the share of the jumps of ``whole`` that are in ``part``, and the files that miss most."""
    missed = {file: arcs - part.get(file, set()) for file, arcs in whole.items()}
    total, count = (sum(map(len, arcs.values())) for arcs in (whole, missed))
    most = sorted((file for file in missed if missed[file]), key=lambda file: -len(missed[file]))
    shown = [f"{total - count} of {total} ({100 * (total - count) / max(1, total):.2f}%)"]
    for file in most[:MOST_FILES]:
        lines = sorted({max(arc) for arc in missed[file]})
        shown.append(f"{file}: {len(missed[file])} missed, at lines {lines}")
    return shown


if __name__ == "__main__":
    sys.exit(main())
