"""Blocks of rows: how they are cut; a GPU's streams wait for each other where they must, and only there. Features that
stay on the host in blocks have the products and gradients of dense ones, with and without dropout.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import reference
import torch
from convolutions import GEOMETRY
from streams import Streams

from mgg_hpc.nn.inputs import host
from mgg_hpc.nn.inputs.features import read
from mgg_hpc.nn.inputs.host import HostFeatures, even_lengths, lengths, on_device
from mgg_hpc.nn.workspace import as_tensor, row_format
from mgg_hpc.runtime.backends.arguments import Options, RngKey
from mgg_hpc.runtime.backends.base import Capabilities
from mgg_hpc.runtime.backends.host.kernels import SerialBackend
from mgg_hpc.runtime.backends.simulated import World


class Rows:
    """A file's dense features in memory: what `read` asks of a GraphFile."""

    def __init__(self, x, wrote=lambda number, array: None):
        self.x, self.x_dtype, self.arrays, self._wrote = x, x.dtype, [], wrote

    def feature_blocks(self, lo, hi, into):
        arrays = iter(into)
        while lo < hi:
            array = next(arrays)[: hi - lo]
            self._wrote(len(self.arrays), array)
            array[:] = self.x[lo : lo + len(array)]
            self.arrays.append(array)
            lo += len(array)
            yield array
        self.ended = True


@pytest.fixture
def small(monkeypatch):
    """Blocks of 4 KiB."""
    monkeypatch.setattr(host, "BLOCK_BYTES", 4096)


def test_blocks_are_even_and_none_is_one_row(rng):
    """So many blocks, or blocks of so many bytes."""
    assert even_lengths(0, 0) == [] and even_lengths(1, 1) == [1] and even_lengths(8, 1) == [3, 3, 2]
    assert lengths(0, 4) == [] and lengths(1, 2**40) == [1]
    for rows, row_bytes in zip(
        rng.integers(2, 10**4, 300).tolist(), rng.integers(1, 2**24, 300).tolist(), strict=True
    ):
        most, found, cut = (
            max(3, (32 << 20) // row_bytes),
            lengths(rows, row_bytes),
            even_lengths(rows, -(-rows // 16)),
        )
        for blocks_of in (found, cut):
            assert sum(blocks_of) == rows and blocks_of == sorted(blocks_of, reverse=True)
            assert blocks_of[0] - blocks_of[-1] <= 1 < blocks_of[-1]
        assert found[0] <= most and (len(found) == 1 or (len(found) - 1) * most < rows)
        assert len(cut) <= 16 and cut[0] <= max(3, -(-rows // 16))


def writes(streams, what):
    return [each for each in streams.accesses if each.what == what and each.writes]


def divide(block):
    block.div_(block.sum(1, keepdim=True))


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_a_gpu_copies_a_block_while_the_next_is_read(rng, small, monkeypatch, kind):
    """Two buffers: one is read into again once its own copy has ended, whatever happens to the other."""
    streams, before = Streams(), []

    def wrote(number, array):
        streams.host_writes(f"read {number}", array)
        copies = [each for each in writes(streams, "copy_") if each.who != "host"]
        known = [streams.before(each, streams.accesses[-1]) for each in copies]
        before.append((number, sum(known), len(known)))

    file = Rows(rng.uniform(1, 2, (1500, 7)).astype(kind), wrote)
    with streams.played(monkeypatch):
        into = torch.empty(1400, 7, device="cuda:0")
        busy = into.fill_(3)  # the current stream may still be at work on this memory
        cut = into.split(lengths(1400, 28))
        read(file, 50, cut, "cuda:0", divide)
        found = into * 1  # and goes on with it
    right = torch.from_numpy(file.x[50:1450]).to(torch.float32)
    assert torch.equal(found, right / right.sum(1, keepdim=True)) and busy is into and file.ended
    assert len(cut) == 10 and len({array.ctypes.data for array in file.arrays}) == 2
    # Each block is copied twice, the second time to its place.
    assert before == [(number, max(0, 2 * number - 3), 2 * number) for number in range(10)]


def test_a_gpu_computes_with_a_block_while_the_next_is_copied(rng, small, monkeypatch):
    streams = Streams()
    x = torch.from_numpy(rng.standard_normal((1400, 7)))
    host = [each.clone() for each in x.split(lengths(1400, 56))]
    with streams.played(monkeypatch):
        found = []
        for block in on_device(host, "cuda:0"):
            block.mul_(2)  # in place, as dropout is
            found.append(block + 1)
    assert torch.equal(torch.cat(found), 2 * x + 1) and len(host) > 4
    copies = writes(streams, "copy_")
    sums = [each for each in streams.accesses if each.what == "add" and not each.writes]
    assert len(copies) == len(sums) == len(host)
    for number, copy in enumerate(copies):
        assert [streams.before(each, copy) for each in sums] == [at <= number - 2 for at in range(len(sums))]


def test_what_follows_waits_for_copies_that_nobody_took(rng, small, monkeypatch):
    """A product fails after the next copy has begun: its memory may go to others, in the current stream's order."""
    streams = Streams()
    host = list(torch.ones(1400, 7).split(lengths(1400, 28)))
    with streams.played(monkeypatch):
        blocks_there = on_device(host, "cuda:0")
        next(blocks_there)
        blocks_there.close()
        streams.tensor(torch.ones(3))
    copies = writes(streams, "copy_")
    assert len(copies) == 3 and all(streams.before(each, copies[2]) for each in copies)
    assert list(on_device([], "cuda:0")) == []
    assert all(each is given for each, given in zip(host, on_device(host, "cpu"), strict=True))


EPS = {torch.float64: 2**-52, torch.float32: 2**-23, torch.float16: 2**-10, torch.bfloat16: 2**-7}


@pytest.fixture
def backend():
    return SerialBackend(0, World(1), Options(GEOMETRY))


def on_host(backend, x):
    made = HostFeatures(backend, *x.shape, x.dtype)
    for block, values in zip(made.blocks, x.split([len(block) for block in made.blocks]), strict=True):
        block.copy_(values)
    return made


def near(found, wanted, size, eps):
    """To rounding: ``size`` is the same sum of absolute values. Below the normal numbers, halves are that far apart."""
    assert found.shape == wanted.shape
    apart = 2 * torch.finfo(found.dtype).smallest_normal * torch.finfo(found.dtype).eps if eps else 0
    assert bool(((found.double() - wanted).abs() <= 4 * eps * size + apart).all())


def products(rng, features, x, out, scaled=True):
    """Compare both products with those of the float64 matrix ``x``, for random weights and gradients."""
    (rows, columns), width, dtype = x.shape, out.shape[1], features.dtype
    narrow = torch.float32 if dtype.itemsize == 2 else dtype
    weight = torch.from_numpy(rng.standard_normal((width, columns))).to(narrow).requires_grad_()
    scale = torch.from_numpy(rng.uniform(0.5, 2, rows)).to(narrow) if scaled else None
    features.times_transposed(weight, out, scale)
    rounded, of = weight.detach().to(dtype).double(), scale[:, None].double() if scaled else 1
    near(out, of * (x @ rounded.t()), of * (x.abs() @ rounded.t().abs()), EPS[dtype])
    given = torch.from_numpy(rng.standard_normal((rows, width))).to(dtype)
    found = features.gradient(given)
    assert found.dtype == narrow
    near(found, given.double().t() @ x, given.double().t().abs() @ x.abs(), EPS[narrow] * max(1, rows) ** 0.5)


@pytest.mark.parametrize("made", [on_host, HostFeatures.over])
@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("rows", [0, 1, 2, 17, 131])
def test_products_are_those_of_dense_rows_with_the_same_draws_of_dropout(
    rng, small, backend, rows, dtype, made
):
    for columns, width in ((1, 1), (9, 6), (130, 16)):
        x = torch.from_numpy(rng.standard_normal((rows, columns))).to(dtype)
        ids, features = rng.integers(0, 2**45, rows), made(backend, x)
        assert features.shape == x.shape and features.dtype == dtype and features.nbytes == x.nbytes
        # Two blocks, and one widened.
        largest = max((block.numel() for block in features.blocks), default=0)
        assert features.device_nbytes == largest * (2 * dtype.itemsize + (4 if dtype.itemsize == 2 else 0))
        for epoch, scaled in ((1, True), (2, False)):
            key = RngKey(0.4, int(rng.integers(2**62)), epoch, 3)
            wanted = reference.dropout(x.double().numpy(), ids, key.p, key.seed, key.epoch, key.stream)
            out = as_tensor(backend.memory.padded(rows, row_format(width, dtype)))
            stored = torch.from_numpy(wanted).to(dtype).double()  # half rows are rounded as they are dropped
            dropped = features.dropped(ids, key)
            products(rng, dropped, stored, out, scaled)
            products(rng, features, x.double(), out, scaled)  # itself is as it was
            for of, rounding, right in ((dropped, EPS[dtype], stored), (features, 0, x.double())):
                near(of.written(torch.empty_like(x)), right, right.abs(), rounding)


@pytest.mark.parametrize("rows", [0, 1, 2, 1331])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_gets_the_rows_block_by_block(rng, small, monkeypatch, rows, dtype):
    """With dropout in place there, and no access that streams do not order (tests/streams.py)."""
    kept = torch.from_numpy(rng.random((rows, 9)) < 0.5)

    def dropout(x, out, ids, key):
        assert (x.ctypes.data, key, len(ids)) == (out.ctypes.data, "key", len(x))
        as_tensor(out).mul_(2 * kept[ids].to(dtype))

    x = torch.from_numpy(rng.standard_normal((rows, 9))).to(dtype)
    features = on_host(
        SimpleNamespace(capabilities=Capabilities("none", device="cuda:0"), dropout=dropout), x
    )
    streams, dropped = Streams(), features.dropped(np.arange(rows), "key")
    weight = torch.from_numpy(rng.standard_normal((4, 9))).float()
    given = torch.from_numpy(rng.standard_normal((rows, 4))).to(dtype)
    with streams.played(monkeypatch):
        weight, given = streams.tensor(weight), streams.tensor(given)
        for of, right in ((features, x.double()), (dropped, 2 * kept * x.double())):
            out = torch.empty(rows, 4, dtype=dtype, device="cuda:0")
            of.times_transposed(weight, out)
            found, gradient = out.clone(), of.gradient(given)
            rounded, wide = weight.to(dtype).double(), given.double()
            near(found, right @ rounded.t(), right.abs() @ weight.double().abs().t(), EPS[dtype])
            eps = EPS[torch.float32] * max(1, rows) ** 0.5
            near(gradient, wide.t() @ right, wide.abs().t() @ right.abs(), eps)
    assert len({each.who for each in streams.accesses} - {"host", "current"}) == (4 if rows else 0)
