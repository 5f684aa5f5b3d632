"""Time the edges of gated GCN on a GPU, interpreted and compiled, in turns; compare what both find.

    python tests/gpu/variants/tapes.py                     # after `make gpu-test`; CuPy must be there
    python tests/gpu/variants/tapes.py --scale 18 --columns 64

Prints milliseconds of each and their ratio, for a recursive-matrix graph on one GPU, forward with the derivatives that
targets' gradients need, and backward at sources.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(1, str(Path(__file__).parents[3]))

import cases
import numpy as np

from gpu.pes import tape_programs
from gpu.pes.engine import Engine
from gpu.pes.played import Played
from mgg_hpc.data import generate
from mgg_hpc.errors import InputError
from mgg_hpc.runtime.backends.cuda.launches import DEFAULT_GEOMETRY
from mgg_hpc.tools.bench.harness.gpu import Clock, Device

CALLS = 5  # in a row, of each turn


def measured(
    engine: Engine, kernels: Any, clock: Clock, case: cases.Case, given: Any, turns: int
) -> dict[str, float]:
    """Return the median milliseconds of a call by each way. Raises AssertionError where they find other values."""
    rng, tape = np.random.default_rng(1), given.tape
    arrays = tape_programs.arrays(given, case.nodes, len(case.indices), rng)
    played = Played(engine, case, arrays["far"], DEFAULT_GEOMETRY)
    backend, plan, rows = played.backends[0], played.plans[0], played.rows[0]
    near, shared = [engine.array(each) for each in arrays["near"]], engine.array(arrays["shared"])
    made: dict[str, list[Any]] = {}

    def call(how: str, compiler: Any) -> Callable[[], None]:
        made[how] = [engine.array(np.zeros((case.nodes, o.width), np.float32)) for o in tape.outputs]

        def run() -> None:
            backend.tape_kernels = compiler
            backend.edges.propagate(plan, tape, rows, near=near, shared=shared, out=made[how])

        return run

    ways = {"interpreted": call("interpreted", None), "compiled": call("compiled", kernels)}
    for run in ways.values():
        run()
    engine.arrays.finish()
    for ours, theirs in zip(*(map(engine.numpy, each) for each in made.values()), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4 * np.abs(ours).max(initial=1e-30))
    times: dict[str, list[float]] = {how: [] for how in ways}
    for _ in range(turns):
        for how, run in ways.items():
            times[how].append(clock.ms([run] * CALLS))
    return {how: statistics.median(each) for how, each in times.items()}


def report(engine: Engine, kernels: Any, clock: Clock, scale: int, columns: list[int], turns: int) -> None:
    """Print a line for each width and direction."""
    graph = generate.rmat(scale, 16, 1)
    case = cases.Case(graph.indptr, graph.indices.astype(np.int32), np.array([0, graph.nodes]))
    print(
        f"rmat:{scale}:16, float32 rows, ms a call\n\n| columns | direction | interpreted | compiled | ratio |"
    )
    print("|---|---|---|---|---|")
    for width in columns:
        for way in ("forward", "sources"):
            ms = measured(engine, kernels, clock, case, tape_programs.tape("gated", way, width), turns)
            first, second = ms["interpreted"], ms["compiled"]
            print(f"| {width} | {way} | {first:.3f} | {second:.3f} | {first / second:.2f} |", flush=True)


def main() -> int:
    """See above; exit code 2: there is no GPU, or no CuPy."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", type=int, default=20)
    parser.add_argument("--columns", type=int, nargs="+", default=[128, 16])
    parser.add_argument("--turns", type=int, default=9)
    given = parser.parse_args()
    try:
        engine = Engine.gpu()
    except InputError as error:
        print(f"tapes: {error}", file=sys.stderr)
        return 2
    kernels = engine.arrays.tape_kernels()
    if kernels is None:
        print("tapes: no CuPy that compiles (pip install cupy-cuda13x)", file=sys.stderr)
        return 2
    report(engine, kernels, Device.current().clock, given.scale, given.columns, given.turns)
    return 0


if __name__ == "__main__":
    sys.exit(main())
