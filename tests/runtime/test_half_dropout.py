"""Dropout of half rows on the cores of a host: drawn as for other rows, scaled in float32, and rounded once."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from mgg_hpc import reference
from mgg_hpc.runtime.backends import DEFAULT_GEOMETRY
from mgg_hpc.runtime.backends.base import RngKey
from mgg_hpc.runtime.backends.host.serial import Options, SerialBackend, World


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("columns", [1, 7, 16, 130])
def test_halves_are_the_formula_rounded_once(rng, kind, columns):
    backend = SerialBackend(0, World(1), Options(DEFAULT_GEOMETRY, 2))
    x = rng.standard_normal((300, columns)).astype(kind)
    out = np.full_like(x, np.nan)
    ids = rng.integers(0, 2**45, 300)
    draw = RngKey(float(rng.uniform(0.1, 0.9)), int(rng.integers(2**63)), 7, 2)
    backend.dropout(x, out, ids, draw)
    kept = reference.dropout(np.ones(x.shape), ids, draw.p, draw.seed, draw.epoch, draw.stream) > 0
    scaled = x.astype(np.float32) * np.float32(1 / (1 - draw.p))
    np.testing.assert_array_equal(out, np.where(kept, scaled, 0).astype(kind))
    backend.dropout(x, x, ids, draw)  # in place
    np.testing.assert_array_equal(x, out)
