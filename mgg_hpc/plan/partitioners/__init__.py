"""Partitioners: which rank gets which rows, so that ranks have equal work and need few rows from each other.

Each method but "edges" gives an assignment, int32 [N], the part of each row; `arranged` makes an order of rows of it in
which each part is a contiguous range. "edges" cuts the rows as they are numbered (`plan.ranges`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from . import ldg, metis
from .pattern import Pattern, SliceOfRows

METHODS = ("edges", "metis", "ldg", "given")
MOST_PARTS = 4096  # that -n takes too
# Those that find an assignment, int32 [N], of a pattern and a number of parts. They are deterministic.
FOUND: dict[str, Callable[[Pattern, int], NDArray[np.int32]]] = {"metis": metis.assign, "ldg": ldg.assign}

__all__ = ["FOUND", "METHODS", "MOST_PARTS", "Pattern", "SliceOfRows", "arranged", "check_memory", "checked"]


def check_memory(method: str, nodes: int, edges: int, memory: int) -> None:
    """Raise InputError if a method, one of FOUND, needs more than ``memory`` bytes. edges: of the symmetric pattern."""
    needed = {"metis": metis.memory, "ldg": ldg.memory}[method](nodes, edges)
    if needed > memory:
        raise InputError(
            f"the method {method} takes up to {needed / 2**30:,.1f} GiB of memory for {edges:,} edges, and has "
            f"{memory / 2**30:,.1f}: give more by --memory, or use {'ldg' if method == 'metis' else 'edges'}"
        )


def arranged(
    assignment: NDArray[np.integer], parts: int, order: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return an order of rows in which parts follow one another, and the bounds of the parts in it.

    assignment: [N], the part of each row, 0 .. parts - 1. order: int64 [N], the order of the rows within each part.
    Returns int64 [N], new -> old, and int64 [parts + 1].
    """
    kind = np.uint16 if parts <= 1 << 16 else np.int64  # of 16 bits, which NumPy sorts by their digits
    found = order[np.argsort(assignment[order].astype(kind), kind="stable")]
    bounds = np.zeros(parts + 1, np.int64)
    np.cumsum(np.bincount(assignment, minlength=parts), out=bounds[1:])
    return found, bounds


def checked(where: str, given: NDArray[np.integer], nodes: int, parts: int) -> NDArray[np.int32]:
    """Return a given assignment as int32 [N]. Raises InputError that names the row of a wrong value."""
    if given.ndim != 1 or given.dtype.kind not in "iu" or len(given) != nodes:
        raise InputError(
            f"{where} is {given.dtype} {list(given.shape)}; expected the part of each node, integers [{nodes}]"
        )
    wrong = np.flatnonzero((given < 0) | (given >= parts))
    if len(wrong):
        raise InputError(f"{where}: row {wrong[0]} has the part {given[wrong[0]]}; expected 0 .. {parts - 1}")
    return given.astype(np.int32)
