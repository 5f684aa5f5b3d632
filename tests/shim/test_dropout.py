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

KINDS = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


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
@pytest.mark.parametrize("kind", KINDS)
def test_dropout_keeps_what_the_host_keeps(rng, engine, backend, kind, columns):
    """Rows that are padded, or as near to each other as can be, or that begin anywhere."""
    dtype, ids, key = np.dtype(KINDS[kind]), rng.integers(0, 2**45, 21), drawn(rng)
    held = rng.standard_normal((21, columns + 3)).astype(dtype)
    scale = kept(rng, (21, columns), ids, key)
    for x in (held[:, :columns], held[:, 3:], np.ascontiguousarray(held[:, :columns])):
        padded = backend.memory.padded(21, RowFormat(dtype, columns))
        padded[:] = x
        wanted = (x.astype(np.float32) * scale).astype(dtype)
        for source in (x, padded):
            out = engine.nan_rows(backend, 21, RowFormat(dtype, columns))
            backend.dropout(source, out, ids, key)
            np.testing.assert_array_equal(out, wanted)
    backend.dropout(out, out, ids, key)  # in place
    np.testing.assert_array_equal(out, (wanted.astype(np.float32) * scale).astype(dtype))
    wide = engine.nan_rows(backend, 21, RowFormat(dtype, columns + 16))
    backend.dropout(padded, wide[:, :columns], ids, key)
    np.testing.assert_array_equal(wide[:, :columns], wanted)
    assert np.isnan(wide[:, columns:].astype(np.float32)).all()


def stored(rng):
    """CSR rows of random lengths: offsets, columns, values, ids."""
    indptr = np.concatenate([[0], np.cumsum(rng.integers(0, 40, 30))])
    indices = rng.integers(0, 10**6, indptr[-1]).astype(np.int32)
    return indptr, indices, rng.standard_normal(indptr[-1]).astype(np.float32), rng.integers(0, 2**45, 30)


def kept_of_stored(indptr, indices, values, ids, key):
    """What the host's dropout makes of stored values."""
    out = np.empty_like(values)
    call = (key.p, key.seed, key.epoch, key.stream)
    _host.dropout_csr(indptr, indices, values, out, ids, *call, 1)
    return out


def test_dropout_of_stored_values_keeps_what_the_host_keeps(rng, backend):
    *places, values, ids = stored(rng)
    key, out = drawn(rng), np.full_like(values, np.nan)
    backend.dropout(values, out, ids, key, csr=tuple(places))
    np.testing.assert_array_equal(out, kept_of_stored(*places, values, ids, key))
    assert 0 < np.count_nonzero(out) < len(out)


@pytest.mark.parametrize("kind", [*KINDS, "stored values"])
def test_an_epoch_in_memory_counts_instead(rng, engine, backend, kind):
    """The same call again, as a graph replays it, with other numbers in memory."""
    dtype, ids, wrong = np.dtype(KINDS.get(kind, np.float32)), rng.integers(0, 2**45, 21), drawn(rng)
    x, (*places, values, stored_ids) = rng.standard_normal((21, 37)).astype(dtype), stored(rng)
    held = replace(wrong, epoch_at=engine.arrays.uploaded(np.zeros(1, np.int32)))
    for epoch in map(int, rng.integers(1000, 2**31, 3)):
        held.epoch_at[0], right = epoch, replace(wrong, epoch=epoch)
        if kind in KINDS:
            out = engine.nan_rows(backend, 21, RowFormat(dtype, 37))
            backend.dropout(x, out, ids, held)
            wanted = (x.astype(np.float32) * kept(rng, x.shape, ids, right)).astype(dtype)
        else:
            out = np.full_like(values, np.nan)
            backend.dropout(values, out, stored_ids, held, csr=tuple(places))
            wanted = kept_of_stored(*places, values, stored_ids, right)
        np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("epoch_at", [np.zeros(1, np.int64), np.zeros(2, np.int32), np.int32(3)])
def test_an_epoch_that_is_none_is_refused(rng, backend, epoch_at):
    (*places, values, ids), x = stored(rng), np.zeros((30, 4), np.float32)
    key = replace(drawn(rng), epoch_at=np.asarray(epoch_at))
    said = rf"epoch_at: {key.epoch_at.dtype} \[\d?\]; expected contiguous int32 \[1\]"
    with pytest.raises(ValueError, match=said):
        backend.dropout(x, x, ids, key)
    with pytest.raises(ValueError, match=said):
        backend.dropout(values, values, ids, key, csr=tuple(places))


def test_dropout_of_nothing(rng, backend):
    for shape in ((0, 5), (5, 0)):
        x = np.zeros(shape, np.float32)
        backend.dropout(x, x, np.arange(shape[0]), drawn(rng))
    nothing, ids = np.zeros(0, np.float32), np.arange(0)
    places = np.zeros(1, np.int64), ids.astype(np.int32)
    backend.dropout(nothing, nothing, ids, drawn(rng), csr=places)


WIDE = np.zeros((3, 4))


@pytest.mark.parametrize(
    ("x", "out", "ids", "said"),
    [
        (WIDE, WIDE.astype("f4"), 3, r"x: float64 \[3, 4\]; expected rows of float32 \[3, 4\]"),
        (np.zeros((3, 5), "f4"), WIDE.astype("f4"), 3, r"x: float32 \[3, 5\]; expected"),
        (np.zeros((4, 3), "f4").T, WIDE.astype("f4"), 3, r"x: float32 \[3, 4\]; expected"),
        (WIDE.astype("f4"), WIDE.astype("f4"), 2, r"ids: int64 \[2\]; expected contiguous int64 \[3\]"),
        (WIDE, WIDE, 3, "GPU kernels take rows of float32, float16, bfloat16"),
    ],
)
def test_dropout_refuses_other_arrays(rng, backend, x, out, ids, said):
    with pytest.raises(ValueError, match=said):
        backend.dropout(x, out, np.arange(ids), drawn(rng))
