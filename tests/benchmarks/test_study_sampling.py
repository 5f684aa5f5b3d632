"""benchmarks/studies/sampling.py: its rows, and the accuracy of sampled training on a real graph."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest
from jobs import blocks, python
from jobs import run as mgg

from mgg_hpc.data import writer

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "studies" / "sampling.py"
JOB = '[graph]\nfile = "graph.h5"\n[model]\nname = "sage"\nhidden = {}\nlayers = 2\n[run]\nthreads = 1\n'

pytestmark = pytest.mark.long


def test_a_row_has_the_means_of_runs_of_the_same_keys(tmp_path):
    writer.write(tmp_path / "graph.h5", blocks())
    (tmp_path / "job.toml").write_text(JOB.format(8))
    words = ("--seeds=2", "--batch-size=10", "--set=train.epochs=4", "-o", "s.json", "-o", "s.svg")
    done = python(SCRIPT, "job.toml", *words, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    full, sampled = json.loads((tmp_path / "s.json").read_text())["rows"]
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
    assert "</svg>" in (tmp_path / "s.svg").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("missing.toml", "missing.toml: no such job file"),
        ("job.toml --fanouts=5", "job.toml: train.fanouts has 1 numbers, and the model has 2 layers"),
        ("job.toml --set=graph.file=no.h5", "no.h5, which is not there"),
    ],
)
def test_a_job_that_cannot_be_trained_is_one_line(tmp_path, words, said):
    (tmp_path / "graph.h5").touch()
    (tmp_path / "job.toml").write_text(JOB.format(8))
    done = python(SCRIPT, *words.split(), folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1) and said in done.stderr


@pytest.mark.data
def test_sampled_training_is_as_accurate_on_a_real_graph(data_folder, tmp_path):
    """Within a point of full-graph training by ten seeds; of two, whose means deviate more, within two."""
    source = data_folder / "amazon_computers" / "amazon_computers.npz"
    assert mgg("import", source, "--split-per-class", "-o", "graph.h5", folder=tmp_path).returncode == 0
    (tmp_path / "job.toml").write_text(JOB.format(64))
    words = ("--seeds=2", "--batch-size=50", "--set=train.epochs=60", "-o", "s.json")
    assert python(SCRIPT, "job.toml", *words, folder=tmp_path).returncode == 0
    _, sampled = json.loads((tmp_path / "s.json").read_text())["rows"]
    assert sampled["test_percent"] > 70 and sampled["below_full_percent"] < 2
