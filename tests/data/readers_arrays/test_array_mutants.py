"""Damaged files of arrays: no crash, no hang; each is read, or refused in one line that names it."""

from __future__ import annotations

from functools import partial

import pytest
from damaged.mutants import try_mutants
from damaged.watched import Worker

from .array_mutants import FORMATS, make


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.trials(20, torture=2000)
def test_mutants_are_read_or_refused_in_one_line(format_, trials, tmp_path, rng):
    path, seeds = tmp_path / format_, rng.integers(2**62, size=trials)
    with Worker("data.readers_arrays.array_mutants") as worker:
        make_one = partial(make, format_, path=path)
        try_mutants(f"mutants of arrays, {format_}", worker, make_one, path, seeds, taken=(0.02, 0.9))
