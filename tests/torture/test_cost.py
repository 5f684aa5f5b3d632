"""What checkpoints cost a large job."""

from __future__ import annotations

import time
from pathlib import Path

import jobs
import numpy as np
import pytest

from torture.launched import LONGEST, Launched
from torture.report import record

CYCLE = 6  # epochs between checkpoints of a job whose epochs are timed
MINUTE = 60.0


@pytest.mark.parametrize(
    "model", [{"hidden": 64}, {"hidden": 64, "input": "learned", "embedding": 64}], ids=["gcn", "learned"]
)
@pytest.mark.torture
@pytest.mark.trials(5, torture=5)
def test_a_checkpoint_a_minute_costs_little(tmp_path_factory, tmp_path, trials, model):
    """Epochs in which one is written are compared with those between, on rmat 21 with 64 features and 2 ranks."""
    graph = large_graph(tmp_path_factory)
    learned = "input" in model
    jobs.write_job(
        tmp_path,
        None,
        graph={"file": str(graph)},
        model=model,
        train={"epochs": (trials + 1) * CYCLE},
        run={"folder": "runs", "threads": 1},
        checkpoint={"every_epochs": CYCLE, "every_minutes": 0},
    )
    job = Launched(tmp_path, "launch", "-n", 2, "train", "job.toml", "--no-progress")
    times = np.diff(ends_of_epochs(job, tmp_path / "runs" / "001" / "metrics.csv"))
    # times[i] is of epoch i + 2; a checkpoint begins after epochs 6, 12, ... and falls into the next epoch.
    cycles = times[CYCLE - 1 :][: (trials - 1) * CYCLE].reshape(-1, CYCLE)
    quiet = float(np.median(cycles[:, CYCLE // 2 :]))
    cost = float(np.median((cycles - quiet).sum(axis=1)))
    size = sum(path.stat().st_size for path in newest(tmp_path).iterdir())
    record(
        f"a checkpoint a minute, rmat 21, 64 {'learned columns' if learned else 'features'}, 2 ranks",
        len(cycles),
        int(not learned and cost / MINUTE > 0.01),
        epoch_s=round(quiet, 2),
        checkpoint_MiB=round(size / 2**20, 1),
        seconds_a_checkpoint=round(cost, 2),
        share_of_a_minute=f"{cost / MINUTE:.2%}",
    )
    assert learned or cost / MINUTE < 0.01


def large_graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a graph file that is written once."""
    path = tmp_path_factory.getbasetemp() / "rmat21.h5"
    if not path.exists():
        words = ["generate", "rmat", "--scale", "21", "--features", "64", "--classes", "8", "-o", path]
        made = jobs.run(*words)
        assert made.returncode == 0, made.stderr
    return path


def ends_of_epochs(job: Launched, path: Path) -> list[float]:
    """Return when each line of metrics.csv appeared."""
    found: list[float] = []
    deadline = time.monotonic() + 10 * LONGEST
    while job.process.poll() is None and time.monotonic() < deadline:
        lines = path.read_bytes().count(b"\n") - 1 if path.exists() else 0
        found += [time.monotonic()] * (lines - len(found))
        time.sleep(0.002)
    assert job.wait() == 0, job.said()
    return found


def newest(folder: Path) -> Path:
    """Return the folder of the newest checkpoint."""
    return max((folder / "runs" / "001" / "checkpoints").glob("epoch-*"))
