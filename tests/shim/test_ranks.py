"""Whole runs of `mgg train` on GPUs that the shim plays: what they write, and how they end on errors."""

from __future__ import annotations

import csv
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import h5py
import jobs
import numpy as np
import pytest
import safetensors.numpy
from tiers import long_except

from mgg_hpc.data.graph import Graph

# Seconds after which an error has hung: most take two or three, and imports more on a machine that does other things.
SOON = 30


CUDA = ("--set", "run.backend=cuda")
SHARED = (*CUDA, "--share-gpu")


@pytest.fixture
def trained(on_gpus, tmp_path):
    """Trains job.toml on so many ranks, which must end well; returns what is printed."""

    def run(ranks, *words, **more):
        done = on_gpus(ranks, "train", "job.toml", "--verbose", *words, **more)
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


def summary_of(tmp_path: Path) -> dict:
    return json.loads((tmp_path / "runs" / "latest" / "summary.json").read_text())


def same_predictions(on_gpus, tmp_path: Path, ranks: int, rtol: float, *words: str) -> None:
    """Compare what the latest run predicts on GPUs with what its model predicts on one CPU."""
    assert on_gpus(ranks, "predict", "runs", "-o", "gpu.h5").returncode == 0
    done = jobs.call(
        "predict", "runs", "-o", "cpu.h5", "--set", "run.backend=serial", *words, folder=tmp_path
    )
    assert done.returncode == 0, done.stderr
    with h5py.File(tmp_path / "gpu.h5") as gpu, h5py.File(tmp_path / "cpu.h5") as cpu:
        assert gpu.keys() == cpu.keys()
        for name in ("probability", "embedding") if rtol < 1e-3 else ("probability",):
            np.testing.assert_allclose(gpu[name][:], cpu[name][:], rtol=rtol, atol=rtol / 10)


@dataclass(frozen=True)
class Run:
    """A training: ranks, a graph, sections of its job file, a fault of rank_child.py, and what is said.

    alone: nothing crosses between ranks. predicts: predictions are compared too.
    """

    ranks: int
    graph: Callable[[], Graph]
    job: dict[str, dict]
    fault: str = "none"
    said: str = "backend cuda (asked for)"
    alone: bool = False
    predicts: bool = False


def batches(model: dict, **how: object) -> dict[str, dict]:
    train = {"mode": "sampled", "fanouts": [4, 3], "batch_size": 20, "epochs": 2} | how
    return {"model": {"layers": 2} | model, "train": train}


def far(transfer: str | list[str], **model: object) -> dict[str, dict]:
    """Rows and gradients come by NVSHMEM's gets and puts; "auto" measures what they cost."""
    return {"plan": {"transfer": transfer}} | ({"model": model} if model else {})


def streamed(**plan: object) -> dict[str, dict]:
    return {"model": {"hidden": 16, "name": "sage"}, "plan": {"memory": "300K"} | plan}


def sparse() -> Graph:
    return jobs.with_sparse_features(jobs.blocks())


def sparse_directed() -> Graph:
    return jobs.with_sparse_features(jobs.directed_weighted())


GAT = {"name": "gat", "hidden": 4, "heads": 2, "attention_dropout": 0.2}
TIERS = {"features": {"near": 1000, "peers": 500, "host": 2000}}
STREAMED = "transfer stream (plan.memory is 300K)"
ON_HOST = {"train": {"normalize_features": "row"}, "run": {"features": "host"}}
# The first layer aggregates first where that is the wider one. Without pointers to peers ("far") rows arrive before the
# kernel of attention that reads them. (With pointers: tests/gpu/ranks/test_training.py.)
RUNS = {
    "undirected": Run(2, jobs.blocks, {"model": {"hidden": 16}}, predicts=True),
    "directed": Run(1, jobs.directed_weighted, {"model": {"hidden": 16}}, predicts=True),
    "sparse": Run(4, sparse, {"model": {"hidden": 16}}),
    "directed, sparse, narrow": Run(1, sparse_directed, {"model": {"hidden": 5}}),
    "streamed from memory": Run(1, jobs.blocks, streamed(), said=STREAMED),
    "streamed from files": Run(2, jobs.blocks, streamed(scratch="."), said=STREAMED, predicts=True),
    "features on the host": Run(1, jobs.blocks, ON_HOST, said="the features stay in the host's memory"),
    "features on hosts": Run(2, jobs.blocks, ON_HOST, said="the features stay in the host's memory"),
    "batches of sage": Run(2, jobs.blocks, batches({"name": "sage"})),
    "batches, far": Run(2, jobs.directed_weighted, batches({"name": "gcn"}), "far"),
    "batches of gat": Run(1, jobs.blocks, batches(GAT)),
    # Sparse features lie in memory that a node shares.
    "batches of gin, sparse": Run(2, sparse, batches({"name": "gin"}), alone=True),
    # Some rows on each GPU, on GPUs in turn, in the host's memory that ranks share, in the file.
    "batches of tiers": Run(2, jobs.blocks, batches({"name": "sage"}) | TIERS),
    "batches of tiers, far": Run(2, jobs.directed_weighted, batches({"name": "gcn"}) | TIERS, "far"),
    "batches by a plan": Run(2, jobs.blocks, batches({"name": "sage"}, prepare="hybrid", batch_size=3)),
    "batches by a plan, far": Run(
        2, jobs.blocks, batches({"name": "gcn"}, prepare="hybrid", batch_size=3), "far"
    ),
    "batches, maxima": Run(1, jobs.blocks, batches({"name": "sage", "aggr": "max"})),
    "far, auto": Run(2, jobs.blocks, far("auto"), "far"),
    "far, get": Run(2, jobs.blocks, far("get"), "far"),
    "far, halo": Run(2, jobs.blocks, far("halo"), "far"),
    "far, get and halo": Run(2, jobs.blocks, far(["get", "halo"]), "far"),
    "far, attention": Run(2, jobs.blocks, far("auto", **GAT), "far", "transfer halo"),
    "far, dot products": Run(3, jobs.blocks, far("halo", **GAT, attention="dot"), "far", "transfer halo"),
    "far, maxima": Run(
        3, jobs.blocks, far("auto", name="sage", aggr="max", hidden=9), "far", "transfer halo"
    ),
}


@pytest.mark.parametrize("name", long_except(RUNS, "undirected", "batches by a plan", draw=9))
def test_a_run_is_that_of_the_cpu(on_gpus, trained, tmp_path, name):
    run = RUNS[name]
    jobs.write_job(tmp_path, run.graph(), **run.job)
    said = trained(run.ranks, *SHARED, fault=run.fault)
    assert run.said in said and (run.fault == "none" or "direct" not in said)
    found, wanted = columns(tmp_path / "runs"), of_cpu(tmp_path)
    for column in ("loss", "val_loss"):
        np.testing.assert_allclose(found[column], wanted[column], rtol=1e-5)
    assert found["test_accuracy"] == wanted["test_accuracy"] and min(found["epoch_ms"]) > 0
    summary = summary_of(tmp_path)
    assert (summary["backend"], summary["ranks"], summary["cuda_graph"]) == ("cuda", run.ranks, False)
    assert "train" in run.job or summary["aggregate_ms"]["median"] > 0  # which batches do not measure
    if run.said == STREAMED:
        assert summary["streamed"]["loaded_bytes"] > 0
    else:
        assert (summary["bytes"]["remote"] > 0) == (run.ranks > 1 and not run.alone)
    if run.predicts:
        same_predictions(on_gpus, tmp_path, run.ranks, 1e-4)


# Ranks, [features], and [train], where no row is on a GPU.
HELD = {
    "host and file": (2, {"host": 2000}, {}),
    "file, normalised": (1, {"host": 1, "score": "none"}, {"normalize_features": "row"}),
}


@pytest.mark.long
@pytest.mark.parametrize("name", HELD)
def test_cpus_gather_the_rows_of_their_batches_where_no_gpu_holds_them(trained, tmp_path, name):
    """No thread but the one that trains has the GPU gather, and losses and what was read are the same as before."""
    ranks, features, train = HELD[name]
    jobs.write_job(
        tmp_path, jobs.blocks(), **batches({"name": "sage"}, batch_size=3, **train), features=features
    )
    trained(ranks, *SHARED)
    wanted, read = columns(tmp_path / "runs"), summary_of(tmp_path)["tiers"]["read"]
    trained(
        ranks, *SHARED, "--set", "train.prepare=hybrid", fault="alone", XDG_CACHE_HOME=str(tmp_path / "cache")
    )
    found, summary = columns(tmp_path / "runs"), summary_of(tmp_path)
    assert found["loss"] == wanted["loss"] and found["val_loss"] == wanted["val_loss"]
    assert summary["tiers"]["read"] == read and summary["sampled"]["prepare"]["batches"]["cpu"] > 0


# Ranks, [features], fanouts, threads, and the least and largest share of the edges on the GPU.
DRAWN = {
    "hottest edges": (1, {"near": 1500}, [4, 3], 2, (0.1, 0.9)),
    "two ranks": (2, {"near": 900, "score": "none"}, [-1, 2], 1, (0.05, 0.9)),
    "all edges": (1, {}, [4, 3], 1, (1, 1)),
}


@pytest.mark.parametrize("name", long_except(DRAWN, "hottest edges"))
def test_a_gpu_draws_the_batches_of_the_cpu(rng, trained, tmp_path, name):
    """Losses are the same bits, with threads that draw while others train."""
    ranks, features, fanouts, threads, on_gpu = DRAWN[name]
    job = batches({"name": "sage"}) | {"features": features}
    job["train"] |= {"fanouts": fanouts, "batch_size": 15}
    jobs.write_job(tmp_path, jobs.directed_weighted(), **job)
    words = (*SHARED, "--set", f"train.seed={rng.integers(1 << 31)}", "--set", f"run.threads={threads}")
    said = trained(ranks, *words)
    share = re.search(r"drawn by the GPU, ([\d.]+)% of the edges there", said)
    assert share is not None, said
    assert on_gpu[0] <= float(share[1]) / 100 <= on_gpu[1]
    found = columns(tmp_path / "runs")
    assert "drawn" not in trained(ranks, *words, fault="no sampling")
    wanted = columns(tmp_path / "runs")
    for column in ("loss", "val_loss", "test_accuracy"):
        assert found[column] == wanted[column]


def test_rows_of_tiers_are_gathered_a_batch_ahead_on_the_second_stream(trained, tmp_path):
    """One wait a batch; the engine refuses rows that nothing has waited for. Without tiers no second stream is used."""
    job = batches({"name": "sage"}) | TIERS
    jobs.write_job(tmp_path, jobs.blocks(), **job)
    said = trained(1, *CUDA, fault="order")
    found, steps = columns(tmp_path / "runs")["loss"], summary_of(tmp_path)["batches"]
    order = "".join(re.findall(r"^order: (?:gather )?(\w)", said, re.MULTILINE))
    epoch = "1" + "1ws" * (steps - 1) + "ws"
    assert steps > 2 and order.count("s") == steps * job["train"]["epochs"]
    assert re.fullmatch(f"[01w]*({epoch}0+)+", order), order
    without = [word for tier in TIERS["features"] for word in ("--set", f"features.{tier}=0")]
    said = trained(1, *CUDA, *without, fault="order")
    assert columns(tmp_path / "runs")["loss"] == found and not re.search("order: (wait|gather 1)", said)


@pytest.mark.long
def test_gradients_are_summed_by_a_process_group_where_each_rank_has_a_gpu(trained, tmp_path):
    """And what cannot be recorded, here all of it, is launched each time, and said."""
    jobs.write_job(tmp_path, jobs.blocks(), train={"epochs": 6})
    said = trained(2, *CUDA, fault="group", MGG_SHIM_DEVICES="2")
    assert said.count("summed by a process group") == 2 * 6
    assert "epochs were not recorded as a CUDA graph: the shim records nothing" in said
    np.testing.assert_allclose(columns(tmp_path / "runs")["loss"], of_cpu(tmp_path)["loss"], rtol=1e-5)
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
    same_predictions(on_gpus, tmp_path, 2, 2e-2, "--set", "train.dtype=float32")


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


REACH = "but some GPUs are out of reach of pointers"
GETS = "--share-gpu --set plan.transfer=get --set model.name=gat --set model.hidden=4"
# Ranks, options, what is wrong with the machine, and what the one line on stderr has.
REFUSED = {
    "no GPU": (2, "", {"MGG_SHIM_DEVICES": "0"}, "rank 0 of this node's 2 sees no CUDA device (no GPU"),
    "too few GPUs": (4, "", {"MGG_SHIM_DEVICES": "3"}, "4 ranks on this node, but 3 GPUs: start at most 3"),
    "heap": (
        2,
        "--share-gpu",
        {"MGG_SHIM_FREE_BYTES": str(1 << 30)},
        "rank 0's shim needs 2.0 GiB of symmetric memory for the 2 ranks that share it, and has 1.0 GiB free; every",
    ),
    "memory": (1, "", {"MGG_SHIM_FREE_BYTES": str(1 << 10)}, "more on the GPU of rank 0", "use more GPUs, "),
    "float64": (1, "--set train.dtype=float64", {}, 'train.dtype = "float64" is for CPUs: GPU kernels take'),
    "wpb": (1, "--set plan.wpb=64", {}, "plan.wpb = 64: a block of 2048 threads", "takes 1024; at most 32"),
    "direct": (
        2,
        "--share-gpu --set plan.transfer=direct",
        {"fault": "far"},
        f'transfer is "direct", {REACH}',
    ),
    "gets of attention": (2, GETS, {"fault": "far"}, f'plan.transfer is "get", {REACH}'),
    "torch without CUDA": (1, "", {"fault": "torch"}, "finds no GPU: it is built without CUDA, or for"),
    "no native module": (
        2,
        "",
        {"fault": "missing"},
        "module mgg_hpc._cuda does not load",
        "pip install nvidia",
    ),
    "an old GPU": (1, "", {"fault": "old"}, "shim has compute capability 7.5", "built for 8.0 and newer\n"),
}


@pytest.mark.parametrize("what", long_except(REFUSED, "heap", draw=3))
def test_what_cannot_be_is_one_line(on_gpus, tmp_path, what):
    ranks, words, machine, *has = REFUSED[what]
    jobs.write_job(tmp_path, jobs.blocks())
    began = time.monotonic()
    done = on_gpus(ranks, "train", "job.toml", *CUDA, *words.split(), **machine)
    assert time.monotonic() - began < SOON
    assert done.returncode == 2
    assert done.stderr.startswith("mgg: error: ") and done.stderr.count("\n") == 1, done.stderr
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
