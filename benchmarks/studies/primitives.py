"""The calls by which a remote row is asked for: loads, gets of few or many rows, an exchange (OSDI '23, figure 10c).

    python benchmarks/studies/primitives.py rmat:17 --widths 16,64 -o primitives.csv -o primitives.png
    python benchmarks/studies/primitives.py --device cuda --share 0.2

On a GPU gets differ in the rows of a stage, as `ps` says.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness import run
from harness.ranks import Subject, Way
from harness.study import BULK, HALO, study, through_pointers


def ways(subject: Any) -> Mapping[str, Way]:
    """Return the ways of asking for remote rows."""
    usual = subject.geometry
    if not isinstance(subject, Subject):
        sizes = {f"get: {ps} rows of a stage": replace(usual, ps=ps) for ps in sorted({1, 2, usual.ps})}
    else:
        sizes = {
            "get: rows of one destination at a time": replace(usual, ps=1, wpb=1),
            "get: rows of 64 edges at a time": replace(usual, ps=64, wpb=1),
            f"get: rows of {usual.ps * usual.wpb:,} edges at a time": usual,
        }
    gets = {name: subject.cut("get", geometry) for name, geometry in sizes.items()}
    return through_pointers(subject) | gets | {HALO: subject.way("halo"), BULK: subject.way("bulk")}


main = study(__doc__, "primitives", ways, widths="16")

if __name__ == "__main__":
    run(main)
