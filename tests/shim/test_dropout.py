"""Dropout as training asks for it of a GPU's backend, with the shim in place of a GPU. (Epochs: test_ranks.py.)"""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from mgg_hpc import _host
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.arguments import RngKey
from mgg_hpc.runtime.backends.simulated import World

KINDS = [np.dtype(kind) for kind in (np.float32, np.float16, ml_dtypes.bfloat16)]


@pytest.fixture
def backend(rng, engine):
    """A lone rank; its kernels run in a new order."""
    engine.seed(int(rng.integers(1 << 60)))
    (made,) = engine.backends(World(1))
    return made


def drawn(rng) -> RngKey:
    return RngKey(float(rng.uniform(0.1, 0.9)), int(rng.integers(2**63)), *map(int, rng.integers(1, 1000, 2)))


def kept(rng, shape, ids, key):
    """What the host's dropout makes of ones, float32."""
    out = np.empty(shape, np.float32)
    _host.dropout_rows(np.ones(shape, np.float32), out, ids, key.p, key.seed, key.epoch, key.stream, 1)
    return out


@pytest.mark.parametrize("columns", [1, 4, 7, 16, 33, 128, 130, 300])
@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_dropout_keeps_what_the_host_keeps(rng, engine, backend, dtype, columns):
    """Rows that are padded, or as near to each other as can be, or that begin anywhere. An epoch in memory counts
    instead of the key's: the same call again, as a graph replays it."""
    ids, key, format = rng.integers(0, 2**45, 21), drawn(rng), RowFormat(dtype, columns)
    held = rng.standard_normal((21, columns + 3)).astype(dtype)
    scale = kept(rng, (21, columns), ids, key)
    for x in (held[:, :columns], held[:, 3:], np.ascontiguousarray(held[:, :columns])):
        padded = backend.memory.padded(21, format)
        padded[:] = x
        wanted = (x.astype(np.float32) * scale).astype(dtype)
        for source in (x, padded):
            out = engine.nan_rows(backend, 21, format)
            backend.dropout(source, out, ids, key)
            np.testing.assert_array_equal(out, wanted)
    backend.dropout(out, out, ids, key)  # in place
    np.testing.assert_array_equal(out, (wanted.astype(np.float32) * scale).astype(dtype))
    wide = engine.nan_rows(backend, 21, RowFormat(dtype, columns + 16))
    again = replace(key, epoch=0, epoch_at=engine.array(np.zeros(1, np.int32)))
    for epoch in (key.epoch, *map(int, rng.integers(1000, 2**31, 2))):
        again.epoch_at[0] = epoch
        backend.dropout(padded, wide[:, :columns], ids, again)
        scale = kept(rng, (21, columns), ids, replace(key, epoch=epoch))
        np.testing.assert_array_equal(wide[:, :columns], (x.astype(np.float32) * scale).astype(dtype))
    assert np.isnan(wide[:, columns:].astype(np.float32)).all()


def stored(rng):
    """CSR rows of random lengths: offsets, columns, values, ids."""
    indptr = np.concatenate([[0], np.cumsum(rng.integers(0, 40, 30))])
    indices = rng.integers(0, 10**6, indptr[-1]).astype(np.int32)
    return indptr, indices, rng.standard_normal(indptr[-1]).astype(np.float32), rng.integers(0, 2**45, 30)


def test_dropout_of_stored_values_keeps_what_the_host_keeps(rng, engine, backend):
    *places, values, ids = stored(rng)
    key, wanted = drawn(rng), np.empty_like(values)
    held = replace(key, epoch=0, epoch_at=engine.array(np.array([key.epoch], np.int32)))
    call = (key.p, key.seed, key.epoch, key.stream)
    _host.dropout_csr(*places, values, wanted, ids, *call, 1)
    for by in (key, held):
        out = np.full_like(values, np.nan)
        backend.dropout(values, out, ids, by, csr=tuple(places))
        np.testing.assert_array_equal(out, wanted)
    assert 0 < np.count_nonzero(out) < len(out)


def test_dropout_of_nothing(rng, backend):
    for shape in ((0, 5), (5, 0)):
        x = np.zeros(shape, np.float32)
        backend.dropout(x, x, np.arange(shape[0]), drawn(rng))
    nothing, ids = np.zeros(0, np.float32), np.arange(0)
    places = np.zeros(1, np.int64), ids.astype(np.int32)
    backend.dropout(nothing, nothing, ids, drawn(rng), csr=places)


WIDE, ROWS = np.zeros((3, 4)), np.zeros((3, 4), np.float32)
EPOCH = r"epoch_at: {} \[\d?\]; expected contiguous int32 \[1\]"


@pytest.mark.parametrize(
    ("x", "out", "ids", "epoch_at", "said"),
    [
        (WIDE, ROWS, 3, None, r"x: float64 \[3, 4\]; expected rows of float32 \[3, 4\]"),
        (np.zeros((3, 5), "f4"), ROWS, 3, None, r"x: float32 \[3, 5\]; expected"),
        (np.zeros((4, 3), "f4").T, ROWS, 3, None, r"x: float32 \[3, 4\]; expected"),
        (ROWS, ROWS, 2, None, r"ids: int64 \[2\]; expected contiguous int64 \[3\]"),
        (WIDE, WIDE, 3, None, "GPU kernels take rows of float32, float16, bfloat16"),
        (ROWS, ROWS, 3, np.zeros(1, np.int64), EPOCH.format("int64")),
        (ROWS, ROWS, 3, np.zeros(2, np.int32), EPOCH.format("int32")),
        (ROWS, ROWS, 3, np.asarray(np.int32(3)), EPOCH.format("int32")),
    ],
)
def test_dropout_refuses_other_arrays(rng, backend, x, out, ids, epoch_at, said):
    key = replace(drawn(rng), epoch_at=epoch_at)
    with pytest.raises(ValueError, match=said):
        backend.dropout(x, out, np.arange(ids), key)
    if epoch_at is not None:
        *places, values, of_rows = stored(rng)
        with pytest.raises(ValueError, match=said):
            backend.dropout(values, values, of_rows, key, csr=tuple(places))
