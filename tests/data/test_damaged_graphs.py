"""Damaged graph files are found by HDF5's checksums, by checks of the structure, or by digests; no plugin is loaded."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import h5py
import programs
import pytest
from damaged.watched import Worker
from h5py import h5pl
from torture.report import record

import mgg_hpc
from mgg_hpc.data import header
from mgg_hpc.data.hdf5 import opened
from mgg_hpc.data.header import check_structure
from mgg_hpc.data.store import open_graph
from mgg_hpc.data.writer import write
from mgg_hpc.errors import InputError

from .damaged_graphs import Originals, read_all
from .graphs import random_graph, refused

NAMES = {"bits": "bits", "bytes": "bytes", "edits": "objects"}  # of mutants, in docs/reliability.md


@pytest.fixture(scope="module")
def worker():
    with Worker("data.damaged_graphs") as started:
        yield started


def found_by(message: str) -> str:
    """Return which check a message of open_graph or verify is from."""
    if "the digest of block" in message:
        return "digests"
    ours = "its attribute format is" in message or "is not a graph file" not in message
    return "checks of structure and values" if ours else "HDF5"


@pytest.mark.trials(20, torture=2000)
@pytest.mark.parametrize("kind", NAMES)
def test_mutants_are_found_or_read_as_the_original(kind, worker, trials, tmp_path, rng, monkeypatch):
    """HDF5 may crash on a mutant, or not end; then `mgg verify` says so. Edits by HDF5 may be sound other graphs."""
    monkeypatch.setattr(header, "CHECK_SECONDS", 20)
    originals, path = Originals(tmp_path), tmp_path / "m.h5"
    sound = [read_all(each) for each in originals.files]
    began, missed, counts = time.monotonic(), [], Counter()
    for _ in range(trials):
        number = int(rng.integers(len(sound)))
        story = f"{originals.files[number].name}: {getattr(originals, kind)(rng, number, path)}"
        answer = worker.ask(path)
        by = found_by(answer.said) if answer.kind == "refused" else answer.kind
        if answer.kind == "taken":
            by = "without_meaning" if answer.said == sound[number] else "another_graph"
        counts[by] += 1
        if answer.kind in ("crash", "hang"):
            with refused("m.h5 is damaged: the HDF5 library (crashes on it|does not finish)"):
                check_structure(path)
        # The last original has no checksums.
        may_differ = kind == "edits" or number == len(sound) - 1
        if answer.kind in ("error", "unnamed") or (by == "another_graph" and not may_differ):
            missed.append(f"{story}: {by}: {answer.said}")
    seconds = time.monotonic() - began
    taken = {by: counts.pop(by, 0) for by in ("without_meaning", "another_graph")}
    record(f"{NAMES[kind]} of graph files", trials, len(missed), found_by=counts, **taken, seconds=seconds)
    assert not missed, "\n".join(missed)
    assert counts


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("kill -SEGV $$", r"g\.h5 is damaged: the HDF5 library crashes on it \(signal 11\); copy or import"),
        ("exec sleep 60", "the HDF5 library does not finish opening it"),
        ("exit 1", ""),  # what is wrong is then said by verify
    ],
)
def test_structures_are_opened_in_a_process_of_their_own(script, reason, path, tmp_path, monkeypatch):
    stand_in = tmp_path / "python"
    stand_in.write_text(f"#!/bin/sh\n{script}\n")
    stand_in.chmod(0o755)
    monkeypatch.setattr(header, "CHECK_SECONDS", 0.5)
    monkeypatch.setattr(header.sys, "executable", str(stand_in))
    if reason:
        with refused(reason):
            check_structure(path)
    else:
        check_structure(path)


def test_that_process_reads_the_file(path, rng, monkeypatch):
    run, codes = header.subprocess.run, []

    def recorded(*arguments, **options):
        done = run(*arguments, **options)
        codes.append(done.returncode)
        return done

    monkeypatch.setattr(header.subprocess, "run", recorded)
    write(path, random_graph(rng))
    check_structure(path)
    path.write_bytes(b"x" * 100)
    check_structure(path)
    assert codes == [0, 1]


def test_nothing_stays_open(tmp_path):
    (tmp_path / "a.h5").write_bytes(b"x" * 100)
    for _ in range(3):
        with pytest.raises(InputError, match="not HDF5"):
            open_graph(tmp_path / "a.h5")
    assert not programs.open_files(tmp_path)


# --- plugins

SCRIPT = """
import sys
import h5py, numpy as np
from mgg_hpc.data.hdf5 import opened
from mgg_hpc.data.store import open_graph
from mgg_hpc.data.writer import write_bounds
from mgg_hpc.data.verify import verify
path = sys.argv[1]
try:
    exec(sys.argv[2])
except Exception as error:
    print(error)
"""
READERS = {
    "h5py alone": "h5py.File(path)['node/x'][()]",
    "open_graph": "open_graph(path)",
    "verify": "verify(path)",
    "write_bounds": "write_bounds(path, 1, np.array([0, 40]), 'edges', [1])",
    "hdf5.opened": "with opened(path, 'r') as file: file['node/x'][()]",
}


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_no_plugin_is_loaded(reader, tmp_path):
    """But h5py by itself has it loaded, which shows that it is where HDF5 looks for it. The loader tells its files."""
    path = Originals(tmp_path).files[0]
    with h5py.File(path, "r+") as file:
        x = file.pop("node/x")[()]
        # One chunk that says that it went through a filter which HDF5 has not.
        options = {"compression": 32123, "allow_unknown_filter": True}
        made = file.create_dataset("node/x", x.shape, x.dtype, chunks=x.shape, **options)
        made.id.write_direct_chunk((0, 0), x.tobytes())
    (tmp_path / "libplugin.so").touch()
    environment = {"HDF5_PLUGIN_PATH": str(tmp_path), "LD_DEBUG": "files"}
    done = programs.python("-c", SCRIPT, path, READERS[reader], env={**os.environ, **environment})
    assert done.returncode == 0
    assert ("libplugin.so" in done.stderr) == (reader == "h5py alone"), done.stdout
    chunked = "/node/x is chunked or compressed" in done.stdout
    assert chunked == (reader in ("open_graph", "verify", "write_bounds")), done.stdout


def test_the_folders_of_plugins_come_back(tmp_path):
    def folders() -> list[bytes]:
        return [h5pl.get(place) for place in range(h5pl.size())]

    before = folders()
    assert before
    with opened(tmp_path / "a.h5", "w") as file:
        file["x"] = 1
        assert folders() == []
        with opened(tmp_path / "b.h5", "w"):
            assert folders() == []
        assert folders() == []
    assert folders() == before
    with pytest.raises(OSError, match="Unable"), opened(tmp_path / "none" / "a.h5", "w"):
        pass
    assert folders() == before


def test_files_are_opened_without_plugins_alone():
    """So that no other module has to think of plugins, or of structures that the library crashes on."""
    texts = {path.name: path.read_text() for path in Path(mgg_hpc.__file__).parent.rglob("*.py")}
    naming = {name for name, text in texts.items() if "h5py.File(" in text.replace("``h5py.File(", "")}
    assert naming == {"hdf5.py"}
