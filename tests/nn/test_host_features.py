"""Features that stay on the host give the products and gradients of dense ones, with and without dropout."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import reference
import torch
from streams import Streams

from mgg_hpc.nn.inputs import blocks
from mgg_hpc.nn.inputs.host import HostFeatures
from mgg_hpc.nn.workspace import as_tensor, row_format
from mgg_hpc.runtime.backends.arguments import Geometry, Options, RngKey
from mgg_hpc.runtime.backends.base import Capabilities
from mgg_hpc.runtime.backends.host.serial import SerialBackend
from mgg_hpc.runtime.backends.simulated import World

EPS = {torch.float64: 2**-52, torch.float32: 2**-23, torch.float16: 2**-10, torch.bfloat16: 2**-7}


@pytest.fixture
def backend():
    return SerialBackend(0, World(1), Options(Geometry(8, 2, 2)))


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Blocks of 1 KiB."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1024)


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


@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("rows", [0, 1, 2, 7, 100, 331])
def test_products_are_those_of_dense_rows(rng, backend, rows, dtype):
    for columns, width in ((1, 1), (7, 5), (130, 16)):
        x = torch.from_numpy(rng.standard_normal((rows, columns))).to(dtype)
        features = on_host(backend, x)
        assert features.shape == x.shape and features.dtype == dtype and features.nbytes == x.nbytes
        for scaled in (True, False):
            out = as_tensor(backend.memory.padded(rows, row_format(width, dtype)))
            products(rng, features, x.double(), out, scaled)
    assert len(features.blocks) == -(-rows // max(3, 1024 // (130 * dtype.itemsize)))


@pytest.mark.parametrize("made", [on_host, HostFeatures.over])
@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("rows", [0, 1, 2, 17, 100, 331])
def test_dropout_draws_the_same_forward_and_backward(rng, backend, rows, dtype, made):
    x = torch.from_numpy(rng.standard_normal((rows, 9))).to(dtype)
    ids, features = rng.integers(0, 2**45, rows), made(backend, x)
    for epoch in (1, 2):
        key = RngKey(0.4, int(rng.integers(2**62)), epoch, 3)
        wanted = reference.dropout(x.double().numpy(), ids, key.p, key.seed, key.epoch, key.stream)
        out = torch.empty(rows, 6, dtype=dtype)
        stored = torch.from_numpy(wanted).to(dtype).double()  # half rows are rounded as they are dropped
        products(rng, features.dropped(ids, key), stored, out)
        products(rng, features, x.double(), out)  # itself is as it was
        dropped = features.dropped(ids, key)
        for of, rounding, right in ((dropped, EPS[dtype], stored), (features, 0, x.double())):
            near(of.written(torch.empty_like(x)), right, right.abs(), rounding)


def test_the_device_holds_two_blocks_and_one_widened(backend):
    assert HostFeatures(backend, 0, 9, torch.float32).device_nbytes == 0
    assert HostFeatures(backend, 10**4, 8, torch.float32).device_nbytes == 2 * 1024
    assert HostFeatures(backend, 10**4, 8, torch.bfloat16).device_nbytes == 2 * 1024 + 2 * 1024
    assert HostFeatures(backend, 5, 8, torch.float64).device_nbytes == 2 * 5 * 64


@pytest.mark.parametrize("rows", [0, 1, 2, 331])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_gets_the_rows_block_by_block(rng, monkeypatch, rows, dtype):
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
