"""`mgg train --seeds`: a run for each seed, on any number of ranks, and their mean and deviation."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import numpy as np
import pytest
from jobs import blocks, write_job

from mgg_hpc.data import writer
from mgg_hpc.runtime import signals
from mgg_hpc.training import train

pytestmark = pytest.mark.mpi


@pytest.fixture
def job(folder, first) -> Path:
    sections = {"train": {"epochs": 4, "seed": 3}, "run": {"folder": str(folder / "runs"), "threads": 1}}
    first(lambda: write_job(folder, blocks(), **sections))
    return folder / "job.toml"


def scores(folder: Path, seeds: range, split: str = "test") -> list[float]:
    found = [json.loads((folder / f"runs/seed-{seed}/001/summary.json").read_text()) for seed in seeds]
    assert [summary["seed"] for summary in found] == list(seeds)
    return [summary[f"{split}_accuracy"] for summary in found]


def times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/001/summary.json")}


def test_scores_are_those_of_single_runs_and_their_mean_is_numpys(comm, mgg, folder, job):
    done = mgg("train", job, "--seeds", 2)
    assert done.codes == {0} and done.out[1:] == [""] * (comm.size - 1)
    for split, name in (("test", "test"), ("val", "validation")):
        found = np.array(scores(folder, range(3, 5), split))
        said = rf"{name} accuracy +(\S+) ± (\S+), from (\S+) to (\S+)"
        numbers = [float(each) for each in re.search(said, done.out[0]).groups()]
        wanted = [found.mean(), found.std(ddof=1), found.min(), found.max()]
        assert numbers == pytest.approx(wanted, abs=5.1e-5)
        for seed, score in zip(range(3, 5), found, strict=True):
            assert re.search(rf"seed {seed}: .*\b{name} {score:.4f}", done.out[0])
    assert len(set(scores(folder, range(3, 5)))) > 1
    single = ("--set", "train.seed=4", "--set", f"run.folder={folder / 'one'}")
    assert mgg("train", job, *single).codes == {0}
    for name in ("metrics.csv", "job.toml"):
        one, other = ((folder / run / "001" / name).read_text() for run in ("one", "runs/seed-4"))
        kept = [re.sub(r"folder = .*|resume = .*", "", each) for each in (one, other)]
        columns = slice(5 if name == "metrics.csv" else None)  # times differ
        lines = [[line.split(",")[columns] for line in each.splitlines()] for each in kept]
        assert lines[0] == lines[1]


def test_the_same_command_goes_on_and_adds_seeds(comm, mgg, folder, job):
    wants = train.Saver.wants
    stopped_at = [0]

    def signalled(saver: train.Saver, at: object, **more: bool) -> bool:
        stopped_at[0] += 1
        if stopped_at[0] == 4 + 3 and comm.rank == comm.size - 1:  # in the third epoch of the second seed
            signals._note(signal.SIGTERM, None)
        return wants(saver, at, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(signals, "_first", [])
        patch.setattr(train.Saver, "wants", signalled)
        stopped = mgg("train", job, "--seeds", 2)
    assert stopped.codes == {3} and "mgg resume" in "".join(stopped.err)
    before = times(folder)
    assert len(before) == 1
    done = mgg("train", job, "--seeds", 3)
    assert done.codes == {0} and "going on after epoch 3 of" in done.out[0]
    assert "seed 3: " in done.out[0] and "as before" in done.out[0] and "3 seeds" in done.out[0]
    after = times(folder)
    assert len(after) == 3 and before.items() <= after.items()
    assert not list(folder.glob("runs/*/002"))
    again = mgg("train", job, "--seeds", 2)
    assert again.out[0].count("as before") == 2 and times(folder) == after
    said = f'--seeds goes on with the runs in {folder / "runs"}, as run.resume = "auto"\n'
    assert said not in stopped.out[0] and again.out[0].startswith(said)
    assert said not in mgg("train", job, "--seeds", 2, "--set", "run.resume=auto").out[0]
    assert mgg("runs", folder / "runs").out[0].count("seed-") == 3


def test_runs_of_another_job_or_graph_are_not_counted(mgg, folder, job, first):
    assert mgg("train", job, "--seeds", 1).codes == {0}
    before = times(folder)
    for key, value in (("model.hidden", 5), ("train.patience", 2), ("train.epochs", 3)):
        said = mgg("train", job, "--seeds", 2, "--set", f"{key}={value}").refused()
        assert key in said and "name another run.folder" in said
    first(lambda: writer.write(folder / "g.h5", blocks(seed=9), force=True))
    assert "another graph" in mgg("train", job, "--seeds", 2).refused()
    assert "--dry-run" in mgg("train", job, "--seeds", 2, "--dry-run").refused()
    assert times(folder) == before
    assert not (folder / "runs/seed-4").exists()
