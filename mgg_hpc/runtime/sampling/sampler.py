"""Neighbour sampling (Hamilton, Ying and Leskovec, NeurIPS 2017) without replacement, by draws that a key decides.

What is drawn of a row depends on the seed, the step, the hop and the original id of its node alone (Philox4x32-10, see
semantics.h), so a batch is the same on any number of threads and ranks. `tests/reference.py` draws the same a second
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..backends import native


@dataclass(frozen=True, eq=False)
class Hop:
    """Sampled in-edges of the first d rows of `Sampled.nodes`.

    indptr: int64 [d + 1]. indices: int32 [E], the sources as places in `Sampled.nodes`. factor: one over the
    probability of being drawn, float64: [d], the same for all edges of a row, where edges are drawn evenly; [E] where
    they are drawn by their weights. edge: int64 [E], places in the graph's CSR, or None if they were not asked for.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    factor: NDArray[np.float64]
    edge: NDArray[np.int64] | None


@dataclass(frozen=True, eq=False)
class Sampled:
    """Rows in the order in which they were met, seeds first, int64, and the edges of each hop, from the seeds on."""

    nodes: NDArray[np.int64]
    hops: list[Hop]


class Sampler:
    """Draws in-edges of a graph, for any number of threads at a time.

    indptr: int64 [N + 1], indices: int32 or int64 [E], an in-edge CSR of checked indices. weight: float32 [E], to which
    probabilities of edges are proportional; those of weight 0 are never drawn. [default: edges are drawn evenly] ids:
    int64 [N], original ids of the rows. [default: their numbers] Raises ValueError for arrays that do not fit, and for
    weights that are negative or not finite.
    """

    def __init__(
        self,
        indptr: NDArray[np.int64],
        indices: NDArray[np.integer],
        *,
        weight: NDArray[np.floating] | None = None,
        ids: NDArray[np.int64] | None = None,
    ) -> None:
        module: Any = native.load()
        kind = module.Sampler32 if indices.dtype == np.int32 else module.Sampler64
        self._native = kind(indptr, indices, weight, ids)

    def sample(
        self,
        seeds: NDArray[np.int64],
        fanouts: Sequence[int],
        *,
        seed: int,
        step: int,
        edges: bool = False,
    ) -> Sampled:
        """Return sampled edges of ``seeds``, then of all rows so far, and so on: a hop for each fanout.

        seeds: int64 [n], distinct rows. fanouts: edges to draw of each row, all of them where there are no more, or
        where it is -1. Evenly: each set of so many edges is as likely as any other (Floyd's algorithm). By weights: the
        edges with the smallest Exp(1) / weight (Efraimidis and Spirakis, IPL 2006), whose factors are Cohen and
        Kaplan's (PODC 2007, rank conditioning); edges of weight 0 are left out where all are taken too. seed: 0 .. 2^64
        - 1. step: 0 .. 2^32 - 2. edges: whether to return places of edges. Raises ValueError for rows that are not
        there or come twice, and for other fanouts.
        """
        nodes, hops = self._native.sample(seeds, list(fanouts), seed, step, edges)
        return Sampled(nodes, [Hop(*hop) for hop in hops])


def shuffled(ids: NDArray[np.int64], seed: int, epoch: int, threads: int = 1) -> NDArray[np.int64]:
    """Return the places of ids [n] in an order of an epoch, int64 [n]: sorted by draws of (seed, epoch, id).

    epoch: 1 .. 2^32 - 1. threads: that draw. Raises ValueError for another epoch. Memory: 40 bytes an id.
    """
    order: NDArray[np.int64] = native.load().shuffled(ids, seed, epoch, threads)
    return order
