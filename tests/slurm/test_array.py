"""slurm/array.sbatch on a real Slurm: one job file for each index."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.long


def test_each_index_trains_its_job_file(user, job, tmp_path):
    names = ["first.toml", "the second one.toml"]
    for epochs, name in enumerate(names, 2):
        text = f'graph.file = "g.h5"\nrun.folder = "runs of {name}"\ntrain.epochs = {epochs}\n'
        (tmp_path / name).write_text(text)
    number = user.sbatch("array.sbatch", *names, "--", "--set", "train.seed=5", options=["--array=0-2"])
    states = [user.cluster.result(f"{number}_{index}")["JobState"] for index in range(3)]
    output = "\n".join(path.read_text() for path in tmp_path.glob("out.*"))
    assert states == ["COMPLETED", "COMPLETED", "FAILED"], output
    assert "mgg: error: no job file for index 2: there are 2, so sbatch --array=0-1" in output
    for epochs, name in enumerate(names, 2):
        summary = json.loads((tmp_path / f"runs of {name}" / "latest" / "summary.json").read_text())
        assert (summary["epochs"], summary["ranks"], summary["seed"]) == (epochs, 2, 5)


def test_no_array_is_named(user, job):
    assert "mgg: error: not an array: sbatch --array=0-0" in user.run("array.sbatch", job)[1]
