"""The proof of symmetry that a file has: of its edges alone, and only where they were found to be symmetric."""

from __future__ import annotations

from dataclasses import replace

import h5py
import numpy as np
import pytest

from mgg_hpc.data import schema, symmetry
from mgg_hpc.data.store import open_graph
from mgg_hpc.data.symmetry import EdgeSlice, _signed_hashes
from mgg_hpc.data.writer import write, write_bounds

from .graphs import random_graph


@pytest.mark.parametrize("ids", [np.int32, np.int64])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("most", [3000, 50_000], ids=["by one thread", "by several"])
def test_the_native_sum_is_that_of_the_formula(rng, ids, weighted, most):
    count = int(rng.integers(0.8 * most, most))
    v, u = rng.integers(2**31 - 1, size=(2, count))
    u[: count // 3] = v[: count // 3]
    weight = rng.choice([0.0, -0.0, 1.5, -2.0], size=count).astype(np.float32) if weighted else None
    part = EdgeSlice(0, v, u.astype(ids), weight)
    assert symmetry.imbalance(part) == int(_signed_hashes(part)[1].sum(dtype=np.uint64))


def test_rows_are_found_block_by_block(rng, monkeypatch):
    graph = random_graph(rng, symmetric=False, weighted=True)
    rows = np.repeat(np.arange(7, 47), np.diff(graph.indptr))
    expected = symmetry.imbalance(EdgeSlice(0, rows, graph.indices, graph.weight))
    for block in (1, 3, 64, 1 << 20):
        monkeypatch.setattr(symmetry, "HASHED", block)
        assert symmetry.csr_imbalance(7, graph.indptr, graph.indices, graph.weight) == expected


@pytest.mark.parametrize("weighted", [False, True])
def test_a_file_proves_its_symmetry(rng, tmp_path, weighted):
    path = tmp_path / "g.h5"
    graph = random_graph(rng, weighted=weighted)
    write(path, graph)
    write_bounds(path, 2, np.array([0, 10, 40]), "edges", [5, 6])
    with open_graph(path) as opened:
        assert opened.proved_undirected()
    write(path, replace(graph, directed=True), force=True)
    with open_graph(path) as opened:
        assert not opened.proved_undirected()


CHANGES = {
    "other edges": lambda file: file["digest/graph/indices"].__setitem__(0, 1),
    "other weights": lambda file: file["digest/graph/weight"].__setitem__(0, 1),
    "no proof": lambda file: file.attrs.__delitem__(schema.PROOF),
}


@pytest.mark.parametrize("change", CHANGES)
def test_edges_that_were_changed_since_prove_nothing(rng, tmp_path, change):
    path = tmp_path / "g.h5"
    write(path, random_graph(rng, weighted=True))
    with h5py.File(path, "r+") as file:
        CHANGES[change](file)
    with open_graph(path) as opened:
        assert not opened.proved_undirected()


def test_row_ranges_prove_nothing(rng, tmp_path):
    """A file without the proof, or with another, has none after ranges were added."""
    path = tmp_path / "g.h5"
    write(path, replace(random_graph(rng, symmetric=False), directed=True))
    with h5py.File(path, "r+") as file:
        file.attrs.modify("directed", np.bool_(False))
    write_bounds(path, 2, np.array([0, 10, 40]), "edges", [5, 6])
    with open_graph(path) as opened:
        assert not opened.directed and not opened.proved_undirected()
