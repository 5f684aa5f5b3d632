"""Run folders: numbers, the link to the latest, and files that are whole."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest

from mgg_hpc.errors import InputError
from mgg_hpc.training import run_folder


def test_folders_are_numbered_and_latest_points_to_the_newest(tmp_path):
    parent = tmp_path / "deep" / "runs"
    made = [run_folder.create(parent) for _ in range(3)]
    assert [folder.name for folder in made] == ["001", "002", "003"]
    assert all(folder.parent == parent and (folder / "checkpoints").is_dir() for folder in made)
    assert (parent / "latest").is_symlink()
    assert (parent / "latest").readlink() == Path("003")  # relative, so that the runs can be moved
    assert sorted(path.name for path in parent.iterdir()) == ["001", "002", "003", "latest"]


def test_numbers_go_on_from_the_largest_and_past_999(tmp_path):
    for name in ("002", "999", "notes", "12b"):
        (tmp_path / name).mkdir()
    assert run_folder.create(tmp_path).name == "1000"
    assert run_folder.create(tmp_path).name == "1001"


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
    for _ in range(2):
        (run_folder.create(tmp_path) / "job.toml").write_text("")
    assert run_folder.find(tmp_path / "001") == (tmp_path / "001").resolve()
    assert run_folder.find(tmp_path) == (tmp_path / "002").resolve()
    assert run_folder.find(tmp_path / "latest") == (tmp_path / "002").resolve()


def test_find_refuses_what_holds_no_run(tmp_path):
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(InputError, match=rf"{path}: holds no run \(job.toml is missing\)"):
            run_folder.find(path)


def test_write_whole_replaces_a_file_in_one_step(tmp_path, monkeypatch):
    path = tmp_path / "file"
    run_folder.write_whole(path, b"old")
    steps = []
    fsync, replace = os.fsync, Path.replace

    def record_fsync(descriptor):
        kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        steps.append((f"sync {kind}", path.read_bytes()))
        fsync(descriptor)

    def record_replace(self, target):
        steps.append(("rename", path.read_bytes()))
        assert self.parent == path.parent
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(Path, "replace", record_replace)
    run_folder.write_whole(path, b"new content")
    assert steps == [("sync file", b"old"), ("rename", b"old"), ("sync folder", b"new content")]
    assert path.read_bytes() == b"new content"
    assert list(tmp_path.iterdir()) == [path]


def test_write_whole_leaves_the_old_file_and_nothing_else_when_it_fails(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(self, target):
        raise RuntimeError("the power fails here")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(RuntimeError, match="power"):
        run_folder.write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_summary_is_json_with_a_line_end(tmp_path):
    path = run_folder.write_summary(tmp_path, {"a": 1.5, "b": [1, 2]})
    assert path == tmp_path / "summary.json"
    assert json.loads(path.read_text()) == {"a": 1.5, "b": [1, 2]}
    assert path.read_text().endswith("}\n")


def test_metrics_has_whole_lines_while_the_run_goes_on(tmp_path):
    metrics, wanted = run_folder.MetricsFile(tmp_path, ["epoch", "loss"]), "epoch,loss\n"
    for row, line in (([1, 0.1], "1,0.1\n"), ([2, 1 / 3], "2,0.333333333\n")):
        assert (tmp_path / "metrics.csv").read_text() == wanted
        metrics.add(row)
        wanted += line
    assert (tmp_path / "metrics.csv").read_text() == wanted
    metrics.close()


def test_metrics_give_float32_values_back_exactly(tmp_path, rng):
    values = (rng.standard_normal(200) * 10.0 ** rng.integers(-30, 30, 200)).astype(np.float32)
    metrics = run_folder.MetricsFile(tmp_path, ["value"])
    for value in values:
        metrics.add([float(value)])
    metrics.close()
    _, *lines = (tmp_path / "metrics.csv").read_text().splitlines()
    np.testing.assert_array_equal(np.array(lines, np.float32), values)
