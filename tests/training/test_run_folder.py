"""Run folders: numbers, the link to the latest, files that are whole, and for their owner alone."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from command import mgg
from data.graphs import random_graph
from jobs import blocks, write_job

from mgg_hpc.data import atomic_write, writer
from mgg_hpc.errors import InputError
from mgg_hpc.training import run_folder
from mgg_hpc.training.checkpoints import folders


def test_folders_are_numbered_and_latest_points_to_the_newest(tmp_path):
    parent = tmp_path / "deep" / "runs"
    made = [run_folder.create(parent) for _ in range(3)]
    assert [folder.name for folder in made] == ["001", "002", "003"]
    assert all(folder.parent == parent and (folder / "checkpoints").is_dir() for folder in made)
    assert (parent / "latest").readlink() == Path("003")  # relative, so that the runs can be moved
    assert sorted(path.name for path in parent.iterdir()) == ["001", "002", "003", "latest"]
    for name in ("999", "notes", "12b"):
        (parent / name).mkdir()
    assert [run_folder.create(parent).name for _ in range(2)] == ["1000", "1001"]


def test_a_number_that_another_run_takes_meanwhile_is_skipped(tmp_path, monkeypatch):
    make, raced = Path.mkdir, []

    def mkdir(self, *arguments, **options):
        if self.name == "001" and not raced:
            raced.append(self)
            make(self)
        return make(self, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    assert run_folder.create(tmp_path).name == "002"
    assert raced


def test_what_cannot_be_a_folder_of_runs_is_refused_by_name(tmp_path):
    (tmp_path / "file").write_text("")
    for parent in (tmp_path / "file", tmp_path / "file" / "runs", Path("/proc/none")):
        said = rf"run.folder: {parent} cannot be written to \(.+\); name another"
        with pytest.raises(InputError, match=said):
            run_folder.create(parent)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_find_takes_a_run_or_the_latest_of_several(tmp_path):
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(InputError, match=rf"{path}: holds no run \(job.toml is missing\)"):
            run_folder.find(path)
    for _ in range(2):
        (run_folder.create(tmp_path) / "job.toml").write_text("")
    for given, found in (("001", "001"), ("", "002"), ("latest", "002")):
        assert run_folder.find(tmp_path / given) == (tmp_path / found).resolve()


def test_metrics_have_whole_lines_while_the_run_goes_on_and_give_float32_values_back(tmp_path, rng):
    values = (rng.standard_normal(200) * 10.0 ** rng.integers(-30, 30, 200)).astype(np.float32)
    metrics, path = run_folder.MetricsFile(tmp_path, ["epoch", "loss"]), tmp_path / "metrics.csv"
    for epoch, value in enumerate(values):
        text = path.read_text()
        assert text.endswith("\n") and text.count("\n") == epoch + 1
        metrics.add([epoch, float(value)])
    metrics.close()
    head, *lines = path.read_text().splitlines()
    assert (head, lines[7].partition(",")[0]) == ("epoch,loss", "7")
    np.testing.assert_array_equal(np.array([line.split(",")[1] for line in lines], np.float32), values)


# ---- who may read them ----------------------------------------------------------------------------------


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o377], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(*paths: Path) -> dict[Path, int]:
    return {path: path.lstat().st_mode & 0o777 for path in paths}


@pytest.mark.slow
def test_a_run_is_private_and_what_is_given_away_follows_the_umask(umask, tmp_path, rng):
    tmp_path.chmod(0o700)
    before = os.umask(0)  # the last one keeps even its owner from making something in a new folder
    run, there = {"threads": 1, "folder": str(tmp_path / "runs")}, tmp_path / "there"
    model, often = {"input": "learned", "embedding": 2}, {"every_epochs": 1}
    job = write_job(tmp_path, blocks(), model=model, run=run, checkpoint=often)
    (tmp_path / "runs").mkdir()
    there.mkdir(0o777)
    os.umask(before)
    assert mgg("train", job) == 0
    found = modes(tmp_path / "runs/001", *(tmp_path / "runs/001").rglob("*"))
    names = {str(path.relative_to(tmp_path / "runs/001")) for path in found}
    assert names > {"job.toml", "metrics.csv", "summary.json", "checkpoints/input.npy"}
    assert sum(name.endswith("state.safetensors") for name in names) == 2
    assert all(mode == (0o700 if path.is_dir() else 0o600) for path, mode in found.items()), found
    for folder in (there, tmp_path / "new"):
        folders.make(folder)
        assert modes(folder) == {folder: 0o700}
    if umask != 0o377:  # HDF5 opens what its owner may write alone
        given = [tmp_path / name for name in ("out.h5", "out.npy", "new.h5")]
        for path in given[:2]:
            assert mgg("predict", tmp_path / "runs", "-o", path, "--what", "class") == 0
        writer.write(given[2], random_graph(rng))
        writer.write_bounds(given[2], 1, np.array([0, 40]), "edges", [1])
        assert set(modes(*given).values()) == {0o666 & ~umask}


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
