"""Other geometries for plans that have been summed over: the same bits, from other blocks."""

from __future__ import annotations

import cases
import numpy as np
import pytest
from world import SMALL, plans_of, play

from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.arguments import BY_WIDTH, Geometry, Options
from mgg_hpc.runtime.backends.host.kernels import SerialBackend
from mgg_hpc.runtime.backends.simulated import World


@pytest.mark.sampled
@pytest.mark.parametrize("name", cases.CASES)
@pytest.mark.parametrize("transfer", ["direct", "get", "halo"])
def test_every_geometry_gives_the_bits_of_the_first(rng, name, transfer):
    case = cases.CASES[name](rng, 3)
    x = rng.standard_normal((case.nodes, 24)).astype(np.float32)
    changed = Geometry(int(rng.integers(1, 40)), int(rng.choice([BY_WIDTH, 0, 3])), int(rng.integers(1, 9)))
    wanted = play(case, x, transfer=transfer)
    np.testing.assert_array_equal(play(case, x, transfer=transfer, retuned=changed), wanted)


def test_rows_of_one_size_have_a_geometry_of_their_own(rng):
    """Schedules that no size uses any more are dropped; calls are timed by plan and size."""
    case = cases.hub(rng, 1)
    (plan,) = plans_of(case, "direct")
    backend = SerialBackend(0, World(1), Options(SMALL))
    narrow, wide = (RowFormat(np.dtype(np.float32), dim) for dim in (8, 40))
    first = backend.schedule(plan, narrow)
    assert backend.schedule(plan, wide) is first and first.hubs
    backend.retune(plan, wide, Geometry(16, 5, 2))
    larger = backend.schedule(plan, wide)
    assert larger.blocks < first.blocks and larger.hubs == first.hubs and larger.dist == 5
    assert backend.schedule(plan, narrow) is first and first.dist == SMALL.dist
    backend.retune(plan, wide, Geometry(16, 7, 2))
    assert backend.schedule(plan, wide) is larger and larger.dist == 7
    backend.retune(plan, wide, Geometry(8, 7, 1))
    backend.retune(plan, wide, Geometry(16, 7, 2))
    assert backend.schedule(plan, wide) is not larger  # it was dropped
    rows = backend.rows(np.array([case.nodes]), wide, symmetric=True)
    backend.aggregate(plan, "sum", rows, backend.memory.padded(plan.destinations, wide))
    meter, key = backend.stream.meter, (plan, wide.row_bytes)
    assert [*meter.calls] == [key] and meter.calls[key] > 0
    assert meter.seconds == meter.taken().calls[key]
