"""`predict` over ranks: a forward pass by hand, chosen layers and arrays, other graphs, and what is refused."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import reference
import safetensors.numpy
from jobs import blocks, dense_features, files, renumbered, with_sparse_features, write_job
from pyarrow import parquet
from runs import GRAPHS
from scipy.special import expit, softmax
from torture.launched import metrics

from mgg_hpc.__main__ import main
from mgg_hpc.data import schema, writer
from mgg_hpc.data.graph import Graph
from mgg_hpc.data.store import open_graph

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

LAYERS = 3


@pytest.fixture
def predict(folder, mgg) -> Callable[..., str]:
    """Predict with the latest run into a file of the folder; returns what the first rank printed."""

    def predict(output: str, *options: object) -> str:
        outcome = mgg("predict", folder / "runs", "-o", folder / output, *options)
        assert outcome.codes == {0}, outcome
        return outcome.out[0]

    return predict


@pytest.fixture
def refused(folder, mgg) -> Callable[..., str]:
    """The line with which that is refused, which leaves every file as it was."""

    def refused(output: str, *options: object) -> str:
        before = files(folder)
        line = mgg("predict", folder / "runs", "-o", folder / output, *options).refused()
        assert files(folder) == before
        return line

    return refused


@pytest.fixture
def trained(folder, first, mgg) -> Callable[..., Path]:
    """The folder of runs of a GCN on a graph."""

    def trained(graph: Graph, layers: int = LAYERS, **train: object) -> Path:
        train = {"epochs": 8, "dtype": "float64", "learning_rate": 0.05} | train
        first(lambda: write_job(folder, graph, train=train, model={"hidden": 8, "layers": layers}))
        assert mgg("train", folder / "job.toml").codes == {0}
        return folder / "runs"

    return trained


def by_hand(graph: Graph, runs: Path) -> list[np.ndarray]:
    """Every layer's output from the saved weights: float64, from the formulas."""
    w = safetensors.numpy.load_file(runs / "001" / "checkpoints" / "model.safetensors")
    edges, outputs = reference.edge_list(graph.indptr, graph.indices), [dense_features(graph)]
    layers = len(w) // 2
    for i in range(layers):
        weight, bias = w[f"convs.{i}.lin.weight"], w[f"convs.{i}.bias"]
        out = reference.gcn_layer(*edges, outputs[-1], weight, bias, graph.weight)
        outputs.append(out if i == layers - 1 else np.maximum(out, 0))
    return outputs[1:]


def arrays_in(path: Path) -> dict[str, np.ndarray]:
    found = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: found.update({name: item[:]}) if hasattr(item, "shape") else None)
    return found


def close(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-11 * np.abs(wanted).max())


@pytest.mark.sampled(0)
@pytest.mark.parametrize("order", ["as it is", "renumbered"])
@pytest.mark.parametrize("kind", GRAPHS)
def test_predictions_equal_a_forward_pass_by_hand(trained, folder, predict, kind, order):
    """In the user's numbering, whatever the order of rows in the file."""
    graph = GRAPHS[kind]()
    rows = np.random.default_rng(4).permutation(graph.nodes)
    runs = trained(renumbered(graph, rows) if order == "renumbered" else graph, 2, epochs=30)
    assert str(folder / "out.h5") in predict("out.h5")
    hidden, logits = by_hand(graph, runs)
    found = arrays_in(folder / "out.h5")
    with h5py.File(folder / "out.h5") as file:
        facts = dict(file.attrs)
    assert found["class"].dtype == np.int64
    close(found["embedding"], hidden)
    close(found["probability"], softmax(logits, axis=1))
    np.testing.assert_array_equal(found["class"], logits.argmax(axis=1))
    assert (facts["format"], facts["version"], facts["run"]) == ("mgg-prediction", 1, "001")
    summary = json.loads((runs / "001" / "summary.json").read_text())
    right = (found["class"] == graph.y)[graph.test].mean()
    assert summary["test_accuracy"] == pytest.approx(right, rel=1e-12)
    assert facts["graph_uuid"] == summary["graph"]["uuid"]
    assert {path.name for path in folder.iterdir()} == {"g.h5", "job.toml", "out.h5", "runs"}


@pytest.mark.sampled(0)
@pytest.mark.parametrize("method", ["degree", "rcm", "community"])
@pytest.mark.parametrize("kind", GRAPHS)
def test_losses_and_predictions_do_not_depend_on_the_order_of_the_file(
    comm, trained, folder, first, mgg, predict, kind, method
):
    runs = trained(GRAPHS[kind](), 2, epochs=20, select="last")
    predict("imported.h5")
    order = ["-n", str(comm.size), "--order", method]
    for computed in (True, False):
        if not computed:
            first(lambda: main(["partition", str(folder / "g.h5"), *order]))
        done = mgg("train", folder / "job.toml", *(["--dry-run"] if computed else []))
        assert done.codes == {0}
        assert ("edge-balanced bounds were computed" in done.out[0]) == (computed and comm.size > 1)
    predict("moved.h5")
    imported, moved = ([float(line[1]) for line in metrics(runs / name)] for name in ("001", "002"))
    assert len(set(imported)) == 20  # it learns, and dropout is on
    np.testing.assert_allclose(moved, imported, rtol=1e-7)
    imported, moved = (arrays_in(folder / name) for name in ("imported.h5", "moved.h5"))
    for name, values in imported.items():
        np.testing.assert_allclose(moved[name], values, rtol=1e-6, atol=1e-8)


def test_layers_that_are_asked_for_have_their_numbers_and_npy_files_hold_the_same(
    trained, folder, predict, refused
):
    graph = blocks()
    outputs = by_hand(graph, trained(renumbered(graph, np.random.default_rng(4).permutation(graph.nodes))))
    for asked, numbers in ((["all"], [1, 2, 3]), (["3", "1", "3"], [1, 3])):
        told = predict("out.h5", "--force", *(f"--layer={each}" for each in asked))
        found = arrays_in(folder / "out.h5")
        assert set(found) == {"class", "probability", *(f"embedding/{number}" for number in numbers)}
        for number in numbers:
            close(found[f"embedding/{number}"], outputs[number - 1])
            assert f"out.h5: embedding/{number} {list(outputs[number - 1].shape)}\n" in told
        close(found["probability"], softmax(outputs[-1], axis=1))
    before = set(files(folder))
    predict("one.npy", "--what=embedding")
    predict("more.npy", "--what=embedding, class", "--layer=1")
    predict("table.csv", "--layer=1")
    table = np.genfromtxt(folder / "table.csv", delimiter=",", names=True)
    columns = [f"probability_{number}" for number in range(outputs[-1].shape[1])]
    close(np.stack([table[name] for name in columns], 1), softmax(outputs[-1], axis=1))
    close(np.stack([table[f"embedding1_{number}"] for number in range(8)], 1), outputs[0])
    assert table["id"].tolist() == list(range(150))
    made = {path.name for path in set(files(folder)) - before}
    assert made == {"one.npy", "more.class.npy", "more.embedding.1.npy", "table.csv"}
    close(np.load(folder / "one.npy"), outputs[1])
    close(np.load(folder / "more.embedding.1.npy"), outputs[0])
    np.testing.assert_array_equal(np.load(folder / "more.class.npy"), outputs[-1].argmax(1))
    assert "more.class.npy exists" in refused("more.npy", "--what=class,probability")


def give_names(path: Path, words: list[str | int]) -> None:
    """Write a graph file anew with the names of its nodes; words: of the nodes as they were imported."""
    with open_graph(path) as opened:
        chosen = [words[node] for node in opened.slice(0, opened.nodes).ids]
        if isinstance(words[0], int):
            more = {schema.NODE_ID: np.array(chosen)}
        else:
            text = [word.encode() for word in chosen]
            offsets = np.cumsum([0, *map(len, text)])
            more = {schema.NAME_OFFSETS: offsets, schema.NAME_TEXT: np.frombuffer(b"".join(text), np.uint8)}
        layouts = {name: schema.Layout(array.dtype, array.shape) for name, array in more.items()}
        held = dataclasses.replace(opened.contents, datasets=opened.contents.datasets | layouts)
        with writer.graph_file(path, held, force=True, order=opened.order) as file:
            for name, layout in opened.contents.datasets.items():
                file.put(name, [opened.read(name, 0, layout.shape[0])])
            for name, array in more.items():
                file.put(name, [array])


@pytest.mark.sampled(0)
@pytest.mark.parametrize("kind", ["name", "id"])
def test_names_of_nodes_go_with_their_predictions(trained, folder, first, predict, refused, kind):
    graph = blocks()
    trained(renumbered(graph, np.random.default_rng(4).permutation(graph.nodes)), 2)
    words = [f"knoten, {'ö' * (node % 7)}{node} " if kind == "name" else 7 * node - 3 for node in range(150)]
    first(lambda: give_names(folder / "g.h5", words))
    options = ("--graph", folder / "g.h5", "--what=class")
    predict("out.h5", *options)
    before = set(files(folder))
    told = predict("out.npy", *options)
    assert {path.name for path in set(files(folder)) - before} == {"out.npy", f"out.{kind}.npy"}
    assert f"out.{kind}.npy: {kind} [{graph.nodes}]" in told
    with h5py.File(folder / "out.h5") as file:
        found = file[kind].asstr()[:] if kind == "name" else file[kind][:]
        np.testing.assert_array_equal(file["class"][:], np.load(folder / "out.npy"))
    assert found.tolist() == words
    beside = np.load(folder / f"out.{kind}.npy").tolist()
    assert [each.decode() if kind == "name" else each for each in beside] == words
    with h5py.File(folder / "out.h5") as file:
        classes = file["class"][:].tolist()
    predict("out.csv", *options)
    with (folder / "out.csv").open(encoding="utf-8", newline="") as file:
        rows = [["id", "class"], *zip(map(str, words), map(str, classes), strict=True)]
        assert list(map(list, csv.reader(file))) == list(map(list, rows))
    predict("out.parquet", *options)
    table = parquet.read_table(folder / "out.parquet")
    assert table.to_pydict() == {"id": words, "class": classes}
    first((folder / "out.npy").unlink)
    assert f"out.{kind}.npy exists" in refused("out.npy", *options)


@pytest.mark.sampled(0)
@pytest.mark.parametrize("sparse", [False, True])
def test_another_graph_with_the_same_features(trained, folder, first, predict, sparse):
    """The other graph has another size and neither labels nor splits; the run had dense features."""
    runs = trained(blocks())
    other = blocks(90, seed=8)
    other = with_sparse_features(other) if sparse else other
    other = dataclasses.replace(other, y=None, classes=0, train=None, val=None, test=None)
    first(lambda: writer.write(folder / "other.h5", other))
    predict("out.h5", "--graph", folder / "other.h5")
    outputs, found = by_hand(other, runs), arrays_in(folder / "out.h5")
    close(found["embedding"], outputs[1])
    close(found["probability"], softmax(outputs[2], axis=1))
    np.testing.assert_array_equal(found["class"], outputs[2].argmax(1))


def test_of_several_labels_a_node_each_is_predicted_by_itself(trained, folder, predict, rng):
    graph = blocks()
    y = np.eye(4, dtype=np.float32)[graph.y]
    y[:, 0] = rng.random(len(y)) < 0.4
    graph = dataclasses.replace(graph, y=y)
    runs = trained(graph)
    predict("out.h5")
    logits, found = by_hand(graph, runs)[-1], arrays_in(folder / "out.h5")
    close(found["probability"], expit(logits))
    assert found["class"].dtype == np.uint8
    np.testing.assert_array_equal(found["class"], logits > 0)


REFUSED = [  # output, options, message; FOLDER is the test's
    ("out.h5", "--layer=4", "--layer 4: the model has layers 1 to 3; name one of them, or all"),
    ("out.h5", "--layer=0", "--layer 0: the model has layers 1 to 3"),
    ("out.h5", "--layer=last", "--layer last: the model has layers 1 to 3"),
    ("out.h5", "--what=class,logits", "--what: 'logits' is none of class, probability, embedding"),
    ("out.h5", "--layer=1 --what=class", "--layer names embeddings, and --what leaves"),
    ("out.h5", "--graph=FOLDER/wide.h5", "wide.h5: has 13 features a node, but 001 was trained on 12"),
    ("out.h5", "--graph=FOLDER/bare.h5", "bare.h5: has 0 features a node, but 001 was trained on 12"),
    ("wide.h5", "", "wide.h5 exists; "),
    ("absent/out.h5", "--force", "is not a folder"),
    ("g.h5/out.h5", "--force", "is not a folder"),
    ("runs", "--force", "runs: its name must end in one of .h5, .hdf5, .npy, .csv, .parquet"),
    ("out.txt", "", "out.txt: its name must end in one of"),
]


def test_what_cannot_be_predicted_or_written_is_refused_in_one_line(trained, folder, first, predict, refused):
    assert "holds no run (job.toml is missing)" in refused("out.h5")
    runs = trained(blocks())
    first(lambda: writer.write(folder / "wide.h5", blocks(features=13)))
    first(lambda: writer.write(folder / "bare.h5", dataclasses.replace(blocks(), x=None)))
    for output, options, message in REFUSED:
        assert message in refused(output, *options.replace("FOLDER", str(folder)).split())
    predict("wide.h5", "--force")
    assert len(arrays_in(folder / "wide.h5")["class"]) == 150
    first((runs / "001" / "checkpoints" / "model.safetensors").unlink)
    assert "no weights; the run did not finish" in refused("out.h5")


def test_a_model_of_one_layer_has_no_hidden_one(trained, folder, predict, refused):
    trained(blocks(), 1, epochs=1)
    predict("out.h5")
    assert set(arrays_in(folder / "out.h5")) == {"class", "probability"}
    line = refused("e.npy", "--what=embedding")
    assert "--what: a model of one layer has no hidden one; ask for --layer 1" in line


def test_a_run_that_ended_early_predicts_with_the_weights_that_it_kept(folder, first, mgg, predict):
    first(lambda: write_job(folder, blocks(), model={"layers": 8}, train={"learning_rate": 1e6}))
    assert mgg("train", folder / "job.toml").refused().endswith("; the weights of epoch 1 are kept")
    predict("out.h5", "--what=embedding", "--layer=1")
    assert np.isfinite(arrays_in(folder / "out.h5")["embedding/1"]).all()
