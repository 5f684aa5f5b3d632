"""Every GPU kernel, every thread of it executed, over the table of cases; another geometry; and rows gathered into
private memory."""

from __future__ import annotations

import cases
import numpy as np
import pytest
from gpu.pes import table
from gpu.pes.engine import SMALL, Engine
from gpu.pes.played import Played

from mgg_hpc.errors import InputError
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.arguments import Geometry
from mgg_hpc.runtime.backends.simulated import World

SUMS = ("sum", "weighted", "max", "same bits")
# Types of rows other than float32 are run by `make test-long`.
LINES = [
    line if line.dtype == "float32" else pytest.param(line, marks=pytest.mark.long)
    for line in table.entries(whole=True)
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("line", LINES, ids=str)
def test_the_table(rng, engine, line):
    table.check(engine, line, rng)


@pytest.mark.long
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "line", [line for line in table.entries(whole=False) if line.operation in SUMS], ids=str
)
def test_sums_without_bulk_copies(rng, shim_before, line):
    """As they are before sm_90; the other kernels are the same."""
    table.check(Engine.shim(shim_before.folder / "_cuda.so"), line, rng)


@pytest.mark.parametrize("transfer", table.TRANSFERS)
def test_another_geometry_serves_a_backend_that_has_summed(rng, engine, transfer):
    """A plan's geometry changes for rows of one size, and is refused where the GPU cannot hold a block."""
    case = cases.hub(rng, 3)
    x = table.whole_rows(case, table.Entry("sum", "float32", 33, "hub"), rng)
    played = Played(engine, case, x, SMALL, transfer)
    ranks = list(zip(played.backends, played.plans, strict=True))
    wanted = played.aggregate(rng)
    launched = [backend.launch(plan, played.format) for backend, plan in ranks]
    for geometry in (Geometry(3, 1, 4), Geometry(1, 2, 1), Geometry(64, 16, 2), SMALL):
        for backend, plan in ranks:
            with pytest.raises(InputError, match="wpb = 1024"):
                backend.retune(plan, played.format, Geometry(2, 2, 1024))
            if geometry.ps == 64 and transfer == "get":
                with pytest.raises(InputError, match="shared memory"):
                    backend.retune(plan, played.format, geometry)
                continue
            backend.retune(plan, played.format, geometry)
            assert backend.geometry == SMALL  # of every other call
            with backend.cut_for(plan, played.format):
                assert backend.geometry == geometry
        np.testing.assert_array_equal(played.aggregate(rng), wanted)
    assert [backend.launch(plan, played.format) for backend, plan in ranks] == launched


@pytest.mark.parametrize("reached", ["all", "own"])
@pytest.mark.parametrize("width", [1, 33, 1025])
def test_the_backend_gathers_into_private_memory(rng, engine, width, reached):
    """Rows that no pointer reaches take several turns through symmetric memory; the first call makes that."""
    case = cases.rank_without_rows(rng, table.RANKS)
    world = World(table.RANKS, lambda rank, peer: rank == peer or reached == "all")
    backends, format = engine.backends(world), RowFormat(np.dtype(np.float32), width)
    x = rng.standard_normal((case.nodes, width)).astype(np.float32)
    rows = [backend.rows(np.diff(case.bounds), format, symmetric=True) for backend in backends]
    for rank, (backend, own) in enumerate(zip(backends, rows, strict=True)):
        own.local[:] = x[case.rows(rank)]
        backend.gather(own, case.bounds, np.empty(0, np.int64), backend.memory.padded(0, format))
    for made in world.allocations:
        engine.module.shim_symmetric(made.addresses.diagonal().tolist(), made.nbytes)
    try:
        for rank, backend in enumerate(backends):
            ids = rng.integers(0, case.nodes, 2500)
            out = backend.memory.padded(len(ids), format)
            engine.seed(int(rng.integers(1 << 60)), rank)
            backend.gather(rows[rank], case.bounds, ids, out)
            np.testing.assert_array_equal(out, x[ids])
    finally:
        engine.module.shim_forget()
