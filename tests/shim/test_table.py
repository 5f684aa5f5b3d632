"""Every GPU kernel, every thread of it executed, over the table of cases; what the shim refuses; and PEs that no
pointer reaches."""

from __future__ import annotations

import cases
import numpy as np
import pytest
from gpu.pes import table
from gpu.pes.engine import SMALL, Engine
from gpu.pes.played import Played
from world import plans_of

from mgg_hpc.errors import InputError
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.arguments import Geometry, Rows
from mgg_hpc.runtime.backends.edges import Attention
from mgg_hpc.runtime.backends.simulated import World

SUMS = ("sum", "weighted", "max", "same bits")


def float32_first(lines):
    """Parameters, of which those of other types of rows are marked ``long``."""
    return [line if line.dtype == "float32" else pytest.param(line, marks=pytest.mark.long) for line in lines]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("line", float32_first(table.entries(whole=True)), ids=str)
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


@pytest.mark.long
@pytest.mark.sampled
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("operation", table.OPERATIONS)
def test_any_share_of_the_rows_may_be_remote(rng, engine, operation, share):
    for case in ("ordinary", "hub", "no_nodes"):
        table.check(engine, table.Entry(operation, "float32", 33, case), rng, share)


@pytest.mark.parametrize("geometry", [Geometry(1, 1, 1), Geometry(3, 1, 4), Geometry(64, 16, 2)], ids=str)
def test_the_geometry_changes_who_sums_and_not_what(rng, engine, geometry):
    case = cases.hub(rng, 3)
    x = table.whole_rows(case, table.Entry("sum", "float32", 33, "hub"), rng)
    found = [Played(engine, case, x, each).aggregate(rng) for each in (SMALL, geometry)]
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("transfer", ["direct", "get", "halo"])
def test_another_geometry_serves_a_backend_that_has_summed(rng, engine, transfer):
    """A plan's geometry changes for rows of one size, and is refused where the GPU cannot hold a block."""
    case = cases.hub(rng, 3)
    x = table.whole_rows(case, table.Entry("sum", "float32", 33, "hub"), rng)
    played = Played(engine, case, x, SMALL, transfer)
    wanted = played.aggregate(rng)
    launched = [backend.launch(plan, played.format) for backend, plan, *_ in played.each(rng)]
    for geometry in (Geometry(3, 1, 4), Geometry(1, 2, 1), SMALL):
        for backend, plan, *_ in played.each(rng):
            with pytest.raises(InputError, match="wpb = 1024"):
                backend.retune(plan, played.format, Geometry(2, 2, 1024))
            backend.retune(plan, played.format, geometry)
            assert backend.geometry == SMALL  # of every other call
            with backend.cut_for(plan, played.format):
                assert backend.geometry == geometry
        np.testing.assert_array_equal(played.aggregate(rng), wanted)
    assert [backend.launch(plan, played.format) for backend, plan, *_ in played.each(rng)] == launched


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("case", ["ordinary", "hub", "all_remote"])
def test_no_order_of_execution_changes_a_bit(rng, engine, case, seed):
    entry = table.Entry("same bits", "float32", 33, case)
    table.check(engine, entry, np.random.default_rng([seed, *rng.bytes(4)]))


@pytest.mark.sampled
@pytest.mark.parametrize("reached", [(), (0,), (1, 2)])
@pytest.mark.parametrize("case", ["ordinary", "rank_without_rows", "one_node"])
@pytest.mark.parametrize("width", [1, 33, 513])
def test_rows_of_pes_that_no_pointer_reaches_are_fetched(rng, engine, case, width, reached):
    """Beside its own, each PE reads only those rows through pointers."""
    case = cases.CASES[case](rng, table.RANKS)
    gather(engine, case, width, reached, rng)


def gather(engine, case, width, reached, rng):
    """Gather random rows on every rank of a case, and compare."""
    format = RowFormat(np.dtype(np.float32), width)
    world = World(len(case.bounds) - 1, lambda rank, peer: rank == peer or peer in reached)
    backends = engine.backends(world)
    x = rng.standard_normal((case.nodes, width)).astype(np.float32)
    rows = [backend.rows(np.diff(case.bounds), format, symmetric=True) for backend in backends]
    ids = rng.integers(0, case.nodes, 70)
    outputs = [backend.rows(np.full(len(backends), len(ids)), format, symmetric=True) for backend in backends]
    for rank, own in enumerate(rows):
        own.local[:] = x[case.bounds[rank] : case.bounds[rank + 1]]
    engine.seed(int(rng.integers(1 << 60)))
    with engine.together(world) as of:
        for rank, backend in enumerate(backends):
            with of(rank):
                backend.gathers.rows(backend, rows[rank], case.bounds, ids, outputs[rank].local)
    for output in outputs:
        np.testing.assert_array_equal(output.local, x[ids])


@pytest.mark.parametrize("reached", ["all", "own"])
@pytest.mark.parametrize("width", [1, 33, 1025])
def test_the_backend_gathers_into_private_memory(rng, engine, width, reached):
    """Rows that no pointer reaches take several turns through symmetric memory; the first call makes that."""
    case = cases.CASES["rank_without_rows"](rng, table.RANKS)
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


@pytest.mark.parametrize("pes", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["ring", "fetch"])
def test_pes_exchange_rows_by_puts_and_gets(rng, engine, name, pes):
    for _ in range(20):
        engine.module.shim_exercise(name, pes, int(rng.integers(1 << 60)))


def test_bad_arguments_are_named(rng, engine):
    case = cases.ordinary(rng, 2)
    world = Played(engine, case, rng.standard_normal((case.nodes, 5)).astype(np.float32))
    backend, plan, rows = world.backends[0], world.plans[0], world.rows[0]
    out = backend.memory.padded(plan.destinations, world.format)
    reached = np.array([rows.addresses[0], 0], np.uint64)
    unreached = Rows(rows.format, reached, rows.counts, rows.buffer, 0, True)
    calls = {
        "no such operation: op='copy', reduce='min'": lambda: backend.aggregate(
            plan, "copy", "min", rows, out
        ),
        "no such operation: op='mul'": lambda: backend.aggregate(plan, "mul", "sum", rows, out),
        r"edge: float64 \[3\]; expected contiguous float32": lambda: backend.aggregate(
            plan, "mul", "sum", rows, out, edge=np.zeros(3)
        ),
        r"out: float32 \[\d+, 4\]; expected float32 \[\d+, 5\]": lambda: backend.aggregate(
            plan, "copy", "sum", rows, out[:, :4]
        ),
        "out: rows 5 values apart, at .*; expected 8 apart": lambda: backend.aggregate(
            plan, "copy", "sum", rows, np.zeros((plan.destinations, 5), np.float32)
        ),
        "out: rows 8 values apart, at address .*[4c]; expected": lambda: backend.aggregate(
            plan,
            "copy",
            "sum",
            rows,
            backend.memory.padded(plan.destinations, RowFormat(np.dtype(np.float32), 6))[:, 1:],
        ),
        r"ids: int64 \[2\]; expected contiguous int64": lambda: backend.gathers.rows(
            backend, rows, case.bounds, np.array([3, 9, 4, 9])[::2], out
        ),
        r"ids: int64 \[2, 2\]; expected contiguous": lambda: backend.gathers.rows(
            backend, rows, case.bounds, np.zeros((2, 2), np.int64), out
        ),
        "gather: rows of PE 1 are not reachable by pointer from PE 0, and NVSHMEM does not run": lambda: (
            backend.gathers.rows(backend, unreached, case.bounds, np.array([3]), out[:1])
        ),
        "a plan with a halo must be prepared first": lambda: backend.aggregate(
            plans_of(case, "halo")[0], "copy", "sum", rows, out
        ),
        "these are float64": lambda: backend.aggregate(
            plan,
            "copy",
            "sum",
            backend.rows(np.array([1, 1]), RowFormat(np.dtype(np.float64), 5), False),
            out,
        ),
        r"ids: int32 \[2\]; expected contiguous int64": lambda: backend.gathers.rows(
            backend, rows, case.bounds, np.zeros(2, np.int32), out
        ),
        r"weight: float64 \[3\]; expected contiguous float32 \[\d+\] or \[\d+, heads\]": lambda: (
            backend.edges.weighted(plan, rows, np.zeros(3), out)
        ),
        r"out_edge: float32 \[\d+, 5\]; expected": lambda: backend.edges.sddmm(
            plan, rows, out, np.zeros((5, plan.edges), np.float32).T
        ),
        r"score: float32 \[\d+, 2\]; expected rows of float32 \[\d+, 1\]": lambda: backend.edges.attend(
            plan, Attention(1, 5), rows, out, score=np.zeros((plan.destinations, 2), np.float32)
        ),
        "attend: rows of 5 values; expected 6": lambda: backend.edges.attend(
            plan, Attention(1, 5), rows, out, score=np.zeros((plan.destinations, 1), np.float32)
        ),
        "rows of PE 1 are not reachable by pointer from PE 0": lambda: backend.aggregate(
            plan, "copy", "sum", backend.rows(np.diff(case.bounds), world.format, False), out
        ),
    }
    for message, call in calls.items():
        with pytest.raises(ValueError, match=message):
            call()


def test_a_block_that_the_device_cannot_hold_is_refused(rng, engine):
    case = cases.ordinary(rng, 1)
    x = rng.standard_normal((case.nodes, 5)).astype(np.float32)
    with pytest.raises(
        InputError, match=r"plan.wpb = 33: a block of 1056 threads, but shim takes 1024; at most 32"
    ):
        Played(engine, case, x, Geometry(2, 2, 33)).aggregate(rng)
    with pytest.raises(
        InputError,
        match=r"wpb = 32: a block of 1024 threads, .* hold \d+ of this kernel's; at most (1[6-9]|2[0-5])$",
    ):
        Played(engine, case, x, Geometry(2, 2, 32)).aggregate(rng)
