"""`mgg clean` removes what nobody uses, and nothing else."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from programs import wait_until

from mgg_hpc.data.assembly.work import WorkFolder
from mgg_hpc.errors import InputError
from mgg_hpc.runtime import leftovers
from mgg_hpc.tools.clean import process_clean


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    """Stand-ins for /dev/shm and the temporary folder."""
    (tmp_path / "shm").mkdir()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(leftovers, "SHARED_MEMORY", tmp_path / "shm")
    monkeypatch.setattr(leftovers, "NOTES_FOLDER", tmp_path / "tmp")
    monkeypatch.setattr(leftovers, "_YOUNG_SECONDS", -1.0)
    monkeypatch.setattr(leftovers, "_LAUNCHING_SECONDS", -1.0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_leftovers_go_and_the_rest_stays(tmp_path, capsys):
    (tmp_path / "shm" / "mpich_shm_9").write_bytes(b"x" * 4096)
    (tmp_path / "shm" / "mine").write_bytes(b"x")
    (tmp_path / "tmp" / "mgg-launch-abc").mkdir()
    runs = tmp_path / "runs" / "001"
    runs.mkdir(parents=True)
    stale = [".g.h5.0123456789ab.tmp", ".summary.json.4711.tmp"]
    for name in [*stale, "g.h5", ".hidden.tmp", "a.0123456789ab.tmp", ".open.h5.ba9876543210.tmp"]:
        (runs / name).write_bytes(b"x")
    (runs / ".link.123.tmp").symlink_to("g.h5")
    before = names(tmp_path)
    with (runs / ".open.h5.ba9876543210.tmp").open():
        process_clean(tmp_path / "runs", dry_run=True)
        assert names(tmp_path) == before
        assert "would remove" in capsys.readouterr().out
        process_clean(tmp_path / "runs", dry_run=False)
    gone = ["shm/mpich_shm_9", "tmp/mgg-launch-abc", *(f"runs/001/{name}" for name in stale)]
    assert names(tmp_path) == sorted(set(before) - set(gone))
    assert "4 left behind" in capsys.readouterr().out


def test_without_a_folder_temporary_files_stay(tmp_path, capsys):
    (tmp_path / ".g.h5.0123456789ab.tmp").touch()
    assert process_clean(None, dry_run=False) == 0
    assert capsys.readouterr().out == "nothing was left behind\n"
    assert (tmp_path / ".g.h5.0123456789ab.tmp").exists()
    with pytest.raises(InputError, match="not a folder"):
        process_clean(tmp_path / "absent", dry_run=False)


def test_folder_of_a_running_launch_stays(tmp_path, monkeypatch):
    folder = tmp_path / "tmp" / "mgg-launch-abc"
    folder.mkdir()
    child = os.posix_spawn("/bin/sleep", ["sleep", "30"], {"MGG_STATUS": str(folder / "status")})
    environment = Path(f"/proc/{child}/environ")
    try:
        wait_until(environment.read_bytes, 5)  # it is empty for some milliseconds after a process began
        process_clean(None, dry_run=False)
        assert folder.exists()
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_builds_that_were_stopped_are_removed_unless_a_process_works_in_them(tmp_path, capsys):
    for name in ("stopped", "busy", "foreign"):
        (tmp_path / f".{name}.h5.build").mkdir()
        (tmp_path / f".{name}.h5.build" / "run0").write_bytes(bytes(10_000))
    (tmp_path / ".foreign.h5.build" / "notes.txt").touch()  # no file of ours
    with WorkFolder(tmp_path / "busy.h5", None, take=False):
        assert process_clean(tmp_path, dry_run=False) == 0
    assert sorted(path.name for path in tmp_path.glob(".*.build")) == [".busy.h5.build", ".foreign.h5.build"]
    assert "1 left behind, 0.0" in capsys.readouterr().out


def test_plans_are_removed_where_their_graph_is_gone(tmp_path, capsys):
    """And nothing but plans, of this program's names."""
    plan = "0123456789abcdef-matrix-gcn-0of4-0123456789abcdef.plan"
    for name in ("gone", "there", "foreign"):
        (tmp_path / f"{name}.h5.plans").mkdir()
        (tmp_path / f"{name}.h5.plans" / plan).write_bytes(bytes(1 << 20))
    (tmp_path / "there.h5").touch()
    (tmp_path / "foreign.h5.plans" / "notes.txt").touch()
    process_clean(tmp_path, dry_run=True)
    assert f"would remove {tmp_path / 'gone.h5.plans'}\n" in capsys.readouterr().out
    process_clean(tmp_path, dry_run=False)
    assert "1.0 MiB" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.glob("*.plans")) == ["foreign.h5.plans", "there.h5.plans"]
