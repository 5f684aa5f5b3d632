"""All ranks of a case played in one process."""

from __future__ import annotations

import numpy as np

from mgg_hpc.plan import workload
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.base import Geometry, Options
from mgg_hpc.runtime.backends.host import padded
from mgg_hpc.runtime.backends.serial import SerialBackend, World

SMALL = Geometry(ps=3, dist=2, wpb=2)  # blocks of 6 edges: every case has hubs


def play(case, x, *, weight=None, geometry=SMALL, threads=2, epilogue=None):
    """Aggregate ``x`` [N, F] on every rank of ``case``; returns [N, F]. epilogue(rows) makes a rank's epilogue."""
    ranks = len(case.bounds) - 1
    world = World(ranks)
    backends = [SerialBackend(r, world, Options(geometry, threads)) for r in range(ranks)]
    format = RowFormat(x.dtype, x.shape[1])
    rows = [backend.rows(np.diff(case.bounds), format, symmetric=True) for backend in backends]
    for rank, part in enumerate(rows):
        part.local[:] = x[case.bounds[rank] : case.bounds[rank + 1]]
    results = []
    for rank, backend in enumerate(backends):
        plan = workload.build(rank, case.bounds, *case.part(rank), geometry.ps, keep_edges=True)
        edge = None if weight is None else weight[case.edges(rank)][plan.edge]
        out = padded(plan.destinations, format)
        mine = slice(int(case.bounds[rank]), int(case.bounds[rank + 1]))
        finish = epilogue(mine) if epilogue else None
        op = "copy" if weight is None else "mul"
        for _ in range(2):  # a schedule is used again and again
            out[:] = np.nan
            backend.publish(rows[rank])
            backend.aggregate(plan, op, "sum", rows[rank], out, edge=edge, epilogue=finish)
        results.append(out)
    return np.concatenate(results)
