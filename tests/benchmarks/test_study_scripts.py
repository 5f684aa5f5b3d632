"""benchmarks/studies as programs: they start their ranks or trainings themselves, and write what they measure."""

from __future__ import annotations

import json
import statistics

import numpy as np
import pytest
import two_hosts
from jobs import blocks
from jobs import run as mgg
from tiers import drawn

from mgg_hpc.data import writer
from mgg_hpc.plan.row_ranges import edge_balanced
from mgg_hpc.tools.bench import graphs

STUDIES = ("partitioning", "interleaving", "primitives", "transfers")
JOB = '[graph]\nfile = "graph.h5"\n[model]\nname = "sage"\nhidden = {}\nlayers = 2\n[run]\nthreads = 1\n'

pytestmark = pytest.mark.long


@pytest.mark.parametrize("study", drawn(STUDIES, 2))
def test_a_study_starts_its_ranks_and_writes_its_files(measured, tmp_path, study):
    words = (study, "rmat:6:4", "--ranks=2", "--threads=1", "--turns=1")
    found = measured("studies/exchanges", *words)
    assert (found["benchmark"], found["ranks"], found["backend"]) == (study, 2, "shm")
    assert all(row["variant"].split()[0] in found["printed"] for row in found["rows"])
    assert {path.name for path in tmp_path.iterdir()} == {"found.json", "found.svg"}


def test_every_transfer_trains_the_same_and_moves_its_rows(measured):
    """Rows of as many bytes in as many aggregations: distinct remote ones, or one for each remote edge."""
    found = measured("studies/epochs", "rmat:6:4", "--ranks=2", "--threads=1", "--turns=1")
    assert (found["ranks"], found["backend"], found["threads"]) == (2, "shm", 1)
    graph = graphs.read("rmat:6:4")
    owner = np.searchsorted(edge_balanced(graph.indptr, 2), np.arange(graph.nodes), side="right") - 1
    remote = graph.indices[owner[graph.indices] != np.repeat(owner, np.diff(graph.indptr))]
    rows = {"halo": len(np.unique(remote)), "direct": len(remote), "get": len(remote)}
    for model in ("GCN", "GIN"):
        here = [row for row in found["rows"] if row["model"] == model]
        moved = {row["variant"].partition(":")[0]: row["crossing_bytes"] for row in here}
        assert moved.keys() == rows.keys() and moved["direct"] == moved["get"]
        assert moved["halo"] * rows["direct"] == moved["direct"] * rows["halo"] > 0


def test_two_hosts_on_a_slow_link(ran, tmp_path, require):
    lacking = two_hosts.missing()
    require(not lacking, f"two hosts need {lacking}")
    study = two_hosts.__file__.replace("two_hosts.py", "studies/exchanges.py")
    words = [
        "transfers",
        "rmat:10",
        "--widths=16",
        "--backend=shmem",
        "--threads=1",
        "--turns=2",
        "-o",
        "t.json",
    ]
    done = ran("two_hosts", "--rate=10mbit", study, *words)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "t.json").read_text())
    exchange = next(row for row in found["rows"] if row["variant"] == "halo's exchange alone")
    assert (found["backend"], found["ranks"]) == ("shmem", 2)
    burst = 2 * 128 * 1024  # bytes that both links let through at once
    seconds = (exchange["crossing_bytes"] - burst) / 2 / (10e6 / 8)
    assert exchange["median_ms"] > 0.5e3 * seconds


def test_a_row_of_sampling_has_the_means_of_runs_of_the_same_keys(measured, tmp_path):
    writer.write(tmp_path / "graph.h5", blocks())
    (tmp_path / "job.toml").write_text(JOB.format(8))
    words = ("--seeds=2", "--batch-size=10", "--set=train.epochs=4")
    full, sampled = measured("studies/sampling", "job.toml", *words)["rows"]
    keys = ("train.epochs=4", "train.mode=sampled", "train.fanouts=[15,10]", "train.batch_size=10")
    percent = []
    for seed in range(2):
        given = (f"--set={key}" for key in (*keys, f"train.seed={seed}", f"run.folder=run{seed}"))
        assert mgg("train", "job.toml", *given, folder=tmp_path).returncode == 0
        summary = json.loads((tmp_path / f"run{seed}" / "latest" / "summary.json").read_text())
        percent.append(100 * summary["test_accuracy"])
        assert sampled["batches"] == summary["batches"] > full["batches"] == 1
    found = [sampled[f"{name}_percent"] for name in ("test", "deviation", "worst")]
    expected = [statistics.mean(percent), statistics.stdev(percent), min(percent)]
    assert found == pytest.approx(expected, abs=1e-3)
    assert sampled["below_full_percent"] == pytest.approx(full["test_percent"] - found[0], abs=2e-3)
    assert (full["variant"], sampled["variant"]) == ("full", "sampled") and sampled["turns"] == 2


@pytest.mark.data
def test_sampled_training_is_as_accurate_on_a_real_graph(measured, data_folder, tmp_path):
    """Within a point of full-graph training by ten seeds; of two, whose means deviate more, within two."""
    source = data_folder / "amazon_computers" / "amazon_computers.npz"
    assert mgg("import", source, "--split-per-class", "-o", "graph.h5", folder=tmp_path).returncode == 0
    (tmp_path / "job.toml").write_text(JOB.format(64))
    words = ("--seeds=2", "--batch-size=50", "--set=train.epochs=60")
    _, sampled = measured("studies/sampling", "job.toml", *words)["rows"]
    assert sampled["test_percent"] > 70 and sampled["below_full_percent"] < 2
