"""What ranks tell each other so that the gradients of a halo find their owners."""

from __future__ import annotations

import cases
import numpy as np
import pytest
from world import plans_of

from mgg_hpc.plan import halo_schedule, workload
from mgg_hpc.runtime import exchange

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("name", cases.CASES)
def test_gradients_arrive_where_their_owner_expects_them(rng, comm, name):
    case = cases.CASES[name](rng, comm.size)
    plan = workload.build(comm.rank, case.bounds, *case.part(comm.rank), 2)
    forward, _ = exchange.halo_in_rounds(comm, plan, 1)
    back = exchange.adjoint(comm, forward)
    every = plans_of(case, 2, "halo", 1)  # all ranks' forward plans, made without a message
    for pe, other in enumerate(every):
        begins = halo_schedule.adjoint_places(other.lists)
        assert back.lists.send_places[0, pe] == begins[comm.rank]
    returned = [len(other.lists.send_rows) for other in every]
    assert (back.lists.capacity, back.destinations) == (max(returned), len(case.part(comm.rank)[0]) - 1)
    assert back.lists.most_sent == max(int(other.lists.receive_counts.sum()) for other in every)
    np.testing.assert_array_equal(back.lists.receive_counts, every[comm.rank].lists.send_counts)
    np.testing.assert_array_equal(back.lists.send_counts, every[comm.rank].lists.receive_counts)
