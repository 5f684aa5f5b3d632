"""The host kernels over the table of cases, and what is theirs alone: caches, slices of rows, instruction sets."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import cases
import ml_dtypes
import numpy as np
import programs
import pytest
import reference
import scipy.sparse
from gpu.pes import table
from gpu.pes.engine import Engine
from tiers import drawn
from world import SMALL, play

from mgg_hpc import _host
from mgg_hpc.plan import workload
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.arguments import Epilogue, Geometry, Options
from mgg_hpc.runtime.backends.host.components import padded
from mgg_hpc.runtime.backends.host.kernels import SerialBackend
from mgg_hpc.runtime.backends.simulated import World

HOST = Engine.host()
# Instruction sets that this machine has but does not take by default.
OTHERS = sorted({*_host.instruction_sets()} - {_host.instruction_set()})
HALVES = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
KINDS = [np.dtype(np.float32), np.dtype(np.float64), *HALVES]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("line", list(table.host_entries()), ids=str)
def test_the_table(rng, line):
    """Three of the widths are drawn anew in each run."""
    for width in rng.choice(cases.WIDTHS, 3, replace=False):
        table.check(HOST, replace(line, width=int(width)), rng)


@pytest.mark.parametrize("kind", HALVES, ids=str)
@pytest.mark.parametrize("width", [3, 16, 40])
def test_half_rows_of_one_edge_come_back_as_they_are(width, kind):
    """Every bit pattern, through load and store: subnormal numbers, infinities and NaN too."""
    patterns = np.resize(np.arange(1 << 16, dtype=np.uint16), (-(-(1 << 16) // width), width))
    x = patterns.view(kind)
    nodes = np.arange(len(x))
    case = cases.csr(nodes, nodes, len(x), np.array([0, len(x)]))
    out = play(case, x)
    lost = np.isnan(x.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(out.astype(np.float32)), lost)
    # -0 becomes 0: a sum begins with 0.
    same = np.where(x.astype(np.float32) == 0, np.uint16(0), patterns)
    np.testing.assert_array_equal(out.view(np.uint16)[~lost], same[~lost])


@pytest.mark.parametrize("kind", HALVES, ids=str)
def test_stored_sums_are_rounded_to_the_nearest(rng, kind):
    """Sums of two, against the conversions of another library; halfway cases and overflow among them."""
    bits = rng.integers(0, 1 << 16, (2, 4096, 16), dtype=np.uint16)
    bits[1, :2000] = (bits[0, :2000] & 0x8000) | np.maximum((bits[0, :2000] & 0x7FFF).astype(int) - 0x0C00, 0)
    x = bits.reshape(-1, 16).view(kind)
    pairs = np.arange(len(x))
    case = cases.csr(pairs, pairs % 4096, len(x), np.array([0, len(x)]))
    with np.errstate(all="ignore"):
        wanted = (x[:4096].astype(np.float32) + x[4096:].astype(np.float32)).astype(kind)
    out = play(case, x)[:4096]
    valid = ~np.isnan(wanted.astype(np.float32))
    np.testing.assert_array_equal(out[valid].astype(np.float32), wanted[valid].astype(np.float32))
    assert np.isnan(out[~valid].astype(np.float32)).all()


def test_a_maximum_keeps_not_a_number(rng):
    case = cases.hub(rng, 2)
    x = rng.standard_normal((case.nodes, 5)).astype(np.float32)
    x[3] = np.nan
    wanted = reference.aggregate(*case.edge_list, case.nodes, x, reduce="max")
    assert np.isnan(wanted).any() and not np.isnan(wanted).all()
    np.testing.assert_array_equal(play(case, x, reduce="max"), wanted.astype(np.float32))


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("transfer", table.TRANSFERS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_results_that_no_cache_holds(rng, kind, transfer):
    """Large results of whole cache lines are stored past the caches."""
    nodes, width = 300_000, 64 // kind.itemsize
    source, destination = rng.integers(0, nodes, (2, 400_000))
    destination[:5000] = 7
    case = cases.csr(source, destination, nodes, cases.even(nodes, 2))
    x = rng.integers(-8, 8, (nodes, width)).astype(kind)
    x[source[destination == 7]] = 0
    out = play(case, x, transfer=transfer, geometry=Geometry(256, 16, 4), calls=1)
    ones = scipy.sparse.csr_matrix((np.ones(len(source)), case.indices, case.indptr), (nodes, nodes))
    np.testing.assert_array_equal(out.astype(np.float64), ones @ x.astype(np.float64))


@pytest.mark.sampled
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("lines", [1, 2, 3, 5, 6, 7, 9, 11, 16, 19])
def test_what_is_stored_past_the_caches_ends_with_its_row(rng, kind, lines):
    """Rows of whole lines that no whole number of tiles covers among them."""
    nodes, width = 9 * 2**20 // (64 * lines), 64 * lines // kind.itemsize
    format = RowFormat(kind, width)
    source = rng.integers(0, nodes, nodes)
    plan = workload.direct(
        workload.split(0, np.array([0, nodes]), np.arange(nodes + 1), source.astype(np.int32))
    )
    backend = SerialBackend(0, World(1), Options(Geometry(64, 8, 2), 2))
    rows = backend.rows(np.array([nodes]), format, symmetric=True)
    rows.local[:] = rng.integers(1, 100, (nodes, width)).astype(kind)
    beyond = padded(nodes + 40, format)
    for _ in range(2):
        beyond[:] = np.nan
        backend.aggregate(plan, "sum", rows, beyond[:nodes])
        np.testing.assert_array_equal(beyond[:nodes], rows.local[source])
        assert np.isnan(beyond[nodes:].astype(np.float32)).all()


@pytest.mark.slow
def test_a_long_row_of_equal_values_does_not_drift():
    """Rounding errors of equal signs add up; blocks of sqrt(n) terms keep them within eps sqrt(n)."""
    edges = 300_000
    case = cases.csr(np.zeros(edges, np.int64), np.zeros(edges, np.int64), 1, np.array([0, 1]))
    x = np.full((1, 16), 0.1, np.float32)
    for geometry in (SMALL, Geometry(256, 16, 16), Geometry(edges, 16, 2)):
        ends = (*case.edge_list, 1, x)
        table.within(
            play(case, x, geometry=geometry), reference.aggregate(*ends), reference.error_bound(*ends)
        )


def test_nothing_is_read_from_other_rows(rng):
    """Rows that no edge names are NaN, and so is the padding: neither may reach a result."""
    case = cases.csr(np.array([2, 4, 4]), np.array([0, 0, 5]), 6, np.array([0, 3, 6]))
    x = np.full((6, 7), np.nan, np.float32)
    x[[2, 4]] = rng.standard_normal((2, 7))
    out = play(case, x)
    np.testing.assert_array_equal(out[[0, 5]], np.stack([x[2] + x[4], x[4]]))
    assert (out[1:5] == 0).all()


@pytest.mark.long
@pytest.mark.parametrize("isa", drawn(OTHERS, 1))
def test_the_other_instruction_sets(rng, isa):
    """A part of the table again, forced: which kernels run is chosen when a process starts."""
    drawn = rng.permutation([name for name in cases.CASES if name != "hub"])[:2]
    tests = f"(hub or {' or '.join(drawn)}) and not instruction or test_random"
    here = Path(__file__).parent
    files = [__file__, here.parent / "nn" / "test_random.py"]
    options = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--tier=test"]
    done = programs.python(*options, *files, "-k", tests, env=os.environ | {"MGG_ISA": isa})
    assert done.returncode == 0, done.stdout


def test_an_unknown_instruction_set_is_refused_by_name():
    code = "from mgg_hpc.runtime.backends.native import load; load()"
    done = programs.python("-c", code, env=os.environ | {"MGG_ISA": "mmx"})
    assert "InputError: MGG_ISA=mmx: this build has" in done.stderr


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("dim", [129, 200, 512, 1027])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_rows_swept_in_slices_give_the_same_bits(rng, dim, dtype, reduce):
    """Whole rows and slices take turns until the faster way is known. One destination is a hub."""
    nodes, edges = 2048, 150_000
    format = RowFormat(np.dtype(dtype), dim)
    accumulated = np.float64 if dtype == np.float64 else np.float32
    destination = np.sort(rng.integers(0, nodes, edges))
    destination[(destination > 500) & (destination < 530)] = 530
    case = cases.csr(rng.integers(0, nodes, edges), destination, nodes, np.array([0, nodes]))
    plan = workload.direct(workload.split(0, case.bounds, case.indptr, case.indices, keep_edges=True))
    backend = SerialBackend(0, World(1), Options(Geometry(64, 8, 2), 2))
    rows = backend.rows(np.array([nodes]), format, symmetric=True)
    rows.local[:] = rng.standard_normal((nodes, dim)).astype(dtype)
    weight, scale, bias = (rng.standard_normal(size).astype(accumulated) for size in (edges, nodes, dim))
    schedule, seen = backend.schedule(plan, format), {}
    assert schedule.hubs
    for _ in range(_host.Schedule.SETTLED + 1):
        out = padded(nodes, format)
        sweep = schedule.sweep(dim, format.dtype.itemsize)
        finish = Epilogue(scale=scale, bias=bias, relu=True)
        backend.aggregate(plan, reduce, rows, out, edge=weight, epilogue=finish)
        seen.setdefault(sweep, []).append(out.tobytes())
    sliced = {256 // format.dtype.itemsize} if format.row_bytes >= 512 else set()
    assert seen.keys() == {format.stride} | sliced
    assert len(set().union(*seen.values())) == 1


def test_a_plan_that_names_rows_outside_its_chunk_is_refused(rng):
    case = cases.ordinary(rng, 1)
    plan = workload.direct(workload.split(0, case.bounds, *case.part(0)))
    bad = plan.indices.copy()
    bad[3] = case.nodes
    arrays = (plan.chunks.view(np.uint8), plan.segments.view(np.uint8))
    with pytest.raises(ValueError, match="edge 3 names row 97 of a chunk of 97"):
        _host.Schedule(*arrays, bad, plan.destinations, 16, 64)
    schedule = _host.Schedule(*arrays, plan.indices, plan.destinations, 16, 64)
    x = np.zeros((97, 4), np.float32)
    for rows, out in ((96, np.zeros((97, 4), np.float32)), (97, np.zeros((97, 3), np.float32))):
        with pytest.raises(ValueError, match=r"chunk|out"):
            addresses = np.array([x.ctypes.data], np.uint64)
            schedule.aggregate_float32(_host.Reach(addresses, np.array([rows]), 0), None, out)


def test_nothing_is_converted_behind_the_callers_back(rng):
    """A converted output would be written and thrown away, a narrower one overrun."""
    case = cases.ordinary(rng, 1)
    backend = SerialBackend(0, World(1), Options(SMALL))
    plan = workload.direct(workload.split(0, case.bounds, *case.part(0)))
    rows = backend.rows(np.array([case.nodes]), RowFormat(np.dtype(np.float32), 8), symmetric=True)
    for out in (np.zeros((97, 8)), np.zeros((97, 4), np.float32), np.zeros((96, 8), np.float32)):
        with pytest.raises(ValueError, match="rows of 8 x float32 into"):
            backend.aggregate(plan, "sum", rows, out)
    out = np.zeros((97, 8), np.float32)
    for wrong in (
        {"epilogue": Epilogue(scale=np.ones(97))},
        {"epilogue": Epilogue(bias=np.ones(8))},
        {"epilogue": Epilogue(bias=np.ones(8, np.float16))},
        {"edge": np.ones(plan.edges)},
    ):
        with pytest.raises(TypeError):
            backend.aggregate(plan, "sum", rows, out, **wrong)
    with pytest.raises(ValueError, match="one for each edge"):
        backend.aggregate(plan, "sum", rows, out, edge=np.ones(plan.edges - 1, np.float32))
    x = np.ones((3, 4), np.float32)
    with pytest.raises(TypeError):
        _host.dropout_rows(x, np.ones((3, 4)), np.arange(3), 0.5, 0, 1, 0, 1)
    with pytest.raises(TypeError):
        _host.uniform_rows(np.ones((3, 4), np.float16), 0, 1, 0, 0)
