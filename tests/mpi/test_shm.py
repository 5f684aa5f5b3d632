"""The ranks of one node over shared memory: the table of hard cases by every transfer, and transposed edges."""

from __future__ import annotations

import cases
import exchanged
import numpy as np
import pytest

from mgg_hpc import reference
from mgg_hpc.runtime import exchange, mpi

pytestmark = pytest.mark.mpi


@pytest.mark.sampled
@pytest.mark.parametrize("transfer", exchanged.TRANSFERS)
@pytest.mark.parametrize("name", cases.CASES)
def test_sums_over_ranks_are_within_the_error_bound(rng, comm, backend, name, transfer):
    exchanged.check_sums(rng, comm, backend, name, transfer)


@pytest.mark.parametrize("name", ["ordinary", "one_way"])
@pytest.mark.parametrize("transfer", exchanged.TRANSFERS)
def test_one_barrier_a_layer_is_enough(rng, comm, backend, transfer, name):
    exchanged.check_many_layers(rng, comm, backend, transfer, name)


@pytest.mark.parametrize("transfer", exchanged.TRANSFERS)
def test_the_meter_counts_rows_that_cross(rng, comm, backend, transfer):
    exchanged.check_meter(rng, comm, backend, transfer)


@pytest.mark.sampled
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
    values = weights if weighted else np.ones(len(rows))
    found = zip(rows.tolist(), indices.tolist(), values.tolist(), strict=True)
    with mpi.agree(comm):
        assert sorted(found) == sorted(wanted)
