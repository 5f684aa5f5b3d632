"""What a loss of power leaves: at no moment anything that looks complete and is not, and all once a run has ended."""

from __future__ import annotations

import json
import os
import signal
import tomllib
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
import xxhash
from command import mgg
from jobs import blocks, write_job

from mgg_hpc.runtime import signals
from mgg_hpc.training import run_folder
from mgg_hpc.training.checkpoints import folders, weights
from mgg_hpc.training.checkpoints.loop import checkpointed

CHANGES = ("mkdir", "symlink", "rename", "replace", "unlink", "rmdir")


class Disk:
    """A folder as a disk has it: bytes that were synced, under names whose folders were synced after they came.

    lost: what was wrong at some moment, by ``check(files)``: bytes by path, None where they were not synced. Names may
    reach a disk earlier, so each moment is looked at with those that were synced and with all that are there.
    """

    def __init__(self, root: Path, monkeypatch, check) -> None:
        self.root, self.check, self.lost, self.moments = root, check, [], 0
        self._bytes: dict[int, bytes] = {}
        self._names: dict[int, list[tuple[str, int]]] = {}
        self.open: list[int] = []  # so that no number of a file comes twice
        self.sync(root)
        for name in CHANGES:
            monkeypatch.setattr(os, name, self._watched(getattr(os, name), self._looked))
        monkeypatch.setattr(os, "fsync", self._watched(os.fsync, self._synced))

    def _watched(self, call, then):
        def watched(*given, **options):
            found = call(*given, **options)
            then(*given)
            return found

        return watched

    def _synced(self, descriptor) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_relative_to(self.root):
            self.sync(path)
            self._looked()

    def sync(self, path: Path) -> None:
        self.open.append(os.open(path, os.O_RDONLY))
        if path.is_dir():
            self._names[path.stat().st_ino] = [(each.name, each.lstat().st_ino) for each in path.iterdir()]
        else:
            self._bytes[path.stat().st_ino] = path.read_bytes()

    def _looked(self, *_) -> None:
        self.moments += 1
        for files in (self.left(), self.left(named=True)):
            try:
                self.check(files)
            except AssertionError as error:
                self.lost.append(f"moment {self.moments}: {error}")

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

    def disk_of(root, check):
        disks.append(Disk(root, monkeypatch, check))
        return disks[-1]

    yield disk_of
    for descriptor in (each for disk in disks for each in disk.open):
        os.close(descriptor)


@pytest.fixture
def quiet(monkeypatch):
    """Handlers of signals are as before when the test has ended."""
    monkeypatch.setattr(signals, "_first", [])
    before = {number: signal.getsignal(number) for number in signals.ASKING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.slow
@pytest.mark.parametrize("given", ["features", "learned"])
def test_a_run_is_whole_at_each_moment_and_on_the_disk_at_its_end(tmp_path, disk_of, quiet, given):
    """New, gone on with, with what a killed job left, and its predictions."""
    model = {"hidden": 3} | ({"input": "learned", "embedding": 2} if given == "learned" else {})
    root, options = tmp_path / "disk", {"checkpoint": {"every_epochs": 1}, "train": {"epochs": 2}}
    root.mkdir()
    run = {"threads": 1, "folder": str(root / "all" / "runs")}
    job = write_job(tmp_path, blocks(40), model=model, run=run, **options)
    disk = disk_of(root, check)
    assert mgg("train", job) == 0
    (root / "all/runs/001/checkpoints/.epoch-0000009.0123456789ab.tmp").mkdir()
    assert mgg("resume", root / "all" / "runs", "--set", "train.epochs=4") == 0
    for name in ("out.h5", "out.npy"):
        assert mgg("predict", root / "all" / "runs", "-o", root / name, "--what", "class") == 0
    assert not disk.lost, disk.lost[0]
    files, run = disk.left(), "all/runs/001"
    assert all(files[name] == (root / name).read_bytes() for name in ("out.h5", "out.npy"))
    for name in ("job.toml", "summary.json", "metrics.csv", "checkpoints/model.safetensors"):
        assert files[f"{run}/{name}"] == (root / run / name).read_bytes()
    assert len(files[f"{run}/metrics.csv"].splitlines()) == 5
    assert {f"{run}/checkpoints/epoch-000000{epoch}" for epoch in (3, 4)} < files.keys()
    assert "all/runs/latest" in files
    assert given == "features" or files[f"{run}/checkpoints/input.npy"]


@pytest.mark.slow
def test_a_run_without_checkpoints_is_on_the_disk_at_its_end(tmp_path, disk_of, quiet):
    run, never = {"threads": 1, "folder": str(tmp_path / "runs")}, {"every_epochs": 0, "every_minutes": 0.0}
    job = write_job(tmp_path, blocks(40), model={"hidden": 3}, run=run, checkpoint=never)
    disk = disk_of(tmp_path, lambda files: None)
    assert mgg("train", job) == 0
    check({name: data for name, data in disk.left().items() if name.startswith("runs")})
    assert "runs/001/summary.json" in disk.left()


@pytest.mark.slow
def test_a_loop_of_ones_own_is_whole_at_each_moment(tmp_path, disk_of, quiet):
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


def test_a_changed_byte_of_any_tensor_of_the_weights_is_found(tmp_path, rng):
    """Of each tensor, and of each text beside them."""
    (tmp_path / run_folder.CHECKPOINTS).mkdir()
    model = torch.nn.Sequential(
        torch.nn.Linear(5, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1)
    ).double()
    about = {"uuid": "ab-cd", "features": 5, "classes": 3, "multilabel": 0}
    path = weights.save_weights(tmp_path, model.state_dict(), about)
    weights.load_weights(tmp_path, model)
    sound = path.read_bytes()
    length = int.from_bytes(sound[:8], "little")
    header = json.loads(sound[8 : 8 + length])
    texts = header.pop("__metadata__")
    assert header.keys() == model.state_dict().keys() and texts.keys() == {*about, weights.DIGEST}
    places = [int(rng.integers(*each["data_offsets"])) + 8 + length for each in header.values()]
    places += [sound.index(f'"{texts[name]}"'.encode()) + 1 for name in texts]
    for place in places:
        data = bytearray(sound)
        data[place] ^= 1
        path.write_bytes(data)
        with pytest.raises(weights.InputError, match="other"):
            weights.load_weights(tmp_path, model)
    path.write_bytes(sound)
    weights.load_weights(tmp_path, model)
