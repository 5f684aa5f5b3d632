"""Intervals of rows: even, as large as memory allows, and found at once."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from mgg_hpc.plan.grid import ROWS, RowBytes, divided, intervals


def test_intervals_are_even_and_small_enough(rng):
    for rows, most in rng.integers(1, 10000, (200, 2)):
        bounds = intervals(int(rows), int(most))
        sizes = np.diff(bounds)
        assert (bounds[0], bounds[-1]) == (0, rows)
        assert (sizes > 0).all() and sizes.max() <= max(most, ROWS)
        assert (sizes[:-1] == sizes[0]).all()
    assert intervals(0, 100).tolist() == [0, 0]


@pytest.mark.parametrize("cells", [0, 200])
@pytest.mark.parametrize("turned", [False, True])
def test_intervals_fit_where_any_do(rng, turned, cells):
    """With plans of each chunk beside rows, too: if none is found, no number of chunks would have fitted."""
    refused = 0
    for _ in range(300):
        ends = (1e4, 1e7) if cells else (1e5, 1e8) if turned else (1, 1e6)
        nbytes, rows, more, wide, kept, cell = (
            int(rng.integers(*each))
            for each in (ends, (1, 2e4), (1, 5), (16, 2048), (16 * turned, 2048), (0, cells + 1))
        )
        sources = more * rows
        found = divided(nbytes, rows, sources, 9 * rows, RowBytes(wide, kept, cell), turned=turned)
        if found is not None:
            sums, chunk = (int(np.diff(bounds).max()) for bounds in (found.targets, found.sources))
            count = len(found.sources) - 1
            held = 2 * sums * kept + 2 * chunk * wide if turned else sums * kept
            held += 0 if turned else min(found.slots, count) * chunk * wide
            assert held + count * rows * cell <= nbytes
            continue
        refused += 1
        if turned:
            assert nbytes < 2 * ROWS * (wide + kept) * 4 / 3 or cell
            continue
        left = nbytes - min(rows, ROWS) * kept
        assert cell or left < 2 * ROWS * wide
        for count in range(2, sources // ROWS):
            size = math.ceil(math.ceil(sources / count) / ROWS) * ROWS
            assert 2 * size * wide + math.ceil(sources / size) * rows * cell > left
    assert turned or 10 < refused < 290


def test_large_graphs_are_cut_at_once():
    """As many rows as a node has room for, in too little memory, and in little."""
    rows, each, began = 10**8, RowBytes(512, 512), time.process_time()
    assert divided(10**4, rows, 4 * rows, 100 * rows, each) is None
    for nbytes in (10**6, 10**9):
        found = divided(nbytes, rows, 4 * rows, 100 * rows, each)
        assert (found.targets[-1], found.sources[-1]) == (rows, 4 * rows)
    assert time.process_time() - began < 3
