"""The GPU's direct kernel, every thread of it executed by the shim, against the float64 reference."""

from __future__ import annotations

import cases
import ml_dtypes
import numpy as np
import pytest

from mgg_hpc import reference
from mgg_hpc.plan import workload
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.host import padded

from .conftest import shape_for

DTYPES = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
RANKS = 3
MARGIN = 40  # rows behind each output, which nothing may touch


def aggregate(kernels, case, x, *, seed, weight=None, scale=None, part_edges=8, **options):
    """All ranks' outputs, [N, F]; their rows are NaN before."""
    format = RowFormat(x.dtype, x.shape[1])
    bounds = case.bounds
    rows = []
    for rank in range(len(bounds) - 1):
        part = padded(int(bounds[rank + 1] - bounds[rank]), format)
        part[:] = x[bounds[rank] : bounds[rank + 1]]
        rows.append(part)
    outputs = []
    for rank in range(len(rows)):
        plan = workload.build(rank, bounds, *case.part(rank), 4, keep_edges=True)
        beyond = padded(plan.destinations + MARGIN, format)
        beyond[:] = np.nan
        out = beyond[: plan.destinations]
        kernels.direct(
            plan,
            rows,
            out,
            rank,
            shape=shape_for(format),
            seed=seed + rank,
            weight=None if weight is None else weight[case.edges(rank)][plan.edge],
            scale=None if scale is None else scale[bounds[rank] : bounds[rank + 1]].copy(),
            part_edges=part_edges,
            **options,
        )
        assert np.isnan(beyond[plan.destinations :]).all()
        outputs.append(out)
    return np.concatenate(outputs)


def check(case, x, out, weight=None):
    source, destination = reference.edge_list(case.indptr, case.indices)
    wanted = reference.aggregate(source, destination, case.nodes, x, weight)
    bound = reference.error_bound(source, destination, case.nodes, x, weight)
    assert (np.abs(out.astype(np.float64) - wanted) <= bound).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", cases.WIDTHS)
@pytest.mark.parametrize("name", cases.CASES)
def test_sums_are_within_the_error_bound(rng, kernels, name, width, dtype):
    case = cases.CASES[name](rng, RANKS)
    x = rng.standard_normal((case.nodes, width)).astype(dtype)
    seed = int(rng.integers(1 << 60))
    check(case, x, aggregate(kernels, case, x, seed=seed))
    weight = rng.standard_normal(len(case.indices)).astype(np.float32)
    check(case, x, aggregate(kernels, case, x, seed=seed, weight=weight), weight)


@pytest.mark.parametrize("name", cases.CASES)
def test_order_of_execution_changes_no_bit(rng, kernels, name):
    case = cases.CASES[name](rng, RANKS)
    x = rng.standard_normal((case.nodes, 33)).astype(np.float32)
    outputs = {
        aggregate(kernels, case, x, seed=int(rng.integers(1 << 60)), part_edges=3).tobytes() for _ in range(4)
    }
    assert len(outputs) == 1


@pytest.mark.parametrize("reduce", ["mean", "max"])
@pytest.mark.parametrize("name", cases.CASES)
def test_mean_and_max(rng, kernels, name, reduce):
    case = cases.CASES[name](rng, RANKS)
    x = rng.integers(-8, 8, (case.nodes, 17)).astype(np.float32)
    source, destination = reference.edge_list(case.indptr, case.indices)
    wanted = reference.aggregate(source, destination, case.nodes, x, None, reduce)
    out = aggregate(kernels, case, x, seed=int(rng.integers(1 << 60)), reduce=reduce)
    np.testing.assert_allclose(out, wanted, rtol=2e-7, atol=0)


def test_the_epilogue_scales_adds_the_bias_and_applies_relu(rng, kernels):
    case = cases.ordinary(rng, RANKS)
    x = rng.integers(-8, 8, (case.nodes, 19)).astype(np.float32)
    scale = 2.0 ** rng.integers(-3, 3, case.nodes).astype(np.float32)
    bias = rng.integers(-8, 8, 19).astype(np.float32)
    source, destination = reference.edge_list(case.indptr, case.indices)
    wanted = reference.aggregate(source, destination, case.nodes, x) * scale[:, None] + bias
    out = aggregate(kernels, case, x, seed=1, scale=scale.astype(np.float32), bias=bias, relu=True)
    np.testing.assert_array_equal(out, np.maximum(wanted, 0).astype(np.float32))
