"""Exported files, against NumPy and SciPy; and their import, against the file that they came from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import scipy.io
from command import mgg, refused

from mgg_hpc.data import export, row_files, schema
from mgg_hpc.data.export import in_imported_order
from mgg_hpc.data.graph import Graph
from mgg_hpc.data.store import open_graph
from mgg_hpc.data.writer import write

from .graphs import random_graph, rows_of_edges, same, write_with

MEMORY = 512 << 20


pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """All datasets have several."""
    monkeypatch.setattr(export, "LINES", 37)
    monkeypatch.setattr(export, "PIECE", 100)


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


def same_datasets(found: str, original: str, *, without: str = "/") -> None:
    """Check that one graph file has all datasets of another but those below a path."""
    with open_graph(found) as one, open_graph(original) as other:
        for name in other.contents.datasets:
            assert name.startswith(without) or same(one.stored(name), other.stored(name)), name
        if without == "/":
            assert one.contents.datasets.keys() == other.contents.datasets.keys()


def test_an_archive_is_numpys_and_gives_the_same_file_again(graph):
    write("g.h5", graph)
    assert mgg("export", "g.h5", "-o", "out.npz") == 0
    with np.load("out.npz") as found:
        np.testing.assert_array_equal(found["indices"], graph.indices)
        np.testing.assert_array_equal(found["edge/flow"], graph.edge["flow"])
        np.testing.assert_array_equal(found["val_mask"], graph.val)
        np.testing.assert_array_equal(found["y"], graph.y)
        assert bool(found["graph/directed"]) == graph.directed
    assert mgg("import", "out.npz", "-o", "again.h5") == 0
    assert Path("again.h5").read_bytes() == Path("g.h5").read_bytes()


@pytest.mark.parametrize("ending", ["npz", "mtx"])
def test_rows_that_were_renumbered_are_exported_as_they_were_imported(graph, ending, capsys):
    write("g.h5", graph)
    assert mgg("export", "g.h5", "-o", f"out.{ending}") == 0
    assert mgg("partition", "g.h5", "-n", "2", "--order", "degree") == 0
    assert mgg("export", "g.h5", "-o", f"moved.{ending}") == 0
    assert "left out: the ranges of ranks" in capsys.readouterr().out
    assert Path(f"moved.{ending}").read_bytes() == Path(f"out.{ending}").read_bytes()
    assert not list(Path().glob(".mgg_export_*"))


@pytest.mark.parametrize("kind", ["id", "name"])
def test_names_of_nodes_go_with_an_archive(rng, kind):
    """Here of a graph that has nothing else."""
    drawn = random_graph(rng)
    graph = Graph("g", drawn.indptr, drawn.indices)
    text = [f"näme {i}".encode() * (i % 3) for i in range(graph.nodes)]
    more = {
        "id": {schema.NODE_ID: rng.permutation(10**12 + np.arange(graph.nodes))},
        "name": {
            schema.NAME_OFFSETS: np.cumsum([0, *map(len, text)]),
            schema.NAME_TEXT: np.frombuffer(b"".join(text), np.uint8),
        },
    }[kind]
    write_with(Path("g.h5"), graph, more)
    assert mgg("export", "g.h5", "-o", "out.npz") == 0
    with np.load("out.npz") as found:
        for path, array in more.items():
            np.testing.assert_array_equal(found[path], array)
    assert mgg("import", "out.npz", "-o", "again.h5") == 0
    same_datasets("again.h5", "g.h5")


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
    np.testing.assert_array_equal(
        in_order(found.row, found.col, found.data.astype(np.float32)),
        in_order(graph.indices, rows_of_edges(graph.indptr), weight),  # an entry (i, j) is the edge i -> j
    )
    again = next(line for line in printed if line.startswith("to read it again: mgg "))
    assert mgg(*again.removeprefix("to read it again: mgg ").split()[:-1], "again.h5") == 0
    same_datasets("again.h5", "g.h5", without=schema.EDGE)


def test_refusals(rng, capsys):
    write("g.h5", random_graph(rng, permuted=True))
    assert "does not tell a format" in refused(capsys, "export", "g.h5", "-o", "out.csv")
    Path("out.x.npy").touch()
    assert "out.x.npy exists" in refused(capsys, "export", "g.h5", "-o", "out.mtx")
    with in_imported_order("g.h5", memory=MEMORY) as opened:
        assert schema.PERMUTATION not in opened.contents.datasets


@pytest.mark.parametrize("block", [1, 3, 1 << 16])
@pytest.mark.parametrize("ending", ["h5", "npy"])
def test_rows_of_all_ranks_are_sent_in_blocks(rng, monkeypatch, ending, block):
    """Rank 0 receives what the others, which run before it, have sent."""
    monkeypatch.setattr(row_files, "BLOCK", block)
    bounds, ids = np.array([0, 4, 4, 11, 17]), rng.permutation(17)
    x, words = rng.standard_normal((17, 2)), np.array([f"w{i}".encode() for i in range(17)], "S4")
    sent, output = [[] for _ in range(4)], Path(f"out.{ending}")
    for rank in (1, 2, 3, 0):
        mine = slice(int(bounds[rank]), int(bounds[rank + 1]))
        comm = SimpleNamespace(
            rank=rank,
            size=4,
            Send=lambda array, _, rank=rank: sent[rank].append(array.copy()),
            Recv=lambda array, source: np.copyto(array, sent[source].pop(0)),
        )
        row_files.write(comm, output, ids[mine], {"x": x[mine], "name": words[mine]}, bounds, {})
    if ending == "npy":
        found = {name: np.load(path) for name, path in row_files.paths(output, ["x", "name"]).items()}
    else:
        with h5py.File(output) as file:
            found = {name: file[name][:] for name in ("x", "name")}
    np.testing.assert_array_equal(found["x"][ids], x)
    np.testing.assert_array_equal(found["name"][ids].astype("S4"), words)
