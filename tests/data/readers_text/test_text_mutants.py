"""Damaged text files end no process by a signal, hang none, and are read or refused in one line that names them."""

from __future__ import annotations

from functools import partial

import pytest
from damaged.mutants import try_mutants
from damaged.watched import Worker

from .text_mutants import FORMATS, make


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.trials(20, torture=2000)
def test_mutants_are_read_or_refused_in_one_line(format_, trials, tmp_path, rng):
    path, seeds = tmp_path / format_, rng.integers(2**62, size=trials)
    with Worker("data.readers_text.text_mutants") as worker:
        make_one = partial(make, format_, path=path)
        try_mutants(f"mutants of text files, {format_}", worker, make_one, path, seeds, taken=(0.0, 0.9))
