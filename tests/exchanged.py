"""Tests of what every backend of several ranks must do, by every transfer.

mpi/test_shm.py and shmem/test_shmem.py import them, each with a fixture `backend` of its own.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace

import cases
import numpy as np
import pytest
import reference

from mgg_hpc.plan import workload
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime import exchange, mpi
from mgg_hpc.runtime.backends.arguments import Geometry, Tier, TieredRows
from mgg_hpc.runtime.backends.host.components import padded

# Between hosts there are no pointers: shmem/test_transport.py runs the tests there, without "direct".
TRANSFERS = os.environ.get("MGG_TEST_TRANSFERS", "direct,get,halo").split(",")
by_transfer = pytest.mark.parametrize("transfer", TRANSFERS)
GEOMETRY = Geometry(ps=3, dist=2, wpb=2)


def planned(comm, case, transfer):
    """This rank's plan, with the places of its edges."""
    edges = workload.split(comm.rank, case.bounds, *case.part(comm.rank), keep_edges=True)
    return exchange.halo_in_rounds(comm, edges)[0] if transfer == "halo" else workload.direct(edges, transfer)


@pytest.mark.ranks(4)
@pytest.mark.sampled
@by_transfer
@pytest.mark.parametrize("name", cases.CASES)
def test_sums_over_ranks_are_within_the_error_bound(rng, comm, backend, name, transfer):
    """Every width and both float types, weighted: each rank's rows are within the error bound."""
    case = cases.CASES[name](rng, comm.size)
    mine = case.rows(comm.rank)
    plan = planned(comm, case, transfer)
    formats = {kind: RowFormat(np.dtype(kind), max(cases.WIDTHS)) for kind in (np.float32, np.float64)}
    buffers = {
        kind: [backend.rows(np.diff(case.bounds), format, symmetric=True) for _ in range(2)]
        for kind, format in formats.items()
    }
    backend.prepare(plan, formats[np.float64])
    for turn, width in enumerate(cases.WIDTHS):
        for kind in (np.float32, np.float64):
            x = rng.standard_normal((case.nodes, width)).astype(kind)
            weight = rng.standard_normal(len(case.indices)).astype(kind)
            rows = buffers[kind][turn % 2].shaped(width)  # two buffers in turn, one barrier each
            rows.local[:] = x[mine]
            backend.publish(rows)
            out = padded(plan.destinations, rows.format)
            edge = weight[case.edges(comm.rank)][plan.edge]
            backend.aggregate(plan, "sum", rows, out, edge=edge)
            arguments = (*case.edge_list, case.nodes, x, weight)
            wanted, bound = (of(*arguments)[mine] for of in (reference.aggregate, reference.error_bound))
            with mpi.agree(comm):
                assert (np.abs(out - wanted) <= bound).all(), (width, kind)


@pytest.mark.parametrize("name", ["ordinary", "one_way"])
@by_transfer
def test_one_barrier_a_layer_is_enough(rng, comm, backend, transfer, name):
    """Many layers in a row, ranks at different speeds: a row overwritten too early would show.

    With a halo there is no barrier at all: signals and credits are enough.
    """
    case = cases.CASES[name](rng, comm.size)
    mine = case.rows(comm.rank)
    plan = planned(comm, case, transfer)
    format = RowFormat(np.dtype(np.float64), 8)
    backend.prepare(plan, format)
    buffers = [backend.rows(np.diff(case.bounds), format, symmetric=transfer != "halo") for _ in range(2)]
    x = wanted = rng.integers(0, 3, (case.nodes, 8)).astype(np.float64)
    delays = np.random.default_rng([*rng.bytes(4), comm.rank]).random(30) * 2e-3  # others on each rank
    for layer in range(30):
        rows = buffers[layer % 2]
        rows.local[:] = x[mine]
        if transfer != "halo":
            backend.publish(rows)
        time.sleep(delays[layer])
        out = padded(plan.destinations, format)
        backend.aggregate(plan, "sum", rows, out)
        wanted = reference.aggregate(*case.edge_list, case.nodes, wanted) % 97
        np.testing.assert_array_equal(out % 97, wanted[mine])  # no agreement here: that would be a barrier
        x = np.zeros_like(x)
        x[mine] = out % 97


@pytest.mark.parametrize("gets", [False, True])
@pytest.mark.parametrize("name", ["ordinary", "rank_without_rows", "no_nodes"])
def test_rows_of_all_ranks_come_by_number(rng, comm, backend, name, gets):
    """Rows of all ranks by number, of every width, exact; the meter has them. gets: no peer's rows through pointers."""
    case = cases.CASES[name](rng, comm.size)
    own = np.arange(comm.size) == comm.rank
    for width in cases.WIDTHS:
        x = rng.standard_normal((case.nodes, width)).astype(np.float32)
        rows = backend.rows(np.diff(case.bounds), RowFormat(np.dtype(np.float32), width), symmetric=True)
        rows.local[:] = x[case.rows(comm.rank)]
        backend.publish(rows)
        ids = rng.integers(0, case.nodes, (comm.size, 70) if case.nodes else (comm.size, 0))[comm.rank]
        out = padded(len(ids), rows.format)
        reached = replace(rows, addresses=np.where(own, rows.addresses, 0)) if gets else rows
        backend.stream.meter.taken()
        backend.gather(TieredRows.of_ranks(reached, case.bounds), ids, out)
        remote = int(((ids < case.bounds[comm.rank]) | (ids >= case.bounds[comm.rank + 1])).sum())
        with mpi.agree(comm):
            np.testing.assert_array_equal(out, x[ids])
            assert backend.stream.meter.remote_rows == remote
        each = int(
            np.diff(case.bounds).min()
        )  # the first rows of each rank, as slots that lie on ranks in turn
        turns = Tier(
            "turns",
            each * comm.size,
            reached.addresses,
            np.arange(comm.size),
            rows.format.row_bytes,
            int(rows.addresses[comm.rank]),
        )
        slots = rng.integers(0, each * comm.size, 70 if each else 0)
        taken = padded(len(slots), rows.format)
        backend.gather(TieredRows(turns.slots, rows.format, [turns]), slots, taken)
        with mpi.agree(comm):
            np.testing.assert_array_equal(taken, x[case.bounds[slots % comm.size] + slots // comm.size])
        backend.memory.release(rows)


@by_transfer
def test_the_meter_counts_rows_that_cross(rng, comm, backend, transfer):
    """A row an edge, or with a halo each distinct row once."""
    case = cases.duplicates(rng, comm.size)
    plan = planned(comm, case, transfer)
    format = RowFormat(np.dtype(np.float32), 5)
    backend.prepare(plan, format)
    rows = backend.rows(np.diff(case.bounds), format, symmetric=True)
    backend.publish(rows)
    backend.aggregate(plan, "sum", rows, padded(plan.destinations, rows.format))
    meter = backend.stream.meter
    counts = np.array([meter.remote_rows, meter.remote_bytes, meter.local_bytes])
    mpi.sum_in_rank_order(comm, counts)
    source, destination = case.edge_list
    rank_of = np.repeat(np.arange(comm.size), np.diff(case.bounds))
    across = rank_of[source] != rank_of[destination]
    distinct = len(np.unique(np.stack([rank_of[destination], source])[:, across], axis=1).T)
    crossing = distinct if transfer == "halo" else int(across.sum())
    assert counts.tolist() == [crossing, crossing * 20, int((~across).sum()) * 20]
