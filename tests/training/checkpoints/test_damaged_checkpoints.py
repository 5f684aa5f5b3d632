"""Sound checkpoints are taken, and each flipped bit in one is found."""

from __future__ import annotations

import shutil
import time

import pytest
from damaged.watched import Worker
from torture.report import record
from training.checkpoints.checkpoint_mutants import EPOCH, Originals, one_of

from mgg_hpc.training.checkpoints import folders


@pytest.fixture
def worker(tmp_path_factory):
    """A worker that can go on with the runs which it has made in ``worker.folder``."""
    folder = tmp_path_factory.mktemp("runs")
    with Worker("training.checkpoints.checkpoint_mutants", str(folder)) as started:
        started.start()
        started.folder = folder
        yield started


@pytest.mark.slow
@pytest.mark.trials(20, torture=400)
def test_sound_checkpoints_are_taken_and_every_flipped_bit_is_found(worker, trials, tmp_path, rng):
    """In any file of a checkpoint, its manifest among them: none has bytes without a meaning."""
    runs, began, missed = Originals(worker.folder).runs, time.monotonic(), []
    for run in runs:
        answer = worker.ask(run)
        assert answer.kind == "taken", answer.said
    for trial in range(trials):
        folder = tmp_path / folders.name_of(EPOCH)
        shutil.copytree(runs[trial % 2] / "checkpoints" / folder.name, folder)
        path = one_of(sorted(folder.iterdir()), rng)
        data = bytearray(path.read_bytes())
        at, bit = int(rng.integers(len(data))), int(rng.integers(8))
        data[at] ^= 1 << bit
        path.write_bytes(data)
        try:
            folders.verify(folder, EPOCH)
            missed.append(f"{runs[trial % 2]}: {path.name}, byte {at}, bit {bit}")
        except folders.DamagedError:
            pass
        shutil.rmtree(folder)
    record("flipped bits in checkpoints", trials, len(missed), seconds=round(time.monotonic() - began, 1))
    assert not missed, "\n".join(missed)
