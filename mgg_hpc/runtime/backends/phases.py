"""The transfer and the sums of an aggregation in calls of their own, by means that any backend has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...plan.overlap import held_here
from ...plan.workload import Plan
from .arguments import Rows
from .base import Phases


def separate(
    backend: Any,
    plan: Plan,
    transfer_plan: Plan,
    op: str,
    src: Rows,
    out: Any,
    edge: Any,
    ready: Callable[[Plan, Rows], None] | None = None,
) -> Phases:
    """Return the phases of an aggregation, see Backend.phases.

    backend: any, or one of several that a process simulates. transfer_plan: the prepared plan that brings the rows of
    ``plan`` (`plan.overlap.transfer_only`). ready: allocates what a call over a plan takes.
    """
    here, count = held_here(plan)
    counts = np.zeros(backend.collectives.size, dtype=np.int64)
    counts[backend.collectives.rank] = count
    rows = backend.rows(counts, src.format, symmetric=False)
    rows.local[:] = 1  # pages that were never written are all the same page
    moved = backend.memory.padded(transfer_plan.destinations, src.format)
    if ready is not None:
        ready(transfer_plan, src)
        ready(here, rows)
    return Phases(
        lambda: backend.aggregate(transfer_plan, "copy", "sum", src, moved),
        lambda: backend.aggregate(here, op, "sum", rows, out, edge=edge),
    )
