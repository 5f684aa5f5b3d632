"""Rows by number: of all ranks that one process plays, and of a CSR matrix."""

from __future__ import annotations

from dataclasses import replace

import cases
import numpy as np
import pytest
import scipy.sparse as sp
from ml_dtypes import bfloat16
from world import SMALL

from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.arguments import Options
from mgg_hpc.runtime.backends.host.components import padded
from mgg_hpc.runtime.backends.host.serial import SerialBackend
from mgg_hpc.runtime.backends.simulated import World
from mgg_hpc.runtime.sampling.gather import take_csr

MARGIN = 3  # rows behind a result, which stay as they are


def published(case, x, threads=2):
    """The backends of a case's ranks, and their rows."""
    world = World(len(case.bounds) - 1)
    backends = [SerialBackend(rank, world, Options(SMALL, threads)) for rank in range(world.size)]
    format = RowFormat(x.dtype, x.shape[1])
    rows = [backend.rows(np.diff(case.bounds), format, symmetric=True) for backend in backends]
    for rank, own in enumerate(rows):
        own.local[:] = x[case.rows(rank)]
    return backends, rows


def gathered(backend, rows, bounds, ids):
    """What a rank gathers; nothing is written behind it."""
    beyond = padded(len(ids) + MARGIN, rows.format)
    beyond[:] = -1
    backend.gather(rows, bounds, ids, beyond[: len(ids)])
    assert (beyond[len(ids) :].astype(np.float32) == -1).all()
    return beyond[: len(ids)]


@pytest.mark.parametrize("reached", ["all", "own"])
@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("name", cases.CASES)
def test_rows_of_all_ranks_come_by_number(rng, name, ranks, reached):
    """reached: whose rows are read through pointers; others are got."""
    case = cases.CASES[name](rng, ranks)
    for kind, width in (
        (np.float32, 1),
        (np.float32, 33),
        (np.float64, 16),
        (np.float16, 3),
        (bfloat16, 129),
    ):
        x = rng.integers(-99, 99, (case.nodes, width)).astype(kind)
        for rank, (backend, rows) in enumerate(zip(*published(case, x), strict=True)):
            ids = rng.integers(0, case.nodes, 3 * case.nodes + 1 if case.nodes else 0)
            if reached == "own":
                rows = replace(rows, addresses=np.where(np.arange(ranks) == rank, rows.addresses, 0))  # noqa: PLW2901
            np.testing.assert_array_equal(gathered(backend, rows, case.bounds, ids), x[ids])
            own = case.rows(rank)
            local = int(((ids >= own.start) & (ids < own.stop)).sum())
            meter, row_bytes = backend.stream.meter, width * x.dtype.itemsize
            assert (meter.local_bytes, meter.remote_rows) == (local * row_bytes, len(ids) - local)
            assert meter.remote_bytes == (len(ids) - local) * row_bytes
            assert meter.messages == (meter.remote_rows if reached == "own" else 0)


@pytest.mark.parametrize("width", [100, 5])
def test_many_rows_are_gathered_by_threads_and_past_the_caches(rng, width):
    """The results of 100 columns are larger than caches are taken to be, the others are not."""
    case = cases.csr(np.zeros(0, int), np.zeros(0, int), 3000, np.array([0, 1000, 1000, 3000]))
    x = rng.standard_normal((3000, width)).astype(np.float32)
    backends, rows = published(case, x, threads=3)
    ids = rng.integers(0, 3000, 100_003)
    np.testing.assert_array_equal(gathered(backends[1], rows[1], case.bounds, ids), x[ids])


def test_bad_arguments_are_refused_and_nothing_is_written(rng):
    case = cases.ordinary(rng, 2)
    x = np.ones((case.nodes, 5), np.float32)
    backends, rows = published(case, x)
    backend, mine, last = backends[0], rows[0], case.nodes - 1
    out, two = padded(2, mine.format), np.array([0, 1])
    out[:] = 7
    private = backend.rows(np.diff(case.bounds), mine.format, symmetric=False)
    unread = replace(private, counts=mine.counts)
    bad = {
        rf"gather: row {case.nodes}, and rows are 0 to {last}": (
            mine,
            case.bounds,
            np.array([0, case.nodes]),
            out,
        ),
        r"gather: row -1, and rows are": (mine, case.bounds, np.array([-1, 0]), out),
        "more rows than their PE has published": (mine, case.bounds + np.array([0, 0, 1]), two, out),
        "more rows than their PE": (private, case.bounds, two, out),
        "rows out of reach": (unread, case.bounds, two, out),
        "not of the same ranks": (mine, case.bounds[:2], two, out),
        r"2 rows of 5 x float32 into \[1, 5\]": (mine, case.bounds, two, out[:1]),
        r"2 rows of 5 x float32 into \[2, 5\] of float64": (mine, case.bounds, two, np.zeros((2, 5))),
        "out: rows must be padded": (mine, case.bounds, two, np.zeros((2, 5), np.float32)),
    }
    for message, arguments in bad.items():
        with pytest.raises(ValueError, match=message):
            backend.gather(*arguments)
    assert (out == 7).all()


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (40, 7), (2000, 900)])
def test_rows_of_a_csr_matrix(rng, kind, shape):
    """The largest is copied by several threads."""
    matrix = sp.random_array(shape, density=0.3, format="csr", rng=rng, dtype=kind)
    rows = rng.integers(0, shape[0], 2 * shape[0]) if shape[0] else np.empty(0, np.int64)
    given = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), matrix.data
    indptr, indices, values = take_csr(*given, rows, threads=3)
    wanted = matrix[rows]
    assert (indptr.dtype, indices.dtype, values.dtype) == (np.int64, np.int32, kind)
    np.testing.assert_array_equal(indptr, wanted.indptr)
    np.testing.assert_array_equal(indices, wanted.indices)
    np.testing.assert_array_equal(values, wanted.data)


def test_csr_rows_that_are_not_there_are_refused():
    given = np.array([0, 2, 3]), np.array([0, 1, 0], np.int32), np.ones(3, np.float32)
    for row in (-1, 2):
        with pytest.raises(ValueError, match=f"row {row}, and there are 2"):
            take_csr(*given, np.array([0, row]))
    with pytest.raises(ValueError, match="does not ascend within"):
        take_csr(np.array([0, 2, 9]), *given[1:], np.array([1]))
    with pytest.raises(ValueError, match="not a CSR matrix"):
        take_csr(*given[:2], np.ones(2, np.float32), np.array([1]))
