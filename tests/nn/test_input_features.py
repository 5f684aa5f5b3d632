"""Input features out of a graph file, in blocks: bit for bit what reading them whole gives; or refused by name."""

from __future__ import annotations

import itertools
from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch
from convolutions import ALONE, GEOMETRY
from data.graphs import random_graph
from jobs import dense

from mgg_hpc.data import writer
from mgg_hpc.nn.graph.loading import load_part, sliced
from mgg_hpc.nn.inputs import host
from mgg_hpc.nn.inputs.features import input_features
from mgg_hpc.nn.inputs.host import HostFeatures
from mgg_hpc.nn.inputs.sparse import SparseFeatures
from mgg_hpc.runtime.backends.arguments import Options
from mgg_hpc.runtime.backends.host.kernels import SerialBackend
from mgg_hpc.runtime.backends.simulated import World


@pytest.fixture
def small(monkeypatch):
    """Blocks of 1 KiB."""
    monkeypatch.setattr(host, "BLOCK_BYTES", 1024)


@pytest.fixture
def threads():
    """Two: torch adds up a single wide row with both."""
    was = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(was)


def parts_of(path, cuts):
    """The parts and backends of ranks that own rows cuts[p] .. cuts[p + 1] - 1."""
    for pair, backend in zip(itertools.pairwise(cuts), backends(len(cuts) - 1), strict=True):
        alone = load_part(path, ALONE)
        assert alone.slice.x is None and alone.file is not None
        yield replace(alone, bounds=cuts, slice=alone.file.slice(*pair, dense=False)), backend


def backends(count):
    world = World(count)
    return [SerialBackend(rank, world, Options(GEOMETRY)) for rank in range(count)]


def read_whole(x, dtype, normalize):
    rows = torch.from_numpy(x).to(dtype)
    if normalize == "row":
        total = rows.sum(1, keepdim=True, dtype=torch.float32 if dtype.itemsize == 2 else dtype)
        rows = (rows / torch.where(total == 0, 1, total)).to(dtype)
    return rows


def same(found, wanted):
    assert found.dtype == wanted.dtype and torch.equal(found, wanted)


@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize("normalize", ["none", "row"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("half", "columns"), [(False, 9), (True, 9), (False, 40_000)])
def test_rows_are_those_of_the_file(rng, tmp_path, small, threads, half, columns, dtype, normalize, on_host):
    nodes = 7 if columns > 9 else int(rng.integers(200, 300))
    graph = random_graph(rng, nodes=nodes, features=columns, half=half)
    graph.x[rng.random(nodes) < 0.2] = 0
    graph.x[1] = 0
    writer.write(tmp_path / "g.h5", graph)
    with h5py.File(tmp_path / "g.h5") as file:
        stored = file["node/x"][:]
    for cuts in ([0, nodes], [0, 3, 3, nodes - 1, nodes]):
        for rank, (part, backend) in enumerate(parts_of(tmp_path / "g.h5", np.array(cuts))):
            found = input_features(part, backend, dtype, normalize, on_host=on_host)
            wanted = read_whole(stored[cuts[rank] : cuts[rank + 1]], dtype, normalize)
            assert isinstance(found, HostFeatures) == on_host
            if on_host:
                assert len(found.blocks) > 1 or len(wanted) < 4
                found = torch.cat([*found.blocks, wanted[:0]])
            same(found, wanted)


@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize("normalize", ["none", "row"])
def test_graphs_in_memory_keep_their_features(rng, small, normalize, on_host):
    graph = random_graph(rng, nodes=123)
    given, (backend,) = graph.x.copy(), backends(1)
    found = input_features(sliced(graph), backend, torch.float32, normalize, on_host=on_host)
    same(torch.cat(found.blocks) if on_host else found, read_whole(given, torch.float32, normalize))
    np.testing.assert_array_equal(graph.x, given)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sparse_rows_stay_sparse_wherever_they_are_asked_for(rng, tmp_path, dtype):
    graph = random_graph(rng, sparse=True)
    writer.write(tmp_path / "g.h5", graph)
    part, (backend,) = load_part(tmp_path / "g.h5", ALONE), backends(1)
    found = input_features(part, backend, dtype, "row", on_host=True)
    assert isinstance(found, SparseFeatures) and found.dtype == dtype and found.values.dtype == torch.float32
    total = dense(graph.x).sum(1, dtype=np.float64)[np.repeat(np.arange(40), np.diff(graph.x.indptr))]
    np.testing.assert_allclose(found.values.numpy(), graph.x.data / total, rtol=1e-4)


def test_a_part_keeps_its_file_whatever_takes_its_place(rng, tmp_path):
    path, (backend,) = tmp_path / "g.h5", backends(1)
    graph = random_graph(rng)
    writer.write(path, graph)
    replaced, removed = (load_part(path, ALONE) for _ in range(2))
    writer.write(path, replace(graph, x=graph.x + 1), force=True)
    same(input_features(replaced, backend, torch.float32, "none"), torch.from_numpy(graph.x))
    path.unlink()
    same(input_features(removed, backend, torch.float32, "none"), torch.from_numpy(graph.x))
