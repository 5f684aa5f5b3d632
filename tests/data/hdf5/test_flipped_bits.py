"""Damage of the data of graph files is found, and damage of their structure too, or it changes nothing."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
from damaged.watched import Worker
from torture.report import record

from mgg_hpc.data.store import open_graph

from .mutants import Originals, spans
from .structures import seal, structures


@pytest.fixture
def originals(tmp_path):
    return Originals(tmp_path)


@pytest.fixture
def worker():
    with Worker("data.hdf5.mutants") as started:
        yield started


@pytest.mark.trials(20, torture=600)
def test_every_flipped_bit_of_data_is_found(originals, worker, trials, tmp_path, rng):
    """In the bytes of datasets, digests among them: everything else in the file is HDF5's own."""
    began, missed = time.monotonic(), []
    for trial in range(trials):
        path = originals.files[trial % len(originals.files)]
        data, found = bytearray(path.read_bytes()), spans(path)
        name, offset, length = found[int(rng.integers(len(found)))]
        at, bit = int(rng.integers(length)), int(rng.integers(8))
        data[offset + at] ^= 1 << bit
        (tmp_path / "m.h5").write_bytes(data)
        answer = worker.ask(tmp_path / "m.h5")
        if answer.kind != "refused":
            missed.append(f"{path.name}: /{name}, byte {at}, bit {bit}: {answer.kind} {answer.said}")
    record("flipped bits in graph files", trials, len(missed), seconds=round(time.monotonic() - began, 1))
    assert not missed, "\n".join(missed)


@pytest.mark.trials(20, torture=1000)
def test_a_flipped_bit_of_structure_is_found_or_changes_nothing(originals, trials, tmp_path, rng):
    """What HDF5 has put between the data: checksums find a flip, or else it is in bytes without a meaning."""
    began, missed, without = time.monotonic(), [], 0
    for trial in range(trials):
        path = originals.files[trial % 3]  # not the one without checksums
        data, inside = bytearray(path.read_bytes()), np.zeros(path.stat().st_size, bool)
        for _, offset, length in spans(path):
            inside[offset : offset + length] = True
        at, bit = int(rng.choice(np.flatnonzero(~inside))), int(rng.integers(8))
        data[at] ^= 1 << bit
        (tmp_path / "m.h5").write_bytes(data)
        try:
            same = _everything(tmp_path / "m.h5") == _everything(path)
        except Exception as error:
            same = "m.h5" in str(error)
        else:
            without += 1
        if not same:
            missed.append(f"{path.name}: byte {at}, bit {bit}")
    record(
        "flipped bits in HDF5 structures",
        trials,
        len(missed),
        without_meaning=without,
        seconds=round(time.monotonic() - began, 1),
    )
    assert not missed, "\n".join(missed)


def _everything(path) -> list[object]:
    """All that a graph file says."""
    with open_graph(path) as opened:
        rows = vars(opened.slice(0, opened.nodes))
        if opened.sparse:
            rows |= vars(rows.pop("x"))
        arrays = [*rows.values(), *(opened.bounds(parts) for parts in opened.partitions)]
        facts = [opened.name, opened.uuid, opened.order, opened.contents, opened.partitions]
    return facts + [each.tobytes() if isinstance(each, np.ndarray) else each for each in arrays]


def test_the_same_seed_makes_the_same_mutant(originals, tmp_path):
    for seed in random.Random(0).sample(range(10**9), 30):
        stories = [originals.make(seed, tmp_path / name) for name in ("a", "b")]
        assert stories[0] == stories[1]
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_structures_are_found_and_sealed(originals):
    """Each checksum that the library wrote is the one that `seal` would write."""
    for path in originals.files[:3]:
        data = bytearray(path.read_bytes())
        found = structures(data)
        assert len(found) > 20
        for each in found:
            changed = bytearray(data)
            if each.checksum:
                changed[each.checksum] ^= 1
            seal(changed, each)
            assert changed == data
    kinds = {each.kind for each in structures(originals.files[2].read_bytes())}
    assert kinds == {"superblock", "OHDR", "OCHK", "FRHP", "FHDB", "BTHD", "BTLF"}
