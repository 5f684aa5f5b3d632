"""Sound checkpoints are taken, and each flipped bit in one is found."""

from __future__ import annotations

import shutil
import time

import pytest
from damaged.watched import Worker
from torture.report import record
from training.checkpoints.checkpoint_mutants import EPOCH, Originals

from mgg_hpc.training.checkpoints import folders


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    """A worker that can go on with the runs which it has made in ``worker.folder``."""
    folder = tmp_path_factory.mktemp("runs")
    with Worker("training.checkpoints.checkpoint_mutants", str(folder)) as started:
        started.start()
        started.folder = folder
        yield started


@pytest.mark.slow
def test_sound_checkpoints_are_taken(worker):
    for run in Originals(worker.folder).runs:
        answer = worker.ask(run)
        assert answer.kind == "taken", answer.said


@pytest.mark.trials(20, torture=400)
def test_every_flipped_bit_is_found(worker, trials, tmp_path, rng):
    """In any file of a checkpoint, its manifest among them: none has bytes without a meaning."""
    began, missed = time.monotonic(), []
    for trial in range(trials):
        run = Originals(worker.folder).runs[trial % 2]
        folder = tmp_path / folders.name_of(EPOCH)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(run / "checkpoints" / folder.name, folder)
        files = sorted(folder.iterdir())
        path = files[int(rng.integers(len(files)))]
        data = bytearray(path.read_bytes())
        at, bit = int(rng.integers(len(data))), int(rng.integers(8))
        data[at] ^= 1 << bit
        path.write_bytes(data)
        try:
            folders.verify(folder, EPOCH)
        except folders.DamagedError:
            continue
        missed.append(f"{run.name}: {path.name}, byte {at}, bit {bit}")
    record("flipped bits in checkpoints", trials, len(missed), seconds=round(time.monotonic() - began, 1))
    assert not missed, "\n".join(missed)
