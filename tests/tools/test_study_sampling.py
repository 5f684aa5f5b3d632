"""`mgg study sampling`: what it trains, what its table says, and the accuracy of sampled training on a real graph."""

from __future__ import annotations

import json
import statistics

import pytest
from command import mgg, refused
from jobs import blocks

from mgg_hpc.data import writer
from mgg_hpc.tools.study import sampling, table
from mgg_hpc.training.minibatch import sampled

JOB = """
[graph]
file = "graph.h5"
[model]
name = "{model}"
hidden = 8
layers = {layers}
[train]
epochs = {epochs}
[run]
threads = 1
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Write a job over a small graph, in the current folder, and return its name."""
    monkeypatch.chdir(tmp_path)

    def job(model: str = "sage", layers: int = 2, epochs: int = 4) -> str:
        (tmp_path / "job.toml").write_text(JOB.format(model=model, layers=layers, epochs=epochs))
        return "job.toml"

    writer.write(tmp_path / "graph.h5", blocks())
    return job


@pytest.mark.long
def test_a_row_says_what_a_run_of_the_same_keys_says(job, capsys, tmp_path):
    words = ("--batch-size", "10", "--set", "train.learning_rate=0.02", "--plot", "s.svg")
    assert mgg("study", "sampling", job(), "--seeds", "2", *words) == 0
    rows = table.read(tmp_path / "sampling.csv")
    of = {(row["variant"], row["seed"]): row for row in rows}
    assert len(of) == len(rows) == 4 and set(of) == {
        (mode, seed) for mode in sampling.MODES for seed in (0, 1)
    }
    keys = ("train.seed=1", "train.learning_rate=0.02", "train.mode=sampled", "train.fanouts=[15,10]")
    keys += ("train.batch_size=10", "run.folder=again")
    assert mgg("train", job(), *(f"--set={key}" for key in keys)) == 0
    summary = json.loads((tmp_path / "again" / "latest" / "summary.json").read_text())
    row = of["sampled", 1]
    assert (row["job"], row["fanouts"], row["batch_rows"], row["epochs"]) == ("job.toml", "15 10", 10, 4)
    assert row["batches"] == summary["batches"] > 1 and "batch_rows" not in of["full", 1]
    for split in ("val", "test"):
        assert row[f"{split}_percent"] == pytest.approx(100 * summary[f"{split}_accuracy"], abs=1e-3)
    assert row["training_s"] >= 4 * row["min_ms"] / 1e3
    assert "job.toml" in capsys.readouterr().out
    assert "</svg>" in (tmp_path / "s.svg").read_text()


def test_the_sheet_has_means_and_their_difference():
    rows = [
        {"job": "a", "variant": mode, "test_percent": percent, "median_ms": ms, "training_s": 2.0}
        for mode, percent, ms in (
            ("full", 80.0, 3.0),
            ("sampled", 78.0, 1.0),
            ("full", 82.0, 5.0),
            ("sampled", 79.0, 2.0),
        )
    ]
    full, sampled = sampling.sheet(rows).rows
    assert full == ["a", "full", "2", "81.00", "1.41", "80.00", "0.00", "4.00", "2.00"]
    assert sampled == ["a", "sampled", "2", "78.50", "0.71", "78.00", "2.50", "1.50", "2.00"]


def test_fanouts_go_on_with_the_last_one():
    assert [sampled.fanouts_of(layers) for layers in (1, 3, 5)] == [[15], [15, 10, 5], [15, 10, 5, 5, 5]]


def test_a_curve_has_the_epochs_that_were_evaluated():
    lines = [
        {"epoch_ms": "500", "test_accuracy": "0.25"},
        {"epoch_ms": "250", "test_accuracy": ""},
        {"epoch_ms": "250", "test_accuracy": "0.5"},
    ]
    found = sampling.curve_of("a", "full", lines)
    assert (found.seconds, found.accuracy) == ([0.5, 1.0], [25.0, 50.0])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "the graph of no job is there"),
        ("missing.toml", "missing.toml"),
        ("job.toml --fanouts 5", "job.toml: 2 layers, and fanouts [5]"),
        ("job.toml --fanouts 5,x", "--fanouts 5,x"),
        ("job.toml --set graph.file=no.h5", "no.h5, which is not there"),
        ("job.toml --set train.rate=1", "train.rate"),
        ("job.toml --plot s.bmp", "s.bmp: a plot is a .png"),
    ],
)
def test_what_cannot_be_trained_is_refused(capsys, job, words, said):
    job()
    assert said in refused(capsys, "study", "sampling", *words.split())


@pytest.mark.long
@pytest.mark.data
def test_sampled_training_is_as_accurate_on_a_real_graph(data_folder, tmp_path, monkeypatch):
    """Within a point of full-graph training by ten seeds; of two, whose means deviate more, within two."""
    monkeypatch.chdir(tmp_path)
    source = data_folder / "amazon_computers" / "amazon_computers.npz"
    assert mgg("import", source, "--split-per-class", "-o", "graph.h5") == 0
    (tmp_path / "job.toml").write_text(JOB.format(model="sage", layers=2, epochs=60))
    words = ("--seeds", "2", "--batch-size", "50", "--set", "model.hidden=64", "--plot", "none")
    assert mgg("study", "sampling", "job.toml", *words) == 0
    means = {
        mode: statistics.mean(
            row["test_percent"] for row in table.read(tmp_path / "sampling.csv") if row["variant"] == mode
        )
        for mode in sampling.MODES
    }
    assert means["sampled"] > 70 and means["sampled"] > means["full"] - 2
