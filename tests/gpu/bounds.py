"""How far rounding alone takes the losses of training.py's cases: rows of each type on the CPU, against float64.

    python tests/gpu/bounds.py                 one rank
    python tests/gpu/bounds.py --ranks 4       four, whose sums are in another order

Graphs, models, epochs and seeds are those of training.py, whose bounds (TOLERANCE) are multiples of what this prints:
the largest relative deviation of any epoch's loss, by the type of rows and the case.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parents[2]))

import numpy as np
from mpi4py import MPI

from gpu import training
from mgg_hpc.data import writer
from mgg_hpc.runtime import launch, mpi

DTYPES = ("float32", "bfloat16")
HALVES = "sbm gcn 2 x 16"  # the case that training.py runs with bfloat16 rows


def measured(comm: MPI.Comm, folder: Path, nodes: int, seed: int) -> dict[str, dict[str, float]]:
    """Return the largest relative deviation of any loss from float64's, by type and case. Collective."""
    if comm.rank == 0:
        for name in ("digits", "sbm"):
            writer.write(folder / f"{name}.h5", training.graph_of(name, nodes, seed))
    comm.Barrier()
    runs = training.Runs(None, comm, folder, few=False, seed=seed)
    found: dict[str, dict[str, float]] = {}
    for case in dict.fromkeys(
        replace(each, transfer="auto", dtype="float32", memory=0) for each in training.cases(2)
    ):
        exact = runs.losses(runs.settings(replace(case, dtype="float64"), "serial"), MPI.COMM_SELF)[0]
        for dtype in DTYPES:
            settings = runs.settings(replace(case, dtype=dtype), "serial" if comm.size == 1 else "shm")
            apart = np.max(np.abs(runs.losses(settings, comm)[0] / exact - 1))
            name = f"{case.graph} {case.model} {case.layers} x {case.hidden}"
            found.setdefault(dtype, {})[name] = float(apart)
    return found


def main(words: list[str]) -> int:
    """See above."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=training.NODES, help="of the drawn graph")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(words)
    if arguments.ranks > 1 and launch.RANKS not in os.environ:
        return launch.run([sys.executable, __file__, *words], arguments.ranks)
    comm = mpi.world()
    with tempfile.TemporaryDirectory(prefix="mgg-bounds-") as made:
        found = measured(comm, Path(comm.bcast(made)), arguments.nodes, arguments.seed)
        comm.Barrier()
    if comm.rank == 0:
        print(json.dumps({"ranks": comm.size, "seed": arguments.seed, "deviation": found}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
