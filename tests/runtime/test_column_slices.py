"""Whether rows are swept whole or in slices of columns follows the best of each way's calls, not the last or first."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from world import LARGE

from mgg_hpc import _host
from mgg_hpc.plan import halo, workload
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.arguments import Options
from mgg_hpc.runtime.backends.host.components import padded
from mgg_hpc.runtime.backends.host.serial import SerialBackend
from mgg_hpc.runtime.backends.simulated import World

LATE = 0.4  # seconds: far more than the sums take
WHOLE, SLICES = (
    [0, LATE, LATE, LATE],
    [LATE, 0, LATE],
)  # of each way's calls; the very first one does not count


@pytest.mark.slow
def test_the_way_with_the_best_call_is_kept(rng):
    """A call waits for the rows of another rank, which sends them as late as it is told."""
    format, rows = RowFormat(np.dtype(np.float32), 512), 512
    edges = (64 << 20) // format.row_bytes  # fewer are not worth a try
    bounds = np.array([0, rows, 2 * rows])
    indptr = np.linspace(0, edges, rows + 1).astype(np.int64)
    sources = rng.integers(0, 4, edges)
    sources[-1] = rows  # of the other rank
    split = [
        workload.split(0, bounds, indptr, sources),
        workload.split(1, bounds, np.array([0, 1]), np.array([rows])),
    ]
    plans = [plan for plan, _ in halo.of_all_ranks(split, 1)]
    world = World(2)
    backends = [SerialBackend(rank, world, Options(LARGE, 1)) for rank in range(2)]
    held = [backend.rows(np.diff(bounds), format, symmetric=True) for backend in backends]
    for backend, plan in zip(backends, plans, strict=True):
        backend.prepare(plan, format)
    schedule, left, taken = backends[0].schedule(plans[0], format), [SLICES[::-1], WHOLE[::-1]], []

    def call(rank, late=0.0):
        time.sleep(late)
        backends[rank].aggregate(
            plans[rank], "copy", "sum", held[rank], padded(plans[rank].destinations, format)
        )

    with ThreadPoolExecutor(1) as pool:
        for _ in range(_host.Schedule.SETTLED):
            taken.append(schedule.sweep(512, 4))
            sent = pool.submit(call, 1, left[taken[-1] == 512].pop())
            call(0)
            sent.result()
    assert taken == [512, 64, 512, 64, 512, 64, 512]
    assert schedule.sweep(512, 4) == 64
