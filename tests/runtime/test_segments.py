"""What killed jobs leave: found by its name, by who made it and by whether a process still maps it."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from mgg_hpc.runtime import segments


@pytest.mark.parametrize("running", [False, True])
def test_notes_of_cores_go_when_no_rank_can_read_them(tmp_path, monkeypatch, running):
    monkeypatch.setattr(segments, "FOLDER", tmp_path / "shm")
    monkeypatch.setattr(segments, "NOTES_FOLDER", tmp_path)
    monkeypatch.setattr(segments, "_MANAGER", "sleep" if running else "no such program")
    for name in ("hydra_hwloc_xmlfile_a1B2c3", "hydra_other"):
        (tmp_path / name).touch()
    manager = subprocess.Popen(["sleep", "30"])
    try:
        comm = Path(f"/proc/{manager.pid}/comm")
        while comm.read_text() != "sleep\n":  # Popen returns a moment before the kernel renames the process
            time.sleep(1e-3)
        expected = [] if running else [tmp_path / "hydra_hwloc_xmlfile_a1B2c3"]
        assert segments.left_since(0.0) == segments.stale() == expected
        assert segments.left_since(time.time() + 60) == []
        monkeypatch.setattr(segments, "_STARTING_SECONDS", -1.0)
        assert segments.stale() == [tmp_path / "hydra_hwloc_xmlfile_a1B2c3"]
    finally:
        manager.kill()
        manager.wait()


def test_only_unmapped_segments_of_known_names_are_stale(tmp_path, monkeypatch):
    monkeypatch.setattr(segments, "FOLDER", tmp_path)
    monkeypatch.setattr(segments, "NOTES_FOLDER", tmp_path / "absent")
    monkeypatch.setattr(segments, "_YOUNG_SECONDS", -1.0)
    for name in ("mpich_shm_1", "vader_segment.h.1", "someone_elses"):
        (tmp_path / name).write_bytes(b"x" * 100)
    start = time.time() - 60
    with (tmp_path / "mpich_shm_2").open("w+") as held:
        held.write("x")
        held.flush()
        assert sorted(path.name for path in segments.stale()) == ["mpich_shm_1", "vader_segment.h.1"]
        assert segments.left_since(start + 3600) == []
        segments.remove(segments.left_since(start))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mpich_shm_2", "someone_elses"]


def test_a_segment_that_is_opened_before_it_is_mapped_is_in_use(tmp_path, monkeypatch):
    """The process maps the segment after its maps were read, and closes the file at once."""
    name, opened = "/dev/shm/mpich_shm_1", tmp_path / "fd" / "3"
    opened.parent.mkdir()
    opened.symlink_to(name)

    def closed(path: Path, **_: str) -> str:
        opened.unlink()
        return ""

    monkeypatch.setattr(Path, "read_text", closed)
    assert segments._files_of(tmp_path, "/dev/shm/") == {name}
