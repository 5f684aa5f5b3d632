"""Exported files, against NumPy, SciPy and PyG; and their import, against the file that they came from."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType, SimpleNamespace

import h5py
import networkx as nx
import numpy as np
import pytest
import scipy.io
import torch
from command import mgg, refused

from mgg_hpc.data import libraries, schema
from mgg_hpc.data.assembly import build_graph
from mgg_hpc.data.export import imported, matrix_market, row_files
from mgg_hpc.data.export.imported import in_imported_order, whole
from mgg_hpc.data.readers.npz import open_npz
from mgg_hpc.data.store import open_graph
from mgg_hpc.data.writer import write
from mgg_hpc.errors import InputError

from ..graphs import random_graph, same

MEMORY = 512 << 20


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path, monkeypatch):
    """Pieces are so small that all datasets have several."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(matrix_market, "LINES", 37)
    monkeypatch.setattr(imported, "PIECE", 100)


@pytest.fixture(
    params=[
        {},
        {"sparse": True, "weighted": True, "symmetric": False},
        {"multilabel": True, "half": True},
        {"symmetric": False},
    ],
    ids=str,
)
def graph(request, rng):
    """A graph whose name is not that of its file, with data of edges."""
    drawn = random_graph(rng, **request.param)
    edge = {
        "flow": rng.normal(size=(drawn.edges, 2)).astype(np.float32),
        "kind": rng.integers(9, size=drawn.edges).astype(np.int16),
    }
    return replace(drawn, name="Größe", edge=edge, classes=drawn.classes + 2 * (drawn.y.ndim == 1))


def contents(path) -> dict[str, np.ndarray]:
    """All datasets of a graph file."""
    with open_graph(path) as opened:
        return {
            name: opened.read(name, 0, layout.shape[0]) for name, layout in opened.contents.datasets.items()
        }


def test_an_archive_gives_the_same_file_again(graph):
    write("g.h5", graph)
    assert mgg("export", "g.h5", "-o", "out.npz") == 0
    assert mgg("import", "out.npz", "-o", "again.h5") == 0
    assert Path("again.h5").read_bytes() == Path("g.h5").read_bytes()


def test_numpy_reads_an_archive(graph):
    write("g.h5", graph)
    assert mgg("export", "g.h5", "-o", "out.npz") == 0
    with np.load("out.npz") as found:
        np.testing.assert_array_equal(found["indices"], graph.indices)
        np.testing.assert_array_equal(found["edge/flow"], graph.edge["flow"])
        np.testing.assert_array_equal(found["val_mask"], graph.val)
        np.testing.assert_array_equal(found["y"], graph.y)
        assert bool(found["graph/directed"]) == graph.directed


@pytest.mark.parametrize("ending", ["npz", "mtx"])
def test_rows_that_were_renumbered_are_exported_as_they_were_imported(graph, ending, capsys):
    write("g.h5", graph)
    assert mgg("export", "g.h5", "-o", f"out.{ending}") == 0
    assert mgg("partition", "g.h5", "-n", "2", "--order", "degree") == 0
    assert mgg("export", "g.h5", "-o", f"moved.{ending}") == 0
    assert "left out: row ranges" in capsys.readouterr().out
    assert Path(f"moved.{ending}").read_bytes() == Path(f"out.{ending}").read_bytes()
    assert not list(Path().glob(".mgg_export_*"))


def test_names_of_nodes_go_with_an_archive(rng):
    graph = random_graph(rng)
    words = [f"näme {i}" * (i % 3) for i in range(graph.nodes)]
    text = np.frombuffer("".join(words).encode(), np.uint8)
    starts = np.cumsum([0, *(len(word.encode()) for word in words)])
    for kind, more in {
        "id": {schema.NODE_ID: rng.permutation(10**12 + np.arange(graph.nodes))},
        "name": {schema.NAME_OFFSETS: starts, schema.NAME_TEXT: text},
    }.items():
        np.savez("in.npz", indptr=graph.indptr, indices=graph.indices, **more)
        build_graph(open_npz(Path("in.npz")), Path(f"{kind}.h5"), memory=MEMORY)
        assert mgg("export", f"{kind}.h5", "-o", "out.npz", "--force") == 0
        with np.load("out.npz") as found:
            for path, array in more.items():
                np.testing.assert_array_equal(found[path], array)
        assert mgg("import", "out.npz", "-o", "again.h5", "--force") == 0
        for path, array in contents(f"{kind}.h5").items():
            assert same(array, contents("again.h5")[path])


def in_order(rows: np.ndarray, columns: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the entries of a matrix as one array [entries, 3], sorted by row, column and value."""
    return np.stack([rows, columns, values], axis=1)[np.lexsort((values, columns, rows))]


def test_scipy_reads_a_matrix_and_its_import_is_the_graph(graph, capsys):
    write("g.h5", graph)
    assert mgg("export", "g.h5", "-o", "out.mtx") == 0
    printed = capsys.readouterr().out.splitlines()
    assert "left out: the data of edges flow, for which .mtx has no place; .npz has" in printed
    found = scipy.io.mmread("out.mtx")
    assert found.shape == (40, 40)
    weight = np.ones(graph.edges, np.float32) if graph.weight is None else graph.weight
    owner = np.repeat(np.arange(40), np.diff(graph.indptr))
    np.testing.assert_array_equal(
        in_order(found.row, found.col, found.data.astype(np.float32)),
        in_order(owner, graph.indices, weight),
    )
    again = next(line for line in printed if line.startswith("to read it again: mgg "))
    assert mgg(*again.removeprefix("to read it again: mgg ").split()[:-1], "again.h5") == 0
    found, original = contents("again.h5"), contents("g.h5")
    for path, array in original.items():
        assert path.startswith(schema.EDGE) or same(found[path], array), path


@pytest.mark.parametrize("to_file", [True, False])
def test_pyg_and_back(graph, to_file):
    write("g.h5", graph)
    assert mgg("partition", "g.h5", "--order", "degree", "-n", "2") == 0
    if to_file:
        assert mgg("export", "g.h5", "-o", "out.pt") == 0
        data = torch.load("out.pt", weights_only=False)
    else:
        data = libraries.to_pyg("g.h5")
    data.validate(raise_on_error=True)
    libraries.save(data, "again.h5", name=graph.name)
    write("plain.h5", replace(graph, classes=0 if graph.y is None else classes_of(graph.y)))
    found, original = contents("again.h5"), contents("plain.h5")
    assert found.keys() == original.keys()
    for path, array in original.items():
        assert same(found[path], array), path


def classes_of(y: np.ndarray) -> int:
    return y.shape[1] if y.ndim == 2 else int(y.max()) + 1


def test_scipy_and_networkx_are_saved(rng):
    graph = random_graph(rng, weighted=True, symmetric=False)
    matrix = libraries.to_scipy(replace(graph, edge={}))
    libraries.save(matrix, "scipy.h5")
    with open_graph("scipy.h5") as opened:
        assert opened.name == "scipy" and same(whole(opened).indices, graph.indices)
        assert same(whole(opened).weight, graph.weight)
    libraries.save(nx.path_graph(5), "path.h5")
    with open_graph("path.h5") as opened:
        assert (opened.nodes, opened.edges, opened.directed) == (5, 8, False)
    with pytest.raises(InputError, match="got dict; expected a Graph"):
        libraries.save({}, "x.h5")
    with pytest.raises(InputError, match=r"path\.h5 exists"):
        libraries.save(nx.path_graph(5), "path.h5")


def test_refusals(rng, capsys):
    write("g.h5", random_graph(rng, permuted=True))
    assert "does not tell a format" in refused(capsys, "export", "g.h5", "-o", "out.csv")
    Path("out.x.npy").touch()
    assert "out.x.npy exists" in refused(capsys, "export", "g.h5", "-o", "out.mtx")
    with in_imported_order("g.h5", memory=MEMORY) as opened:
        assert schema.PERMUTATION not in opened.contents.datasets


class DGL(ModuleType):
    """What to_dgl asks of the module dgl, and from_dgl of a DGLGraph."""

    @staticmethod
    def graph(ends, num_nodes):
        return SimpleNamespace(
            is_homogeneous=True, edges=lambda: ends, num_nodes=lambda: num_nodes, ndata={}, edata={}
        )


def test_dgl_and_back(rng, monkeypatch):
    monkeypatch.setitem(sys.modules, "dgl", DGL("dgl"))
    graph = random_graph(rng, weighted=True, symmetric=False)
    graph = replace(graph, edge={"kind": rng.integers(9, size=graph.edges)}, classes=classes_of(graph.y))
    again = libraries.from_dgl(libraries.to_dgl(graph))
    assert same(again.edge["kind"], graph.edge["kind"])
    for path, array in schema.arrays(graph).items():
        assert same(schema.arrays(again)[path], array), path
    monkeypatch.setitem(sys.modules, "dgl", None)
    with pytest.raises(InputError, match="to_dgl: dgl is not installed"):
        libraries.to_dgl(graph)


class Ranks:
    """Ranks that are threads; what one sends waits for the other."""

    def __init__(self, rank, size, sent):
        self.rank, self.size, self._sent = rank, size, sent

    def Send(self, array, target):  # noqa: N802
        self._sent[self.rank].put(array.copy())

    def Recv(self, array, source):  # noqa: N802
        array[:] = self._sent[source].get(timeout=10)


@pytest.mark.parametrize("block", [1, 3, 1 << 16])
@pytest.mark.parametrize("ending", ["h5", "npy"])
def test_rows_of_all_ranks_are_sent_in_blocks(rng, monkeypatch, ending, block):
    monkeypatch.setattr(row_files, "BLOCK", block)
    bounds, ids = np.array([0, 4, 4, 11, 17]), rng.permutation(17)
    x, words = rng.standard_normal((17, 2)), np.array([f"w{i}".encode() for i in range(17)], "S4")
    sent, output = [SimpleQueue() for _ in range(4)], Path(f"out.{ending}")

    def write_part(rank):
        mine = slice(int(bounds[rank]), int(bounds[rank + 1]))
        arrays = {"x": x[mine], "name": words[mine]}
        row_files.write(Ranks(rank, 4, sent), output, ids[mine], arrays, bounds, {})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write_part, range(4)))
    if ending == "npy":
        found = {name: np.load(path) for name, path in row_files.paths(output, ["x", "name"]).items()}
    else:
        with h5py.File(output) as file:
            found = {name: file[name][:] for name in ("x", "name")}
    np.testing.assert_array_equal(found["x"][ids], x)
    np.testing.assert_array_equal(found["name"][ids].astype("S4"), words)
