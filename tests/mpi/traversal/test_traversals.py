"""Traversals over ranks: against other programs' results, for hard cases, orders of rows and uneven ranks."""

from __future__ import annotations

import dataclasses

import cases
import h5py
import numpy as np
import pytest
import reference
import scipy.sparse as sp
from jobs import blocks, directed_weighted
from mpi4py import MPI
from scipy.sparse import csgraph

from mgg_hpc.data import writer
from mgg_hpc.data.graph import Graph, from_edges
from mgg_hpc.data.store import GraphFile
from mgg_hpc.data.writer import Partition
from mgg_hpc.errors import InputError
from mgg_hpc.runtime import backends
from mgg_hpc.tools import traverse
from mgg_hpc.traversal import part as parts
from mgg_hpc.traversal import runs

pytestmark = pytest.mark.mpi
either = pytest.mark.parametrize("directed", [True, False], ids=["directed", "undirected"])


def symmetric(case: cases.Case) -> cases.Case:
    source, destination = case.edge_list
    both = np.unique(np.stack([np.append(source, destination), np.append(destination, source)]), axis=1)
    return cases.csr(*both, case.nodes, case.bounds)


def graph_of(rng, case: cases.Case, *, directed: bool, weighted: bool = False) -> Graph:
    weight = None
    if weighted:
        values = rng.integers(0, 20, (case.nodes + 1, case.nodes + 1)).astype(np.float32) / 4
        if not directed:
            values = np.minimum(values, values.T)
        source, destination = case.edge_list
        weight = values[source, destination]
    return Graph("case", case.indptr, case.indices, weight=weight, directed=directed)


def large(rng, *, directed: bool) -> cases.Case:
    """A graph whose frontiers go through all ways to search: two dense parts, and a path between them."""
    source, destination = rng.integers(0, 900, 9000), (900 * rng.random(9000) ** 3).astype(np.int64)
    more, beyond = rng.integers(1000, 1900, (2, 6000))
    path = np.arange(899, 1000)
    source = np.concatenate([source, more, path])
    destination = np.concatenate([destination, beyond, path + 1])
    made = cases.csr(source, destination, 2000, cases.even(2000, 1))
    return made if directed else symmetric(made)


@pytest.fixture
def loaded(comm, folder, backend, rng):
    """Write a graph, in a drawn order of its rows, and load it on all ranks; one rank may own nothing."""
    number = iter(range(100))

    def loaded(graph: Graph, bounds: np.ndarray | None = None, **options) -> parts.Part:
        path = folder / f"{next(number)}.h5"
        order, as_it_is = rng.permutation(graph.nodes), rng.random() < 0.3
        if comm.rank == 0:
            stored = graph if as_it_is else in_order(graph, order)
            partitions = []
            if bounds is not None:
                partitions = [Partition(bounds, "given", np.diff(stored.indptr[bounds]).tolist())]
            writer.write(path, stored, partitions=partitions)
        comm.Barrier()
        return parts.load(path, comm, backend, **options)

    return loaded


def in_order(graph: Graph, order: np.ndarray) -> Graph:
    """The same graph with its rows renumbered."""
    place = np.argsort(order)
    source, destination = reference.edge_list(graph.indptr, graph.indices)
    stored = from_edges(place[source], place[destination], graph.nodes, weight=graph.weight, name=graph.name)
    return dataclasses.replace(stored, directed=graph.directed, permutation=order)


def everywhere(part: parts.Part, values: np.ndarray) -> np.ndarray:
    """Values of all nodes by original id, from each rank's rows."""
    found = np.zeros(part.nodes, values.dtype)
    for ids, mine in part.comm.allgather((part.ids, values)):
        found[ids] = mine
    return found


def out_edges(case: cases.Case) -> sp.csr_array:
    source, destination = case.edge_list
    return sp.csr_array((np.ones(len(source)), (source, destination)), (case.nodes, case.nodes))


def check_bfs(part: parts.Part, case: cases.Case, nodes: list[int]) -> None:
    matrix = out_edges(case)
    for run in runs.bfs(part, nodes):
        wanted = csgraph.dijkstra(matrix, indices=run.source, unweighted=True)
        depth, parent = everywhere(part, run.arrays["depth"]), everywhere(part, run.arrays["parent"])
        assert np.array_equal(np.where(np.isinf(wanted), -1, wanted), depth)
        assert np.array_equal(parent >= 0, depth >= 0)
        below = np.flatnonzero(depth > 0)
        assert np.array_equal(depth[parent[below]] + 1, depth[below])
        assert (matrix[parent[below], below] > 0).all() if len(below) else True
        assert parent[run.source] == run.source
        assert run.reached == np.isfinite(wanted).sum()


@either
@pytest.mark.parametrize("name", sorted(cases.CASES.keys() - {"no_nodes"}))  # files have a node at least
def test_hard_cases(comm, rng, loaded, name, directed):
    case = cases.CASES[name](rng, comm.size)
    case = case if directed else symmetric(case)
    graph = graph_of(rng, case, directed=directed)
    part = loaded(graph, case.bounds)
    check_bfs(part, case, rng.permutation(case.nodes)[:4].tolist())
    if not directed:
        (run,) = runs.components(part)
        check_components(part, case, run)
    (run,) = runs.pagerank(part, tolerance=1e-12, dtype="float64")
    assert np.allclose(everywhere(part, run.arrays["rank"]), solved(case, 0.85), rtol=0, atol=1e-11)


def check_components(part: parts.Part, case: cases.Case, run: runs.Run) -> None:
    _, labels = csgraph.connected_components(out_edges(case), directed=False)
    least = np.full(len(labels), case.nodes)
    np.minimum.at(least, labels, np.arange(case.nodes))
    assert np.array_equal(everywhere(part, run.arrays["component"]), least[labels])


def solved(case: cases.Case, damping: float, weight: np.ndarray | float = 1.0) -> np.ndarray:
    """PageRank as the solution of its linear system. weight: of the edges."""
    source, destination = case.edge_list
    nodes, weight = case.nodes, np.broadcast_to(weight, source.shape).astype(np.float64)
    degree = np.bincount(source, weight, nodes)
    matrix, given = np.zeros((nodes, nodes)), degree[source] > 0
    ends = destination[given], source[given]
    np.add.at(matrix, ends, weight[given] / degree[ends[1]])
    matrix[:, degree == 0] = 1 / nodes
    return np.linalg.solve(np.eye(nodes) - damping * matrix, np.full(nodes, (1 - damping) / nodes))


@either
def test_a_larger_graph(comm, rng, loaded, directed):
    case = large(rng, directed=directed)
    part = loaded(graph_of(rng, case, directed=directed))
    check_bfs(part, case, [0, 950, 1999, *rng.permutation(2000)[:4].tolist()])
    (run,) = runs.pagerank(part, tolerance=1e-10, dtype="float64")
    apart = np.abs(everywhere(part, run.arrays["rank"]) - solved(case, 0.85)).sum()
    assert apart < 1e-10 * 0.85 / 0.15  # a step shrinks the sum of errors by the damping
    (narrow,) = runs.pagerank(part, tolerance=1e-5, damping=0.7)
    assert np.abs(everywhere(part, narrow.arrays["rank"]) - solved(case, 0.7)).sum() < 5e-5
    if not directed:
        (run,) = runs.components(part)
        check_components(part, case, run)


@either
@pytest.mark.parametrize("width", [None, 0.3, 0.003, 1e4])
def test_shortest_paths(comm, rng, loaded, directed, width):
    case = large(rng, directed=directed)
    graph = graph_of(rng, case, directed=directed, weighted=True)
    part = loaded(graph, weights=True)
    source, destination = case.edge_list
    for run in runs.sssp(part, [0, 950, 1999], width=width):
        wanted = bellman_ford(source, destination, graph.weight, case.nodes, run.source)
        assert np.array_equal(everywhere(part, run.arrays["distance"]), wanted)


@pytest.mark.parametrize("check", [True, False])
def test_paths_beyond_float32_are_refused(comm, rng, loaded, check):
    """Also where the edge that is too much crosses ranks; not where another path is shorter."""
    nodes, weight = 30, np.full(32, 2e37, np.float32)
    order = rng.permutation(nodes)
    source, destination = (
        [*order[:-1], order[0], order[1], order[5]],
        [*order[1:], order[15], order[2], order[6]],
    )
    weight[29], weight[30:] = 1e-3, 3e38  # from the first to the 16th, and two that no path takes
    for kept in (32, 29):
        ends = np.array(source[:kept]), np.array(destination[:kept])
        part = loaded(from_edges(*ends, nodes, weight=weight[:kept], name="far"), weights=True)
        if kept == 32:
            (run,) = runs.sssp(part, [int(order[0])], check=check)
            assert run.reached == nodes
        else:
            line = f"far: the paths from node {order[0]} to node {order[18]} are longer than float32 holds"
            with pytest.raises(InputError, match=line):
                next(runs.sssp(part, [int(order[0])], check=check))


@either
@pytest.mark.parametrize("name", ["ordinary", "large"])
def test_ranks_by_weights(comm, rng, loaded, directed, name):
    """Some weights are 0, and some nodes have no others; some are far from 1."""
    case = large(rng, directed=True) if name == "large" else cases.ordinary(rng, comm.size)
    case = case if directed else symmetric(case)
    source, destination = case.edge_list
    drawn = rng.permuted(np.repeat(np.float32([0, 1e-30, 0.5, 3, 1e30]), -(-case.nodes // 5)))[: case.nodes]
    weight = (
        drawn[source] * (1 + drawn[destination] % 7)
        if directed
        else np.minimum(drawn[source], drawn[destination])
    )
    graph = dataclasses.replace(graph_of(rng, case, directed=directed), weight=weight.astype(np.float32))
    part = loaded(graph, weights=True)
    (run,) = runs.pagerank(part, tolerance=1e-12, dtype="float64")
    wanted = solved(case, 0.85, graph.weight)
    assert np.allclose(everywhere(part, run.arrays["rank"]), wanted, rtol=0, atol=1e-11)
    (narrow,) = runs.pagerank(part, tolerance=1e-5)
    assert np.abs(everywhere(part, narrow.arrays["rank"]) - wanted).sum() < 1e-4
    part = loaded(graph)
    (even,) = runs.pagerank(part, tolerance=1e-12, dtype="float64")
    assert np.allclose(everywhere(part, even.arrays["rank"]), solved(case, 0.85), rtol=0, atol=1e-11)


def bellman_ford(source, destination, weight, nodes: int, root: int) -> np.ndarray:
    """Distances in float32; SciPy takes weights of 0 for missing edges."""
    distance = np.full(nodes, np.inf, np.float32)
    distance[root] = 0
    while True:
        shorter = distance.copy()
        np.minimum.at(shorter, destination, distance[source] + weight)
        if np.array_equal(shorter, distance):
            return distance
        distance = shorter


@either
def test_drawn_lengths(comm, rng, loaded, directed):
    """By the original ids alone: the same for any order of rows, and from both ends of an undirected edge."""
    case = cases.ordinary(rng, comm.size)
    case = case if directed else symmetric(case)
    part = loaded(graph_of(rng, case, directed=directed), weights=True)
    source, destination = case.edge_list
    seed = int(rng.integers(1 << 62))
    ends = zip(source.tolist(), destination.tolist(), strict=True)
    weight = [reference.drawn_length(seed, u, v, directed) for u, v in ends]
    assert min(weight) >= 8 and max(weight) <= 72
    (run,) = runs.sssp(part, [5], random_lengths=True, seed=seed)
    wanted = bellman_ford(source, destination, np.array(weight, np.float32), case.nodes, 5)
    assert np.array_equal(everywhere(part, run.arrays["distance"]), wanted)


def test_bytes_that_cross_are_counted(comm, rng, loaded):
    """Each exchange moves a value of each row of each rank's halo."""
    case = symmetric(cases.ordinary(rng, comm.size))
    part = loaded(graph_of(rng, case, directed=False), case.bounds)
    rows = sum(comm.allgather(len(part.graph.halo)))
    assert (rows == 0) == (comm.size == 1)
    (bfs,) = runs.bfs(part, [3])
    assert bfs.moved == rows * 4 * bfs.steps * (comm.size > 1)
    (found,) = runs.components(part)
    assert found.moved == rows * 8 * found.steps
    (ranked,) = runs.pagerank(part, tolerance=1e-4)
    assert ranked.moved == rows * 4 * ranked.steps


def test_sources_are_the_same_for_any_ranks_and_order(comm, rng, loaded):
    case = cases.one_way(np.random.default_rng(7), 1)
    graph = graph_of(rng, case, directed=True)
    drawn = {tuple(runs.draw_sources(loaded(graph), 5, 11)) for _ in range(3)}
    assert len(drawn) == 1
    degree = np.bincount(case.edge_list[0], minlength=case.nodes)
    assert (degree[list(*drawn)] > 0).all()
    wanted = np.random.default_rng(11).choice(np.flatnonzero(degree), 5, replace=False)
    assert next(iter(drawn)) == tuple(wanted.tolist())


def test_the_command_writes_the_same_on_any_ranks(comm, folder, mgg, first, backend):
    path, found = folder / "g.h5", {}
    first(lambda: writer.write(path, blocks(150)))
    for kind in ("bfs", "sssp", "cc"):
        begin = ["--source", 4] if kind != "cc" else []
        done = mgg("traverse", kind, path, "-v", "-o", folder / f"{kind}.h5", *begin)
        assert done.codes == {0} and done.err == [""] * comm.size
        assert ("MiB crossed" in done.out[0]) == (comm.size > 1) and done.out[1:] == [""] * (comm.size - 1)
        with h5py.File(folder / f"{kind}.h5") as file:
            found |= {name: file[name][:] for name in file}
    part = parts.load(path, comm, backend, weights=True)
    for run in (*runs.bfs(part, [4]), *runs.sssp(part, [4]), *runs.components(part)):
        for name, mine in run.arrays.items():
            assert np.array_equal(everywhere(part, mine), found[name]), name


@pytest.mark.parametrize("edges", [0, 60, 300])
def test_answers_are_those_of_scipy(comm, rng, loaded, edges):
    """Of graphs of several components and isolated nodes."""
    source, destination = rng.integers(0, 200, (2, edges))
    case = symmetric(cases.csr(source, destination, 230, cases.even(230, 1)))
    part = loaded(graph_of(rng, case, directed=False), weights=True)
    [components] = runs.components(part)
    count, labels = csgraph.connected_components(out_edges(case), directed=False)
    sizes = np.bincount(labels)
    found = traverse.answer("cc", part, components)
    assert found == {"components": count, "largest": sizes.max()}
    [ranks] = runs.pagerank(part, dtype="float64", tolerance=1e-12) if edges else [None]
    if edges:
        begin = int(destination[0])
        far = csgraph.dijkstra(out_edges(case), indices=begin, unweighted=True)
        far = far[np.isfinite(far)].max()
        [run] = runs.bfs(part, [begin])
        assert traverse.answer("bfs", part, run) == {"deepest": far}
        [run] = runs.sssp(part, [begin])
        assert traverse.answer("sssp", part, run) == {"farthest": far}
        values = everywhere(part, ranks.arrays["rank"])
        order = sorted(range(230), key=lambda node: (-values[node], node))[:5]
        first = traverse.answer("pagerank", part, ranks)["first"]
        assert first == [{"node": node, "rank": values[node]} for node in order]


def test_refusals_are_the_same_on_all_ranks(comm, folder, mgg, first):
    path = folder / "g.h5"
    first(lambda: writer.write(path, directed_weighted()))
    assert "is directed" in mgg("traverse", "cc", path).refused()
    assert "has nodes 0 to 149" in mgg("traverse", "bfs", path, "--source", 150).refused()
    assert "gone.h5" in mgg("traverse", "bfs", folder / "gone.h5").refused()


def test_a_bridge_between_the_largest_trees_of_two_ranks(comm, loaded):
    """Each half is 20 nodes with edges to each other, and one more, whose last edge leads to the other half's."""
    half = [(u, v) for u in range(20) for v in range(20) if u != v]
    ends = np.array([*half, *(pair for u in range(3) for pair in ((20, u), (u, 20)))])
    both = np.concatenate([ends, ends + 21, [(20, 41), (41, 20)]])
    case = cases.csr(both[:, 0], both[:, 1], 42, cases.even(42, comm.size))
    graph = Graph("bridge", case.indptr, case.indices, directed=False)
    for bounds in (case.bounds, None):
        part = loaded(graph, bounds)
        (run,) = runs.components(part)
        assert (run.arrays["component"] == 0).all()


@either
def test_results_are_those_of_one_rank(comm, rng, folder, backend, directed):
    """Bit by bit, parents too, for graphs in whatever order."""
    case, path = large(rng, directed=directed), folder / "g.h5"
    graph, order = graph_of(rng, case, directed=directed, weighted=True), rng.permutation(case.nodes)
    if comm.rank == 0:
        writer.write(path, in_order(graph, order))
    comm.Barrier()
    alone = backends.make(backends.choose_cpu("serial", MPI.COMM_SELF), MPI.COMM_SELF)
    found = parts.load(path, comm, backend, weights=True)
    wanted = parts.load(path, MPI.COMM_SELF, alone, weights=True)
    for kind in (runs.bfs, runs.sssp):
        for mine, whole in zip(kind(found, [0, 1500]), kind(wanted, [0, 1500]), strict=True):
            assert mine.reached == whole.reached and mine.edges == whole.edges
            for name, values in whole.arrays.items():
                assert np.array_equal(mine.arrays[name], everywhere(wanted, values)[found.ids]), name
    alone.memory.close()


def test_files_that_are_not_what_they_say(comm, folder, backend, monkeypatch):
    """A file that claims to be undirected without a proof, and is not."""
    case = cases.one_way(np.random.default_rng(3), comm.size)
    monkeypatch.setattr(GraphFile, "proved_undirected", lambda file: False)
    if comm.rank == 0:
        writer.write(folder / "g.h5", Graph("case", case.indptr, case.indices))
    comm.Barrier()
    assert parts.load(folder / "g.h5", comm, backend).directed
    monkeypatch.setattr(parts, "open_graph", as_undirected)
    with pytest.raises(InputError, match=r"g\.h5: says directed=false, but some edge has no equal one"):
        parts.load(folder / "g.h5", comm, backend)


def as_undirected(path) -> GraphFile:
    file = GraphFile(path)
    file.directed = False
    return file


def test_memory_is_counted_before_it_is_taken(comm, folder, backend, first, monkeypatch):
    first(lambda: writer.write(folder / "g.h5", blocks(150)))
    monkeypatch.setattr(parts.cores, "memory_available", lambda: 1 << 14)
    with pytest.raises(
        InputError, match=r"take about 0\.0 GiB on a node of \d ranks?, and 0\.0 GiB are free"
    ):
        parts.load(folder / "g.h5", comm, backend)
