"""The table of hard cases over shared memory: each rank computes its rows and checks them."""

from __future__ import annotations

from dataclasses import replace

import cases
import numpy as np
import pytest

from mgg_hpc import reference
from mgg_hpc.plan import workload
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime import exchange, mpi
from mgg_hpc.runtime.backends.base import Geometry, Options
from mgg_hpc.runtime.backends.host import padded
from mgg_hpc.runtime.backends.shm import SharedBackend

pytestmark = pytest.mark.mpi

GEOMETRY = Geometry(ps=3, dist=2, wpb=2)


@pytest.fixture
def backend(comm):
    made = SharedBackend(comm, Options(GEOMETRY, threads=2))
    yield made
    made.close()


TRANSFERS = ("direct", "get", "halo")


def planned(comm, case, transfer):
    """This rank's plan, with the places of its edges."""
    plan = workload.build(comm.rank, case.bounds, *case.part(comm.rank), GEOMETRY.ps, keep_edges=True)
    return exchange.halo_in_waves(comm, plan)[0] if transfer == "halo" else replace(plan, transfer=transfer)


@pytest.mark.parametrize("transfer", TRANSFERS)
@pytest.mark.parametrize("name", cases.CASES)
def test_sums_over_ranks_are_within_the_error_bound(rng, comm, backend, name, transfer):
    case = cases.CASES[name](rng, comm.size)
    mine = slice(int(case.bounds[comm.rank]), int(case.bounds[comm.rank + 1]))
    plan = planned(comm, case, transfer)
    source, destination = reference.edge_list(case.indptr, case.indices)
    widest = RowFormat(np.dtype(np.float64), max(cases.WIDTHS))
    buffers = {
        kind: [
            backend.rows(np.diff(case.bounds), RowFormat(np.dtype(kind), widest.dim), symmetric=True)
            for _ in range(2)
        ]
        for kind in (np.float32, np.float64)
    }
    backend.prepare(plan, widest)
    for turn, width in enumerate(cases.WIDTHS):
        for kind in (np.float32, np.float64):
            x = rng.standard_normal((case.nodes, width)).astype(kind)
            weight = rng.standard_normal(len(case.indices)).astype(kind)
            rows = buffers[kind][turn % 2].shaped(width)  # two buffers in turn, one barrier each
            rows.local[:] = x[mine]
            backend.publish(rows)
            out = padded(plan.destinations, rows.format)
            edge = weight[case.edges(comm.rank)][plan.edge]
            backend.aggregate(plan, "mul", "sum", rows, out, edge=edge)
            wanted = reference.aggregate(source, destination, case.nodes, x, weight)[mine]
            bound = reference.error_bound(source, destination, case.nodes, x, weight)[mine]
            with mpi.agree(comm):
                assert (np.abs(out - wanted) <= bound).all(), (width, kind)


@pytest.mark.parametrize("transfer", TRANSFERS)
def test_one_barrier_a_layer_is_enough(rng, comm, backend, transfer):
    """Many layers in a row, ranks at different speeds: a row overwritten too early would show.

    With a halo there is no barrier at all: signals and credits are enough.
    """
    import time

    case = cases.ordinary(rng, comm.size)
    mine = slice(int(case.bounds[comm.rank]), int(case.bounds[comm.rank + 1]))
    plan = planned(comm, case, transfer)
    format = RowFormat(np.dtype(np.float64), 8)
    backend.prepare(plan, format)
    buffers = [backend.rows(np.diff(case.bounds), format, symmetric=transfer != "halo") for _ in range(2)]
    source, destination = reference.edge_list(case.indptr, case.indices)
    x = wanted = rng.integers(0, 3, (case.nodes, 8)).astype(np.float64)
    delays = np.random.default_rng().random(30) * 2e-3  # not the same on all ranks, on purpose
    for layer in range(30):
        rows = buffers[layer % 2]
        rows.local[:] = x[mine]
        if transfer != "halo":
            backend.publish(rows)
        time.sleep(delays[layer])
        out = padded(plan.destinations, format)
        backend.aggregate(plan, "copy", "sum", rows, out)
        wanted = reference.aggregate(source, destination, case.nodes, wanted) % 97
        np.testing.assert_array_equal(out % 97, wanted[mine])  # no agreement here: that would be a barrier
        x = np.zeros_like(x)
        x[mine] = out % 97


@pytest.mark.parametrize("transfer", TRANSFERS)
def test_the_meter_counts_rows_that_cross(rng, comm, backend, transfer):
    """A row an edge, or with a halo each distinct row once."""
    case = cases.duplicates(rng, comm.size)
    plan = planned(comm, case, transfer)
    format = RowFormat(np.dtype(np.float32), 5)
    backend.prepare(plan, format)
    rows = backend.rows(np.diff(case.bounds), format, symmetric=True)
    backend.publish(rows)
    backend.aggregate(plan, "copy", "sum", rows, padded(plan.destinations, rows.format))
    counts = np.array([backend.meter.remote_rows, backend.meter.remote_bytes, backend.meter.local_bytes])
    mpi.sum_in_rank_order(comm, counts)
    source, destination = reference.edge_list(case.indptr, case.indices)
    rank_of = np.repeat(np.arange(comm.size), np.diff(case.bounds))
    across = rank_of[source] != rank_of[destination]
    distinct = len(set(zip(rank_of[destination][across].tolist(), source[across].tolist(), strict=True)))
    crossing = distinct if transfer == "halo" else int(across.sum())
    assert counts.tolist() == [crossing, crossing * 20, int((~across).sum()) * 20]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", cases.CASES)
def test_transposing_gives_every_rank_its_out_edges(rng, comm, name, weighted):
    case = cases.CASES[name](rng, comm.size)
    weight = rng.random(len(case.indices)).astype(np.float32) if weighted else None
    own = None if weight is None else weight[case.edges(comm.rank)]
    indptr, indices, weights = exchange.transpose(comm, case.bounds, *case.part(comm.rank), own)
    source, destination = reference.edge_list(case.indptr, case.indices)
    low, high = int(case.bounds[comm.rank]), int(case.bounds[comm.rank + 1])
    wanted = [
        (int(u), int(v), float(weight[e]) if weighted else 1.0)
        for e, (u, v) in enumerate(zip(source, destination, strict=True))
        if low <= u < high
    ]
    rows = np.repeat(np.arange(low, high), np.diff(indptr))
    found = [
        (int(u), int(v), float(weights[e]) if weighted else 1.0)
        for e, (u, v) in enumerate(zip(rows, indices, strict=True))
    ]
    with mpi.agree(comm):
        assert sorted(found) == sorted(wanted)
