"""Graphs, rows and settings drawn by hypothesis for a set time: every transfer against the float64 reference, and
against the others' bits. What fails is made as small as it can be, and printed.

    python tests/gpu/random_graphs.py --seconds 30 --json result.json

Exit codes are those of run.py.
"""

from __future__ import annotations

import itertools
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parents[2]))

import cases
import hypothesis
import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gpu import result
from gpu.pes import table
from gpu.pes.engine import Engine
from gpu.pes.played import Played
from gpu.result import Line
from mgg_hpc import reference
from mgg_hpc.runtime.backends.arguments import Geometry

BATCH = 25  # examples between looks at the clock
MOST_NODES, MOST_DEGREE, MOST_WIDTH, MOST_PES = 120, 6, 600, 4
TRANSFERS = ("direct", "get", "halo")
FAILURES = (AssertionError, RuntimeError, ValueError)


@dataclass(frozen=True)
class Problem:
    """What hypothesis has drawn; ``seed`` draws rows and edges."""

    nodes: int
    edges: int
    hub: bool
    cuts: tuple[float, ...]
    width: int
    dtype: str
    weighted: bool
    geometry: Geometry
    chunk_bytes: int
    seed: int


def problems(device: str) -> st.SearchStrategy[Problem]:
    """The shim's rows are narrower: it is slow."""
    widest = MOST_WIDTH if device == "cuda" else MOST_WIDTH // 8
    count = st.integers(1, 6)
    return st.builds(
        Problem,
        nodes=st.integers(1, MOST_NODES),
        edges=st.integers(0, MOST_NODES * MOST_DEGREE),
        hub=st.booleans(),
        cuts=st.lists(st.floats(0, 1), max_size=MOST_PES - 1).map(lambda cuts: tuple(sorted(cuts))),
        width=st.integers(1, widest),
        dtype=st.sampled_from(list(table.DTYPES)),
        weighted=st.booleans(),
        geometry=st.builds(Geometry, ps=count, dist=count, wpb=st.integers(1, 4), far_ps=count),
        chunk_bytes=st.sampled_from([1, 300, 2000, 1 << 17]),
        seed=st.integers(0, 2**32 - 1),
    )


def check(engine: Engine, problem: Problem) -> float:
    """The worst error of the direct sums as a share of its bound. Raises AssertionError."""
    rng = np.random.default_rng(problem.seed)
    source, destination = rng.integers(0, problem.nodes, (2, problem.edges))
    if problem.hub:
        destination[: problem.edges // 2] = problem.nodes // 2
    bounds = np.array([0, *(round(cut * problem.nodes) for cut in problem.cuts), problem.nodes])
    case = cases.csr(source, destination, problem.nodes, bounds)
    x = rng.standard_normal((problem.nodes, problem.width)).astype(table.DTYPES[problem.dtype])
    weight = rng.standard_normal(problem.edges).astype(np.float32) if problem.weighted else None
    found = {}
    for transfer in TRANSFERS:
        world = Played(engine, case, x, problem.geometry, transfer, chunk_bytes=problem.chunk_bytes)
        found[transfer] = world.aggregate(rng, weight=weight)
    arguments = (*world.edge_lists(), problem.nodes, x, weight)
    worst = table.within(found["direct"], reference.aggregate(*arguments), reference.error_bound(*arguments))
    for transfer in TRANSFERS:
        assert found[transfer].tobytes() == found["direct"].tobytes(), f"{transfer} differs from direct"
    return worst


def run(engine: Engine, seconds: float, seed: int, line: Line) -> None:
    """Check as many problems as there is time for."""
    began = time.perf_counter()
    gone: list[str] = []  # what the GPU did not survive

    @settings(
        max_examples=BATCH,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(problems(engine.device))
    def batch(problem: Problem) -> None:
        if gone:
            return
        try:
            with result.case(problem, result.CASE_SECONDS * result.PATIENCE[engine.device]):
                worst = check(engine, problem)
            line.add(problem, worst)
        except FAILURES:
            print(f"fails: {problem}", file=sys.stderr, flush=True)
            if not engine.answers():  # what follows would fail whatever it is
                gone.append(str(problem))
            raise

    for number in itertools.count(seed):
        if time.perf_counter() - began >= seconds:
            return
        try:
            hypothesis.seed(number)(batch)()
        except (*FAILURES, hypothesis.errors.Flaky) as error:
            told = gone or [note for note in getattr(error, "__notes__", []) if "Problem(" in note]
            line.add(" ".join((told or ["a problem"])[0].split()), None, str(error))
            return


def main(words: list[str]) -> int:
    """See above."""
    parser = result.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    arguments = parser.parse_args(words)

    def part() -> int:
        with result.engine_of(arguments) as engine:
            report = result.Report(arguments, engine.about(), seed=arguments.seed)
            line = report.line("random graphs", "all")
            with line.timed():
                run(engine, arguments.seconds, arguments.seed, line)
        return report.finish(f"random graphs, seed {arguments.seed}")

    return result.code_of(part)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
