"""Intervals of rows: even, as large as memory allows, and found at once."""

from __future__ import annotations

import math
import time

import numpy as np

from mgg_hpc.plan.streaming.division import ROWS, RowBytes, divided, intervals


def test_intervals_are_even_and_small_enough(rng):
    for rows, most in rng.integers(1, 10000, (200, 2)):
        bounds = intervals(int(rows), int(most))
        sizes = np.diff(bounds)
        assert bounds[0] == 0
        assert bounds[-1] == rows
        assert (sizes > 0).all()
        assert sizes.max() <= max(most, ROWS)
        assert (sizes[:-1] == sizes[0]).all()
    assert intervals(0, 100).tolist() == [0, 0]


def test_intervals_of_the_turned_grid_fit(rng):
    for _ in range(100):
        nbytes, rows, wide, kept = (
            int(rng.integers(*each)) for each in ((1e5, 1e8), (1, 1e5), (16, 2048), (16, 2048))
        )
        found = divided(nbytes, rows, 2 * rows, 9 * rows, RowBytes(wide, kept), turned=True)
        if found is None:
            assert nbytes < 2 * ROWS * (wide + kept) * 4 / 3
            continue
        sums, chunks = (int(np.diff(bounds).max()) for bounds in (found.targets, found.sources))
        assert 2 * sums * kept + 2 * chunks * wide <= nbytes


def test_intervals_fit_where_the_smallest_do(rng):
    for _ in range(300):
        nbytes, rows, more, wide, kept = (
            int(rng.integers(*each)) for each in ((1, 1e6), (1, 2e4), (1, 5), (16, 2048), (0, 2048))
        )
        found = divided(nbytes, rows, more * rows, 9 * rows, RowBytes(wide, kept))
        least = min(rows, ROWS) * kept + 2 * ROWS * wide
        assert (found is None) == (nbytes < least)
        if found is not None:
            sums, chunks = (int(np.diff(bounds).max()) for bounds in (found.targets, found.sources))
            held = min(found.slots, len(found.sources) - 1)
            assert sums * kept + held * chunks * wide <= nbytes


def test_plans_of_each_chunk_fit_beside_rows(rng):
    """And where nothing is found, no number of chunks would have fitted beside the smallest interval."""
    refused = 0
    for _ in range(300):
        nbytes, rows, more, wide, kept, cell = (
            int(rng.integers(*each))
            for each in ((1e4, 1e7), (1, 2e4), (1, 5), (16, 2048), (0, 2048), (1, 200))
        )
        sources = more * rows
        found = divided(nbytes, rows, sources, 9 * rows, RowBytes(wide, kept, cell))
        if found is not None:
            sums, chunk = (int(np.diff(bounds).max()) for bounds in (found.targets, found.sources))
            count = len(found.sources) - 1
            assert sums * kept + min(found.slots, count) * chunk * wide + count * rows * cell <= nbytes
            continue
        refused += 1
        left = nbytes - min(rows, ROWS) * kept
        for count in range(2, sources // ROWS):
            size = math.ceil(math.ceil(sources / count) / ROWS) * ROWS
            assert 2 * size * wide + math.ceil(sources / size) * rows * cell > left
    assert 10 < refused < 290


def test_large_graphs_are_cut_at_once():
    """As many rows as a node has room for, in too little memory, and in little."""
    rows, each, began = 10**8, RowBytes(512, 512), time.process_time()
    assert divided(10**4, rows, 4 * rows, 100 * rows, each) is None
    for nbytes in (10**6, 10**9):
        found = divided(nbytes, rows, 4 * rows, 100 * rows, each)
        assert found.targets[-1] == rows
        assert found.sources[-1] == 4 * rows
    assert time.process_time() - began < 3
