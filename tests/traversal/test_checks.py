"""Checkers of traversals see each kind of error that is planted in a sound result."""

from __future__ import annotations

import numpy as np
import pytest
from jobs import blocks

from mgg_hpc.data import writer
from mgg_hpc.data.graph import Graph, from_edges
from mgg_hpc.runtime import backends, mpi
from mgg_hpc.traversal import checks, runs
from mgg_hpc.traversal import part as parts


@pytest.fixture
def opened(tmp_path):
    """Load a graph on this rank alone."""
    from mpi4py import MPI

    mpi.world()
    made = backends.make(backends.choose_cpu("serial", MPI.COMM_SELF), MPI.COMM_SELF)

    def opened(graph: Graph, **options) -> parts.Part:
        writer.write(tmp_path / "graph.h5", graph)
        return parts.load(tmp_path / "graph.h5", MPI.COMM_SELF, made, **options)

    yield opened
    made.memory.close()


@pytest.fixture
def part(opened) -> parts.Part:
    return opened(blocks(200), weights=True)


def tree(part: parts.Part, node: int):
    source = part.find(node)
    parent, depth = np.empty(part.graph.rows, np.int32), np.empty(part.graph.rows, np.int32)
    part.engine.bfs(source, parent, depth)
    checks.bfs(part, source, parent, depth)
    return source, parent, depth


def wrong(check, *arguments) -> str:
    with pytest.raises(checks.WrongResultError) as told:
        check(*arguments)
    return str(told.value)


def test_a_row_below_another_parent(part, rng):
    source, parent, depth = tree(part, 5)
    row = rng.choice(np.flatnonzero(depth == 2))
    neighbours = part.graph.indices[part.graph.indptr[row] : part.graph.indptr[row + 1]]
    strangers = np.setdiff1d(np.flatnonzero(depth == 1), neighbours)
    parent[row] = strangers[0]
    assert f"node {part.ids[row]} is no child" in wrong(checks.bfs, part, source, parent, depth)
    level = neighbours[depth[neighbours] != 1]
    parent[row] = level[0] if len(level) else -1
    assert "is no child" in wrong(checks.bfs, part, source, parent, depth)


def test_a_row_that_was_missed(part, rng):
    source, parent, depth = tree(part, 5)
    row = rng.choice(np.flatnonzero(depth == depth.max()))
    parent[row] = depth[row] = -1
    assert f"node {part.ids[row]} has an edge" in wrong(checks.bfs, part, source, parent, depth)


def test_a_row_one_level_too_deep(opened):
    """A tree of real edges that are no shortest ways: 0 - 1 - 2 - 3 and 0 - 3."""
    part = opened(from_edges(np.array([0, 1, 2, 0]), np.array([1, 2, 3, 3]), 4, symmetric=True))
    source = part.find(0)
    at = {int(node): row for row, node in enumerate(part.ids)}
    parent, depth = np.empty(4, np.int32), np.empty(4, np.int32)
    for node, level in enumerate([0, 1, 2, 3]):
        parent[at[node]], depth[at[node]] = at[max(0, node - 1)], level
    assert "more than one level up" in wrong(checks.bfs, part, source, parent, depth)


def test_a_root_that_is_another(part):
    source, parent, depth = tree(part, 5)
    other = part.find(6)
    assert "is no child" in wrong(checks.bfs, part, other, parent, depth)
    parent[source.row] = other.slot
    assert "node 5 is no child" in wrong(checks.bfs, part, source, parent, depth)


def test_distances(part, rng):
    lengths = runs._lengths(part, 3)
    part.engine.set_lengths(lengths, 20.0)
    distance, source = np.empty(part.graph.rows, np.float32), part.find(9)
    part.engine.sssp(source, distance)
    checks.sssp(part, source, lengths, distance)
    row = rng.choice(np.flatnonzero(np.isfinite(distance) & (distance > 0)))
    for off in (-1, 1, np.inf, -np.inf, np.nan):
        planted = distance.copy()
        planted[row] += np.float32(off)
        assert "distance" in wrong(checks.sssp, part, source, lengths, planted)
    planted = distance.copy()
    planted[source.row] = 1
    assert "distance" in wrong(checks.sssp, part, source, lengths, planted)
    planted = np.full_like(distance, np.inf)
    planted[source.row] = 0
    assert "distance" in wrong(checks.sssp, part, source, lengths, planted)


def test_distances_that_vouch_for_each_other(opened):
    """Edges of length 0 are as long as distances differ by, wherever they are."""
    source, target = np.array([0, 1, 3, 4, 2]), np.array([1, 2, 4, 3, 2])
    graph = from_edges(source, target, 6, weight=np.array([1.0, 2.0, 0.0, 0.0, 0.0]))
    part = opened(graph, weights=True)
    (run,) = runs.sssp(part, [0])
    found = dict(zip(part.ids.tolist(), run.arrays["distance"].tolist(), strict=True))
    assert found == {0: 0, 1: 1, 2: 3, 3: np.inf, 4: np.inf, 5: np.inf}
    lengths, source = runs._lengths(part, 0), part.find(0)
    for planted in ({3: 5.0, 4: 5.0}, {2: 1.5}, {5: -np.inf}, {5: 7.0}):
        distance = run.arrays["distance"].copy()
        for node, value in planted.items():
            distance[part.ids == node] = value
        assert "distance" in wrong(checks.sssp, part, source, lengths, distance)


def test_components(opened):
    """Two triangles, and a node by itself."""
    ends = np.array([[0, 1, 2, 3, 4, 5], [1, 2, 0, 4, 5, 3]])
    part = opened(from_edges(*ends, 7, symmetric=True))
    label = np.empty(7, np.int64)
    part.engine.components(part.names, label)
    checks.components(part, label)
    assert sorted(zip(part.ids.tolist(), label.tolist(), strict=True)) == list(
        zip(range(7), [0, 0, 0, 3, 3, 3, 6], strict=True)
    )
    joined = np.where(label == 3, 0, label)
    assert "is not reached" in wrong(checks.components, part, joined)
    cut = np.where(part.ids == 4, 4, label)
    assert "another component" in wrong(checks.components, part, cut)
    larger = np.where(label == 3, 5, label)
    assert "is less than the label" in wrong(checks.components, part, larger)
    renamed = np.where(label == 3, 2, label)
    assert "is not reached" in wrong(checks.components, part, renamed)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_ranks(part, dtype):
    rank = np.empty(part.graph.rows, dtype)
    part.engine.pagerank(rank, 0.85, 1e-5, 100)
    checks.pagerank(part, rank, 0.85, 1e-5)
    assert "a step changes" in wrong(checks.pagerank, part, rank, 0.9, 1e-5)
    swapped = rank.copy()
    first, last = np.argsort(rank)[[0, -1]]
    swapped[[first, last]] = rank[[last, first]]
    assert "a step changes" in wrong(checks.pagerank, part, swapped, 0.85, 1e-5)
    assert "sum to" in wrong(checks.pagerank, part, rank * np.dtype(dtype).type(1.01), 0.85, 1.0)


@pytest.mark.parametrize("leaves", [100_000, 255])
def test_rows_of_many_equal_values(opened, leaves):
    """A star, whose centre sums as many equal float32 values as there are leaves."""
    part = opened(from_edges(np.zeros(leaves, int), np.arange(1, leaves + 1), leaves + 1, symmetric=True))
    (run,) = runs.pagerank(part)
    centre = 0.15 / (leaves + 1) * (1 + 0.85 * leaves) / (1 - 0.85**2)
    assert run.arrays["rank"][part.ids == 0] == pytest.approx(centre, rel=1e-6)


def test_threads_change_nothing(tmp_path, rng):
    """Bit by bit, on graphs that all threads work on."""
    from mpi4py import MPI

    from mgg_hpc.data import generate

    writer.write(tmp_path / "g.h5", generate.rmat(11, 8, int(rng.integers(1 << 30))))
    found = []
    for threads in (1, 2, 5):
        made = backends.make(backends.choose_cpu("serial", MPI.COMM_SELF), MPI.COMM_SELF, threads=threads)
        part = parts.load(tmp_path / "g.h5", MPI.COMM_SELF, made, weights=True)
        nodes = runs.draw_sources(part, 3, 1)
        done = [*runs.bfs(part, nodes), *runs.sssp(part, nodes), *runs.components(part), *runs.pagerank(part)]
        found.append([array.tobytes() for run in done for array in run.arrays.values()])
        made.memory.close()
    assert found[0] == found[1] == found[2]
