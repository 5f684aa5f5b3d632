"""All ranks of a case played in one process."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from mgg_hpc.plan import workload
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.arguments import Geometry, Options
from mgg_hpc.runtime.backends.host.components import padded
from mgg_hpc.runtime.backends.host.kernels import SerialBackend
from mgg_hpc.runtime.backends.simulated import World

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))  # in processes that pytest does not start
from harness.plans import halo_plans

SMALL = Geometry(ps=2, dist=2, wpb=1)  # blocks of 2 edges: more than 8 make a hub, and every case has some


def play(
    case,
    x,
    *,
    weight=None,
    geometry=SMALL,
    threads=2,
    epilogue=None,
    reduce="sum",
    transfer="direct",
    calls=2,
    change=False,
    retuned=None,
):
    """Aggregate ``x`` [N, F] on every rank of ``case``; returns [N, F]. epilogue(rows) makes a rank's epilogue.

    change: the rows grow by 1 from call to call. retuned: a geometry for all calls after the first.
    """
    ranks = len(case.bounds) - 1
    world = World(ranks)
    backends = [SerialBackend(r, world, Options(geometry, threads)) for r in range(ranks)]
    format = RowFormat(x.dtype, x.shape[1])
    rows = [backend.rows(np.diff(case.bounds), format, symmetric=True) for backend in backends]
    for rank, part in enumerate(rows):
        part.local[:] = x[case.rows(rank)]
    plans = plans_of(case, transfer)
    for backend, plan in zip(backends, plans, strict=True):
        backend.prepare(plan, format)

    def aggregate(rank):
        backend, plan = backends[rank], plans[rank]
        edge = None if weight is None else weight[case.edges(rank)][plan.edge]
        out = padded(plan.destinations, format)
        finish = epilogue(case.rows(rank)) if epilogue else None
        for call in range(calls):  # a schedule is used again and again
            out[:] = np.nan
            if change and call:
                rows[rank].local[:] += 1
            if call and retuned:
                backend.retune(plan, format, retuned)
            backend.publish(rows[rank])
            backend.aggregate(plan, reduce, rows[rank], out, edge=edge, epilogue=finish)
        return out

    with ThreadPoolExecutor(ranks) as pool:
        return np.concatenate(list(pool.map(aggregate, range(ranks))))


def plans_of(case, transfer, count=3):
    """The plan of every rank; with "halo" they know of each other what crosses, in rounds of a few rows each."""
    ranks = len(case.bounds) - 1
    edges = [workload.split(r, case.bounds, *case.part(r), keep_edges=True) for r in range(ranks)]
    if transfer != "halo":
        return [workload.direct(each, transfer) for each in edges]
    return [plan for plan, _ in halo_plans(edges, count)]
