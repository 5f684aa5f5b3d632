"""Folders of launches are left alone while their job runs or may be about to start."""

from __future__ import annotations

import os
import time

import pytest

from mgg_hpc.runtime import exit_code, launch


@pytest.mark.parametrize("young", [False, True])
@pytest.mark.parametrize("runs", [False, True])
def test_the_folder_of_a_job_that_runs_is_not_stale(tmp_path, monkeypatch, young, runs):
    monkeypatch.setattr(launch.tempfile, "gettempdir", lambda: str(tmp_path))
    (tmp_path / "of something else").mkdir()
    folder = tmp_path / f"{launch.FOLDER_PREFIX}1"
    folder.mkdir()
    if not young:
        os.utime(folder, (time.time() - 86400,) * 2)
    marks = [f"{exit_code.STATUS}={folder / launch._STATUS_FILE}"] * runs
    monkeypatch.setattr(launch, "_processes", lambda mark: [1] if mark in marks else [])
    assert launch.stale_folders() == ([] if young or runs else [folder])
    monkeypatch.setattr(launch.os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    assert launch.stale_folders() == []
