"""The ranks of one node over shared memory: the table of hard cases by every transfer, and transposed edges."""

from __future__ import annotations

import time

import cases
import numpy as np
import pytest
import reference
from exchanged import (  # noqa: F401 - tests
    by_transfer,
    planned,
    test_one_barrier_a_layer_is_enough,
    test_rows_of_all_ranks_come_by_number,
    test_sums_over_ranks_are_within_the_error_bound,
    test_the_meter_counts_rows_that_cross,
)

from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime import exchange, mpi
from mgg_hpc.training.profile import trace

pytestmark = pytest.mark.mpi


@by_transfer
def test_waiting_for_peers_is_metered_and_rounds_are_stamped(rng, comm, backend, transfer):
    """One rank is late, and the others wait about as long."""
    case, late = cases.CASES["ordinary"](rng, comm.size), comm.size - 1
    plan, format = planned(comm, case, transfer), RowFormat(np.dtype(np.float32), 5)
    backend.prepare(plan, format)
    rows = backend.rows(np.diff(case.bounds), format, symmetric=True)
    meter = backend.stream.meter
    profiling = backend.profiling
    profiling.begin()
    comm.Barrier()
    if comm.rank == late:
        time.sleep(0.3)
    began = time.perf_counter()
    if transfer != "halo":
        backend.publish(rows)
    backend.aggregate(plan, "sum", rows, backend.memory.padded(plan.destinations, format))
    ended = time.perf_counter()
    reads_late = plan.lists.receive_counts[:, late].any() if transfer == "halo" else True
    late_by = comm.bcast(began, late) - began
    with mpi.agree(comm):
        assert 0 <= meter.waited <= ended - began
        assert comm.rank == late or not reads_late or meter.waited > late_by - 0.1
        assert len(profiling.exchanges) == (transfer == "halo")
        for kept, values in profiling.exchanges:
            assert kept is plan
            found = trace.unpacked(values, plan.lists.rounds, comm.size)
            assert began <= found.began and found.ended <= ended
            inside = [*found.waits, *found.arrived, *found.pushed[found.pushed > 0]]
            assert all(found.began <= each <= found.ended for each in inside)
            assert (found.waits <= found.arrived).all() and (np.diff(found.waits) >= 0).all()
            assert ((found.pushed > 0) == (plan.lists.send_counts > 0)).all()


@pytest.mark.sampled
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", cases.CASES)
def test_transposing_gives_every_rank_its_out_edges(rng, comm, name, weighted):
    case = cases.CASES[name](rng, comm.size)
    weight = rng.random(len(case.indices)).astype(np.float32) if weighted else None
    own = None if weight is None else weight[case.edges(comm.rank)]
    indptr, indices, crossing = exchange.transpose(comm, case.bounds, *case.part(comm.rank))
    weights = None if own is None else crossing.carry(comm, own)
    source, destination = reference.edge_list(case.indptr, case.indices)
    low, high = int(case.bounds[comm.rank]), int(case.bounds[comm.rank + 1])
    wanted = [
        (int(u), int(v), float(weight[e]) if weighted else 1.0)
        for e, (u, v) in enumerate(zip(source, destination, strict=True))
        if low <= u < high
    ]
    rows = np.repeat(np.arange(low, high), np.diff(indptr))
    values = weights if weighted else np.ones(len(rows))
    found = zip(rows.tolist(), indices.tolist(), values.tolist(), strict=True)
    with mpi.agree(comm):
        assert sorted(found) == sorted(wanted)
