"""What a loss of power leaves: at no moment anything that looks complete and is not, and all once a run has ended."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
import xxhash
from command import mgg
from jobs import blocks, write_job

from mgg_hpc.training.checkpoints import folders
from mgg_hpc.training.checkpoints.loop import checkpointed


class Disk:
    """A folder as a disk has it: bytes that were synced, under names whose folders were synced after they came.

    lost: what was wrong at some moment, by ``check(files)``: bytes by path, None where they were not synced. Names may
    reach a disk earlier, so each moment is looked at with those that were synced and with all that are there.
    """

    def __init__(self, root: Path, monkeypatch, check) -> None:
        self.root, self.check, self.lost = root, check, []
        self._bytes: dict[int, bytes] = {}
        self._names: dict[int, list[tuple[str, int]]] = {}
        self.open: list[int] = []  # so that no number of a file comes twice
        self.sync(root)
        for name in ("mkdir", "symlink", "rename", "replace", "unlink", "rmdir", "fsync"):
            monkeypatch.setattr(os, name, self._watched(getattr(os, name)))

    def _watched(self, call):
        def watched(*given, **options):
            found = call(*given, **options)
            if call.__name__ == "fsync":
                path = Path(f"/proc/self/fd/{given[0]}").readlink()
                if not path.is_relative_to(self.root):
                    return found
                self.sync(path)
            for files in (self.left(), self.left(named=True)):
                try:
                    self.check(files)
                except AssertionError as error:
                    self.lost.append(f"after {call.__name__} of {given}: {error}")
            return found

        return watched

    def sync(self, path: Path) -> None:
        self.open.append(os.open(path, os.O_RDONLY))
        if path.is_dir():
            self._names[path.stat().st_ino] = [(each.name, each.lstat().st_ino) for each in path.iterdir()]
        else:
            self._bytes[path.stat().st_ino] = path.read_bytes()

    def left(self, *, named: bool = False) -> dict[str, bytes | None]:
        """Return bytes by path. named: with all names that are there."""
        if named:
            every = [path for path in self.root.rglob("*") if path.is_file() and not path.is_symlink()]
            return {str(each.relative_to(self.root)): self._bytes.get(each.stat().st_ino) for each in every}
        found: dict[str, bytes | None] = {}

        def walk(number: int, at: str) -> None:
            for name, child in self._names.get(number, ()):
                found[f"{at}{name}"] = self._bytes.get(child)
                walk(child, f"{at}{name}/")

        walk(self.root.stat().st_ino, "")
        return found


def check(files: dict[str, bytes | None]) -> None:
    """What has the name of a checkpoint, or of a run's file, is whole, and so is all that it builds on."""
    folders_of = {str(parent) for path in files for parent in Path(path).parents}
    for path, data in ({**dict.fromkeys(folders_of), **files}).items():
        head, _, name = path.rpartition("/")
        if name.startswith("epoch-") and "." not in name:
            check_checkpoint(files, path)
        elif name in ("job.toml", "summary.json", "model.safetensors", "input.npy"):
            assert data, f"{path} is empty"
            if name == "summary.json":
                told, job = json.loads(data), files.get(f"{head}/job.toml") or b""
                assert told["epochs"] == tomllib.loads(job.decode())["train"]["epochs"], "has not finished"
                lines = (files.get(f"{head}/metrics.csv") or b"").count(b"\n")
                assert lines == told["epochs"] + 1, "a run has finished without its metrics"
                chosen = files.get(f"{head}/checkpoints/model.safetensors")
                assert chosen and safetensors.torch.load(chosen), "a run has finished without weights"


def check_checkpoint(files: dict[str, bytes | None], folder: str) -> None:
    manifest = files.get(f"{folder}/manifest.json")
    if f"{folder}/manifest.json" not in files:  # it is being removed, since there is a later one
        kept = [
            path for path in files if path.startswith(f"{folder[:-7]}") and path.endswith("/manifest.json")
        ]
        assert max(kept, default="") > folder, f"{folder} has no manifest"
        return
    assert manifest, f"{folder} has an empty manifest"
    for name, told in json.loads(manifest)["files"].items():
        data = files.get(f"{folder}/{name}")
        assert data is not None, f"{folder}/{name} is not there"
        assert (len(data), xxhash.xxh3_128_hexdigest(data)) == (told["bytes"], told["digest"]), name
    facts = json.loads(files[f"{folder}/state.json"])
    if "metrics_bytes" in facts:
        run = folder.partition("/checkpoints/")[0]
        metrics = files.get(f"{run}/metrics.csv") or b""
        assert len(metrics) >= facts["metrics_bytes"], f"metrics.csv has less than {folder}"
        assert files.get(f"{run}/job.toml"), f"{folder} has no job"


@pytest.fixture
def disk_of(monkeypatch):
    """The disk under a folder, by a check of its files."""
    disks = []
    yield lambda root, check: disks.append(Disk(root, monkeypatch, check)) or disks[-1]
    for descriptor in (each for disk in disks for each in disk.open):
        os.close(descriptor)


@pytest.mark.slow
@pytest.mark.parametrize("given", ["features", "learned", "no checkpoints"])
def test_a_run_is_whole_at_each_moment_and_on_the_disk_at_its_end(tmp_path, disk_of, given):
    """New, gone on with, with what a killed job left, and its predictions."""
    model = {"hidden": 3} | ({"input": "learned", "embedding": 2} if given == "learned" else {})
    root, often = tmp_path / "disk", {"every_epochs": int(given != "no checkpoints"), "every_minutes": 0.0}
    root.mkdir()
    where = {"threads": 1, "folder": str(root / "all" / "runs")}
    job = write_job(tmp_path, blocks(40), model=model, run=where, checkpoint=often, train={"epochs": 2})
    disk, runs, run = disk_of(root, check), root / "all" / "runs", "all/runs/001"
    epochs = 2 if given == "no checkpoints" else 4
    assert mgg("train", job) == 0
    if epochs == 4:
        (runs / "001/checkpoints/.epoch-0000009.0123456789ab.tmp").mkdir()
        assert mgg("resume", runs, "--set", "train.epochs=4") == 0
    for name in ("out.h5", "out.npy"):
        assert mgg("predict", runs, "-o", root / name, "--what", "class") == 0
    assert not disk.lost, disk.lost[0]
    files = disk.left()
    assert all(files[name] == (root / name).read_bytes() for name in ("out.h5", "out.npy"))
    for name in ("job.toml", "summary.json", "metrics.csv", "checkpoints/model.safetensors"):
        assert files[f"{run}/{name}"] == (root / run / name).read_bytes()
    assert len(files[f"{run}/metrics.csv"].splitlines()) == 1 + epochs
    assert epochs == 2 or {f"{run}/checkpoints/epoch-000000{epoch}" for epoch in (3, 4)} < files.keys()
    assert "all/runs/latest" in files
    assert given != "learned" or files[f"{run}/checkpoints/input.npy"]


@pytest.mark.slow
def test_a_loop_of_ones_own_is_whole_at_each_moment(tmp_path, disk_of):
    disk = disk_of(tmp_path, check)
    model = torch.nn.Linear(3, 2)
    for last in (3, 5):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with checkpointed(model, optimizer, tmp_path / "a" / "b") as state:
            for _ in state.epochs(last):
                pass
        assert not disk.lost, disk.lost[0]
        check_checkpoint(disk.left(), f"a/b/epoch-000000{last}")


def test_a_checkpoint_of_the_same_place_is_replaced_by_a_whole_one(tmp_path, disk_of):
    disk = disk_of(tmp_path, check)
    for value in range(2):
        draft = folders.draft(tmp_path, 7)
        files = {"state.json": folders.write_file(draft / "state.json", [json.dumps([value]).encode()])}
        folders.commit(draft, 7, files)
        assert disk.left()["epoch-0000007/state.json"] == f"[{value}]".encode()
    assert not disk.lost, disk.lost[0]


def test_files_of_checkpoints_are_whole_however_little_is_written_and_read_at_once(
    tmp_path, monkeypatch, rng
):
    """Kernels may write and read less than they are asked for; pieces are several blocks, and of other sizes."""
    write, read = os.write, os.read
    monkeypatch.setattr(folders, "BLOCK", 64)
    monkeypatch.setattr(os, "write", lambda to, data: write(to, data[: int(rng.integers(1, 40))]))
    monkeypatch.setattr(os, "read", lambda of, size: read(of, min(size, int(rng.integers(1, 40)))))
    pieces = [rng.bytes(int(size)) for size in (0, 1, 63, 64, 65, *rng.integers(1, 500, 3))]
    draft = folders.draft(tmp_path, 1)
    made = folders.write_file(
        draft / "x", [pieces[0], *(np.frombuffer(each, np.uint8) for each in pieces[1:])]
    )
    whole = b"".join(pieces)
    assert (draft / "x").read_bytes() == whole
    assert made == folders.Written(len(whole), xxhash.xxh3_128_hexdigest(whole))
    folders.verify(folders.commit(draft, 1, {"x": made}), 1)
