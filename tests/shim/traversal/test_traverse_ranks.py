"""`mgg traverse` on GPUs that the shim plays, of several ranks: the results of one CPU."""

from __future__ import annotations

import h5py
import jobs
import numpy as np
import pytest

from mgg_hpc.data import generate, writer
from mgg_hpc.data.graph import Graph
from mgg_hpc.runtime.backends.cuda.traversal.places import PLACES

WORDS = {"bfs": ("--sources", "3"), "sssp": ("--sources", "2"), "cc": (), "pagerank": ("--tolerance", "1e-7")}
ON_GPUS = ("--backend", "cuda", "--share-gpu", "-o", "found.h5")


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
    done = on_gpus(ranks, *words, "--edges", edges, *ON_GPUS, fault=fault)
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
