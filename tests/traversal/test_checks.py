"""Checkers of traversals see each kind of error that is planted in a sound result."""

from __future__ import annotations

import numpy as np
import pytest
from jobs import blocks
from mpi4py import MPI

from mgg_hpc.data import generate, writer
from mgg_hpc.data.graph import Graph, from_edges
from mgg_hpc.data.readers import npz
from mgg_hpc.runtime import backends, mpi
from mgg_hpc.traversal import checks, runs
from mgg_hpc.traversal import part as parts


@pytest.fixture
def opened(tmp_path):
    """Load a graph on this rank alone."""
    mpi.world()
    made = []

    def opened(graph: Graph, threads: int = 1) -> parts.Part:
        writer.write(tmp_path / "graph.h5", graph, force=True)
        chosen = backends.choose_cpu("serial", MPI.COMM_SELF)
        made.append(backends.make(chosen, MPI.COMM_SELF, threads=threads))
        return parts.load(tmp_path / "graph.h5", MPI.COMM_SELF, made[-1], weights=True)

    yield opened
    for each in made:
        each.memory.close()


@pytest.fixture
def part(opened) -> parts.Part:
    return opened(blocks(200))


def wrong(check, *arguments) -> str:
    with pytest.raises(checks.WrongResultError) as told:
        check(*arguments)
    return str(told.value)


# ---- searches -------------------------------------------------------------------------------------------


def tree(part: parts.Part, node: int):
    source = part.find(node)
    parent, depth = np.empty(part.graph.rows, np.int32), np.empty(part.graph.rows, np.int32)
    part.engine.bfs(source, parent, depth)
    checks.bfs(part, source, parent, depth)
    return source, parent, depth


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
    depth, at = part.ids.astype(np.int32), np.argsort(part.ids)
    parent = at[np.maximum(depth - 1, 0)].astype(np.int32)
    assert "more than one level up" in wrong(checks.bfs, part, part.find(0), parent, depth)


def test_a_root_that_is_another(part):
    source, parent, depth = tree(part, 5)
    other = part.find(6)
    assert "is no child" in wrong(checks.bfs, part, other, parent, depth)
    parent[source.row] = other.slot
    assert "node 5 is no child" in wrong(checks.bfs, part, source, parent, depth)


# ---- distances ------------------------------------------------------------------------------------------


def test_distances(part, rng):
    lengths = runs._lengths(part, 3)
    part.engine.set_lengths(lengths, 20.0)
    distance, source = np.empty(part.graph.rows, np.float32), part.find(9)
    part.engine.sssp(source, distance)
    checks.sssp(part, source, lengths, distance)
    row = rng.choice(np.flatnonzero(np.isfinite(distance) & (distance > 0)))
    planted = {off: distance.copy() for off in (-1, 1, np.inf, -np.inf, np.nan)}
    for off, each in planted.items():
        each[row] += np.float32(off)
    planted["source"], planted["all"] = distance.copy(), np.full_like(distance, np.inf)
    planted["source"][source.row], planted["all"][source.row] = 1, 0
    for each in planted.values():
        assert "distance" in wrong(checks.sssp, part, source, lengths, each)


def test_distances_that_vouch_for_each_other(opened):
    """Edges of length 0 are as long as distances differ by, wherever they are."""
    source, target = np.array([0, 1, 3, 4, 2]), np.array([1, 2, 4, 3, 2])
    part = opened(from_edges(source, target, 6, weight=np.array([1.0, 2.0, 0.0, 0.0, 0.0])))
    (run,) = runs.sssp(part, [0])
    found = run.arrays["distance"][np.argsort(part.ids)]
    assert found.tolist() == [0, 1, 3, np.inf, np.inf, np.inf]
    lengths, source = runs._lengths(part, None), part.find(0)
    for planted in ({3: 5.0, 4: 5.0}, {2: 1.5}, {5: -np.inf}, {5: 7.0}):
        distance = run.arrays["distance"].copy()
        for node, value in planted.items():
            distance[part.ids == node] = value
        assert "distance" in wrong(checks.sssp, part, source, lengths, distance)


# ---- components and ranks -------------------------------------------------------------------------------


def test_components(opened):
    """Two triangles, and a node by itself."""
    ends = np.array([[0, 1, 2, 3, 4, 5], [1, 2, 0, 4, 5, 3]])
    part = opened(from_edges(*ends, 7, symmetric=True))
    label = np.empty(7, np.int64)
    part.engine.components(part.names, label)
    checks.components(part, label)
    assert label[np.argsort(part.ids)].tolist() == [0, 0, 0, 3, 3, 3, 6]
    for planted, message in (
        (np.where(label == 3, 0, label), "is not reached"),
        (np.where(part.ids == 4, 4, label), "another component"),
        (np.where(label == 3, 5, label), "is less than the label"),
        (np.where(label == 3, 2, label), "is not reached"),
    ):
        assert message in wrong(checks.components, part, planted)


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


# ---- sound results --------------------------------------------------------------------------------------


def test_threads_change_nothing(opened, rng):
    """Bit by bit, on graphs that all threads work on."""
    graph, found = generate.rmat(11, 8, int(rng.integers(1 << 30))), set()
    for threads in (1, 2, 5):
        part = opened(graph, threads)
        nodes = runs.draw_sources(part, 3, 1)
        done = [*runs.bfs(part, nodes), *runs.sssp(part, nodes), *runs.components(part), *runs.pagerank(part)]
        found.add(tuple(array.tobytes() for run in done for array in run.arrays.values()))
    assert len(found) == 1


LARGE = {
    "rmat": lambda folder, seed: generate.rmat(13, 16, seed),
    "uniform": lambda folder, seed: generate.rmat(13, 8, seed, a=0.25, b=0.25, c=0.25, symmetric=False),
    "cnr_2000": lambda folder, seed: npz.read_npz(folder / "cnr_2000/cnr_2000.npz", directed=True),
    "amazon": lambda folder, seed: npz.read_npz(folder / "amazon_computers/amazon_computers.npz"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", LARGE)
def test_results_from_many_sources_of_large_graphs_are_right(rng, data_folder, opened, name):
    graph = LARGE[name](data_folder, int(rng.integers(1 << 30)))
    part = opened(Graph(name, graph.indptr, graph.indices, directed=graph.directed), 2)
    nodes = runs.draw_sources(part, 64, int(rng.integers(1 << 30)))
    for kind in (runs.bfs, runs.sssp):  # each checks its results
        assert [run.source for run in kind(part, nodes)] == nodes and len(nodes) == 64
