"""Measure the time and memory of the plan of rank 0 of 8, with self loops and a halo in 8 rounds; real_size.py runs it.

    python benchmarks/plan_of_rank.py graph.h5

Peaks are bytes above what the process held before it read the rank's slice, which they include.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

from mgg_hpc.data.store import open_graph
from mgg_hpc.plan import adjacency, halo, workload
from mgg_hpc.plan.ranges import edge_balanced

RANKS, ROUNDS = 8, 8


def status(name: str) -> int:
    """Return a number of bytes of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def peak_from_now() -> None:
    """Let VmHWM be the peak of what comes."""
    Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    with open_graph(sys.argv[1]) as opened:
        bounds = edge_balanced(opened.indptr(), RANKS)
        nothing = np.zeros(1, np.int64)
        workload.split(
            0, np.zeros(2, np.int64), nothing, nothing[:0]
        )  # loads what is loaded at the first call
        peak_from_now()
        before = status("VmRSS")
        part = opened.slice(0, int(bounds[1]), dense=False)
    found = {"edges": len(part.indices)}
    began = time.perf_counter()
    indptr, indices, _ = adjacency.with_self_loops(0, part.indptr, part.indices, None)
    del part
    edges = workload.split(0, bounds, indptr, indices)
    del indptr, indices
    found |= {"split_s": time.perf_counter() - began, "split_peak": status("VmHWM") - before}
    peak_from_now()
    began = time.perf_counter()
    plan = halo.in_rounds(edges, ROUNDS, ordered=False)[0]
    found |= {"halo_s": time.perf_counter() - began, "halo_peak": status("VmHWM") - before}
    sizes = {"rows": edges.destinations, "halo": len(edges.halo), "segments": len(plan.segments)}
    print(json.dumps(found | sizes))


if __name__ == "__main__":
    main()
