"""The table of cases on a GPU: every operation, type, width and hard graph against float64, and random graphs."""

from __future__ import annotations

from dataclasses import dataclass

import cases
import numpy as np
import pytest
import reference
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from mgg_hpc.runtime.backends.arguments import Geometry

from .pes import table
from .pes.played import Played

pytestmark = pytest.mark.gpu

MOST_NODES, MOST_DEGREE, MOST_PES = 120, 6, 4
EXAMPLES, MOST_WIDTH = {"cuda": 1000, "shim": 20}, {"cuda": 600, "shim": 75}


@pytest.mark.parametrize("entry", list(table.entries(whole=True)), ids=str)
def test_the_table(rng, engine, entry, record_property):
    """Of 3 PEs that one process plays."""
    record_property("worst", table.check(engine, entry, rng))


@pytest.mark.parametrize("entry", list(table.entries(whole=False)), ids=str)
def test_half_of_all_rows_remote(rng, engine, entry, record_property):
    """The second of two PEs has them."""
    record_property("worst", table.check(engine, entry, rng, 0.5))


@dataclass(frozen=True)
class Problem:
    """What hypothesis draws; ``seed`` draws rows and edges."""

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
    count = st.integers(1, 6)
    return st.builds(
        Problem,
        nodes=st.integers(1, MOST_NODES),
        edges=st.integers(0, MOST_NODES * MOST_DEGREE),
        hub=st.booleans(),
        cuts=st.lists(st.floats(0, 1), max_size=MOST_PES - 1).map(lambda cuts: tuple(sorted(cuts))),
        width=st.integers(1, MOST_WIDTH[device]),
        dtype=st.sampled_from(list(table.DTYPES)),
        weighted=st.booleans(),
        geometry=st.builds(Geometry, ps=count, dist=count, wpb=st.integers(1, 4), far_ps=count),
        chunk_bytes=st.sampled_from([1, 300, 2000, 1 << 17]),
        seed=st.integers(0, 2**32 - 1),
    )


def check(engine, problem: Problem) -> None:
    """Compare sums by each transfer with float64, and with each other's bits."""
    rng = np.random.default_rng(problem.seed)
    source, destination = rng.integers(0, problem.nodes, (2, problem.edges))
    if problem.hub:
        destination[: problem.edges // 2] = problem.nodes // 2
    bounds = np.array([0, *(round(cut * problem.nodes) for cut in problem.cuts), problem.nodes])
    case = cases.csr(source, destination, problem.nodes, bounds)
    x = rng.standard_normal((problem.nodes, problem.width)).astype(table.DTYPES[problem.dtype])
    weight = rng.standard_normal(problem.edges).astype(np.float32) if problem.weighted else None
    found = {}
    for transfer in ("direct", "get", "halo"):
        world = Played(engine, case, x, problem.geometry, transfer, chunk_bytes=problem.chunk_bytes)
        found[transfer] = world.aggregate(rng, weight=weight)
        assert found[transfer].tobytes() == found["direct"].tobytes(), f"{transfer} differs from direct"
    arguments = (*world.edge_lists(), problem.nodes, x, weight)
    table.within(found["direct"], reference.aggregate(*arguments), reference.error_bound(*arguments))


@pytest.mark.gpu(150)
def test_random_graphs(engine):
    """What fails is made as small as it can be, and printed."""

    @settings(
        max_examples=EXAMPLES[engine.device],
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(problems(engine.device))
    def all_are_right(problem):
        if engine.answers():  # after an error that the GPU does not survive, nothing is
            check(engine, problem)

    all_are_right()


@pytest.mark.gpu(120)
@pytest.mark.parametrize("case", ["ordinary", "hub"])
def test_the_same_bits_over_many_runs(rng, engine, case, monkeypatch):
    monkeypatch.setattr(engine, "repeats", 100 if engine.device == "cuda" else 3)
    table.check(engine, table.Entry("same bits", "float32", 33, case), rng)
