"""Damaged checkpoints: changes that their digests show, and changes whose digests were put right."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from damaged.mutants import changed
from damaged.watched import serve
from jobs import blocks, write_job

from mgg_hpc import config
from mgg_hpc.__main__ import main
from mgg_hpc.errors import InputError
from mgg_hpc.runtime import mpi
from mgg_hpc.training import run_folder
from mgg_hpc.training.checkpoints import folders, resume
from mgg_hpc.training.job import build
from mgg_hpc.training.trainer import Trainer

EPOCH = 4  # of the newest checkpoint of each original; there is one before it
RUNS = {"features": {"hidden": 5}, "learned": {"hidden": 5, "input": "learned", "embedding": 3}}
Rng = np.random.Generator

# Values of JSON that no writer of checkpoints would write.
ODD = (
    *(0, 1, -1, 3, 2**31, 2**53 + 1, 2**63, 2**64, 10**30, 10**400, 0.5, -1e308, 1e308),
    *("", "x", "..", "/etc/passwd", "a\nb", "é" * 100, "x" * 100_000, "\x00", "F32", "epoch"),
    *(None, True, False, float("nan"), float("inf")),
    *([], [[]], [1, "x", None], {}, {"": 0.5, "x": [2**64, {}]}),
)
NAMES = [each for each in ODD if isinstance(each, str)]
WHOLE = (
    *("", "[]", "3", "null", '"x"', "{", "{}", "[" * 100_000, '{"a":' * 50_000, "[" * 900 + "]" * 900),
    *("9" * 5000, '{"digest": 1}', '{"files": []}', "\ufeff{}", "{'a': 1}", "nan", "[1]" * 3),
    "{" + '"a":{},' * 1000 + '"b":{}}',
)
KINDS = ("<f2", ">f4", "<f8", "<i4", "<i8", ">i8", "?", "<c8", "S4", "V3")
DTYPES = ("F64", "F16", "BF16", "I8", "U64", "BOOL", "F8_E4M3", "F8_E8M0", "F4", "F6_E2M3", "C64")
SHAPES = ((), (150,), (150, 0), (0, 3), (150, 3, 1), (151, 3), (0, 2**20, 2**20))


def one_of(values: Sequence[Any], rng: Rng) -> Any:
    return values[int(rng.integers(len(values)))]


class Originals:
    """Runs with sound checkpoints, which a worker has made in ``folder``, and mutants of them."""

    def __init__(self, folder: Path) -> None:
        self.runs = [folder / name / "001" for name in RUNS]

    def make(self, seed: int, run: Path) -> str:
        """Write the mutant of a seed, a run folder, and return what was done."""
        rng = np.random.default_rng(seed)
        original, change = one_of(self.runs, rng), one_of(CHANGES, rng)
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(original, run)
        folder = run / run_folder.CHECKPOINTS / folders.name_of(EPOCH)
        sealed = rng.random() < 0.7
        story = f"{change.__name__[1:]}: {change(folder, rng)}"
        if sealed:
            seal(folder)
        return f"seed {seed}: {original.parent.name}, {'sealed' if sealed else 'plain'}: {story}"


def seal(folder: Path) -> None:
    """Write a manifest of what is there, keeping what it says otherwise, as one who means harm does."""
    path = folder / folders.MANIFEST
    files = [each for each in folder.iterdir() if each.is_file() and each.stat().st_size < 1 << 20]
    if path not in files:
        return
    try:
        content = json.loads(path.read_bytes())
        content.pop("digest", None)
        for file in files:
            data = file.read_bytes()
            digest = folders.xxhash.xxh3_128_hexdigest(data)
            content["files"][file.name] = {"bytes": len(data), "digest": digest}
        del content["files"][folders.MANIFEST]
        reseal(path, content)
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError):
        return  # the manifest itself is damaged


def reseal(path: Path, content: dict[str, Any]) -> None:
    """Write a manifest with a digest of its own that is right."""
    path.write_text(json.dumps({**content, "digest": folders._digest(content)}))


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """Return (container, key) of everything in a tree of JSON."""
    keys = list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else []
    return [place for key in keys for place in [(tree, key), *_places(tree[key])]]


def _vary(tree: Any, rng: Rng) -> str:
    """Change, remove, rename or add one thing in a tree of JSON."""
    container, key = one_of(_places(tree), rng)
    how = int(rng.integers(5))
    if how == 0:
        del container[key]
    elif how == 1 and isinstance(container, dict):
        container[one_of(NAMES, rng)] = container.pop(key)
    elif how == 2 and isinstance(container, list):
        container *= int(rng.integers(2, 50))
    else:
        container[key] = one_of(ODD, rng)
    return f"{how} {key!r:.60}"


def _facts(folder: Path, rng: Rng) -> str:
    """A fact of another type, of another value, or none."""
    path = folder / "state.json"
    facts = json.loads(path.read_bytes())
    story = "; ".join(_vary(facts, rng) for _ in range(int(rng.integers(1, 3))) if _places(facts))
    path.write_text(json.dumps(facts))
    return story


def _whole_json(folder: Path, rng: Rng) -> str:
    """A file of JSON that is something else as a whole."""
    path = folder / one_of(["state.json", folders.MANIFEST], rng)
    content = one_of([*(text.encode() for text in WHOLE), bytes(range(256))], rng)
    path.write_bytes(content)
    return f"{path.name} {content[:20]!r}"


def _manifest(folder: Path, rng: Rng) -> str:
    """Something else in the manifest, whose own digest is right again in most cases."""
    path = folder / folders.MANIFEST
    content = json.loads(path.read_bytes())
    digest = content.pop("digest")
    story = _vary(content, rng)
    if isinstance(content.get("files"), dict) and rng.random() < 0.3:
        name = one_of(["../job.toml", "/etc/passwd", "..", ".", "", "a/b", "manifest.json", "x" * 300], rng)
        content["files"][name] = {"bytes": one_of(ODD, rng), "digest": "0" * 32}
        story += f", {name!r:.30}"
    if rng.random() < 0.8:
        reseal(path, content)
    else:
        path.write_text(json.dumps(content | {"digest": digest}))
    return story


def _tensors(folder: Path, rng: Rng) -> str:
    """Another header of the tensors: names, types, shapes, offsets, or its length."""
    path = folder / "state.safetensors"
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    text, body, how = data[8 : 8 + size], data[8 + size :], int(rng.integers(5))
    if how == 0:
        length = one_of([0, 1, 7, size - 1, size + 1, len(data), 2**31, 2**62, 2**63], rng)
        path.write_bytes(struct.pack("<Q", length) + data[8:])
        return f"length {length}"
    if how == 1:
        story = text = one_of(WHOLE, rng).encode()
    else:
        header = json.loads(text)
        story, name = _vary(header, rng), one_of(list(header) or ["x"], rng)
        if how == 2:
            header[name] = {"dtype": one_of(DTYPES, rng), "shape": [1, 8], "data_offsets": [0, 8]}
        elif how == 3 and isinstance(header.get(name), dict):
            header[name]["shape"] = rng.choice([0, 1, 5, 2**31, 2**62], int(rng.integers(70))).tolist()
        text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return f"{how} {story[:20]!r}"


def _arrays(folder: Path, rng: Rng) -> str:
    """Another array of learned rows: type, shape, header, ids; of a run without, one more file."""
    path = one_of(sorted(folder.glob("rows.*.npy")) or [folder / "rows.0.ids.npy"], rng)
    if not path.exists():
        np.save(path, np.arange(5))
        return path.name
    array, how = np.load(path), int(rng.integers(7))
    if how == 0:
        array = np.zeros(array.shape, one_of(KINDS, rng))
    elif how == 1:
        array = array[: int(rng.integers(len(array)))]
    elif how == 2:
        array = np.zeros(one_of(SHAPES, rng), array.dtype)
    elif how == 3:
        odd = one_of([-1, 0, 149, 150, 2**40, -(2**63), 2**63 - 1], rng)
        array[int(rng.integers(len(array)))] = odd if array.dtype == np.int64 else np.nan
    elif how == 4:
        array = np.array([{}, []], dtype=object)
    else:
        return _bytes(folder, rng, path, near=128)
    np.save(path, array, allow_pickle=True)
    return f"{path.name} {how}"


def _files(folder: Path, rng: Rng) -> str:
    """A file removed, added, made longer, swapped with another's, or replaced by a link, a pipe or a folder."""
    name = one_of(sorted(each.name for each in folder.iterdir()), rng)
    path, before = folder / name, folder.parent / folders.name_of(EPOCH - 1)
    data, target = path.read_bytes(), one_of([before / name, "/dev/zero", path, "/none"], rng)
    added = folder / one_of(["more", ".hidden", "rows.9.ids.npy", "a\nb"], rng)
    size = one_of([2**30, 2**40], rng)
    replacing = [
        lambda: None,
        lambda: path.symlink_to(target),
        lambda: os.mkfifo(path),
        path.mkdir,
        lambda: os.link(before / name, path),
        lambda: shutil.copyfile(before / name, path),
        lambda: path.write_bytes(data + bytes(one_of([1, 4096], rng))),
        lambda: path.write_bytes(b"") or os.truncate(path, size),
    ]
    how = int(rng.integers(len(replacing) + 2))
    if how < len(replacing):
        path.unlink()
        replacing[how]()
    elif how == len(replacing):
        added.write_bytes(b"x")
    else:
        shutil.rmtree(folder)
        shutil.copytree(before, folder)
    return f"{name} {how}"


def _bytes(folder: Path, rng: Rng, path: Path | None = None, near: int = 512) -> str:
    """Bytes of a file changed at random."""
    path = path or one_of(sorted(folder.iterdir()), rng)
    data = bytearray(path.read_bytes())
    story = changed(data, rng, near=near)
    path.write_bytes(data)
    return f"{path.name}: {story}"


CHANGES: tuple[Callable[[Path, Rng], str], ...] = (
    _facts, _facts, _whole_json, _manifest, _tensors, _tensors, _arrays, _files, _bytes,
)  # fmt: skip


class Reader:
    """Goes on with runs, as `mgg resume` does, in a worker that has built their jobs."""

    def __init__(self, folder: Path) -> None:
        self.comm, self._jobs = mpi.world(), {}
        for name, model in RUNS.items():
            where, graph = {"folder": str(folder / name)}, None if self._jobs else blocks(150)
            where |= {"backend": "serial", "threads": 1}
            job = write_job(folder, graph, model=model, plan={"transfer": "direct"}, run=where)
            for command, given, last in (("train", job, EPOCH - 1), ("resume", folder / name, EPOCH)):
                with contextlib.redirect_stdout(io.StringIO()):
                    assert main([command, str(given), "--set", f"train.epochs={last}"]) == 0
            settings = config.load(folder / name / "001" / run_folder.JOB)
            built = build(settings, self.comm)
            self._jobs[model.get("input", "")] = settings, built, Trainer(built, built.graph())

    def check(self, run: Path) -> None:
        """Go on with the newest checkpoint of a run."""
        try:
            folders.verify(run / run_folder.CHECKPOINTS / folders.name_of(EPOCH), EPOCH)
        except folders.DamagedError as error:
            raise InputError(f"{run}: {error}") from error
        learned = "learned" if 'input = "learned"' in (run / run_folder.JOB).read_text() else ""
        settings, job, trainer = self._jobs[learned]
        resumed, _ = resume.load(self.comm, run, settings)
        resume.restore(resumed, job, trainer)
        resume.differences(resumed.facts.environment, resume.environment(job))
        resume.check_graph(resumed, job.part)
        run_folder.MetricsFile(run, [], resumed.facts.metrics_bytes).close()


if __name__ == "__main__":
    serve(Reader(Path(sys.argv[1])).check)
