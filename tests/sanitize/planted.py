"""Breaks one promise to the kernels, so that whatever watches over them has something to find.

Its argument says which: "row", that all rows are there (the last one is missing), or "weight", that weights lie where
floats may.
"""

from __future__ import annotations

import sys

import numpy as np
import tight_rows

from mgg_hpc import _host
from mgg_hpc.plan import workload

NODES = 97  # each with an edge to itself

plan = workload.direct(
    workload.split(0, np.array([0, NODES]), np.arange(NODES + 1), np.arange(NODES, dtype=np.int32))
)
rows = tight_rows.zeros((NODES - (sys.argv[1] == "row")) * 16)
weight = np.zeros(4 * NODES + 1, np.uint8)[sys.argv[1] == "weight" :][: 4 * NODES].view(np.float32)
schedule = _host.Schedule(
    plan.chunks.view(np.uint8), plan.segments.view(np.uint8), plan.indices, NODES, 16, 64
)
addresses = np.array([rows.ctypes.data], np.uint64)
reach = _host.Reach(addresses, np.array([NODES]), 0)
schedule.aggregate_float32(reach, weight, np.zeros((NODES, 4), np.float32))
print("unnoticed")
