"""The parts of an aggregation: its sums without the transfer, and the transfer without its sums.

With S, M and T the times of sums, transfer and both in one,

    hidden share = (S + M - T) / min(S, M)

is 0 where one waits for the other, and 1 where the shorter one costs nothing.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .layout import OWNED
from .workload import Plan


def hidden_share(sums: float, transfer: float, both: float) -> float:
    """Return the hidden share of these times, in any unit: outside 0 .. 1 by noise, NaN for a part of 0."""
    shorter = min(sums, transfer)
    return (sums + transfer - both) / shorter if shorter > 0 else float("nan")


def transfer_only(plan: Plan, *, edges: bool) -> Plan:
    """Return the plan of the transfer alone: without any edges (its halo is still sent), or with remote edges only.

    Destinations that have no edge left are left out too: nothing is written for them.
    """
    first = int(plan.chunks[0]["segments"])
    chunks, segments = plan.chunks.copy(), plan.segments[first if edges else len(plan.segments) :].copy()
    chunks["first_segment"] = np.maximum(chunks["first_segment"], first) - first if edges else 0
    chunks["segments"][: 1 if edges else len(chunks)] = 0
    left, segments["destination"] = np.unique(segments["destination"], return_inverse=True)
    local = int(plan.local_edges)
    indices = plan.indices[local:] if edges else plan.indices[:0]
    segments["first_edge"] -= local
    return replace(plan, chunks=chunks, segments=segments, indices=indices, destinations=len(left))


def held_here(plan: Plan) -> tuple[Plan, int]:
    """Return the plan of the same sums over rows that this rank holds itself, and the number of those rows.

    The rank's own rows come first. After them, at the same position for all chunks, follow the rows of each owner, or
    the staging memory of a halo.
    """
    chunks = plan.chunks.copy()
    chunks["first_row"][1:] += chunks["rows"][0]
    chunks["kind"], chunks["pe"] = OWNED, plan.rank
    rows = int((chunks["first_row"] + chunks["rows"]).max())
    return replace(plan, chunks=chunks, transfer="none", lists=None), rows
