"""Training on batches: with all edges and rows it is full-graph training, and losses do not depend on ranks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import runs
from jobs import blocks, write_job
from mpi4py import MPI
from runs import losses
from test_training import GRAPHS, TOLERANCE, with_flow

from mgg_hpc import config
from mgg_hpc.config import FeaturesSettings
from mgg_hpc.errors import InputError
from mgg_hpc.plan import scores
from mgg_hpc.plan.hybrid import Phases
from mgg_hpc.runtime import cores
from mgg_hpc.sizes import shown
from mgg_hpc.training.job import build
from mgg_hpc.training.minibatch.executor import Hybrid

pytestmark = pytest.mark.mpi

MODELS = {
    "gcn": {"hidden": 9, "layers": 3},
    "gin": {"name": "gin", "train_eps": True, "norm": "layer"},
    "sage": {"name": "sage", "jumping": "cat"},
    "sage-max": {"name": "sage", "aggr": "max", "residual": True, "layers": 3},
    "gat": {"name": "gat", "hidden": 4, "heads": 2, "attention_dropout": 0.3},
    "gat-edges": {"name": "gat", "hidden": 4, "heads": 3, "attention_dropout": 0.3, "edge_data": "flow"},
    "gcn-degree": {"hidden": 8, "input": "degree", "embedding": 9},
}


def settings(
    path: Path, model: str, *, dtype: str = "float64", full: bool = False, **train: object
) -> config.Settings:
    """Settings of a job on batches, of all rows and edges unless told otherwise; full: of one on the graph instead."""
    chosen = MODELS[model]
    wanted = {"mode": "full" if full else "sampled", "dtype": dtype, "seed": 20, "batch_size": 4096}
    wanted |= {"fanouts": [-1] * chosen.get("layers", 2)} | train
    return runs.settings(path, model={"hidden": 8, "dropout": 0.5} | chosen, train=wanted)


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["dense", "directed-sparse", "directed-weighted", "lopsided", "tiny"])
@pytest.mark.parametrize("model", MODELS)
def test_one_batch_of_all_rows_and_edges_is_full_graph_training(comm, stored, kind, model):
    path = stored(f"{kind} flow", with_flow(GRAPHS[kind]()))
    wanted = losses(settings(path, model, full=True), MPI.COMM_SELF, 4)
    assert len(set(wanted)) == len(wanted)
    found = losses(settings(path, model), comm, 4)
    np.testing.assert_allclose(found, wanted, rtol=TOLERANCE["float64"], atol=0)


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["dense", "directed-sparse", "lopsided", "tiny"])
@pytest.mark.parametrize("model", ["gcn", "gin", "sage", "gat"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_losses_do_not_depend_on_the_number_of_ranks(comm, stored, kind, model, dtype):
    fanouts = [3, 2, 2][: MODELS[model].get("layers", 2)]
    path = stored(f"{kind} flow", with_flow(GRAPHS[kind]()))
    chosen = settings(path, model, dtype=dtype, fanouts=fanouts, batch_size=7)
    alone = losses(chosen, MPI.COMM_SELF, 4)
    np.testing.assert_allclose(losses(chosen, comm, 4), alone, rtol=TOLERANCE[dtype], atol=0)


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["dense", "lopsided", "tiny"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_losses_do_not_depend_on_where_features_lie(comm, rng, stored, kind, dtype):
    """Bit by bit: batches gather the same rows from tiers and the file. An evaluation reads blocks of rows."""
    path = stored(kind, GRAPHS[kind]())
    train = {"fanouts": [3, 2], "batch_size": 7, "normalize_features": str(rng.choice(["none", "row"]))}
    chosen = settings(path, str(rng.choice(["sage", "gat"])), dtype=dtype, **train)
    wanted = losses(chosen, comm, 3)
    sizes = {"near": int(rng.integers(1, 2000)), "peers": int(rng.integers(0, 900)), "host": "1K"}
    for features in (sizes, {"near": "2K", "peers": "auto", "score": "degree"}, {"host": 1, "score": "none"}):
        in_tiers = FeaturesSettings(**features)
        found = losses(msgspec.structs.replace(chosen, features=in_tiers), comm, 3)
        assert found[:-1].tolist() == wanted[:-1].tolist()
        np.testing.assert_allclose(found[-1], wanted[-1], rtol=0.05 if dtype == "bfloat16" else 1e-5)


def test_a_run_tells_where_its_features_lay_and_what_was_read(mgg, folder, first, comm):
    train = {"mode": "sampled", "fanouts": [3, 2], "batch_size": 7, "epochs": 2}
    job, graph = folder / "job.toml", blocks(features=8)
    features = {"near": 10 * 32, "peers": 4 * 32, "host": 20 * 32}
    run = {"folder": str(folder / "runs"), "threads": 1}
    first(lambda: write_job(folder, graph, train=train, run=run, features=features))
    done = mgg("train", job)
    assert done.codes == {0}
    found = json.loads((folder / "runs" / "001" / "summary.json").read_text())["tiers"]
    rows = {"near": 10, "peers": 4 * comm.size, "host": 20, "file": graph.nodes - 30 - 4 * comm.size}
    assert (found["score"], found["rows"]) == ("visits", rows)
    assert len(found["read"]) == 2
    for shares in (found["expected"], *found["read"]):
        assert list(shares) == list(rows) and sum(shares.values()) == pytest.approx(1)
        assert shares["near"] / 10 > shares["file"] / rows["file"]
    for read in found["read"]:
        assert read == pytest.approx(found["expected"], abs=0.1)
    assert f"features  near 10 rows ({found['expected']['near']:.1%}), peers" in done.out[0]
    hits, expected = (1 - shares["file"] for shares in (found["read"][-1], found["expected"]))
    assert f"hits {hits:.1%} ({expected:.1%} expected)\n" in done.out[0]
    assert mgg("predict", folder / "runs" / "001", "-o", folder / "p.csv").codes == {0}


def test_a_file_that_one_rank_cannot_read_in_an_evaluation_is_no_error_of_all(comm, stored):
    """Nothing that ranks agree on: they would wait for each other."""
    chosen = settings(stored("dense", GRAPHS["dense"]()), "sage", fanouts=[3, 2])
    job = build(msgspec.structs.replace(chosen, features=FeaturesSettings(host=1)), comm)
    state, job.x._file._state = job.x._file._state, (0, 0)
    with pytest.raises(
        InputError if comm.size == 1 else RuntimeError, match="has changed since it was opened"
    ):
        list(job.x.blocks)
    job.x._file._state = state
    job.close()


@pytest.mark.parametrize("score", ["visits", "pagerank", "degree", "none"])
def test_scores_are_computed_where_they_are_needed_and_memory_has_room(comm, stored, monkeypatch, score):
    """And the expected visits of batches are computed where they are the score, or divide near."""
    chosen, computed = settings(stored("dense", GRAPHS["dense"]()), "sage", fanouts=[3, 2]), []
    visits = scores.visits
    monkeypatch.setattr(scores, "visits", lambda *given, **how: computed.append(1) or visits(*given, **how))
    for sizes in ({"host": "1K"}, {"near": "1K", "peers": "auto"}):
        computed.clear()
        job = build(msgspec.structs.replace(chosen, features=FeaturesSettings(score=score, **sizes)), comm)
        needed = score == "visits" or "peers" in sizes
        assert (bool(computed), bool(job.x.expected)) == (needed, needed)
        job.close()
    if score == "none":
        return
    monkeypatch.setattr(cores, "memory_available", lambda: 99)
    asked = shown((192 if score == "visits" else 48) * GRAPHS["dense"]().nodes * comm.size)
    with pytest.raises(InputError, match=f"need {asked} of this node's memory, and 99 B are available"):
        build(msgspec.structs.replace(chosen, features=FeaturesSettings(host=1, score=score)), comm)


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["dense", "directed-sparse", "tiny"])
@pytest.mark.parametrize("model", ["gcn", "sage", "gat"])
@pytest.mark.parametrize("name", ["device", "hybrid"])
def test_losses_do_not_depend_on_what_prepares_the_batches(comm, stored, kind, model, name):
    fanouts = [3, 2, 2][: MODELS[model].get("layers", 2)]
    chosen = settings(stored(kind, GRAPHS[kind]()), model, dtype="float32", fanouts=fanouts, batch_size=7)
    wanted, job = losses(chosen, comm, 4), build(chosen, comm)
    phases = Phases(cpu=0.02, copy=0.001, device=0.01, train=0.01, workers=2)
    job.sampled = replace(job.sampled, hybrid=Hybrid(name, phases, {}, "", 3))
    plan = job.sampled.hybrid.plans(job.sampled.steps)[name]
    assert plan.on_device > 0 and (plan.on_cpu > 0) == (name == "hybrid" and job.sampled.steps > 1)
    np.testing.assert_array_equal(runs.train(job, 4).losses, wanted)
    job.close()


def test_the_loss_of_an_epoch_is_the_mean_over_all_training_rows(comm, stored):
    """With weights that do not move and no dropout, whatever the batches: the last of 7 and one row too."""
    still = {"learning_rate": 1e-300, "weight_decay": 0.0, "batch_size": 11}
    path, model = stored("dense", GRAPHS["dense"]()), {"name": "sage", "jumping": "cat", "dropout": 0.0}
    sampled = {"mode": "sampled", "fanouts": [-1, -1], "dtype": "float64"} | still
    job = build(runs.settings(path, model=model, train=sampled), comm)
    assert job.labels.totals["train"] % 11
    found = runs.train(job, 1).losses
    job.close()
    whole = runs.settings(path, model=model, train=sampled | {"mode": "full"})
    np.testing.assert_allclose(found, losses(whole, comm, 1), rtol=1e-12)


def test_a_run_tells_what_its_batches_were(mgg, folder, first, comm):
    train = {"mode": "sampled", "fanouts": [3, -1], "batch_size": 7, "epochs": 2}
    job = folder / "job.toml"
    run = {"folder": str(folder / "runs"), "threads": 1}
    first(lambda: write_job(folder, blocks(), train=train, run=run))
    done = mgg("train", job)
    assert done.codes == {0}
    told = json.loads((folder / "runs" / "001" / "summary.json").read_text())
    steps = -(-int(blocks().train.sum()) // 7)
    assert f"batches   {steps} an epoch, of 7 nodes, fanouts 3, all" in done.out[0]
    assert (told["mode"], told["batches"]) == ("sampled", steps)
    assert told["sampled"]["fanouts"] == [3, -1] and told["sampled"]["batch_size"] == 7
    assert told["sampled"]["edges"] > told["sampled"]["rows"] > blocks().train.sum()
    assert told["sampled"]["wait_ms"] > 0
    phases = told["per_rank"][comm.rank]["phases_ms"]
    assert phases["wait for samples"] > 0 and phases["gather"] > 0


@pytest.mark.parametrize(
    ("model", "train", "said"),
    [
        ({}, {}, "train.fanouts is missing: .* for example fanouts = \\[15, 10\\]$"),
        ({"layers": 3}, {"fanouts": [4, 4]}, r"train\.fanouts has 2 numbers, and the model has 3 layers"),
        ({}, {"fanouts": [4, 0]}, r"train\.fanouts is \[4, 0\]; each must be at least 1, or -1 for all"),
        ({"input": "learned"}, {"fanouts": [4, 4]}, 'model.input = "learned" is for train.mode = "full"'),
    ],
)
def test_what_does_not_go_with_batches_is_refused_by_name(comm, stored, model, train, said):
    path = stored("dense", GRAPHS["dense"]())
    with pytest.raises(InputError, match=said):
        build(runs.settings(path, model=model, train={"mode": "sampled"} | train), comm)
