"""The seam's part for what is computed edge by edge: attention, the adjoint of a maximum, dot products.

A source's row holds columns of the rows' dtype and then, from a multiple of the accumulator's size on, a tail of
values of the accumulator (float32, or float64), scores for example; in the end, where attention drops edges, its node's
original id in 8 bytes. So what an edge needs of its source crosses in one row, scores as heads x 1 values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...plan.layout import RowFormat
from ...plan.workload import Plan
from .arguments import RngKey, Rows
from .tape import Tape


@dataclass(frozen=True)
class TailedRows:
    """Rows of ``values`` columns of a dtype, ``tail`` values of its accumulator, and an id or none.

    accumulator: what rows are summed in. first: the tail's place, in values of the accumulator.
    """

    dtype: np.dtype[Any]
    values: int
    tail: int = 0
    with_id: bool = False

    @property
    def accumulator(self) -> np.dtype[Any]:
        """Type in which rows are summed: float32 for half rows, else the rows' own."""
        return np.dtype(np.float32) if self.dtype.itemsize == 2 else self.dtype

    @property
    def first(self) -> int:
        """First value of the tail, counted in values of the accumulator."""
        return -(-self.values * self.dtype.itemsize // self.accumulator.itemsize)

    @property
    def format(self) -> RowFormat:
        """Format of rows that hold the values, the tail and the id."""
        nbytes = (self.first + self.tail) * self.accumulator.itemsize + 8 * self.with_id
        return RowFormat(self.dtype, nbytes // self.dtype.itemsize)


@dataclass(frozen=True)
class Attention:
    """Heads of ``channels`` columns each, and how an edge u -> v is scored by each of them.

    additive: LeakyReLU(source score of u + target score of v + score of the edge, if edges have any), with the negative
    slope (GAT: Velickovic et al., ICLR 2018). Else the dot product of the rows of u and v over sqrt(channels) (Vaswani
    et al., NeurIPS 2017).
    key: which edges are dropped, by the original ids of both ends and the head; None: none. ids: int64 [n], of this
    rank's nodes, where there is one.
    """

    heads: int
    channels: int
    additive: bool = True
    negative_slope: float = 0.2
    key: RngKey | None = None
    ids: Any = None

    @property
    def columns(self) -> int:
        """Number of columns of all heads."""
        return self.heads * self.channels

    @property
    def scale(self) -> float:
        """Factor of dot products."""
        return float(self.channels**-0.5)

    def forward_rows(self, dtype: np.dtype[Any]) -> TailedRows:
        """Return the format of sources' rows for `EdgeKernels.attend`: features, and additive scores behind them."""
        return TailedRows(dtype, self.columns, self.heads if self.additive else 0, self.key is not None)

    def backward_rows(self, dtype: np.dtype[Any]) -> TailedRows:
        """Return the rows of targets that `EdgeKernels.attend_back` reads for gradients of sources.

        The output's gradient g, and for dot products the rows; target scores where they are additive, log_sum, and
        <g, output without bias>, each for every head.
        """
        if self.additive:
            return TailedRows(dtype, self.columns, 3 * self.heads, self.key is not None)
        return TailedRows(dtype, 2 * self.columns, 2 * self.heads, self.key is not None)


class EdgeKernels(ABC):
    """Kernels of layers beyond weighted sums. Plans are prepared and rows published as for `Backend.aggregate`.

    n: number of the plan's destinations. [n, H] arrays are contiguous, of the accumulator's dtype; [n, F] arrays are
    padded or contiguous rows of the rows' dtype. Collective with "halo". gets: kernels take the transfer "get" for rows
    that no pointer reaches.
    """

    gets = True

    @abstractmethod
    def attend(
        self,
        plan: Plan,
        how: Attention,
        src: Rows,
        out: Any,
        *,
        score: Any = None,
        h: Any = None,
        bias: Any = None,
        log_sum: Any = None,
        above: Any = None,
        above_weight: Any = None,
        edge_score: Any = None,
    ) -> None:
        """out[v] = bias + sum over edges u -> v of weight(u, v) h[u], weights a softmax of scores; no edges: bias.

        src: `Attention.forward_rows`. score: target scores [n, H], additive. h: [n, H C], of dot products. bias: [H C].
        edge_score: scores of edges [E, H] in the plan's order, additive, or None.
        For the backward: log_sum [n, H] becomes the logarithm of the sum of exp(score); above [n, H C] and
        above_weight [n, H] the parts of the sum and of the weights whose score is above 0 (additive), from which the
        gradient of target scores follows. Weights in ``out`` and ``above`` are after dropout, in above_weight before.
        """

    @abstractmethod
    def attend_back(
        self,
        plan: Plan,
        how: Attention,
        src: Rows,
        out: Any,
        *,
        at_source: bool,
        h: Any,
        score: Any = None,
        gradient: Any = None,
        log_sum: Any = None,
        dot: Any = None,
        score_gradient: Any = None,
        edge_score: Any = None,
        edge_score_gradient: Any = None,
    ) -> None:
        """Gradients of attention at one end of its edges: out [n, H C], that of h.

        at_source: over out-edges, src `Attention.backward_rows` of targets; score: source scores [n, H], whose
        gradient is written into score_gradient [n, H], and edge_score [E, H] in the plan's order, whose gradient is
        written into edge_score_gradient [E, H], or neither (additive). Else over in-edges, for dot products, src rows
        of the sources; gradient [n, H C], log_sum and dot [n, H] are the targets' own.
        """

    @abstractmethod
    def max_ties(self, plan: Plan, src: Rows, out: Any, ties: Any) -> None:
        """out[v, c] = the maximum over edges u -> v of x[u, c], 0 without edges; ties [n, F]: how many reach it."""

    @abstractmethod
    def max_back(self, plan: Plan, src: Rows, x: Any, out: Any) -> None:
        """The adjoint of a maximum, over out-edges.

        src: rows of 2 F columns, the targets' gradients over their ties, and their maxima. out[u, c] = the sum of those
        gradients over the targets whose maximum is x[u, c]; x [n, F].
        """

    @abstractmethod
    def weighted(self, plan: Plan, src: Rows, weight: Any, out: Any) -> None:
        """out[v] = sum over edges of weight[e, head] x[u]; weight [E, H] in the plan's order, columns by head."""

    @abstractmethod
    def sddmm(self, plan: Plan, src: Rows, dst: Any, out_edge: Any) -> None:
        """out_edge[e, head] = <dst[v], x[u]> over the head's columns; [E, H] in the plan's order, dst [n, F].

        [E] stands for one head.
        """

    @abstractmethod
    def propagate(
        self,
        plan: Plan,
        tape: Tape,
        src: Rows,
        *,
        near: Sequence[Any],
        shared: Any,
        out: Sequence[Any],
        edge: Any = None,
    ) -> None:
        """out[i][v] = the reduction of the tape's output i over the edges u -> v; 0 without edges.

        src: rows of ``tape.far_columns`` values of u. near: arrays [n, any] of v. shared: [S] of all edges. edge:
        [E, D] in the plan's order, or None. out: an array [n, width] for each output. All but src are of the
        accumulator's dtype. (NGra, section 3.2: Scatter, ApplyEdge and Gather in one.)
        """
