"""Each transfer and its parts, by width of rows (OSDI '23, figures 7 to 9; arXiv, figure 2 and table 1).

    python benchmarks/studies/transfers.py rmat:17 --widths 16,64,256 -o transfers.csv -o transfers.png
    python benchmarks/studies/transfers.py --device cuda --share 0.2 --widths 16,128

epochs.py compares training epochs by each transfer.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness import run
from harness.plots import lines_by
from harness.ranks import Subject, Way
from harness.study import ALL_GATHER, BULK, GET, HALO, study, through_pointers


def ways(subject: Any) -> Mapping[str, Way]:
    """Return the ways of exchanging rows, and their parts."""
    way = subject.way
    found = {HALO: way("halo"), BULK: way("bulk")} | through_pointers(subject) | {GET: way("get")}
    parts = {"sums alone": way("sum"), "halo's exchange alone": way("exchange")}
    if not isinstance(subject, Subject):
        return found | parts
    return found | {ALL_GATHER: way("all-gather")} | parts | {"all-gather alone": way("all-gather alone")}


main = study(__doc__, "transfers", ways, widths="16,64,256", draw=lines_by("width"))

if __name__ == "__main__":
    run(main)
