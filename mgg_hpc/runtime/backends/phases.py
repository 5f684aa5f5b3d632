"""Aggregations in parts, by means that any backend has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...plan.overlap import held_here
from ...plan.workload import Plan
from .base import Parts, Rows


def parts(
    backend: Any,
    plan: Plan,
    moves: Plan,
    op: str,
    src: Rows,
    out: Any,
    edge: Any,
    ready: Callable[[Plan, Rows], None] | None = None,
) -> Parts:
    """See Backend.apart. backend: any, or one of several that a process plays. moves: what is left of ``plan`` to bring
    the rows (`plan.overlap.moving_only`), prepared. ready: allocates what a call over a plan takes.
    """
    here, count = held_here(plan)
    counts = np.zeros(backend.size, dtype=np.int64)
    counts[backend.rank] = count
    rows = backend.rows(counts, src.format, symmetric=False)
    rows.local[:] = 1  # pages that nobody has written are all one and the same
    moved = backend.padded(moves.destinations, src.format)
    if ready is not None:
        ready(moves, src)
        ready(here, rows)
    return Parts(
        lambda: backend.aggregate(moves, "copy", "sum", src, moved),
        lambda: backend.aggregate(here, op, "sum", rows, out, edge=edge),
    )
