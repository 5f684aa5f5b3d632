"""Whole runs of `mgg train` on GPUs that the shim plays: what they write, and how they end where something is amiss."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import time
from pathlib import Path

import h5py
import jobs
import numpy as np
import pytest
import safetensors.numpy
from suite.tiers import long_except

# Seconds after which an error has hung: most take two or three, and imports more on a machine that does other things.
SOON = 30
CHILD = Path(__file__).with_name("rank_child.py")
LAUNCH = (
    "import sys; from mgg_hpc.runtime import launch; sys.exit(launch.run(sys.argv[2:], int(sys.argv[1])))"
)


CUDA = ("--set", "run.backend=cuda")


@pytest.fixture
def on_gpus(shim, tmp_path):
    """Runs `mgg` with these words on so many ranks, in the test's folder."""

    def run(ranks, *words, fault="none", seconds=100, **environment):
        program = [sys.executable, str(CHILD), str(shim.folder / "_cuda.so"), fault, "--", *map(str, words)]
        return subprocess.run(
            [sys.executable, "-c", LAUNCH, str(ranks), *program],
            cwd=tmp_path,
            env=jobs.clean_environment() | {"OMP_NUM_THREADS": "1"} | environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    return run


def columns(folder: Path) -> dict[str, list[float]]:
    """metrics.csv of the latest run."""
    with (folder / "latest" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {name: [float(row[name]) for row in rows] for name in rows[0]}


def of_cpu(tmp_path: Path) -> dict[str, list[float]]:
    """The same job on one CPU."""
    settings = ("--set", "run.folder=cpu", "--set", "run.backend=serial", "--set", "train.dtype=float32")
    done = jobs.run("train", "job.toml", *settings, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    return columns(tmp_path / "cpu")


@pytest.mark.parametrize("ranks", long_except([1, 2, 4], 2))
def test_a_run_is_that_of_the_cpu(on_gpus, tmp_path, ranks):
    jobs.write_job(tmp_path, jobs.with_sparse_features(jobs.blocks()) if ranks == 4 else jobs.blocks())
    done = on_gpus(ranks, "train", "job.toml", "--share-gpu", "--set", "run.backend=cuda")
    assert (done.returncode, done.stderr) == (0, "")
    assert "backend cuda (asked for)" in done.stdout
    found, wanted = columns(tmp_path / "runs"), of_cpu(tmp_path)
    np.testing.assert_allclose(found["loss"], wanted["loss"], rtol=1e-5)
    np.testing.assert_allclose(found["val_loss"], wanted["val_loss"], rtol=1e-5)
    assert found["test_accuracy"] == wanted["test_accuracy"] and min(found["epoch_ms"]) > 0
    summary = json.loads((tmp_path / "runs" / "latest" / "summary.json").read_text())
    assert (summary["backend"], summary["ranks"], summary["cuda_graph"]) == ("cuda", ranks, False)
    assert summary["aggregate_ms"]["median"] > 0 and summary["bytes"]["local"] > 0
    assert (summary["bytes"]["remote"] > 0) == (ranks > 1)

    assert on_gpus(ranks, "predict", "runs", "-o", "gpu.h5").returncode == 0
    assert jobs.run("predict", "cpu", "-o", "cpu.h5", folder=tmp_path).returncode == 0
    with h5py.File(tmp_path / "gpu.h5") as gpu, h5py.File(tmp_path / "cpu.h5") as cpu:
        assert gpu.keys() == cpu.keys()
        for name in ("probability", "embedding"):
            np.testing.assert_allclose(gpu[name][:], cpu[name][:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "transfer",
    long_except(["auto", "get", "halo", ["get", "halo"]], "auto"),
    ids=str,
)
def test_a_run_without_pointers_to_peers(on_gpus, tmp_path, transfer):
    """Rows and gradients come by NVSHMEM's gets and puts; "auto" measures what they cost."""
    jobs.write_job(tmp_path, jobs.blocks(), plan={"transfer": transfer})
    done = on_gpus(2, "train", "job.toml", *CUDA, "--share-gpu", fault="far")
    assert (done.returncode, done.stderr) == (0, "")
    np.testing.assert_allclose(columns(tmp_path / "runs")["loss"], of_cpu(tmp_path)["loss"], rtol=1e-5)
    if transfer == "auto":
        assert "direct" not in done.stdout


MODELS = {
    "attention": {"name": "gat", "heads": 3, "hidden": 4, "attention_dropout": 0.3},
    "dot products": {"name": "gat", "heads": 2, "hidden": 8, "attention": "dot", "attention_dropout": 0.3},
    "maxima": {"name": "sage", "aggr": "max", "hidden": 9},
}


@pytest.mark.parametrize("transfer", long_except(["auto", "halo"], "auto"))
@pytest.mark.parametrize("name", long_except(MODELS, "attention", "maxima"))
def test_attention_or_maxima_without_pointers_to_peers(on_gpus, tmp_path, name, transfer):
    """Rows arrive before the kernel that reads them. (With pointers: tests/gpu/training.py.)"""
    model = MODELS[name]
    jobs.write_job(tmp_path, jobs.blocks(60), model=model, plan={"transfer": transfer})
    done = on_gpus(2 if name == "attention" else 3, "train", "job.toml", *CUDA, "--share-gpu", fault="far")
    assert (done.returncode, done.stderr) == (0, ""), model
    assert "transfer halo" in done.stdout
    np.testing.assert_allclose(columns(tmp_path / "runs")["loss"], of_cpu(tmp_path)["loss"], rtol=1e-5)


def test_gradients_are_summed_by_a_process_group_where_each_rank_has_a_gpu(on_gpus, tmp_path):
    """And what cannot be recorded, here all of it, is launched each time, and said."""
    jobs.write_job(tmp_path, jobs.blocks(), train={"epochs": 6})
    done = on_gpus(2, "train", "job.toml", *CUDA, fault="group", MGG_SHIM_DEVICES="2")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("summed by a process group") == 2 * 6
    assert "epochs were not recorded as a CUDA graph: the shim records nothing" in done.stdout
    np.testing.assert_allclose(columns(tmp_path / "runs")["loss"], of_cpu(tmp_path)["loss"], rtol=1e-5)
    summary = json.loads((tmp_path / "runs" / "latest" / "summary.json").read_text())
    assert (summary["cuda_graph"], summary["cuda_graph_failure"]) == (False, "the shim records nothing")


@pytest.mark.long
def test_direct_without_pointers_is_refused(on_gpus, tmp_path):
    jobs.write_job(tmp_path, jobs.blocks())
    done = on_gpus(2, "train", "job.toml", *CUDA, "--share-gpu", "--set", "plan.transfer=direct", fault="far")
    assert done.returncode == 2
    assert done.stderr.startswith(
        'mgg: error: plan.transfer is "direct", but some GPUs are out of reach of pointers'
    )
    assert done.stderr.count("\n") == 1


@pytest.mark.long
def test_gets_of_attention_without_pointers_are_refused(on_gpus, tmp_path):
    jobs.write_job(tmp_path, jobs.blocks(40), model={"name": "gat", "heads": 2, "hidden": 4})
    done = on_gpus(2, "train", "job.toml", *CUDA, "--share-gpu", "--set", "plan.transfer=get", fault="far")
    assert done.returncode == 2
    assert done.stderr.startswith(
        'mgg: error: plan.transfer is "get", but some GPUs are out of reach of pointers'
    )
    assert done.stderr.count("\n") == 1


@pytest.mark.long
def test_half_rows_train_as_float32_does_to_their_rounding(on_gpus, tmp_path):
    jobs.write_job(tmp_path, jobs.blocks(), train={"dtype": "bfloat16"})
    done = on_gpus(2, "train", "job.toml", "--share-gpu", "--set", "run.backend=cuda")
    assert (done.returncode, done.stderr) == (0, "")
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


@pytest.mark.parametrize("ranks", long_except([1, 2], 1))
def test_features_may_stay_on_the_host(on_gpus, tmp_path, ranks):
    jobs.write_job(tmp_path, jobs.blocks(), train={"normalize_features": "row"})
    done = on_gpus(ranks, "train", "job.toml", *CUDA, "--share-gpu", "--set", "run.features=host")
    assert (done.returncode, done.stderr) == (0, "")
    assert "the features stay in the host's memory" in done.stdout
    np.testing.assert_allclose(columns(tmp_path / "runs")["loss"], of_cpu(tmp_path)["loss"], rtol=1e-5)


def test_auto_takes_the_gpus_where_each_rank_has_one(on_gpus, tmp_path):
    jobs.write_job(tmp_path, jobs.blocks())
    done = on_gpus(2, "train", "job.toml", fault="driver", MGG_SHIM_DEVICES="2")
    assert (done.returncode, done.stderr) == (0, "")
    assert "backend cuda (every rank has a GPU)" in done.stdout


@pytest.mark.sampled(0)
@pytest.mark.parametrize(("ranks", "cpu"), [(1, "serial"), (2, "shm")])
def test_auto_says_why_it_takes_none(on_gpus, tmp_path, ranks, cpu):
    jobs.write_job(tmp_path, jobs.blocks())
    done = on_gpus(ranks, "train", "job.toml", fault="driver", MGG_SHIM_DEVICES=str(ranks - 1))
    assert (done.returncode, done.stderr) == (0, "")
    why = (
        "no CUDA device (no GPU, as asked for)"
        if ranks == 1
        else "2 ranks on this node, but 1 GPU: start at most"
    )
    assert f"backend {cpu} (" in done.stdout and f"; no GPUs: {why}" in done.stdout


REFUSED = {
    "no GPU": (
        2,
        (),
        {"MGG_SHIM_DEVICES": "0"},
        "rank 0 of this node's 2 sees no CUDA device (no GPU, as asked for)",
    ),
    "too few GPUs": (
        4,
        (),
        {"MGG_SHIM_DEVICES": "3"},
        "4 ranks on this node, but 3 GPUs: start at most 3",
    ),
    "heap": (
        2,
        ("--share-gpu",),
        {"MGG_SHIM_FREE_BYTES": str(1 << 30)},
        "rank 0's shim needs 2.0 GiB of symmetric memory for the 2 ranks that share it, and has 1.0 GiB free; every "
        "rank's is as large as that of rank ",
    ),
    "memory": (
        1,
        (),
        {"MGG_SHIM_FREE_BYTES": str(1 << 10)},
        "training needs 0.0 GiB more on the GPU of rank 0, and 0.0 GiB are free; use more GPUs, ",
    ),
    "float64": (
        2,
        ("--share-gpu", "--set", "train.dtype=float64"),
        {},
        'train.dtype = "float64" is for CPUs: GPU kernels take "float32" or "bfloat16"',
    ),
    "wpb": (
        1,
        ("--set", "plan.wpb=64"),
        {},
        "plan.wpb = 64: a block of 2048 threads, but shim takes 1024; at most 32",
    ),
}


@pytest.mark.parametrize("what", long_except(REFUSED, "heap", "memory"))
def test_what_cannot_be_is_one_line(on_gpus, tmp_path, what):
    ranks, words, environment, said = REFUSED[what]
    jobs.write_job(tmp_path, jobs.blocks())
    began = time.monotonic()
    done = on_gpus(ranks, "train", "job.toml", *CUDA, *words, **environment)
    assert time.monotonic() - began < SOON
    assert done.returncode == 2
    assert done.stderr.startswith(f"mgg: error: {said}") and done.stderr.count("\n") == 1, done.stderr


def test_a_torch_without_cuda_is_named(on_gpus, tmp_path):
    jobs.write_job(tmp_path, jobs.blocks())
    done = on_gpus(1, "train", "job.toml", *CUDA, fault="torch")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "finds no GPU: it is built without CUDA, or for" in done.stderr


@pytest.mark.long
def test_a_native_module_that_does_not_load_is_named(on_gpus, tmp_path):
    jobs.write_job(tmp_path, jobs.blocks())
    done = on_gpus(2, "train", "job.toml", *CUDA, fault="missing")
    assert done.returncode == 2
    assert done.stderr.startswith("mgg: error: the native module mgg_hpc._cuda does not load (")
    assert "pip install nvidia-nvshmem-cu13" in done.stderr and done.stderr.count("\n") == 1


def test_a_gpu_of_an_older_generation_is_named(on_gpus, tmp_path):
    jobs.write_job(tmp_path, jobs.blocks())
    done = on_gpus(1, "train", "job.toml", *CUDA, fault="old")
    assert done.returncode == 2
    assert done.stderr == (
        "mgg: error: shim has compute capability 7.5, and kernels are built for 8.0 and newer\n"
    )


@pytest.mark.parametrize("fault", long_except(["start", "die"], "start"))
def test_one_rank_that_fails_ends_the_others(on_gpus, tmp_path, fault):
    jobs.write_job(tmp_path, jobs.blocks())
    began = time.monotonic()
    done = on_gpus(2, "train", "job.toml", *CUDA, "--share-gpu", fault=fault)
    assert time.monotonic() - began < SOON
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("mgg: error:")]
    if fault == "start":
        assert lines == ["mgg: error: NVSHMEM: starting failed with status 7"], done.stderr
    assert len(lines) == 1, done.stderr


@pytest.mark.long
def test_a_rank_that_stands_still_is_named(on_gpus, tmp_path):
    jobs.write_job(tmp_path, jobs.blocks())
    began = time.monotonic()
    done = on_gpus(2, "train", "job.toml", *CUDA, "--share-gpu", "--set", "run.watchdog=6", fault="sleep")
    assert time.monotonic() - began < 2 * SOON
    assert done.returncode != 0
    for rank in (0, 1):
        assert f"mgg: error: rank {rank} has made no progress for 6 s; its last step: epoch 2" in done.stderr
