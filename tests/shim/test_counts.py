"""What the shim counts of kernels (fences, atomics, loads and stores of 16 bytes), and the order of a GPU's tasks."""

from __future__ import annotations

from dataclasses import replace

import cases
import numpy as np
import pytest
from gpu.pes.engine import SMALL
from gpu.pes.played import Played
from harness import graphs, pcie_requests

from mgg_hpc.plan import cuda_grid, workload
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.arguments import Tier, TieredRows
from mgg_hpc.runtime.backends.cuda.launches import DEFAULT_GEOMETRY
from mgg_hpc.runtime.backends.simulated import World

UNROLL = 4  # rows that a worker reads at once (cuda/gpu/row_worker.cuh)
WINDOW = 1 << 14  # tasks, among which the longest comes first (cuda/gpu/schedule.h)
# Of rmat:20:16 over two PEs at 16 columns, counted the same way at commit 2135815, where each worker claimed for itself
# and each warp fenced: claims of the busiest PE, and fences at system scope of both.
CLAIMS_BEFORE, FENCES_BEFORE = 39_074, 79_172


@pytest.mark.parametrize("width", [4, 16, 20, 128, 300])
def test_rows_of_an_aggregation(rng, engine, width):
    """Each row of an edge is asked for once, and the last of a segment again until four are under way. A hub's parts
    count on one counter."""
    most = cuda_grid.part_edges(SMALL.ps, SMALL.dist)
    degrees = rng.integers(0, most + 1, 60)  # no hub: a task is a segment
    source, destination = rng.integers(0, 60, degrees.sum()), np.repeat(np.arange(60), degrees)
    case = cases.csr(source, destination, 60, np.array([0, 60]))
    played = Played(engine, case, rng.standard_normal((60, width)).astype(np.float32))
    engine.module.shim_counts()
    played.aggregate(rng)
    counts, packs = engine.module.shim_counts(), played.format.row_bytes // 16
    assert counts["loads"] == int((-(-degrees // UNROLL) * UNROLL).sum()) * packs
    assert counts["stores"] == 60 * packs
    assert counts["atomics"] == counts["fences"] == 0

    parts = int(rng.integers(2, 9))
    hub = np.full(parts * most, 7)
    case = cases.csr(rng.integers(0, 60, len(hub)), hub, 60, np.array([0, 60]))
    Played(engine, case, rng.standard_normal((60, width)).astype(np.float32)).aggregate(rng)
    assert engine.module.shim_counts()["most_atomics_an_address"] == parts


@pytest.mark.parametrize("scale", [14, pytest.param(20, marks=pytest.mark.torture)])
def test_a_halo_claims_by_warp_and_fences_once_a_block(rng, engine, scale):
    """Rows of 16 columns over two PEs; by worker, there would be a claim for each 16 tasks at most."""
    graph = graphs.read(f"rmat:{scale}:16")
    middle = int(np.searchsorted(graph.indptr, graph.edges // 2))
    bounds = np.array([0, middle, graph.nodes])
    case = cases.Case(np.asarray(graph.indptr), np.asarray(graph.indices), bounds)
    x = rng.standard_normal((graph.nodes, 16)).astype(np.float32)
    played = Played(engine, case, x, DEFAULT_GEOMETRY, "halo", chunk_bytes=1 << 17)
    engine.module.shim_counts()
    played.aggregate(rng)
    counts = engine.module.shim_counts()
    claims = arrivals = 0
    for backend, plan in zip(played.backends, played.plans, strict=True):
        made, tasks = backend.launch(plan, played.format), backend.native_plan(plan).tasks
        workers = made.blocks * made.threads // made.lanes
        claims = max(claims, tasks // int(np.clip(tasks // (16 * workers), 1, 16)) + workers)
        schedule = backend.halo(plan).schedule(backend, plan, played.format.row_bytes)[0]
        arrivals += made.blocks * len(schedule.arrivals)
    found, fences = counts["most_atomics_an_address"], counts["fences"]
    print(f"{graph.name}: {found:,} claims of a PE, {claims:,} by worker; {fences:,} fences of threads")
    assert found <= claims / 16
    assert fences <= arrivals
    if scale == 20:
        assert found <= CLAIMS_BEFORE / 16 and fences <= FENCES_BEFORE / 50


@pytest.mark.parametrize(("lies", "kind"), [("packed", "f4"), ("padded", "f4"), ("packed", "f2")])
def test_requests_of_a_gather(rng, engine, lies, kind):
    """Rows of 1,024 to 1,152 bytes (figure 3.10 of Min's dissertation) and others, anywhere in the host's memory: each
    line that a row touches is one request, or two where lanes read two bytes."""
    (backend,) = engine.backends(World(1))
    kind = np.dtype(kind)
    for size in [1024, 1028, 1152, *rng.integers(520 // 4, 1152 // 4, 6) * 4 + kind.itemsize % 4]:
        format = RowFormat(kind, int(size) // kind.itemsize)
        step = format.row_bytes if lies == "padded" else int(size)
        start = int(rng.integers(0, 16)) * (16 if lies == "padded" else kind.itemsize)
        memory = backend.arrays.zeros(start + 100 * step)[start:]
        memory[:] = rng.integers(0, 60, len(memory))
        rows = np.lib.stride_tricks.as_strided(memory.view(kind), (100, format.dim), (step, kind.itemsize))
        ids = 2 * rng.permutation(50)  # a lane asks for no sector again
        table, out = TieredRows(100, format, [Tier.of_array("host", rows)]), backend.memory.padded(50, format)
        engine.module.shim_counts()
        backend.gather(table, ids, out)
        counts = engine.module.shim_counts()
        np.testing.assert_array_equal(out, rows[ids])
        unit = next(unit for unit in (16, 4, 2) if (start | step) % unit == 0)
        first = (start + ids * step) // unit
        last = first + (format.row_bytes if unit == 16 else size) // unit
        found = [counts[f"requests_{each}"] for each in pcie_requests.SIZES]
        np.testing.assert_array_equal(found, pcie_requests.count(first, last, unit, "shifted"))
        lines = ((last * unit - 1) // 128 - first * unit // 128 + 1).sum()
        assert sum(found) == lines if unit > 2 else lines < sum(found) <= 2 * lines


# ---- the order of tasks


def tasks_of(engine, indptr, indices, part_edges):
    """The edges of each task of a CSR, as the native plan orders them."""
    plan = workload.direct(
        workload.split(0, np.array([0, len(indptr) - 1]), indptr, np.asarray(indices, np.int64))
    )
    arrays = (plan.chunks.view(np.uint8), plan.segments.view(np.uint8), plan.indices)
    made = engine.module.Plan(*arrays, plan.destinations, part_edges, 0)
    return np.array(engine.module.shim_task_edges(made))


def in_parts(degrees, part_edges):
    """The edges of each task in the order of destinations: a hub in parts."""
    parts = np.maximum(1, -(-degrees // part_edges))
    edges = np.full(parts.sum(), part_edges)
    edges[np.cumsum(parts) - 1] = degrees - (parts - 1) * part_edges
    return edges


def test_the_longest_tasks_of_each_window_come_first(rng, engine):
    degrees = rng.integers(0, 40, 3 * WINDOW + 100)
    degrees[rng.integers(0, len(degrees), 50)] = 333
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    natural = in_parts(degrees, 100)
    wanted = [-np.sort(-natural[at : at + WINDOW]) for at in range(0, len(natural), WINDOW)]
    np.testing.assert_array_equal(tasks_of(engine, indptr, np.zeros(indptr[-1]), 100), np.concatenate(wanted))


def test_destinations_of_several_segments_are_summed_alike(rng, engine):
    """Of rows that are all local, where as a rule a destination has one segment, which is all that is read of it."""
    case = cases.hub(rng, 1)
    played = Played(engine, case, rng.standard_normal((case.nodes, 5)).astype(np.float32))
    (plan,), wanted = played.plans, played.aggregate(rng)
    one, two = plan.segments.copy(), plan.segments.copy()
    one["count"] //= 2
    two["first_edge"] += one["count"]
    two["count"] -= one["count"]
    halves = np.stack([one, two], axis=1).ravel()
    chunks = plan.chunks.copy()
    chunks["segments"] = len(halves)
    played.plans = [replace(plan, chunks=chunks, segments=halves)]
    assert played.aggregate(rng).tobytes() == wanted.tobytes()


@pytest.mark.long
@pytest.mark.parametrize(("name", "least"), [("rmat:20:16", 0.85), ("uniform:20:16", 0.9)])
def test_lanes_of_narrow_rows_are_used(engine, name, least):
    """The workers of a warp take tasks that follow each other, and wait for the longest."""
    graph, workers = (
        graphs.read(name),
        cuda_grid.LANES // cuda_grid.shape(RowFormat(np.dtype(np.float32), 16))[0],
    )

    def used(tasks):
        steps = -(-tasks // UNROLL) * UNROLL
        padded = np.pad(steps, (0, -len(steps) % workers)).reshape(-1, workers)
        return graph.edges / (int(padded.max(axis=1).sum()) * workers)

    part_edges = cuda_grid.part_edges(16, 4)
    tasks, natural = (
        tasks_of(engine, graph.indptr, graph.indices, part_edges),
        in_parts(np.diff(graph.indptr), part_edges),
    )
    print(f"{name}, 16 columns: {used(tasks):.3f} of the lane-steps add a row; unordered {used(natural):.3f}")
    assert tasks.sum() == graph.edges and used(tasks) >= least
