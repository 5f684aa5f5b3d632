"""Plans of sampled blocks, whose rows one rank holds itself: forward by destination, backward by source."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..data import native
from .layout import SEGMENT
from .workload import Plan, held_plan

LOOPS = ("none", "missing", "one")


@dataclass(frozen=True, eq=False)
class BlockPlans:
    """Plans of d destinations, the first of s sources, over E' edges.

    forward: sums sources into destinations, over one owned chunk of s rows. backward: sums destinations into sources,
    over one of d rows. places: int64 [E'], position of each edge of ``forward`` among the sampled ones, E + v for the
    self loop of destination v; None where positions are equal. order: int64 [E'], position of each edge of ``backward``
    among those of ``forward``. forward_weight, backward_weight: [E'], in the order of each; None where all are 1.
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

    factor: float64, [d] for the edges of each destination, or [E] with ``by_edge``. weight: float32, of all edges of
    the graph, or None. edge: int64 [E], which of them were sampled; with weights. dtype: of the result, float32 or
    float64.
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

    Edges keep their order within a destination, and are by destination within a source. loops: "missing" adds a self
    loop to each destination whose ``has_loop`` (uint8 [d]) is 0; "one" replaces the self loops of each by a single one.
    The added loop comes last. May be called from any thread. Raises ValueError for arrays that do not fit.
    """
    given = weights or BlockWeights(np.zeros(0), False, np.dtype(np.float32))
    forward, forward_indices, places, backward, backward_indices, order, *values = native.load().plan_block(
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
    rows = len(indptr) - 1
    return BlockPlans(
        held_plan(rank, forward.view(SEGMENT), forward_indices, destinations=rows, rows=sources),
        held_plan(rank, backward.view(SEGMENT), backward_indices, destinations=sources, rows=rows),
        places,
        order,
        *values,
    )
