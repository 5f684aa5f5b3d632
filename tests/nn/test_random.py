"""Philox against its published answers and an implementation of its own; dropout, initial weights and inputs of graphs
without features against the formulas.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import reference
import torch
from jobs import dense

from mgg_hpc import _host
from mgg_hpc.nn.inputs.features import DEGREE_COLUMNS, IDS_A_STREAM, LEARNED, degree_rows, learned_rows
from mgg_hpc.nn.layers.random import fill_by_seed, glorot
from mgg_hpc.runtime.backends import DEFAULT_GEOMETRY
from mgg_hpc.runtime.backends.arguments import Options, RngKey
from mgg_hpc.runtime.backends.host.kernels import SerialBackend
from mgg_hpc.runtime.backends.native import uniform
from mgg_hpc.runtime.backends.simulated import World

# Known answers of Random123 (philox 4x32 10): counter, key, result.
KNOWN = [
    ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, 2**64 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        0x299F31D0A4093822,
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def test_the_references_philox_gives_the_published_words():
    for counter, key, wanted in KNOWN:
        assert reference.philox4x32(counter, key) == wanted


def test_uniform_draws_are_the_references_words(rng):
    seed, stream = int(rng.integers(2**63)), int(rng.integers(2**16))
    out = np.empty((9, 11))
    uniform(out, 0.0, 1.0, seed, stream)
    words = [[reference.word(seed, 0, stream, row, column) for column in range(11)] for row in range(9)]
    np.testing.assert_array_equal(out, (np.array(words) >> 8) / 2**24)


# Columns whose draws end within a batch of them, at its end, and after several.
@pytest.mark.parametrize("columns", [0, 1, 3, 13, 37, 50, 64, 150])
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_dropout_of_dense_rows_is_the_formula(rng, kind, columns):
    """Every word of the counter and both halves of the key count. Half rows are scaled in float32 and rounded once."""
    room = np.full((23, columns + 5), 7.0, kind)  # rows are further apart than they are wide
    x = room[:, :columns]
    x[:] = rng.standard_normal(x.shape)
    ids, p = rng.integers(0, 2**48, 23), float(rng.uniform(0.1, 0.9))
    draw = [int(rng.integers(2**bits)) for bits in (63, 31, 16)]  # seed, epoch and stream
    kept = reference.dropout(np.ones(x.shape), ids, p, *draw) > 0
    out = np.empty_like(x)
    backend = SerialBackend(0, World(1), Options(DEFAULT_GEOMETRY, 2))
    backend.dropout(x, out, ids, RngKey(p, *draw))
    if x.itemsize == 2:
        scaled = x.astype(np.float32) * np.float32(1 / (1 - p))
        np.testing.assert_array_equal(out, np.where(kept, scaled, 0).astype(kind))
    else:
        wanted = reference.dropout(x.astype(np.float64), ids, p, *draw)
        np.testing.assert_allclose(out, wanted, rtol=2 * np.finfo(kind).eps)
    assert columns < 13 or 0 < (out == 0).sum() < x.size  # of 23 values all may be kept by chance
    backend.dropout(x, x, ids, RngKey(p, *draw))  # in place
    np.testing.assert_array_equal(x, out)
    assert (room[:, columns:] == 7).all()
    backend.dropout(x[:0], out[:0], ids[:0], RngKey(p, *draw))


def test_dropout_of_stored_values_is_that_of_the_dense_rows(rng):
    x = rng.standard_normal((31, 40)) * (rng.random((31, 40)) < 0.3)
    row, column = np.nonzero(x)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=31))]).astype(np.int64)
    ids = rng.permutation(1000)[:31].astype(np.int64)
    values = x[row, column]
    out = np.empty_like(values)
    _host.dropout_csr(indptr, column.astype(np.int32), values, out, ids, 0.5, 9, 3, 1, 2)
    np.testing.assert_array_equal(out, reference.dropout(x, ids, 0.5, 9, 3, 1)[row, column])


def test_initial_weights_are_the_references_draws_in_both_types():
    narrow, wide = torch.empty(40, 60), torch.empty(40, 60, dtype=torch.float64)
    for layer in (0, 1):
        glorot(narrow, fill_by_seed(5, layer))
        glorot(wide, fill_by_seed(5, layer))
        torch.testing.assert_close(narrow.double(), wide, rtol=1e-6, atol=0)
        limit, word = (6 / 100) ** 0.5, reference.word(5, 0, 0x8000 + layer, 3, 17)
        assert wide[3, 17].item() == pytest.approx(-limit + 2 * limit * (word >> 8) / 2**24, rel=1e-12)


def test_learned_rows_are_drawn_by_the_original_id(rng):
    ids = rng.permutation(np.append(rng.choice(3 * IDS_A_STREAM, 20, replace=False), [0, IDS_A_STREAM]))
    seed = int(rng.integers(2**63))
    rows = learned_rows(ids, 5, seed, torch.float64)
    streams = [(LEARNED + int(v) // IDS_A_STREAM, int(v) % IDS_A_STREAM) for v in ids]
    words = [[reference.word(seed, 0, *stream, column) for column in range(5)] for stream in streams]
    unit = (np.array(words) + 0.5) / 2**32  # each word's interval, whichever point of it stands for it
    assert isinstance(rows, torch.nn.Parameter)
    np.testing.assert_allclose(rows.detach().numpy(), np.sqrt(3) * (2 * unit - 1), rtol=0, atol=1e-6)
    narrow = learned_rows(ids, 5, seed, torch.float32)
    assert narrow.dtype == torch.float32 and torch.allclose(narrow.double(), rows, rtol=0, atol=1e-6)
    assert learned_rows(np.zeros(0, np.int64), 4, 1, torch.float32).shape == (0, 4)


def test_a_degrees_column_is_the_number_of_its_binary_digits(rng):
    degrees = [0, 1, 2, 3, 4, 7, 8, 2**20 - 1, 2**20, 2**40, *rng.integers(1000, size=50).tolist()]
    x = degree_rows(np.cumsum([0, *degrees]))
    expected = np.zeros((len(degrees), DEGREE_COLUMNS))
    for row, degree in enumerate(degrees):
        expected[row, min(degree.bit_length(), DEGREE_COLUMNS - 1)] = 1
    assert x.shape == expected.shape and np.array_equal(dense(x), expected)
