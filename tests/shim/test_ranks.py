"""Whole runs of `mgg train` on GPUs that the shim plays: what they write, and how they end on errors."""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path

import h5py
import jobs
import numpy as np
import pytest
import safetensors.numpy
from tiers import drawn, long_except

# Seconds after which an error has hung: most take two or three, and imports more on a machine that does other things.
SOON = 30


CUDA = ("--set", "run.backend=cuda")
SHARED = (*CUDA, "--share-gpu")


@pytest.fixture
def trained(on_gpus, tmp_path):
    """Trains job.toml on so many ranks, which must end well; returns what is printed."""

    def run(ranks, *words, **more):
        done = on_gpus(ranks, "train", "job.toml", *words, **more)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


def columns(folder: Path) -> dict[str, list[float]]:
    """metrics.csv of the latest run."""
    with (folder / "latest" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {name: [float(row[name]) for row in rows] for name in rows[0]}


def of_cpu(tmp_path: Path) -> dict[str, list[float]]:
    """The same job on one CPU."""
    settings = ("--set", "run.folder=cpu", "--set", "run.backend=serial", "--set", "train.dtype=float32")
    done = jobs.call("train", "job.toml", *settings, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    return columns(tmp_path / "cpu")


def same_losses(tmp_path: Path, rtol: float = 1e-5) -> None:
    """Compare the losses of the latest run with those of the same job on one CPU."""
    np.testing.assert_allclose(columns(tmp_path / "runs")["loss"], of_cpu(tmp_path)["loss"], rtol=rtol)


def summary_of(tmp_path: Path) -> dict:
    return json.loads((tmp_path / "runs" / "latest" / "summary.json").read_text())


# Ranks, a graph, and the width of the hidden layer: the first layer aggregates first where that is the wider one.
RUNS = {
    "undirected": (2, jobs.blocks, 16),
    "directed": (1, jobs.directed_weighted, 16),
    "sparse": (4, lambda: jobs.with_sparse_features(jobs.blocks()), 16),
    "directed, sparse, narrow": (1, lambda: jobs.with_sparse_features(jobs.directed_weighted()), 5),
}


@pytest.mark.parametrize("kind", long_except(RUNS, "undirected", draw=1))
def test_a_run_is_that_of_the_cpu(on_gpus, trained, tmp_path, kind):
    ranks, graph, hidden = RUNS[kind]
    jobs.write_job(tmp_path, graph(), model={"hidden": hidden})
    assert "backend cuda (asked for)" in trained(ranks, *SHARED)
    found, wanted = columns(tmp_path / "runs"), of_cpu(tmp_path)
    np.testing.assert_allclose(found["loss"], wanted["loss"], rtol=1e-5)
    np.testing.assert_allclose(found["val_loss"], wanted["val_loss"], rtol=1e-5)
    assert found["test_accuracy"] == wanted["test_accuracy"] and min(found["epoch_ms"]) > 0
    summary = summary_of(tmp_path)
    assert (summary["backend"], summary["ranks"], summary["cuda_graph"]) == ("cuda", ranks, False)
    assert summary["aggregate_ms"]["median"] > 0 and summary["bytes"]["local"] > 0
    assert (summary["bytes"]["remote"] > 0) == (ranks > 1)

    assert on_gpus(ranks, "predict", "runs", "-o", "gpu.h5").returncode == 0
    assert jobs.call("predict", "cpu", "-o", "cpu.h5", folder=tmp_path).returncode == 0
    with h5py.File(tmp_path / "gpu.h5") as gpu, h5py.File(tmp_path / "cpu.h5") as cpu:
        assert gpu.keys() == cpu.keys()
        for name in ("probability", "embedding"):
            np.testing.assert_allclose(gpu[name][:], cpu[name][:], rtol=1e-4, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 2])
def test_rows_that_pass_through_gpus_give_the_same_losses(on_gpus, trained, tmp_path, ranks):
    """One rank keeps rows in the host's memory, two ranks keep them in files. Predictions are compared, too."""
    plan = {"memory": "300K"} | ({"scratch": "."} if ranks > 1 else {})
    jobs.write_job(tmp_path, jobs.blocks(), model={"hidden": 16, "name": "sage"}, plan=plan)
    assert "transfer stream (plan.memory is 300K)" in trained(ranks, *SHARED)
    assert summary_of(tmp_path)["streamed"]["loaded_bytes"] > 0
    same_losses(tmp_path)
    done = on_gpus(ranks, "predict", "runs", "-o", "gpu.h5", "--what", "embedding")
    assert (done.returncode, done.stderr) == (0, "")
    assert jobs.call("predict", "cpu", "-o", "cpu.h5", "--what", "embedding", folder=tmp_path).returncode == 0
    with h5py.File(tmp_path / "gpu.h5") as gpu, h5py.File(tmp_path / "cpu.h5") as cpu:
        np.testing.assert_allclose(gpu["embedding"][:], cpu["embedding"][:], rtol=1e-4, atol=1e-5)


# Ranks, a model, a graph and a fault of the batches that GPUs train on; "far": input rows come by gets.
BATCHES = {
    "sage": (2, {"name": "sage"}, jobs.blocks, "none"),
    "far": (2, {"name": "gcn"}, jobs.directed_weighted, "far"),
    "gat": (1, {"name": "gat", "hidden": 4, "heads": 2, "attention_dropout": 0.2}, jobs.blocks, "none"),
    "gin, sparse": (2, {"name": "gin"}, lambda: jobs.with_sparse_features(jobs.blocks()), "none"),
    "maxima": (1, {"name": "sage", "aggr": "max"}, jobs.blocks, "none"),
}


@pytest.mark.parametrize("kind", long_except(BATCHES, draw=2))
def test_batches_train_as_on_a_cpu(trained, tmp_path, kind):
    ranks, model, graph, fault = BATCHES[kind]
    train = {"mode": "sampled", "fanouts": [4, 3], "batch_size": 20, "epochs": 2}
    jobs.write_job(tmp_path, graph(), model={"layers": 2} | model, train=train)
    trained(ranks, *SHARED, fault=fault)
    same_losses(tmp_path)
    crosses = ranks > 1 and "sparse" not in kind  # sparse features lie in memory that a node shares
    assert (summary_of(tmp_path)["bytes"]["remote"] > 0) == crosses


@pytest.mark.parametrize("transfer", long_except(["auto", "get", "halo", ["get", "halo"]], draw=1), ids=str)
def test_a_run_without_pointers_to_peers(trained, tmp_path, transfer):
    """Rows and gradients come by NVSHMEM's gets and puts; "auto" measures what they cost."""
    jobs.write_job(tmp_path, jobs.blocks(), plan={"transfer": transfer})
    said = trained(2, *SHARED, fault="far")
    same_losses(tmp_path)
    assert transfer != "auto" or "direct" not in said


MODELS = {
    "attention": {"name": "gat", "heads": 3, "hidden": 4, "attention_dropout": 0.3},
    "dot products": {"name": "gat", "heads": 2, "hidden": 8, "attention": "dot", "attention_dropout": 0.3},
    "maxima": {"name": "sage", "aggr": "max", "hidden": 9},
}


@pytest.mark.long
@pytest.mark.parametrize("transfer", drawn(["auto", "halo"], 1))
@pytest.mark.parametrize("name", drawn(MODELS, 2))
def test_attention_or_maxima_without_pointers_to_peers(trained, tmp_path, name, transfer):
    """Rows arrive before the kernel that reads them. (With pointers: tests/gpu/ranks/test_training.py.)"""
    jobs.write_job(tmp_path, jobs.blocks(60), model=MODELS[name], plan={"transfer": transfer})
    assert "transfer halo" in trained(2 if name == "attention" else 3, *SHARED, fault="far")
    same_losses(tmp_path)


@pytest.mark.long
def test_gradients_are_summed_by_a_process_group_where_each_rank_has_a_gpu(trained, tmp_path):
    """And what cannot be recorded, here all of it, is launched each time, and said."""
    jobs.write_job(tmp_path, jobs.blocks(), train={"epochs": 6})
    said = trained(2, *CUDA, fault="group", MGG_SHIM_DEVICES="2")
    assert said.count("summed by a process group") == 2 * 6
    assert "epochs were not recorded as a CUDA graph: the shim records nothing" in said
    same_losses(tmp_path)
    summary = summary_of(tmp_path)
    assert (summary["cuda_graph"], summary["cuda_graph_failure"]) == (False, "the shim records nothing")


@pytest.mark.long
def test_half_rows_train_as_float32_does_to_their_rounding(on_gpus, trained, tmp_path):
    jobs.write_job(tmp_path, jobs.blocks(), train={"dtype": "bfloat16"})
    trained(2, *SHARED)
    found, wanted = columns(tmp_path / "runs")["loss"], of_cpu(tmp_path)["loss"]
    np.testing.assert_allclose(found, wanted, rtol=2e-3)
    weights = safetensors.numpy.load_file(tmp_path / "runs/latest/checkpoints/model.safetensors")
    assert {array.dtype for array in weights.values()} == {np.dtype(np.float32)}
    assert max(abs(a / b - 1) for a, b in zip(found, wanted, strict=True)) > 1e-6  # rows are half indeed
    assert on_gpus(2, "predict", "runs", "-o", "p.h5").returncode == 0
    elsewhere = ("--set", "run.backend=serial", "--set", "train.dtype=float32")
    assert jobs.run("predict", "runs", "-o", "q.h5", *elsewhere, folder=tmp_path).returncode == 0
    with h5py.File(tmp_path / "p.h5") as file, h5py.File(tmp_path / "q.h5") as other:
        np.testing.assert_allclose(file["probability"][:], other["probability"][:], rtol=2e-2, atol=1e-3)
        assert file["probability"].dtype == np.float32
        np.testing.assert_allclose(file["probability"][:].sum(1), 1, rtol=1e-2)


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 2])
def test_features_may_stay_on_the_host(trained, tmp_path, ranks):
    jobs.write_job(tmp_path, jobs.blocks(), train={"normalize_features": "row"}, run={"features": "host"})
    assert "the features stay in the host's memory" in trained(ranks, *SHARED)
    same_losses(tmp_path)


AUTO = {
    "each rank has one": (2, 2, "cuda (every rank has a GPU)"),
    "none": (1, 0, "serial (", "; no GPUs: no CUDA device (no GPU, as asked for)"),
    "too few": (2, 1, "shm (", "; no GPUs: 2 ranks on this node, but 1 GPU: start at most"),
}


@pytest.mark.long
@pytest.mark.sampled(0)
@pytest.mark.parametrize("name", AUTO)
def test_auto_says_which_backend_it_takes_and_why(trained, tmp_path, name):
    jobs.write_job(tmp_path, jobs.blocks())
    ranks, gpus, backend, *why = AUTO[name]
    said = trained(ranks, fault="driver", MGG_SHIM_DEVICES=str(gpus))
    assert f"backend {backend}" in said and all(each in said for each in why)


OUT_OF_REACH = "but some GPUs are out of reach of pointers"
# Ranks, options, what is wrong with the machine, and what the one line on stderr begins with and has.
REFUSED = {
    "no GPU": (
        2,
        "",
        {"MGG_SHIM_DEVICES": "0"},
        "rank 0 of this node's 2 sees no CUDA device (no GPU, as asked for)",
    ),
    "too few GPUs": (4, "", {"MGG_SHIM_DEVICES": "3"}, "4 ranks on this node, but 3 GPUs: start at most 3"),
    "heap": (
        2,
        "--share-gpu",
        {"MGG_SHIM_FREE_BYTES": str(1 << 30)},
        "rank 0's shim needs 2.0 GiB of symmetric memory for the 2 ranks that share it, and has 1.0 GiB free; every "
        "rank's is as large as that of rank ",
    ),
    "memory": (
        1,
        "",
        {"MGG_SHIM_FREE_BYTES": str(1 << 10)},
        "training needs 0.0 GiB more on the GPU of rank 0, and 0.0 GiB are free; use more GPUs, ",
    ),
    "float64": (
        2,
        "--share-gpu --set train.dtype=float64",
        {},
        'train.dtype = "float64" is for CPUs: GPU kernels take "float32" or "bfloat16"',
    ),
    "wpb": (
        1,
        "--set plan.wpb=64",
        {},
        "plan.wpb = 64: a block of 2048 threads, but shim takes 1024; at most 32",
    ),
    "direct": (
        2,
        "--share-gpu --set plan.transfer=direct",
        {"fault": "far"},
        f'plan.transfer is "direct", {OUT_OF_REACH}',
    ),
    "gets of attention": (
        2,
        "--share-gpu --set plan.transfer=get --set model.name=gat --set model.hidden=4",
        {"fault": "far"},
        f'plan.transfer is "get", {OUT_OF_REACH}',
    ),
    "torch without CUDA": (1, "", {"fault": "torch"}, "", "finds no GPU: it is built without CUDA, or for"),
    "no native module": (
        2,
        "",
        {"fault": "missing"},
        "the native module mgg_hpc._cuda does not load (",
        "pip install nvidia-nvshmem-cu13",
    ),
    "an old GPU": (
        1,
        "",
        {"fault": "old"},
        "shim has compute capability 7.5, and kernels are built for 8.0 and newer\n",
    ),
}


@pytest.mark.parametrize("what", long_except(REFUSED, "heap", draw=3))
def test_what_cannot_be_is_one_line(on_gpus, tmp_path, what):
    ranks, words, machine, begins, *has = REFUSED[what]
    jobs.write_job(tmp_path, jobs.blocks())
    began = time.monotonic()
    done = on_gpus(ranks, "train", "job.toml", *CUDA, *words.split(), **machine)
    assert time.monotonic() - began < SOON
    assert done.returncode == 2
    assert done.stderr.startswith(f"mgg: error: {begins}") and done.stderr.count("\n") == 1, done.stderr
    assert all(each in done.stderr for each in has)


def test_one_rank_that_fails_ends_the_others(on_gpus, tmp_path):
    jobs.write_job(tmp_path, jobs.blocks())
    began = time.monotonic()
    done = on_gpus(2, "train", "job.toml", *SHARED, fault="start")
    assert time.monotonic() - began < SOON
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("mgg: error:")]
    assert lines == ["mgg: error: NVSHMEM: starting failed with status 7"], done.stderr


@pytest.mark.long
def test_a_rank_that_stands_still_is_named(on_gpus, tmp_path):
    jobs.write_job(tmp_path, jobs.blocks())
    began = time.monotonic()
    done = on_gpus(2, "train", "job.toml", *SHARED, "--set", "run.watchdog=20", fault="sleep")
    assert time.monotonic() - began < 3 * SOON
    assert done.returncode != 0
    for rank in (0, 1):
        assert f"mgg: error: rank {rank} has made no progress for 20 s; its last step: epoch 2" in done.stderr


@pytest.mark.long
def test_two_ranks_that_are_profiled_say_what_they_hide(trained, tmp_path):
    jobs.write_job(tmp_path, jobs.blocks(), train={"epochs": 5}, plan={"transfer": ["get", "halo"]})
    trained(2, *SHARED)
    losses = columns(tmp_path / "runs")["loss"]
    said = trained(2, *SHARED, "--profile")
    assert columns(tmp_path / "runs")["loss"] == losses
    folder = tmp_path / "runs" / "latest" / "profile"
    assert {path.name for path in folder.iterdir()} == {"rank-0.json.gz", "rank-1.json.gz", "summary.json"}
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["backend"], summary["epochs"], summary["without_graphs"]) == ("cuda", [4, 5], False)
    exchanges = [(each["layer"], each["transfer"]) for each in summary["exchanges"]]
    assert exchanges == [(1, "get"), (2, "halo"), (2, "halo")]
    for each in summary["exchanges"]:
        sums, moves, both = each["sums_ms"], each["transfer_ms"], each["both_ms"]
        assert each["hidden_share"] == pytest.approx((sums + moves - both) / min(sums, moves))
    assert "GPU ms" not in said  # which only CUDA tells of
