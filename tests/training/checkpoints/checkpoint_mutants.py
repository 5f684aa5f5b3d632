"""Damaged checkpoints: changes that their digests show, and changes whose digests were put right."""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from damaged.mutants import changed
from damaged.watched import serve

from mgg_hpc import config
from mgg_hpc.errors import InputError
from mgg_hpc.training import run_folder
from mgg_hpc.training.checkpoints import folders

EPOCH = 4  # of the newest checkpoint of each original; there is one before it
RUNS = {"features": {"hidden": 5}, "learned": {"hidden": 5, "input": "learned", "embedding": 3}}
Rng = np.random.Generator

NUMBERS = (0, 1, -1, 3, 2**31, 2**53 + 1, 2**63, 2**64, 10**30, 10**400, 0.5, -1e308, 1e308)
DTYPES = ("F64", "F16", "BF16", "I8", "U64", "BOOL", "F8_E4M3", "F8_E8M0", "F4", "F6_E2M3", "C64")
SHAPES = ((), (150,), (150, 0), (0, 3), (150, 3, 1), (151, 3), (0, 2**20, 2**20))
TEXTS = ("", "x", "..", "/etc/passwd", "a\nb", "é" * 100, "x" * 100_000, "\x00", "F32", "epoch")


class Originals:
    """Runs with sound checkpoints, which a worker has made in ``folder``, and mutants of them."""

    def __init__(self, folder: Path) -> None:
        self.runs = [folder / name for name in RUNS]

    def make(self, seed: int, run: Path) -> str:
        """Write the mutant of a seed, a run folder, and return what was done."""
        rng = np.random.default_rng(seed)
        original = self.runs[int(rng.integers(len(self.runs)))]
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(original, run)
        folder = run / run_folder.CHECKPOINTS / folders.name_of(EPOCH)
        change = CHANGES[int(rng.integers(len(CHANGES)))]
        sealed = rng.random() < 0.7
        story = f"{change.__name__[1:]}: {change(folder, rng)}"
        if sealed:
            seal(folder)
        return f"seed {seed}: {original.name}, {'sealed' if sealed else 'plain'}: {story}"


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


def _odd(rng: Rng, depth: int = 0) -> Any:
    """Return some value of JSON."""
    kind = int(rng.integers(9))
    if kind == 8 and depth < 2:
        return {str(rng.choice(TEXTS[:7])): _odd(rng, depth + 1) for _ in range(2)}
    if kind == 7 and depth < 2:
        return [_odd(rng, depth + 1) for _ in range(int(rng.integers(4)))]
    if kind >= 5:
        return [None, True, False, float("nan"), float("inf")][int(rng.integers(5))]
    choices = NUMBERS if kind < 3 else TEXTS
    return choices[int(rng.integers(len(choices)))]


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """Return (container, key) of everything in a tree of JSON."""
    pairs = list(
        tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else []
    )
    return [(tree, key) for key, _ in pairs] + [place for _, value in pairs for place in _places(value)]


def _vary(tree: Any, rng: Rng) -> str:
    """Change, remove, rename or add one thing in a tree of JSON."""
    places = _places(tree)
    container, key = places[int(rng.integers(len(places)))]
    how = int(rng.integers(5))
    if how == 0:
        del container[key]
    elif how == 1 and isinstance(container, dict):
        container[str(TEXTS[int(rng.integers(len(TEXTS)))])] = container.pop(key)
    elif how == 2 and isinstance(container, list):
        container *= int(rng.integers(2, 50))
    else:
        container[key] = _odd(rng)
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
    path = folder / str(rng.choice(["state.json", folders.MANIFEST]))
    texts = ["", "[]", "3", "null", '"x"', "{", "{}", "[" * 100_000, '{"a":' * 50_000, "[" * 900 + "]" * 900,
             "9" * 5000, '{"digest": 1}', '{"files": []}', "\ufeff{}", "{'a': 1}", "nan", "[1]" * 3]  # fmt: skip
    number = int(rng.integers(len(texts) + 1))
    path.write_bytes(bytes(range(256)) if number == len(texts) else texts[number].encode())
    return f"{path.name} {number}"


def _manifest(folder: Path, rng: Rng) -> str:
    """Something else in the manifest, whose own digest is right again in most cases."""
    path = folder / folders.MANIFEST
    content = json.loads(path.read_bytes())
    content.pop("digest")
    story = _vary(content, rng)
    if isinstance(content.get("files"), dict) and rng.random() < 0.3:
        paths = ["../job.toml", "/etc/passwd", "..", ".", "", "a/b", "manifest.json", "x" * 300]
        name = str(rng.choice(paths))
        content["files"][name] = {"bytes": _odd(rng), "digest": "0" * 32}
        story += f", {name!r:.30}"
    if rng.random() < 0.8:
        reseal(path, content)
    else:
        path.write_text(json.dumps(content))
    return story


def _tensors(folder: Path, rng: Rng) -> str:
    """Another header of the tensors: names, types, shapes, offsets, its length, or the tensors' bytes."""
    path = folder / "state.safetensors"
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    how = int(rng.integers(6))
    if how == 0:
        length = int(rng.choice([0, 1, 7, size - 1, size + 1, len(data), 2**31, 2**62, 2**63]))
        path.write_bytes(struct.pack("<Q", length) + data[8:])
        return f"length {length}"
    if how == 1:
        odd = [
            "[" * 60_000,
            '{"a":' * 60_000,
            "{}",
            "[]",
            "null",
            '"x"',
            "",
            "{" + '"a":{},' * 1000 + '"b":{}}',
        ]
        text = odd[int(rng.integers(len(odd)))].encode()
    else:
        story = _vary(header, rng)
        name = str(rng.choice(list(header) or ["x"]))
        if how == 2:
            dtype = str(rng.choice(DTYPES))
            header[name] = {"dtype": dtype, "shape": [1, 8], "data_offsets": [0, 8]}
        elif how == 3 and isinstance(header.get(name), dict):
            sizes = [0, 1, 5, 2**31, 2**62]
            header[name]["shape"] = [int(rng.choice(sizes)) for _ in range(int(rng.integers(70)))]
        text = json.dumps(header).encode()
    if how == 5:
        body, text = bytearray(body), data[8 : 8 + size]
        story = changed(body, rng)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return f"{how} {story if how > 1 else text[:20]!r}"


def _arrays(folder: Path, rng: Rng) -> str:
    """Another array of learned rows: type, shape, header, ids; of a run without, one more file."""
    found = sorted(folder.glob("rows.*.npy")) or [folder / "rows.0.ids.npy"]
    path = found[int(rng.integers(len(found)))]
    if not path.exists():
        np.save(path, np.arange(5))
        return path.name
    array, how = np.load(path), int(rng.integers(7))
    if how == 0:
        kind = str(rng.choice(["<f2", ">f4", "<f8", "<i4", "<i8", ">i8", "?", "<c8", "S4", "V3"]))
        np.save(path, np.zeros(array.shape, kind))
    elif how == 1:
        np.save(path, array[: int(rng.integers(len(array)))])
    elif how == 2:
        np.save(path, np.zeros(SHAPES[int(rng.integers(len(SHAPES)))], array.dtype))
    elif how == 3:
        odd = int(rng.choice([-1, 0, 149, 150, 2**40, -(2**63), 2**63 - 1]))
        array[int(rng.integers(len(array)))] = odd if array.dtype == np.int64 else np.nan
        np.save(path, array)
    elif how == 4:
        np.save(path, np.array([{}, []], dtype=object), allow_pickle=True)
    else:
        data = bytearray(path.read_bytes())
        story = changed(data, rng, near=128)
        path.write_bytes(data)
        return f"{path.name}: {story}"
    return f"{path.name} {how}"


def _files(folder: Path, rng: Rng) -> str:
    """A file removed, added, cut, made longer, swapped with another's, or replaced by a link, a pipe or a folder."""
    names = sorted(each.name for each in folder.iterdir())
    name, how = names[int(rng.integers(len(names)))], int(rng.integers(11))
    path, before = folder / name, folder.parent / folders.name_of(EPOCH - 1)
    data = path.read_bytes()
    if how in (0, 5, 6, 7, 8):
        path.unlink()
    if how == 1:
        (folder / str(rng.choice(["more", ".hidden", "rows.9.ids.npy", "a\nb"]))).write_bytes(b"x")
    elif how in (2, 3):
        path.write_bytes(data + bytes(int(rng.choice([1, 4096]))))
    elif how == 4:
        shutil.copyfile(before / name, path)
    elif how == 5:
        path.symlink_to([before / name, Path("/dev/zero"), path, Path("/none")][int(rng.integers(4))])
    elif how == 6:
        os.mkfifo(path)
    elif how == 7:
        path.mkdir()
    elif how == 8:
        os.link(before / name, path)
    elif how == 9:
        path.write_bytes(b"")
        os.truncate(path, int(rng.choice([2**30, 2**40])))
    elif how == 10:
        shutil.rmtree(folder)
        shutil.copytree(before, folder)
    return f"{name} {how}"


def _bytes(folder: Path, rng: Rng) -> str:
    """Bytes of a file changed at random."""
    path = sorted(folder.iterdir())[int(rng.integers(len(list(folder.iterdir()))))]
    data = bytearray(path.read_bytes())
    story = changed(data, rng, near=512)
    path.write_bytes(data)
    return f"{path.name}: {story}"


CHANGES: tuple[Callable[[Path, Rng], str], ...] = (
    _facts, _facts, _whole_json, _manifest, _tensors, _tensors, _arrays, _files, _bytes,
)  # fmt: skip


class Reader:
    """Goes on with runs, as `mgg resume` does, in a worker that has built their jobs."""

    def __init__(self, folder: Path) -> None:
        from jobs import blocks, write_job

        from mgg_hpc.runtime import mpi
        from mgg_hpc.training import job

        self.comm, self._jobs = mpi.world(), {}
        for name, model in RUNS.items():
            run = folder / name
            (run / run_folder.CHECKPOINTS).mkdir(parents=True)
            sections = {"train": {"epochs": EPOCH}, "plan": {"transfer": "direct"}}
            sections["run"] = {"backend": "serial", "threads": 1}
            settings = config.load(write_job(run, blocks(150), model=model, **sections))
            (run / run_folder.JOB).write_text(config.dumps(settings))
            (run / run_folder.METRICS).write_text("epoch,loss\n" * 9)
            built = job.build(settings, self.comm)
            self._jobs[model.get("input", "")] = settings, built, self._train(built, run)

    def _train(self, job: Any, run: Path) -> Any:
        """Train for some epochs, write the last two checkpoints, and return the trainer."""
        from mgg_hpc.training import train
        from mgg_hpc.training.checkpoints import capture
        from mgg_hpc.training.history import History
        from mgg_hpc.training.trainer import Trainer

        trainer, history, phases = Trainer(job, job.graph()), History(), train.Phases("cpu")
        for epoch in range(1, EPOCH + 1):
            scores = train._epoch(trainer, history, epoch, phases, lambda epoch, batches: None)
            history.consider(epoch, scores, job.weights(), job.select)
            if epoch >= EPOCH - 1:
                at = folders.Position(epoch)
                state = capture.capture(job, trainer, history, at, 22, capture.environment(job))
                draft = folders.draft(run / run_folder.CHECKPOINTS, epoch)
                files = {name: folders.write_file(draft / name, pieces) for name, pieces in state.files(0)}
                folders.commit(draft, epoch, files)
        return trainer

    def check(self, run: Path) -> None:
        """Go on with the newest checkpoint of a run."""
        from mgg_hpc.training.checkpoints import capture, resume

        try:
            folders.verify(run / run_folder.CHECKPOINTS / folders.name_of(EPOCH), EPOCH)
        except folders.DamagedError as error:
            raise InputError(f"{run}: {error}") from error
        learned = "learned" if 'input = "learned"' in (run / run_folder.JOB).read_text() else ""
        settings, job, trainer = self._jobs[learned]
        resumed, _ = resume.load(self.comm, run, settings)
        capture.restore(resumed.checkpoint, resumed.facts, resumed.tensors, job, trainer)
        capture.differences(resumed.facts["environment"], capture.environment(job))
        resume.check_graph(resumed, job.part)
        run_folder.MetricsFile(run, [], resumed.metrics_bytes).close()


if __name__ == "__main__":
    serve(Reader(Path(sys.argv[1])).check)
