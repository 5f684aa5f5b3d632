"""Features that stay on the host, with a GPU's dropout between: products as on a CPU, whatever the order of threads."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mgg_hpc import reference
from mgg_hpc.nn.inputs import blocks
from mgg_hpc.nn.inputs.host import HostFeatures
from mgg_hpc.nn.workspace import as_tensor, row_format
from mgg_hpc.runtime.backends.base import RngKey
from mgg_hpc.runtime.backends.simulated import World

EPS = {torch.float32: 2**-23, torch.float16: 2**-10, torch.bfloat16: 2**-7}


@pytest.fixture
def backend(rng, engine):
    """A lone rank; its kernels run in a new order."""
    engine.seed(int(rng.integers(1 << 60)))
    (made,) = engine.backends(World(1))
    return made


@pytest.mark.parametrize("rows", [0, 1, 90])
@pytest.mark.parametrize("dtype", EPS)
def test_products_are_those_of_dropped_rows(rng, backend, monkeypatch, dtype, rows):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1000)
    x = torch.from_numpy(rng.standard_normal((rows, 13))).to(dtype)
    features = HostFeatures(backend, rows, 13, dtype)
    for block, values in zip(features.blocks, x.split([len(each) for each in features.blocks]), strict=True):
        block.copy_(values)
    assert len(features.blocks) == (5 if dtype == torch.float32 and rows == 90 else -(-rows // 38))
    ids, draw = rng.integers(0, 2**45, rows), RngKey(0.3, int(rng.integers(2**62)), 7, 1)
    kept = reference.dropout(np.ones((rows, 13)), ids, draw.p, draw.seed, draw.epoch, draw.stream)
    right = (
        (x.float() * torch.from_numpy(kept).float()).to(dtype).double()
    )  # a dropped row is stored as a row
    weight = torch.from_numpy(rng.standard_normal((6, 13))).to(dtype)
    scale = torch.from_numpy(rng.uniform(1, 2, rows)).float()
    given = torch.from_numpy(rng.standard_normal((rows, 6))).to(dtype)
    out = as_tensor(backend.padded(rows, row_format(6, dtype)))
    dropped = features.dropped(ids, draw)
    dropped.times_transposed(weight, out, scale)
    for found, left, by, eps in (
        (out, scale[:, None].double() * right, weight.double().t(), EPS[dtype]),
        (dropped.gradient(given), given.double().t(), right, 90 * EPS[torch.float32]),
    ):
        assert ((found.double() - left @ by).abs() <= 4 * eps * (left.abs() @ by.abs())).all()
