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
    among forward's. forward_weight, backward_weight: [E'], in the order of each; None where all are 1.
    """

    forward: Plan
    backward: Plan
    places: NDArray[np.int64] | None
    order: NDArray[np.int64]
    forward_weight: NDArray[np.floating] | None = None
    backward_weight: NDArray[np.floating] | None = None


@dataclass(frozen=True, eq=False)
class BlockWeights:
    """Weights of sampled edges: factors, times the edges' weights in the whole graph; self loops have 1.

    factor: float64, [d] of each destination's edges, or [E] with ``by_edge``. weight: float32, of all edges of the
    graph, or None. edge: int64 [E], which of them were sampled; with weights. dtype: of the result, float32 or float64.
    """

    factor: NDArray[np.float64]
    by_edge: bool
    dtype: np.dtype[np.floating]
    weight: NDArray[np.floating] | None = None
    edge: NDArray[np.int64] | None = None


def block_plans(
    rank: int,
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    sources: int,
    *,
    loops: str = "none",
    has_loop: NDArray[np.uint8] | None = None,
    weights: BlockWeights | None = None,
) -> BlockPlans:
    """Plan a block of sampled edges: indptr int64 [d + 1], and sources int32 [E] in 0 .. ``sources`` - 1.

    Edges keep their order within a destination, and within a source that of destinations. loops: "missing" adds a self
    loop to each destination whose ``has_loop`` (uint8 [d]) is 0; "one" replaces those of each by a single one; it comes
    last. For any thread. Raises ValueError for arrays that do not fit.
    """
    given = weights or BlockWeights(np.zeros(0), False, np.dtype(np.float32))
    forward, forward_indices, places, backward, backward_indices, order, ahead, back = (
        native.load().plan_block(
            indptr,
            indices,
            sources,
            LOOPS.index(loops),
            has_loop,
            None if weights is None else given.factor,
            given.weight,
            given.edge if given.weight is not None else None,
            given.by_edge,
            given.dtype == np.float64,
        )
    )
    return BlockPlans(
        forward=_plan(rank, forward, forward_indices, len(indptr) - 1, sources),
        backward=_plan(rank, backward, backward_indices, sources, len(indptr) - 1),
        places=places,
        order=order,
        forward_weight=ahead,
        backward_weight=back,
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
