"""What `predict` writes beside its defaults: chosen layers and arrays, .npy, other graphs, several labels a node."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import safetensors.numpy
from jobs import blocks, dense_features, files, renumbered, with_sparse_features, write_job

from mgg_hpc import reference
from mgg_hpc.__main__ import main
from mgg_hpc.data import store
from mgg_hpc.data.graph import Graph

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

LAYERS = 3


@pytest.fixture
def folder(comm, tmp_path_factory) -> Path:
    """A new folder that all ranks see; the ranks leave it together."""
    yield Path(comm.bcast(str(tmp_path_factory.mktemp("predict")) if comm.rank == 0 else None))
    comm.Barrier()


@pytest.fixture
def mgg(comm, capsys) -> Callable[..., tuple[int, str]]:
    """Run a command on all ranks; its exit code, and what rank 0 wrote to stderr, or to stdout."""

    def mgg(*arguments: object) -> tuple[int, str]:
        comm.Barrier()
        capsys.readouterr()
        (code,) = set(comm.allgather(main([str(argument) for argument in arguments])))
        out, err = capsys.readouterr()
        assert comm.rank == 0 or err == ""
        return code, comm.bcast(err or out)

    return mgg


@pytest.fixture
def trained(comm, folder, mgg) -> Callable[[Graph], Path]:
    """The folder of runs of a GCN of three layers on a graph."""

    def trained(graph: Graph) -> Path:
        if comm.rank == 0:
            train = {"epochs": 8, "dtype": "float64", "learning_rate": 0.05}
            write_job(folder, graph, train=train, model={"hidden": 8, "layers": LAYERS})
        assert mgg("train", folder / "job.toml")[0] == 0
        return folder / "runs"

    return trained


def by_hand(graph: Graph, runs: Path) -> list[np.ndarray]:
    """Every layer's output from the saved weights: float64, from the formulas."""
    w = safetensors.numpy.load_file(runs / "001" / "checkpoints" / "model.safetensors")
    edges, outputs = reference.edge_list(graph.indptr, graph.indices), [dense_features(graph)]
    for i in range(LAYERS):
        weight, bias = w[f"convs.{i}.lin.weight"], w[f"convs.{i}.bias"]
        out = reference.gcn_layer(*edges, outputs[-1], weight, bias, graph.weight)
        outputs.append(out if i == LAYERS - 1 else np.maximum(out, 0))
    return outputs[1:]


def softmax(logits: np.ndarray) -> np.ndarray:
    chance = np.exp(logits - logits.max(axis=1, keepdims=True))
    return chance / chance.sum(axis=1, keepdims=True)


def arrays_in(path: Path) -> dict[str, np.ndarray]:
    found = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: found.update({name: item[:]}) if hasattr(item, "shape") else None)
    return found


def close(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-11 * np.abs(wanted).max())


def test_layers_that_are_asked_for_have_their_numbers(trained, folder, mgg):
    graph = blocks()
    runs = trained(graph)
    outputs = by_hand(graph, runs)
    for asked, numbers in ((["all"], [1, 2, 3]), (["3", "1", "3"], [1, 3])):
        options = [f"--layer={each}" for each in asked]
        code, told = mgg("predict", runs, "-o", folder / "out.h5", "--force", *options)
        assert code == 0
        found = arrays_in(folder / "out.h5")
        assert set(found) == {"class", "probability", *(f"embedding/{number}" for number in numbers)}
        for number in numbers:
            close(found[f"embedding/{number}"], outputs[number - 1])
            assert f"out.h5: embedding/{number} {list(outputs[number - 1].shape)}\n" in told
        close(found["probability"], softmax(outputs[-1]))


def test_npy_files_hold_what_the_hdf5_file_holds(trained, folder, mgg):
    graph = blocks()
    runs = trained(renumbered(graph, np.random.default_rng(4).permutation(graph.nodes)))
    outputs = by_hand(graph, runs)
    before = set(files(folder))
    assert mgg("predict", runs, "-o", folder / "one.npy", "--what=embedding")[0] == 0
    assert mgg("predict", runs, "-o", folder / "more.npy", "--what=embedding, class", "--layer=1")[0] == 0
    assert set(files(folder)) - before == {
        folder / name for name in ("one.npy", "more.class.npy", "more.embedding.1.npy")
    }
    close(np.load(folder / "one.npy"), outputs[1])
    close(np.load(folder / "more.embedding.1.npy"), outputs[0])
    np.testing.assert_array_equal(np.load(folder / "more.class.npy"), outputs[-1].argmax(1))
    code, told = mgg("predict", runs, "-o", folder / "more.npy", "--what=class,probability")
    assert code == 2 and "more.class.npy exists" in told
    assert not (folder / "more.probability.npy").exists()


@pytest.mark.sampled(0)
@pytest.mark.parametrize("sparse", [False, True])
def test_another_graph_with_the_same_features(comm, trained, folder, mgg, sparse):
    """Of another size, without labels or splits, from a run on dense features."""
    runs = trained(blocks())
    other = blocks(90, seed=8)
    other = with_sparse_features(other) if sparse else other
    other = dataclasses.replace(other, y=None, classes=0, train=None, val=None, test=None)
    if comm.rank == 0:
        store.write(folder / "other.h5", other)
    assert mgg("predict", runs, "-o", folder / "out.h5", "--graph", folder / "other.h5")[0] == 0
    outputs, found = by_hand(other, runs), arrays_in(folder / "out.h5")
    close(found["embedding"], outputs[1])
    close(found["probability"], softmax(outputs[2]))
    np.testing.assert_array_equal(found["class"], outputs[2].argmax(1))


def test_of_several_labels_a_node_each_is_predicted_by_itself(trained, folder, mgg, rng):
    graph = blocks()
    y = np.eye(4, dtype=np.float32)[graph.y]
    y[:, 0] = rng.random(len(y)) < 0.4
    graph = dataclasses.replace(graph, y=y)
    runs = trained(graph)
    assert mgg("predict", runs, "-o", folder / "out.h5")[0] == 0
    logits, found = by_hand(graph, runs)[-1], arrays_in(folder / "out.h5")
    close(found["probability"], 1 / (1 + np.exp(-logits)))
    assert found["class"].dtype == np.uint8
    np.testing.assert_array_equal(found["class"], logits > 0)


REFUSED = {
    "a layer beyond the last": (
        ["--layer=4"],
        "--layer 4: the model has layers 1 to 3; name one of them, or all",
    ),
    "layer 0": (["--layer=0"], "--layer 0: the model has layers 1 to 3"),
    "no number": (["--layer=last"], "--layer last: the model has layers 1 to 3"),
    "an unknown array": (
        ["--what=class,logits"],
        "--what: 'logits' is none of class, probability, embedding",
    ),
    "a layer without embeddings": (
        ["--layer=1", "--what=class"],
        "--layer names embeddings, and --what leaves",
    ),
    "another width": (
        ["--graph=wide.h5"],
        "wide.h5: has 13 features a node, but 001 was trained on 12; predict on a graph with the same features",
    ),
    "no features": (["--graph=bare.h5"], "bare.h5: has 0 features a node, but 001 was trained on 12"),
}


def test_what_cannot_be_predicted_is_refused_in_one_line(comm, trained, folder, mgg):
    runs = trained(blocks())
    if comm.rank == 0:
        store.write(folder / "wide.h5", blocks(features=13))
        store.write(folder / "bare.h5", dataclasses.replace(blocks(), x=None))
    comm.Barrier()
    before = set(files(folder))
    for asked, message in REFUSED.values():
        options = [each.replace("--graph=", f"--graph={folder}/") for each in asked]
        code, told = mgg("predict", runs, "-o", folder / "out.h5", *options)
        assert code == 2
        assert told.startswith("mgg: error: ") and told.count("\n") == 1
        assert message in told
    assert set(files(folder)) == before


def test_a_model_of_one_layer_has_no_hidden_one(comm, folder, mgg):
    if comm.rank == 0:
        write_job(folder, blocks(), model={"layers": 1}, train={"epochs": 1})
    assert mgg("train", folder / "job.toml")[0] == 0
    assert mgg("predict", folder / "runs", "-o", folder / "out.h5")[0] == 0
    assert set(arrays_in(folder / "out.h5")) == {"class", "probability"}
    code, told = mgg("predict", folder / "runs", "-o", folder / "e.npy", "--what=embedding")
    assert code == 2 and "--what: a model of one layer has no hidden one; ask for --layer 1" in told


def test_a_run_that_ended_early_predicts_with_the_weights_that_it_kept(comm, folder, mgg):
    if comm.rank == 0:
        write_job(folder, blocks(), model={"layers": 8}, train={"learning_rate": 1e6})
    code, told = mgg("train", folder / "job.toml")
    assert code == 2 and told.count("\n") == 1
    assert told.startswith("mgg: error: the loss of epoch 2 is nan; first ")
    assert told.endswith("; the weights of epoch 1 are kept\n")
    assert mgg("predict", folder / "runs", "-o", folder / "out.h5", "--what=embedding", "--layer=1")[0] == 0
    assert np.isfinite(arrays_in(folder / "out.h5")["embedding/1"]).all()
