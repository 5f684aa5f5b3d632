"""Inputs of graphs without features, against the draws' definition and degrees counted one by one."""

from __future__ import annotations

import numpy as np
import reference
import torch
from jobs import dense

from mgg_hpc.nn.inputs.nodes import DEGREE_COLUMNS, IDS_A_STREAM, LEARNED, degree_rows, learned_rows


def test_a_degrees_column_is_the_number_of_its_binary_digits(rng):
    degrees = [0, 1, 2, 3, 4, 7, 8, 2**20 - 1, 2**20, 2**40, *rng.integers(1000, size=50).tolist()]
    x = degree_rows(np.cumsum([0, *degrees]))
    assert x.shape == (len(degrees), DEGREE_COLUMNS)
    expected = np.zeros(x.shape)
    for row, degree in enumerate(degrees):
        expected[row, min(degree.bit_length(), DEGREE_COLUMNS - 1)] = 1
    assert np.array_equal(dense(x), expected)


def test_learned_rows_are_drawn_by_the_original_id(rng):
    ids = rng.permutation(np.append(rng.choice(3 * IDS_A_STREAM, 20, replace=False), [0, IDS_A_STREAM]))
    seed = int(rng.integers(2**63))
    rows = learned_rows(ids, 5, seed, torch.float64)
    streams = [(LEARNED + int(v) // IDS_A_STREAM, int(v) % IDS_A_STREAM) for v in ids]
    words = [[reference.word(seed, 0, *stream, column) for column in range(5)] for stream in streams]
    unit = (np.array(words) + 0.5) / 2**32  # each word's interval, whichever point of it stands for it
    assert isinstance(rows, torch.nn.Parameter)
    np.testing.assert_allclose(rows.detach().numpy(), np.sqrt(3) * (2 * unit - 1), rtol=0, atol=1e-6)


def test_learned_rows_have_variance_one_and_no_two_are_the_same(rng):
    rows = learned_rows(np.arange(20000), 8, int(rng.integers(2**63)), torch.float32).detach().numpy()
    assert rows.dtype == np.float32
    assert abs(rows.mean()) < 5 / np.sqrt(rows.size)
    assert abs(rows.var() - 1) < 5 * np.sqrt(0.8 / rows.size)  # the square of a uniform draw has variance 0.8
    assert len(np.unique(rows, axis=0)) == len(rows)


def test_a_rank_without_nodes_learns_none():
    assert learned_rows(np.zeros(0, np.int64), 4, 1, torch.float32).shape == (0, 4)
