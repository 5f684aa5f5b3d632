"""Plans that only measurements and tests need: halos of ranks in one process, and sums in two parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mgg_hpc.plan import halo
from mgg_hpc.plan.overlap import transfer_only
from mgg_hpc.plan.workload import HaloLists, Plan, SplitEdges, rectangular


def halo_plans(ranks: Sequence[SplitEdges], count: int) -> list[tuple[Plan, NDArray[np.int64] | None]]:
    """Return what `runtime.exchange.halo_in_rounds` does, from the edges of all ranks. count: number of rounds."""
    made = [halo.in_rounds(edges, count) for edges in ranks]
    requests = [request for _, _, request in made]
    capacity = max(int(request.counts.sum()) for request in requests)
    answers = [
        halo.answer(
            [each.rows[rank] for each in requests],
            np.array([each.counts[:, rank] for each in requests]),
            np.array([each.places[:, rank] for each in requests]),
        )
        for rank in range(len(ranks))
    ]
    most_sent = max(len(rows) for rows, _, _ in answers)
    return [
        (replace(plan, lists=HaloLists(request.counts, *lists, capacity, most_sent)), order)
        for (plan, order, request), lists in zip(made, answers, strict=True)
    ]


def separated(plan: Plan) -> tuple[Plan, Plan, Plan]:
    """Return a plan's sums in three: over this rank's own rows, over remote ones, and the plan that adds the two up.

    The first has all destinations, n, and the second those with a remote source, m, in the same order, with the
    transfer of ``plan``. The third reads n + m rows: the sums of the first plan, followed by the sums of the second.
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
