"""Plans of sampled blocks, whose rows one rank has all of itself: forward by destination, backward by source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data import native
from .layout import CHUNK, OWNED, SEGMENT
from .workload import Plan

LOOPS = ("none", "missing", "one")


@dataclass(frozen=True, eq=False)
class BlockPlans:
    """Plans of d destinations, the first of s sources, over E' edges.

    forward: sums sources into destinations, over one owned chunk of s rows. backward: sums destinations into sources,
    over one of d rows. places: int64 [E'], of each of forward's edges its place among the sampled ones, E + v for the
    self loop of destination v; None where these are the same. order: int64 [E'], of each of backward's edges its place
    among forward's.
    """

    forward: Plan
    backward: Plan
    places: NDArray[np.int64] | None
    order: NDArray[np.int64]


def block_plans(
    rank: int,
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    sources: int,
    *,
    loops: str = "none",
    has_loop: NDArray[np.uint8] | None = None,
) -> BlockPlans:
    """Plan a block of sampled edges: indptr int64 [d + 1], and sources int32 [E] in 0 .. ``sources`` - 1.

    Edges keep their order within a destination, and within a source that of destinations. loops: "missing" adds a self
    loop to each destination whose ``has_loop`` (uint8 [d]) is 0; "one" replaces those of each by a single one; it comes
    last. For any thread. Raises ValueError for arrays that do not fit.
    """
    forward, forward_indices, places, backward, backward_indices, order = native.load().plan_block(
        indptr, indices, sources, LOOPS.index(loops), has_loop
    )
    return BlockPlans(
        forward=_plan(rank, forward, forward_indices, len(indptr) - 1, sources),
        backward=_plan(rank, backward, backward_indices, sources, len(indptr) - 1),
        places=places,
        order=order,
    )


def _plan(
    rank: int, segments: NDArray[np.uint8], indices: NDArray[np.int32], destinations: int, rows: int
) -> Plan:
    """Return the plan of one owned chunk of rows, with a segment for each destination."""
    chunks: NDArray[Any] = np.zeros(1, dtype=CHUNK)
    chunks["kind"], chunks["pe"], chunks["rows"], chunks["segments"] = OWNED, rank, rows, destinations
    return Plan(
        rank=rank,
        destinations=destinations,
        chunks=chunks,
        segments=segments.view(SEGMENT),
        indices=indices,
        edge=None,
        halo=np.zeros(0, np.int32),
        halo_bounds=np.zeros(rank + 2, np.int64),
        transfer="none",
    )
