"""Traversals by the GPU's kernels over the shim: the results of CPUs, and the requests that reading lists makes."""

from __future__ import annotations

import itertools

import cases
import numpy as np
import pytest
from mpi4py import MPI

from mgg_hpc.data import generate, writer
from mgg_hpc.data.graph import Graph
from mgg_hpc.runtime import backends, mpi
from mgg_hpc.runtime.backends.cuda.traversal import DeviceTraversal
from mgg_hpc.runtime.backends.simulated import World
from mgg_hpc.traversal import part as parts
from mgg_hpc.traversal import runs
from mgg_hpc.traversal.requests import of_lists

READS = ("strided", "merged", "aligned")


@pytest.fixture
def both(tmp_path, engine):
    """Load a graph on a CPU, and on a device in each way to read it."""
    mpi.world()
    comm = MPI.COMM_SELF
    host = backends.make(backends.choose_cpu("serial", comm), comm)
    (device,) = engine.backends(World(1))

    def both(graph: Graph, reads: str = "aligned", *, wide: bool = False, edges: str = "host"):
        path = tmp_path / "graph.h5"
        writer.write(path, graph, force=True)
        whole = [parts.load(path, comm, backend, weights=True) for backend in (host, device)]
        whole[1].engine = DeviceTraversal(device).of(whole[1].graph, edges=edges, reads=reads, wide=wide)
        return whole

    yield both
    host.memory.close()


def same(found, wanted, *, exactly: bool = True) -> None:
    """Results of two runs from each source."""
    for one, other in zip(found, wanted, strict=True):
        assert one.source == other.source and one.reached == other.reached
        for name, array in other.arrays.items():
            if exactly:
                assert np.array_equal(one.arrays[name], array), name
            else:
                assert np.allclose(one.arrays[name], array, rtol=1e-5, atol=1e-9), name


@pytest.mark.parametrize("name", sorted(cases.CASES.keys() - {"no_nodes"}))
def test_hard_cases(rng, engine, both, name):
    engine.seed(int(rng.integers(1 << 60)))
    reads, wide = str(rng.choice(READS)), bool(rng.random() < 0.5)
    edges = str(rng.choice(["host", "device"]))
    case = cases.CASES[name](rng, 1)
    host, device = both(Graph("case", case.indptr, case.indices), reads, wide=wide, edges=edges)
    nodes = rng.permutation(case.nodes)[:2].tolist()
    same(runs.bfs(device, nodes), runs.bfs(host, nodes))
    same(runs.sssp(device, nodes), runs.sssp(host, nodes))
    same(runs.pagerank(device), runs.pagerank(host), exactly=False)
    source, destination = case.edge_list
    ends = np.stack([np.append(source, destination), np.append(destination, source)])
    loose = cases.csr(*np.unique(ends, axis=1), case.nodes, case.bounds)
    host, device = both(
        Graph("case", loose.indptr, loose.indices, directed=False), reads, wide=wide, edges=edges
    )
    same(runs.components(device), runs.components(host))


@pytest.mark.parametrize(("reads", "wide"), list(itertools.product(READS, [False, True])))
def test_weights_and_threads(rng, engine, both, reads, wide):
    """Distances of a larger graph, whose blocks run in any order."""
    engine.seed(int(rng.integers(1 << 60)))
    graph = generate.rmat(8, 6, int(rng.integers(1 << 30)), symmetric=False)
    weight = rng.integers(0, 9, graph.edges).astype(np.float32) / 2
    made = Graph("rmat", graph.indptr, graph.indices, weight=weight)
    host, device = both(made, reads, wide=wide)
    nodes = runs.draw_sources(host, 2, 0)
    same(runs.sssp(device, nodes), runs.sssp(host, nodes))
    same(runs.bfs(device, nodes), runs.bfs(host, nodes))


def requests(engine, both, graph: Graph, reads: str, *, wide: bool = True) -> dict[int, int]:
    """Requests by their bytes, of a search in breadth first from the first source that is drawn."""
    _, device = both(graph, reads, wide=wide)
    (node,) = runs.draw_sources(device, 1, 3)
    engine.module.shim_counts()
    list(runs.bfs(device, [node], check=False))
    counts = engine.module.shim_counts()
    return {size: counts[f"requests_{size}"] for size in (32, 64, 96, 128)}


def counted(both, graph: Graph, reads: str) -> list[int]:
    """What `traversal.requests` says of the same search."""
    host, _ = both(graph)
    (run,) = runs.bfs(host, runs.draw_sources(host, 1, 3))
    reached = np.flatnonzero(run.arrays["depth"] >= 0)
    offset = host.graph.out_indptr
    return of_lists(offset[reached], offset[reached + 1], 8, reads).tolist()


@pytest.mark.parametrize("kind", ["kronecker", "uniform"])
def test_requests(engine, both, kind):
    """EMOGI (figures 2.6 and 2.8 of Min's dissertation): sizes of requests for the edges of a search, of 8 bytes."""
    quarter = {"a": 0.25, "b": 0.25, "c": 0.25} if kind == "uniform" else {}
    drawn = generate.rmat(9, 16, 5, **quarter)
    graph = Graph(kind, drawn.indptr, drawn.indices, directed=False)
    found = {reads: requests(engine, both, graph, reads) for reads in READS}
    expected = {reads: counted(both, graph, reads) for reads in READS}
    total = {reads: sum(sizes.values()) for reads, sizes in found.items()}
    print(kind, found, total)
    for reads in ("merged", "aligned"):
        assert list(found[reads].values()) == pytest.approx(expected[reads], rel=0.02, abs=3)
    # Threads whose lists lie near each other ask together, which is not counted.
    sectors = sum(size // 32 * count for size, count in found["strided"].items())
    assert sectors == pytest.approx(expected["strided"][0], rel=0.03)
    assert found["strided"][32] > 0.9 * total["strided"]
    assert total["merged"] < total["strided"] / 2 and total["aligned"] < total["merged"]
    moved = {reads: sum(size * count for size, count in sizes.items()) for reads, sizes in found.items()}
    assert moved["aligned"] <= moved["merged"]
