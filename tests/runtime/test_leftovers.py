"""What killed jobs leave: found by its name, by who made it and by whether a process still maps it or runs."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from mgg_hpc.runtime import leftovers


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(leftovers, "SHARED_MEMORY", tmp_path / "shm")
    monkeypatch.setattr(leftovers, "NOTES_FOLDER", tmp_path / "notes")
    for name in ("shm", "notes"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.mark.parametrize("running", [False, True])
def test_notes_of_cores_go_when_no_rank_can_read_them(folder, monkeypatch, running):
    monkeypatch.setattr(leftovers, "_MANAGER", "sleep" if running else "no such program")
    note = folder / "notes" / "hydra_hwloc_xmlfile_a1B2c3"
    for path in (note, note.with_name("hydra_other")):
        path.touch()
    with subprocess.Popen(["sleep", "30"]) as manager:
        comm = Path(f"/proc/{manager.pid}/comm")
        while comm.read_text() != "sleep\n":  # Popen returns a moment before the kernel renames the process
            time.sleep(1e-3)
        try:
            assert leftovers.left_since(0.0) == leftovers.stale() == ([] if running else [note])
            assert leftovers.left_since(time.time() + 60) == []
            monkeypatch.setattr(leftovers, "_STARTING_SECONDS", -1.0)
            assert leftovers.stale() == [note]
        finally:
            manager.kill()


def test_only_unmapped_segments_of_known_names_are_stale(folder, monkeypatch):
    monkeypatch.setattr(leftovers, "_YOUNG_SECONDS", -1.0)
    shm, start = folder / "shm", time.time() - 60
    for name in ("mpich_shm_1", "vader_segment.h.1", "someone_elses"):
        (shm / name).write_bytes(b"x" * 100)
    with (shm / "mpich_shm_2").open("w+") as held:
        held.write("x")
        held.flush()
        assert sorted(path.name for path in leftovers.stale()) == ["mpich_shm_1", "vader_segment.h.1"]
        assert leftovers.left_since(start + 3600) == []
        leftovers.remove(leftovers.left_since(start))
    assert sorted(path.name for path in shm.iterdir()) == ["mpich_shm_2", "someone_elses"]


@pytest.mark.parametrize("ending", [False, True])
def test_a_segment_that_a_process_holds_open_is_in_use_unless_the_process_is_ending(
    tmp_path, monkeypatch, ending
):
    """A process maps it after its maps were read, and closes it at once. A process that ends unmaps it first."""
    name, opened = "/dev/shm/mpich_shm_1", tmp_path / "fd" / "3"
    opened.parent.mkdir()
    opened.symlink_to(name)
    mapped = "" if ending else "7f00-7f01 r-xp 0 08:01 7 /lib/libc.so.6"
    monkeypatch.setattr(Path, "read_text", lambda path, **_: opened.unlink() or mapped)
    assert leftovers.files_of(tmp_path, "/dev/shm/") == (set() if ending else {name})


@pytest.mark.parametrize("young", [False, True])
@pytest.mark.parametrize("runs", [False, True])
def test_the_folder_of_a_job_that_runs_or_may_be_about_to_is_not_stale(folder, monkeypatch, young, runs):
    monkeypatch.setattr(leftovers.tempfile, "gettempdir", lambda: str(folder))
    launch = folder / f"{leftovers.LAUNCH_PREFIX}1"
    launch.mkdir()
    if not young:
        os.utime(launch, (time.time() - 86400,) * 2)
    statuses = [launch / leftovers.STATUS_FILE] * runs
    monkeypatch.setattr(leftovers, "job_processes", lambda status: [1] if status in statuses else [])
    assert leftovers.stale() == ([] if young or runs else [launch])
    monkeypatch.setattr(leftovers.os, "getuid", lambda: folder.stat().st_uid + 1)
    assert leftovers.stale() == []
