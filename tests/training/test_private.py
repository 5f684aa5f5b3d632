"""Runs and checkpoints are for their owner alone, whatever the umask is; files to give away follow the umask."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from data.graphs import random_graph
from jobs import MGG, blocks, clean_environment, write_job

from mgg_hpc.data import atomic_write, writer
from mgg_hpc.data.export import row_files
from mgg_hpc.training import run_folder
from mgg_hpc.training.checkpoints import folders, weights

UMASKS = [0o000, 0o022, 0o077, 0o377]


@pytest.fixture(params=UMASKS, ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


class Alone:
    """A communicator of one rank."""

    rank, size = 0, 1


def modes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.lstat().st_mode & 0o777 for path in sorted(folder.rglob("*"))}


def write_rows(path: Path, mode: int | None) -> None:
    row_files.write(Alone(), path, np.arange(3), {"rows": np.zeros((3, 2))}, np.array([0, 3]), {}, mode=mode)


def test_every_file_of_a_run_is_private(umask, tmp_path):
    tmp_path.chmod(0o700)
    run = run_folder.create(tmp_path / "runs") if not umask & 0o300 else _ready(tmp_path / "runs" / "001")
    run_folder.write_whole(run / run_folder.JOB, b"")
    run_folder.write_summary(run, {})
    run_folder.MetricsFile(run, ["epoch"]).close()
    weights.save_weights(run, {"w": torch.zeros(2)})
    write_rows(run / run_folder.CHECKPOINTS / weights.ROWS, 0o600)
    for epoch in (1, 2):
        draft = folders.draft(run / run_folder.CHECKPOINTS, epoch)
        assert draft.stat().st_mode & 0o777 == 0o700
        folders.commit(draft, epoch, {"x": folders.write_file(draft / "x", [b"x"])})
    found = modes(run)
    assert len(found) == 12
    assert run.stat().st_mode & 0o777 == 0o700
    for name, mode in found.items():
        assert mode == (0o700 if (run / name).is_dir() else 0o600), name


def _ready(run: Path) -> Path:
    """A run folder where the umask keeps even its owner from making one in a new folder."""
    mask = os.umask(0)
    run.mkdir(0o700, parents=True)
    (run / run_folder.CHECKPOINTS).mkdir(0o700)
    os.umask(mask)
    return run


def test_a_folder_of_checkpoints_becomes_private(umask, tmp_path):
    (tmp_path / "there").mkdir(0o777)
    for name in ("there", "new"):
        folders.make(tmp_path / name)
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "umask", UMASKS[:3], ids=oct, indirect=True
)  # HDF5 opens what its owner may write alone
def test_graphs_and_rows_to_give_away_follow_the_umask(umask, tmp_path, rng):
    writer.write(tmp_path / "g.h5", random_graph(rng))
    writer.write_bounds(tmp_path / "g.h5", 1, np.array([0, 40]), "edges", [1])
    write_rows(tmp_path / "out.h5", None)
    write_rows(tmp_path / "out.npy", None)
    assert set(modes(tmp_path).values()) == {0o666 & ~umask}


def test_there_is_no_moment_at_which_others_can_open_a_private_file(tmp_path, monkeypatch):
    """Who has a file open reads what is written later."""
    seen, opened = [], os.open

    def noted(path, flags, mode=0o777, **more):
        descriptor = opened(path, flags, mode, **more)
        if flags & os.O_CREAT:
            seen.append(os.fstat(descriptor).st_mode & 0o777)
        return descriptor

    before = os.umask(0)
    try:
        for module in (atomic_write, folders, run_folder):
            monkeypatch.setattr(module.os, "open", noted)
        run_folder.write_whole(tmp_path / "a", b"a")
        folders.write_file(tmp_path / "b", [b"b"])
        run_folder.private(str(tmp_path / "c"), os.O_CREAT | os.O_WRONLY)
    finally:
        os.umask(before)
    assert seen == [0o600] * 3


@pytest.mark.slow
def test_a_whole_run_is_private(tmp_path):
    job = write_job(
        tmp_path,
        blocks(),
        model={"input": "learned"},
        checkpoint={"every_epochs": 1},
        run={"backend": "serial"},
    )
    done = subprocess.run(
        [MGG, "train", job],
        env=clean_environment(),
        umask=0,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    runs = [path for path in (tmp_path / "job").parent.rglob("001") if path.is_dir()]
    assert len(runs) == 1
    found = modes(runs[0])
    assert {"job.toml", "metrics.csv", "summary.json", "checkpoints/input.npy"} <= found.keys()
    assert any(name.endswith("state.safetensors") for name in found)
    assert {name: mode for name, mode in found.items() if mode not in (0o600, 0o700)} == {}
