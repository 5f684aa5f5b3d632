"""The order of a GPU's tasks: neighbours in a warp end together."""

from __future__ import annotations

from dataclasses import replace

import cases
import numpy as np
import pytest
from gpu.pes.played import Played

from mgg_hpc.plan import launch, workload
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.tools.bench import graphs

from . import counted

WINDOW = 1 << 14
NARROW = RowFormat(np.dtype(np.float32), 16)


def tasks_of(engine, indptr, indices, part_edges):
    """The edges of each task of a CSR, as the native plan orders them."""
    plan = workload.build(0, np.array([0, len(indptr) - 1]), indptr, np.asarray(indices, np.int64))
    arrays = (plan.chunks.view(np.uint8), plan.segments.view(np.uint8), plan.indices)
    made = engine.module.Plan(*arrays, plan.destinations, part_edges, 0)
    return np.array(engine.module.shim_task_edges(made))


def in_parts(degrees, part_edges):
    """The edges of each task in the order of destinations: a hub in parts."""
    whole, rest = np.divmod(degrees, part_edges)
    cut = degrees > part_edges
    parts = np.where(cut, whole + (rest > 0), 1)
    edges = np.full(parts.sum(), part_edges)
    edges[np.cumsum(parts) - 1] = np.where(cut & (rest == 0), part_edges, np.where(cut, rest, degrees))
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
    case = cases.CASES["hub"](rng, 1)
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
    graph = graphs.read(name)
    lanes, part_edges = launch.shape(NARROW)[0], launch.part_edges(16, 4)
    natural = in_parts(np.diff(graph.indptr), part_edges)
    tasks = tasks_of(engine, graph.indptr, graph.indices, part_edges)
    np.testing.assert_array_equal(tasks, counted.tasks_of(graph.indptr, part_edges))
    used, issued = counted.warp_steps(tasks, lanes)
    before = used / counted.warp_steps(natural, lanes)[1]
    print(
        f"{name}, 16 columns: {used / issued:.3f} of the lane-steps add a row; in the graph's order {before:.3f}"
    )
    assert used == graph.edges
    assert used / issued >= least
