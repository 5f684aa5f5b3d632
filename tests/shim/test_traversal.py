"""Traversals by the GPU's kernels over the shim: results are those of CPUs, in one process and as `mgg traverse` on
several ranks; and the requests that reading lists makes."""

from __future__ import annotations

import h5py
import jobs
import numpy as np
import pytest
from gpu.pes.traversals import loaded, ranked, read_as, same
from harness import pcie_requests

from mgg_hpc.data import generate, writer
from mgg_hpc.data.graph import Graph
from mgg_hpc.runtime.backends.cuda.traversal import PLACES
from mgg_hpc.traversal import runs
from mgg_hpc.traversal.part import Part

WORDS = {"bfs": ("--sources", "3"), "sssp": ("--sources", "2"), "cc": (), "pagerank": ("--tolerance", "1e-7")}
ON_GPUS = ("--backend", "cuda", "--share-gpu", "-o", "found.h5")


@pytest.mark.parametrize("edges", PLACES)
def test_larger_graphs(rng, engine, edges):
    """With weights, some of them 0; blocks run in any order. The table has the hard cases."""
    engine.seed(int(rng.integers(1 << 60)))
    graph = generate.rmat(8, 6, int(rng.integers(1 << 30)), symmetric=False)
    weight = rng.integers(0, 9, graph.edges).astype(np.float32) / 2
    made = Graph("rmat", graph.indptr, graph.indices, weight=weight)
    with loaded(engine, made) as (host, device):
        other = read_as(engine, device, edges=edges)
        nodes = runs.draw_sources(host, 2, 0)
        same(runs.sssp(other, nodes), runs.sssp(host, nodes))
        same(runs.bfs(other, nodes), runs.bfs(host, nodes))
        ranked(other, host)


def counted(engine, device: Part) -> list[int]:
    """Requests by their size of a search in breadth first, as the shim counts them."""
    other = read_as(engine, device, edges="host", bottom_up=False)
    engine.module.shim_counts()
    list(runs.bfs(other, runs.draw_sources(device, 1, 3), check=False))
    counts = engine.module.shim_counts()
    return [counts[f"requests_{size}"] for size in pcie_requests.SIZES]


def expected(host: Part) -> list[int]:
    """What `pcie_requests` says of the same search."""
    (run,) = runs.bfs(host, runs.draw_sources(host, 1, 3))
    reached = np.flatnonzero(run.arrays["depth"] >= 0)
    offset = host.graph.out_indptr
    return pcie_requests.count(offset[reached], offset[reached + 1], 4, "aligned").tolist()


@pytest.mark.parametrize("kind", ["rmat", "uniform"])
def test_requests(engine, kind):
    """EMOGI (figures 2.6 and 2.8 of Min's dissertation): sizes of requests for the edges of a search."""
    quarter = {"a": 0.25, "b": 0.25, "c": 0.25} if kind == "uniform" else {}
    drawn = generate.rmat(9, 16, 5, **quarter)
    graph = Graph(kind, drawn.indptr, drawn.indices, directed=False)
    with loaded(engine, graph) as (host, device):
        assert counted(engine, device) == pytest.approx(expected(host), rel=0.02, abs=3)


def graph_of(rng, *, directed: bool) -> Graph:
    """Some hundred nodes, with weights, of which some are 0."""
    drawn = generate.rmat(7, 5, int(rng.integers(1 << 30)), symmetric=not directed)
    if not directed:
        return Graph("rmat", drawn.indptr, drawn.indices, directed=False)
    weight = rng.integers(0, 9, drawn.edges).astype(np.float32) / 2
    return Graph("rmat", drawn.indptr, drawn.indices, weight=weight)


def few(rng, *, directed: bool) -> Graph:
    """Two nodes, so that a third rank has none."""
    return Graph("few", np.array([0, 1, 2]), np.array([1, 0], np.int32), directed=directed)


@pytest.mark.long
@pytest.mark.sampled(1)
@pytest.mark.parametrize("graph", [graph_of, few])
@pytest.mark.parametrize("kind", sorted(WORDS))
@pytest.mark.parametrize("edges", PLACES)
@pytest.mark.parametrize(("ranks", "fault"), [(2, "none"), (2, "far"), (3, "none")])
def test_results_are_those_of_one_cpu(rng, on_gpus, tmp_path, kind, edges, ranks, fault, graph):
    """far: no pointer leads to a peer."""
    writer.write(tmp_path / "graph.h5", graph(rng, directed=kind != "cc"))
    words = ("traverse", kind, "graph.h5", *WORDS[kind])
    done = on_gpus(ranks, *words, "--verbose", "--edges", edges, *ON_GPUS, fault=fault)
    assert (done.returncode, done.stderr) == (0, "")
    assert "MiB crossed" in done.stdout
    cpu = jobs.call(*words, "-o", "wanted.h5", folder=tmp_path)
    assert cpu.returncode == 0, cpu.stderr
    with h5py.File(tmp_path / "found.h5") as found, h5py.File(tmp_path / "wanted.h5") as wanted:
        assert found.keys() == wanted.keys()
        for name in wanted:
            if name == "rank":
                assert np.abs(found[name][:] - wanted[name][:]).sum() < 3e-6
            else:
                assert np.array_equal(found[name][:], wanted[name][:]), name
