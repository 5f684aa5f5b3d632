"""Searches and shortest paths from 64 nodes of each of four graphs, all checked (`make test-long`)."""

from __future__ import annotations

import pytest
from mpi4py import MPI

from mgg_hpc.data import generate, writer
from mgg_hpc.data.graph import Graph
from mgg_hpc.data.readers import npz
from mgg_hpc.runtime import backends, mpi
from mgg_hpc.traversal import part as parts
from mgg_hpc.traversal import runs

SOURCES = 64


def structure(graph: Graph) -> Graph:
    return Graph(graph.name, graph.indptr, graph.indices, directed=graph.directed)


GRAPHS = {
    "rmat": lambda folder, seed: generate.rmat(13, 16, seed),
    "uniform": lambda folder, seed: generate.rmat(13, 8, seed, a=0.25, b=0.25, c=0.25, symmetric=False),
    "cnr_2000": lambda folder, seed: npz.read_npz(folder / "cnr_2000" / "cnr_2000.npz", directed=True),
    "amazon_computers": lambda folder, seed: npz.read_npz(
        folder / "amazon_computers" / "amazon_computers.npz"
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", GRAPHS)
def test_results_from_many_sources_are_right(rng, data_folder, tmp_path, name):
    mpi.world()
    writer.write(tmp_path / "g.h5", structure(GRAPHS[name](data_folder, int(rng.integers(1 << 30)))))
    made = backends.make(backends.choose_cpu("serial", MPI.COMM_SELF), MPI.COMM_SELF, threads=2)
    part = parts.load(tmp_path / "g.h5", MPI.COMM_SELF, made, weights=True)
    nodes = runs.draw_sources(part, SOURCES, int(rng.integers(1 << 30)))
    assert len(nodes) == SOURCES
    assert [run.source for run in runs.bfs(part, nodes)] == nodes
    assert [run.source for run in runs.sssp(part, nodes)] == nodes
    made.memory.close()
