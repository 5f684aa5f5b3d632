"""The order of a GPU's tasks: neighbours in a warp end together, and a call of `halo` claims and fences rarely."""

from __future__ import annotations

import numpy as np
import pytest

from mgg_hpc.plan import launch
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.tools.bench.harness import graphs

WINDOW = 1 << 14  # cuda/gpu/schedule.h
NARROW = RowFormat(np.dtype(np.float32), 16)


def tasks_of(engine, indptr, indices, part_edges):
    """The edges of each task of a CSR, as the native plan orders them."""
    indices = np.ascontiguousarray(indices, np.int32)
    plan = engine.module.Plan.of_csr(indptr, engine.arrays.address(indices), len(indptr) - 1, part_edges)
    return np.array(plan.task_edges())


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


def test_the_share_of_lanes_that_add_a_row():
    assert launch.lane_efficiency([], 4) == launch.lane_efficiency([0, 0], 4) == 1
    assert launch.lane_efficiency([8, 8, 8, 8], 8) == 1
    assert launch.lane_efficiency([8, 4], 16) == 12 / 16
    assert launch.lane_efficiency([8, 4], 32) == 1
    assert launch.lane_efficiency([5, 1, 1], 16) == 7 / 24


@pytest.mark.long
@pytest.mark.parametrize(("name", "least"), [("rmat:20:16", 0.85), ("uniform:20:16", 0.9)])
def test_lanes_of_narrow_rows_are_used(engine, name, least):
    graph = graphs.read(name)
    lanes, part_edges = launch.shape(NARROW)[0], launch.part_edges(16, 4)
    natural = in_parts(np.diff(graph.indptr), part_edges)
    tasks = tasks_of(engine, graph.indptr, graph.indices, part_edges)
    found, before = launch.lane_efficiency(tasks, lanes), launch.lane_efficiency(natural, lanes)
    print(
        f"{name}, {NARROW.dim} columns: {found:.3f} of the lane-steps add a row; in the graph's order {before:.3f}"
    )
    assert np.array_equal(np.sort(tasks), np.sort(natural))
    assert found >= least
