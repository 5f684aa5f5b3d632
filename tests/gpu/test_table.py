"""The table of cases on a GPU: every operation, type, width and hard graph against float64, and random graphs."""

from __future__ import annotations

from typing import Any

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
EXAMPLES, MOST_WIDTH = {"cuda": 1000, "shim": 20}, {"cuda": 600, "shim": 75}  # the shim is slow


@pytest.mark.parametrize("entry", list(table.entries(whole=True)), ids=str)
def test_the_table(rng, engine, entry, record_property):
    """Of 3 PEs that one process plays."""
    record_property("worst", table.check(engine, entry, rng))


@pytest.mark.parametrize("entry", list(table.entries(whole=False)), ids=str)
def test_half_of_all_rows_remote(rng, engine, entry, record_property):
    """The second of two PEs has them."""
    record_property("worst", table.check(engine, entry, rng, 0.5))


def check(engine, nodes, edges, hub, cuts, width, dtype, weighted, geometry, chunk_bytes, seed):
    """Compare sums by each transfer with float64, and with each other's bits."""
    rng = np.random.default_rng(seed)
    source, destination = rng.integers(0, nodes, (2, edges))
    if hub:
        destination[: edges // 2] = nodes // 2
    bounds = np.array([0, *(round(cut * nodes) for cut in sorted(cuts)), nodes])
    case = cases.csr(source, destination, nodes, bounds)
    x = rng.standard_normal((nodes, width)).astype(dtype)
    weight = rng.standard_normal(edges).astype(np.float32) if weighted else None
    found = {}
    for transfer in table.TRANSFERS:
        played = Played(engine, case, x, geometry, transfer, chunk_bytes=chunk_bytes)
        found[transfer] = played.aggregate(rng, weight=weight)
        assert found[transfer].tobytes() == found["direct"].tobytes(), f"{transfer} differs from direct"
    arguments = (*case.edge_list, nodes, x, weight)
    table.within(found["direct"], reference.aggregate(*arguments), reference.error_bound(*arguments))


@pytest.mark.gpu(150)
def test_random_graphs(engine):
    """What fails is made as small as it can be, and printed."""
    count = st.integers(1, 6)
    drawn: dict[str, st.SearchStrategy[Any]] = {
        "nodes": st.integers(1, MOST_NODES),
        "edges": st.integers(0, MOST_NODES * MOST_DEGREE),
        "hub": st.booleans(),
        "cuts": st.lists(st.floats(0, 1), max_size=MOST_PES - 1),
        "width": st.integers(1, MOST_WIDTH[engine.device]),
        "dtype": st.sampled_from(table.DTYPES),
        "weighted": st.booleans(),
        "geometry": st.builds(Geometry, ps=count, dist=count, wpb=st.integers(1, 4), far_ps=count),
        "chunk_bytes": st.sampled_from([1, 300, 2000, 1 << 17]),
        "seed": st.integers(0, 2**32 - 1),
    }

    @settings(
        max_examples=EXAMPLES[engine.device],
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.fixed_dictionaries(drawn))
    def all_are_right(problem):
        if engine.answers():  # after an error that the GPU does not survive, nothing is
            check(engine, **problem)

    all_are_right()


@pytest.mark.gpu(120)
@pytest.mark.parametrize("case", ["ordinary", "hub"])
def test_the_same_bits_over_many_runs(rng, engine, case, monkeypatch):
    monkeypatch.setattr(engine, "repeats", 100 if engine.device == "cuda" else 3)
    table.check(engine, table.Entry("same bits", "float32", 33, case), rng)
