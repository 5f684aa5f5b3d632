"""An aggregation's parts: its sums without the transfer, and the transfer without its sums.

With S, M and T the times of sums, transfer and both in one,

    hidden share = (S + M - T) / min(S, M)

is 0 where one waits for the other, and 1 where the shorter one costs nothing.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .layout import OWNED
from .workload import Plan, rectangular


def hidden_share(sums: float, transfer: float, both: float) -> float:
    """Return the hidden share of these times, in any unit: outside 0 .. 1 by noise, NaN for a part of 0."""
    shorter = min(sums, transfer)
    return (sums + transfer - both) / shorter if shorter > 0 else float("nan")


def transfer_only(plan: Plan, *, edges: bool) -> Plan:
    """Return the plan of the transfer alone: without any edges (its halo still comes), or with the remote ones only.

    Destinations that have none left are left out too: nothing is written for them.
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
    """Return the same sums over rows that this rank holds itself, and the number of those rows.

    Its own come first; behind them lie, in the same place for all of them, the rows of each owner that is read, or the
    staging that a halo arrives in.
    """
    chunks = plan.chunks.copy()
    chunks["first_row"][1:] += chunks["rows"][0]
    chunks["kind"], chunks["pe"] = OWNED, plan.rank
    rows = int((chunks["first_row"] + chunks["rows"]).max())
    return replace(plan, chunks=chunks, transfer="none", lists=None), rows


def separated(plan: Plan) -> tuple[Plan, Plan, Plan]:
    """Return a plan's sums in three: over this rank's own rows, over remote ones, and the plan that adds the two up.

    The first has all destinations, n, and the second those with a remote source, m, in the same order, with the
    transfer of ``plan``. The third reads n + m rows: the sums of the first, and behind them those of the second.
    """
    owned = plan.segments[: int(plan.chunks[0]["segments"])]
    counts = np.zeros(plan.destinations + 1, dtype=np.int64)
    counts[1 + owned["destination"]] = owned["count"]
    own_rows = int(plan.chunks[0]["rows"])
    local = rectangular(plan.rank, counts.cumsum(), plan.indices[: int(plan.local_edges)], own_rows)
    remote = transfer_only(plan, edges=True)
    both = np.unique(plan.segments["destination"][len(owned) :])
    parts = np.ones(plan.destinations + 1, dtype=np.int64)
    parts[0] = 0
    parts[1 + both] = 2
    indptr = parts.cumsum()
    indices = np.empty(int(indptr[-1]), dtype=np.int32)
    indices[indptr[:-1]] = np.arange(plan.destinations)
    indices[indptr[both] + 1] = plan.destinations + np.arange(len(both))
    return local, remote, rectangular(plan.rank, indptr, indices, plan.destinations + len(both))
