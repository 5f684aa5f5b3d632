"""Destinations that are split into neighbour partitions, or summed whole (OSDI '23, figure 10a).

    python benchmarks/studies/neighbour_partitioning.py rmat:17 --ranks 1 --threads 2 -o partitioning.png

A thread claims a block of ps x wpb edges at once. A destination of more than four blocks is a hub, whose parts threads
share.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness import run
from harness.ranks import Subject, Way
from harness.study import study

UNCUT = 2**30  # edges of a partition, in which no destination is split


def ways(subject: Subject) -> Mapping[str, Way]:
    """Return the ways in which work is cut."""
    usual = subject.geometry
    small, tiny, one, whole = (replace(usual, ps=ps, wpb=1) for ps in (256, 16, 1, UNCUT))
    transfer = "direct" if subject.reaches_peers else "get"
    return {
        f"blocks of {usual.ps * usual.wpb:,} edges, larger hubs split": subject.cut(transfer, usual),
        "blocks of 256 edges, larger hubs split": subject.cut(transfer, small, hubs=small),
        "blocks of 16 edges, larger hubs split": subject.cut(transfer, tiny, hubs=tiny),
        "blocks of 256 edges, destinations whole": subject.cut(transfer, small, hubs=whole),
        "a whole destination a block (no partitioning)": subject.cut(transfer, one, hubs=whole),
    }


main = study(__doc__, "neighbour partitioning", ways, gpu=False)

if __name__ == "__main__":
    run(main)
