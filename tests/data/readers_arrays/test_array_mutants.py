"""Damaged files of arrays: no crash, no hang; each is read, or refused in one line that names it."""

from __future__ import annotations

import shutil
import time

import pytest
from torture.report import record

from data.hdf5.watched import Worker

from .array_mutants import FORMATS, make


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.trials(test=80, long=2000)
def test_mutants_are_read_or_refused_in_one_line(format_, trials, tmp_path, rng):
    began, failures, taken, slowest = time.monotonic(), [], 0, 0.0
    path = tmp_path / format_
    with Worker("data.readers_arrays.array_mutants") as worker:
        for seed in rng.integers(2**62, size=trials).tolist():
            story = make(format_, seed, path)
            asked = time.monotonic()
            answer = worker.ask(path)
            slowest = max(slowest, time.monotonic() - asked)
            taken += answer.kind == "taken"
            if answer.failed:
                failures.append(f"{story}: {answer.kind}: {answer.said}")
            if path.is_dir():
                shutil.rmtree(path)
    record(
        f"mutants of arrays, {format_}",
        trials,
        len(failures),
        seconds=round(time.monotonic() - began, 1),
        taken=taken,
        slowest=round(slowest, 2),
    )
    assert not failures, "\n".join(failures)
    assert 0.02 * trials < taken < 0.9 * trials  # most changes matter, and some do not
