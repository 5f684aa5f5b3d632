"""OGB's datasets, in its own files, against what its loader makes of them (written again here, after its text)."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
from command import mgg

from mgg_hpc.data.assembly import build_graph
from mgg_hpc.data.readers.ogb import open_ogb
from mgg_hpc.data.store import open_graph

from ..graphs import refused
from .ogb_files import Dataset, drawn, write
from .streamed import check_marks, edges_of, rows_of

FORMS = {"text": False, "binary": True}


def everything(pieces) -> np.ndarray:
    return np.concatenate(list(pieces()))


def dataset(rng, *, tasks: int = 1, edge_feat: bool = False) -> Dataset:
    made = drawn(60, 200, 5, 4, unlabelled=tasks == 1, seed=int(rng.integers(2**32)))
    if tasks > 1:
        y = rng.integers(2, size=(60, tasks))
        made.y = lambda: [y[:7], y[7:]]
    if edge_feat:
        values = rng.normal(size=(200, 3)).astype(np.float32)
        made.edge_feat = lambda: [values[:50], values[50:]]
    return made


def check(imported, made: Dataset, folder: str) -> None:
    """Edges, their data, features, labels and masks are those of OGB's loader."""
    edges, names = everything(made.edges).T, ("train", "valid", "test")
    if folder in ("ogbn_products", "ogbn_proteins"):  # read_csv_graph_raw's add_inverse_edge
        edges = np.repeat(edges, 2, axis=1)
        edges[0, 1::2], edges[1, 1::2] = edges[1, 0::2].copy(), edges[0, 0::2].copy()
    found, rows = edges_of(imported), rows_of(imported)
    np.testing.assert_array_equal([found.sources, found.destinations], edges)
    if made.edge_feat is not None:
        values = everything(made.edge_feat)
        repeats = len(found.sources) // len(values)
        np.testing.assert_array_equal(found.data["feat"], np.repeat(values, repeats, axis=0))
    np.testing.assert_array_equal(rows["node/x"], everything(made.x))
    y = everything(made.y)
    if y.shape[1] == 1:
        y = np.nan_to_num(y[:, 0].astype(float), nan=-1)
    np.testing.assert_array_equal(rows["node/y"], y)
    assert (imported.multilabel, imported.classes) == (
        y.ndim == 2,
        y.shape[1] if y.ndim == 2 else y.max() + 1,
    )
    for name, path in zip(names, ("node/train", "node/val", "node/test"), strict=True):
        np.testing.assert_array_equal(np.flatnonzero(rows[path]), np.sort(made.split[name]))


@pytest.mark.filterwarnings("ignore:.*left out")
@pytest.mark.parametrize("folder", ["ogbn_arxiv", "ogbn_products", "ogbn_proteins"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("edge_feat", [False, True])
def test_datasets_are_what_the_loader_of_ogb_gives(rng, tmp_path, blocks, form, folder, edge_feat):
    if FORMS[form] and folder != "ogbn_arxiv":
        folder = "ogbn_papers100M"
    made = dataset(rng, tasks=3 if folder == "ogbn_proteins" else 1, edge_feat=edge_feat)
    write(tmp_path / folder, made, binary=FORMS[form])
    imported = open_ogb(tmp_path / folder)
    check(imported, made, folder)
    check_marks(imported)
    half = open_ogb(tmp_path / folder, dtype="float16")
    # The digits of a text are rounded once, from what they say: not from float32, which they are the shortest for.
    x = everything(made.x) if FORMS[form] else everything(made.x).astype(str).astype(float)
    np.testing.assert_array_equal(rows_of(half)["node/x"], x.astype(np.float16))


@pytest.mark.parametrize("form", FORMS)
def test_a_dataset_becomes_a_graph_file(rng, tmp_path, monkeypatch, form):
    monkeypatch.chdir(tmp_path)
    made = dataset(rng, edge_feat=True)
    write(tmp_path / "ogbn_some", made, binary=FORMS[form])
    with pytest.warns(UserWarning, match="left out, since no graph file has it: node_year"):
        held = build_graph(open_ogb(tmp_path / "ogbn_some"), tmp_path / "g.h5", memory=1 << 30)
    assert (held.name, held.nodes, held.edges, held.features, held.edge_data) == (
        "ogbn_some",
        60,
        200,
        5,
        ("feat",),
    )
    assert mgg("verify", "g.h5") == 0
    with open_graph("g.h5") as opened:
        part = opened.slice(0, 60)
    edges, values = everything(made.edges), everything(made.edge_feat)
    order = np.lexsort((np.arange(200), edges[:, 0], edges[:, 1]))
    np.testing.assert_array_equal(part.indices, edges[order, 0])
    np.testing.assert_array_equal(part.edge["feat"], values[order])


def _put(path, text: str) -> None:
    with gzip.open(path, "wt") as file:
        file.write(text)


WRONG = {
    "no number of nodes": (lambda raw: (raw / "num-node-list.csv.gz").unlink(), "num-node-list.csv.gz is missing"),
    "two graphs": (lambda raw: _put(raw / "num-node-list.csv.gz", "30\n30\n"), "list.csv.gz has several numbers"),
    "fewer nodes": (lambda raw: _put(raw / "num-node-list.csv.gz", "50\n"), "has more rows; expected 50"),
    "many nodes": (lambda raw: _put(raw / "num-node-list.csv.gz", "9" * 15), r"num-node-list\.csv\.gz.* GiB of memory"),
    "fewer edges": (lambda raw: _put(raw / "num-edge-list.csv.gz", "199"), r"has more edges; expected 199"),
    "more edges": (lambda raw: _put(raw / "num-edge-list.csv.gz", "201"), r"edge\.csv\.gz has 200 edges; expected 201"),
    "no edges": (lambda raw: (raw / "edge.csv.gz").unlink(), r"edge\.csv\.gz cannot be read: No such file"),
    "an id": (lambda raw: _put(raw / "edge.csv.gz", "0,1\n" * 100 + "60,1\n"), r"edge\.csv\.gz:101: the node id 60"),
    "no number": (
        lambda raw: _put(raw / "node-feat.csv.gz", "1,2,3,4,5\n" * 30 + "1,2,x,4,5\n"),
        r"node-feat\.csv\.gz:31: 'x' in column 2 is not a number",
    ),
    "nothing": (
        lambda raw: _put(raw / "node-feat.csv.gz", "1,2,3,4,5\n" * 30 + "1,2,,4,5\n" + "1,2,3,4,5\n" * 29),
        r"node-feat\.csv\.gz has nan at row 30, column 2; expected finite",
    ),
    "columns": (
        lambda raw: _put(raw / "node-feat.csv.gz", "1,2\n" * 30 + "1,2,3\n"),
        r"node-feat\.csv\.gz:31: 3 columns; expected 2",
    ),
    "a label": (
        lambda raw: _put(raw / "node-label.csv.gz", "1\n" * 59 + "1.5\n"),
        r"node-label\.csv\.gz has the label 1\.5 at row 59; expected a class",
    ),
    "several types": (lambda raw: _put(raw / "num-node-dict.csv.gz", "a,b\n1,2\n"), "raw has nodes of several types"),
    "a node of a split": (
        lambda raw: _put(raw.parent / "split/time/valid.csv.gz", "0\n60\n"),
        r"valid\.csv\.gz has 60\.0 at row 1; expected node numbers, 0 \.\. 59",
    ),
    "no split": (lambda raw: (raw.parent / "split/time/test.csv.gz").unlink(), r"test\.csv\.gz is missing"),
    "two splits": (lambda raw: (raw.parent / "split/other").mkdir(), "split has several splits: other, time"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*left out")
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(rng, tmp_path, name):
    change, reason = WRONG[name]
    change(write(tmp_path / "ogbn_some", dataset(rng)) / "raw")
    with refused(reason):
        imported = open_ogb(tmp_path / "ogbn_some")
        edges_of(imported)
        rows_of(imported)


def test_folders_that_are_no_datasets(tmp_path):
    with refused("has no folder raw; expected a dataset of OGB"):
        open_ogb(tmp_path)


def test_an_import_says_what_it_leaves_out(rng, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "ogbn_some", dataset(rng))
    assert mgg("import", "ogbn_some", "--feature-type", "float16", "-o", "g.h5") == 0
    told = capsys.readouterr()
    assert told.out == "g.h5: ogbn_some, 60 nodes, 200 edges, 5 features, 4 classes\n"
    assert told.err == "ogbn_some/raw: left out, since no graph file has it: node_year.csv.gz\n"
