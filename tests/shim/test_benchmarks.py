"""Benchmarks of a GPU over the shim: two played PEs sum and move what they should, and so do the gather floor."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jobs
import numpy as np
import pytest
from gpu.pes.shim_device import shim_device
from harness import graphs
from scipy import sparse

from mgg_hpc.runtime.backends.arguments import Geometry

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from harness import pes

VARIANTS = ("halo", "get", "bulk", "direct", "sum")


@pytest.mark.long
@pytest.mark.parametrize("share", [0.0, 0.05, 0.4, 0.95])
def test_every_variant_of_two_pes_sums_the_same_and_moves_each_row_once_or_each_edge(rng, engine, share):
    graph = graphs.read("rmat:6:4")
    subject = pes.Subject(graph, 9, share, shim_device(engine, int(rng.integers(1 << 60))))
    own = subject.plans[0].destinations
    remote = graph.indices[: graph.indptr[own]]
    remote = remote[remote >= own]
    crossing = dict.fromkeys(("get", "direct"), len(remote)) | {"sum": 0}
    calls = {name: subject.variant(name) for name in VARIANTS}
    for name, call in calls.items():
        engine.module.shim_counts()
        call()
        rows = crossing.get(name, len(np.unique(remote)))
        assert engine.module.shim_counts()["crossed"] == rows * subject.format.row_bytes, name
        adjacency = sparse.csr_matrix((np.ones(graph.edges), graph.indices, graph.indptr))[:own]
        expected = adjacency @ subject.x.astype(np.float64)
        np.testing.assert_allclose(np.asarray(subject.out), expected, rtol=1e-4, atol=1e-4)
        assert call.crossing == rows
    ms, more = subject.measure(calls | {"cut": subject.cut("get", Geometry(3, 2, 2))}, turns=2)
    assert {name: len(taken) for name, taken in ms.items()} == dict.fromkeys((*VARIANTS, "cut"), 2)
    assert more["halo"]["crossing_bytes"] == 4 * 9 * len(np.unique(remote))
    assert subject.columns()["remote_edges"] == len(remote)
    assert subject.columns()["halo_rows"] == len(np.unique(remote))


@pytest.mark.long
def test_the_floor_reads_every_word_of_every_row(rng, engine):
    """The words that its threads have seen, all together, are the exclusive or of all words."""
    indices = rng.integers(0, 50, 203).astype(np.int32)
    rows = rng.integers(0, 2**32, (50, 12), dtype=np.uint32)
    held = engine.arrays.zeros(rows.nbytes)
    held[:] = rows.view(np.uint8).reshape(-1)
    for lanes, threads, blocks in ((4, 64, 3), (8, 32, 1), (32, 96, 5)):
        engine.seed(int(rng.integers(1 << 60)))
        seen = np.zeros(threads * blocks, np.uint32)
        geometry = engine.module.LaunchShape(lanes, 1, blocks, threads)
        addresses = indices.ctypes.data, len(indices), held.ctypes.data
        engine.module.gather_floor(*addresses, 48, seen.ctypes.data, geometry)
        assert np.bitwise_xor.reduce(seen) == np.bitwise_xor.reduce(rows[indices].reshape(-1))


HYBRID = """
import sys
library, folder, *sys.argv[1:] = sys.argv[1:]
sys.path[:0] = [folder, folder + "/../tests"]
import hybrid
from gpu.pes.engine import Engine
from mgg_hpc.runtime.backends.cuda import rank
engine = Engine.shim(__import__("pathlib").Path(library))
rank.hardware, hybrid.module.load = lambda: (engine.module, engine.arrays), lambda: engine.module
hybrid.JOBS["cuda"] = hybrid.JOBS["cpu"]
hybrid.run(hybrid.main)
"""


@pytest.mark.long
def test_hybrid_plans_are_checked_on_a_gpu_without_waiting(shim, tmp_path):
    words = (
        "check",
        "--device=cuda",
        "--models=sage",
        "--batches=4",
        "--fixed=2",
        "--turns=1",
        "-o",
        "found.json",
    )
    folder = Path(__file__).parents[2] / "benchmarks"
    done = jobs.python("-c", HYBRID, shim.folder / "_cuda.so", folder, *words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert row["setting"] == "as it is" and row["executed_s"] > 0 and row["measuring_epochs"] > 0
