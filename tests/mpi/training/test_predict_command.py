"""`predict` as a command over ranks: a forward pass by hand, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import safetensors.numpy
from jobs import blocks, dense_features, directed_weighted, files, renumbered, with_sparse_features, write_job

from mgg_hpc import reference
from mgg_hpc.data.graph import Graph

pytestmark = [pytest.mark.mpi, pytest.mark.slow]


def by_hand(graph: Graph, run: Path) -> tuple[np.ndarray, np.ndarray]:
    """Hidden rows and logits of a 2-layer GCN from its saved weights: float64, from the formulas."""
    weights = safetensors.numpy.load_file(run / "checkpoints" / "model.safetensors")
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    source, destination = reference.edge_list(graph.indptr, graph.indices)
    first = reference.gcn_layer(
        source, destination, dense_features(graph), w["convs.0.lin.weight"], w["convs.0.bias"], graph.weight
    )
    hidden = np.maximum(first, 0)
    logits = reference.gcn_layer(
        source, destination, hidden, w["convs.1.lin.weight"], w["convs.1.bias"], graph.weight
    )
    return hidden, logits


KINDS = {
    "dense": blocks,
    "sparse": lambda: with_sparse_features(blocks(features=40)),
    "directed-weighted": directed_weighted,
}


@pytest.mark.sampled(0)
@pytest.mark.parametrize("order", ["as it is", "renumbered"])
@pytest.mark.parametrize("kind", KINDS)
def test_predictions_equal_a_forward_pass_by_hand(folder, first, mgg, kind, order):
    """In the user's numbering, whatever the order of rows in the file."""
    graph = KINDS[kind]()
    rows = np.random.default_rng(4).permutation(graph.nodes)
    stored = renumbered(graph, rows) if order == "renumbered" else graph
    train = {"epochs": 30, "dtype": "float64", "learning_rate": 0.05}
    first(lambda: write_job(folder, stored, train=train, model={"hidden": 8}))
    mgg("train", folder / "job.toml")
    outcome = mgg("predict", folder / "runs", "-o", folder / "out.h5")
    assert outcome.codes == {0}
    assert str(folder / "out.h5") in outcome.out[0]
    hidden, logits = by_hand(graph, folder / "runs" / "001")
    with h5py.File(folder / "out.h5") as file:
        found = {name: file[name][:] for name in file}
        facts = dict(file.attrs)
    assert found["class"].dtype == np.int64
    chance = np.exp(logits - logits.max(axis=1, keepdims=True))
    chance /= chance.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found["embedding"], hidden, rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(found["probability"], chance, rtol=1e-10, atol=1e-13)
    np.testing.assert_array_equal(found["class"], logits.argmax(axis=1))
    assert (facts["format"], facts["version"], facts["run"]) == ("mgg-prediction", 1, "001")
    summary = json.loads((folder / "runs" / "001" / "summary.json").read_text())
    right = (found["class"] == graph.y)[graph.test].mean()
    assert summary["test_accuracy"] == pytest.approx(right, rel=1e-12)
    assert facts["graph_uuid"] == summary["graph"]["uuid"]
    assert {path.name for path in folder.iterdir()} == {"g.h5", "job.toml", "out.h5", "runs"}


def test_predict_replaces_a_file_only_if_told_to(comm, folder, first, mgg):
    first(lambda: write_job(folder, blocks()))
    mgg("train", folder / "job.toml")
    first(lambda: (folder / "out.h5").write_bytes(b"precious"))
    outcome = mgg("predict", folder / "runs", "-o", folder / "out.h5")
    assert outcome.codes == {2}
    assert outcome.err[1:] == [""] * (comm.size - 1)
    assert outcome.err[0].count("\n") == 1
    assert "out.h5 exists" in outcome.err[0]
    assert "--force" in outcome.err[0]
    assert (folder / "out.h5").read_bytes() == b"precious"
    comm.Barrier()
    assert mgg("predict", folder / "runs", "-o", folder / "out.h5", "--force").codes == {0}
    with h5py.File(folder / "out.h5") as file:
        assert len(file["class"]) == 150


@pytest.mark.parametrize("output", ["absent/out.h5", "g.h5/out.h5", "runs"])
def test_predict_refuses_what_it_cannot_write(folder, first, mgg, output):
    first(lambda: write_job(folder, blocks()))
    mgg("train", folder / "job.toml")
    before = files(folder)
    outcome = mgg("predict", folder / "runs", "-o", folder / output, "--force")
    assert outcome.codes == {2}
    assert "".join(outcome.err).count("\n") == 1
    assert files(folder) == before


def test_predict_refuses_a_run_without_weights_and_a_folder_without_a_run(folder, first, mgg):
    first(lambda: write_job(folder, blocks()))
    outcome = mgg("predict", folder, "-o", folder / "out.h5")
    assert outcome.codes == {2}
    assert "holds no run (job.toml is missing)" not in "".join(outcome.err[1:])
    mgg("train", folder / "job.toml")
    first((folder / "runs" / "001" / "checkpoints" / "model.safetensors").unlink)
    outcome = mgg("predict", folder / "runs", "-o", folder / "out.h5")
    assert outcome.codes == {2}
    assert "no weights; the run did not finish" in outcome.err[0]
    assert not (folder / "out.h5").exists()
