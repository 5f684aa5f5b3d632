"""The interface of kernels over edges: attention, the adjoint of a maximum, dot products, tapes.

A source's row has three parts: columns of the rows' dtype; a tail of values of the accumulator's dtype (float32
or float64), such as one attention score per head, aligned to that dtype; and, if attention drops edges, the
original id of its node in 8 bytes. So all that an edge reads of its source is transferred in one row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...plan.layout import RowFormat
from ...plan.workload import Plan
from .arguments import RngKey, Rows
from .tape import Tape


@dataclass(frozen=True)
class TailedRows:
    """Format of rows: ``values`` columns of ``dtype``, ``tail`` values of the accumulator, maybe an id."""

    dtype: np.dtype[Any]
    values: int
    tail: int = 0
    with_id: bool = False

    @property
    def accumulator(self) -> np.dtype[Any]:
        """Dtype of sums and of the tail: float32 for half-precision rows, else the rows' own."""
        return np.dtype(np.float32) if self.dtype.itemsize == 2 else self.dtype

    @property
    def first(self) -> int:
        """Offset of the tail, counted in values of the accumulator's dtype."""
        return -(-self.values * self.dtype.itemsize // self.accumulator.itemsize)

    @property
    def format(self) -> RowFormat:
        """Format of rows that hold the values, the tail and the id."""
        nbytes = (self.first + self.tail) * self.accumulator.itemsize + 8 * self.with_id
        return RowFormat(self.dtype, nbytes // self.dtype.itemsize)


@dataclass(frozen=True)
class Attention:
    """Heads of ``channels`` columns each, and how each head scores an edge u -> v.

    additive: the score is LeakyReLU(source score of u + target score of v + score of the edge, if edges have
    any), with the negative slope (GAT: Velickovic et al., ICLR 2018). Else it is the dot product of the rows of
    u and v over sqrt(channels) (Vaswani et al., NeurIPS 2017).
    key: random key of attention dropout, or None; a draw depends on the original ids of both ends of the edge
    and on the head. ids: int64 [n], original ids of this rank's nodes, if there is a key.
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
        """Factor of dot products, 1 / sqrt(channels)."""
        return float(self.channels**-0.5)

    def forward_rows(self, dtype: np.dtype[Any]) -> TailedRows:
        """Return the format of sources' rows for `EdgeKernels.attend`: features, and a tail of additive scores."""
        return TailedRows(dtype, self.columns, self.heads if self.additive else 0, self.key is not None)

    def backward_rows(self, dtype: np.dtype[Any]) -> TailedRows:
        """Return the format of the rows that `EdgeKernels.attend_back` at sources reads of destinations.

        Columns: the output's gradient g and, for dot products, the destination's rows h. Tail, for each head:
        the target score if scores are additive, log_sum, and the dot product of g and the output without bias.
        """
        if self.additive:
            return TailedRows(dtype, self.columns, 3 * self.heads, self.key is not None)
        return TailedRows(dtype, 2 * self.columns, 2 * self.heads, self.key is not None)


@dataclass(frozen=True)
class TapeArrays:
    """Arrays of `EdgeKernels.propagate`, all of the accumulator's dtype.

    near: [n, k] each, values of the plan's destinations. shared: [S], values that all edges share. out: [n,
    width] for each output. edge: edge data [E, D] in the plan's order, or None.
    """

    near: list[Any]
    shared: Any
    out: list[Any]
    edge: Any = None


class EdgeKernels(ABC):
    """Kernels over edges for layers that are more than weighted sums.

    As for `Backend.aggregate`, plans must be prepared and rows published, and calls are collective with
    transfer "halo". In the docstrings n is the number of the plan's destinations, and H the number of heads.
    [n, H] arrays are contiguous, of the accumulator's dtype; [n, F] arrays are padded or contiguous rows of the
    rows' dtype. gets: True if kernels support the transfer "get" for rows that no pointer reaches.
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
        """Compute attention: out[v] = bias + sum over edges u -> v of weight(u, v) * h[u].

        Weights are the softmax of the scores of v's in-edges, per head; without edges out[v] = bias. C is the
        number of channels per head. src: rows in the format `Attention.forward_rows`. score: target scores [n,
        H], if additive. h: rows of the destinations [n, H C], for dot products. bias: [H C], or None for 0.
        edge_score: scores of edges [E, H] in the plan's order, if additive, or None.

        Outputs for the backward, each None if not needed: log_sum [n, H], the logarithm of the sum of
        exp(score); above [n, H C] and above_weight [n, H] (additive only), the sums of weight * h and of weight
        over the edges whose score is above 0, from which the gradient of target scores follows. Weights in
        ``out`` and ``above`` are after dropout, in above_weight before.
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
        """Compute gradients of attention at one end of its edges: out [n, H C] is the gradient of h.

        If at_source, the plan is over out-edges, and src has the rows `Attention.backward_rows` of the
        destinations. If scores are additive, score, [n, H], has the source scores, whose gradient is written to
        score_gradient, [n, H]. edge_score, [E, H] in the plan's order, and edge_score_gradient, [E, H], to
        which its gradient is written, are given both or not at all.

        Otherwise the plan is over in-edges, for dot products only, and src has the rows of the sources.
        gradient [n, H C], log_sum [n, H] and dot [n, H] (the product of gradient and output without bias) are
        values of the destinations.
        """

    @abstractmethod
    def max_ties(self, plan: Plan, src: Rows, out: Any, ties: Any) -> None:
        """Compute out[v, c] = maximum over edges u -> v of x[u, c], 0 without edges.

        src: rows x. ties: output [n, F], number of edges that attain the maximum.
        """

    @abstractmethod
    def max_back(self, plan: Plan, src: Rows, x: Any, out: Any) -> None:
        """Compute the adjoint of a maximum, over out-edges.

        src: rows of the destinations with 2 F columns: the gradient divided by ties (`max_ties`), and the
        maximum. out[u, c] is the sum of the divided gradients of the destinations whose maximum is x[u, c]; x
        is [n, F].
        """

    @abstractmethod
    def weighted(self, plan: Plan, src: Rows, weight: Any, out: Any) -> None:
        """Compute out[v, c] = sum over edges e = (u -> v) of weight[e, head of c] * x[u, c].

        src: rows x, whose columns are divided evenly among heads. weight: [E, H] in the plan's order.
        """

    @abstractmethod
    def sddmm(self, plan: Plan, src: Rows, dst: Any, out_edge: Any) -> None:
        """Compute a dot product for each edge e = (u -> v) and head: out_edge[e, head] = <dst[v], x[u]>.

        The product is over the head's columns. src: rows x. dst: [n, F]. out_edge: [E, H] in the plan's order,
        or [E] for one head.
        """

    @abstractmethod
    def propagate(self, plan: Plan, tape: Tape, src: Rows, given: TapeArrays) -> None:
        """Run a tape on each edge: given.out[i][v] = reduction of output i over v's edges, 0 without edges.

        It is Scatter, ApplyEdge and Gather in one (NGra, section 3.2). src: rows of u with ``tape.far_columns``
        values. Raises InputError if tapes cannot be compiled here (`check_tapes`).
        """

    def check_tapes(self) -> None:
        """Raise InputError if this backend cannot compile tapes, for example as there is no compiler."""
        return
