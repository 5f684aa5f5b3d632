"""Local rows that are summed while remote ones arrive, after that, or by separate threads (OSDI '23, figure 10b).

    python benchmarks/studies/interleaving.py rmat:17 -o interleaving.csv -o interleaving.png
    python benchmarks/studies/interleaving.py --device cuda --share 0.2

On a GPU there are gets `dist` stages ahead, or one, in place of separate threads.
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
from harness.study import BULK, GET, HALO, study, through_pointers


def ways(subject: Any) -> Mapping[str, Way]:
    """Return the ways of summing local and remote rows."""
    usual, found = subject.geometry, {HALO: subject.way("halo"), BULK: subject.way("bulk")}
    if not isinstance(subject, Subject):
        late = subject.cut("get", replace(usual, dist=1))
        return found | {GET: subject.way("get"), "get: one stage ahead (dist 1)": late}
    found["halo, local and remote on separate threads"] = subject.separate("halo")
    if pointers := through_pointers(subject):
        found |= pointers
        found["direct, nothing fetched ahead"] = subject.cut("direct", replace(usual, dist=0))
        found["direct, local and remote on separate threads"] = subject.separate("direct")
    return found


main = study(__doc__, "interleaving", ways, halos=1)

if __name__ == "__main__":
    run(main)
