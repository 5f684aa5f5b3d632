"""The interface of kernels over edges: attention, the adjoint of a maximum, dot products, tapes.

A source's row holds columns of the rows' dtype and then, from a multiple of the accumulator's size on, a tail of values
of the accumulator's dtype (float32, or float64), as scores; last, where attention drops edges, the original id of its
node in 8 bytes. So all that an edge needs of its source is transferred in one row, scores as heads x 1 values.
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
    """Format of rows of ``values`` columns of a dtype, ``tail`` values of its accumulator, and maybe an id."""

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
    """Heads of ``channels`` columns each, and how each head scores an edge u -> v.

    additive: the score is LeakyReLU(source score of u + target score of v + score of the edge, if edges have any), with
    the negative slope (GAT: Velickovic et al., ICLR 2018). Else it is the dot product of the rows of u and v over
    sqrt(channels) (Vaswani et al., NeurIPS 2017).
    key: key of the draws that drop edges, by the original ids of both ends and the head, or None. ids: int64 [n],
    original ids of this rank's nodes, if there is a key.
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
        """Return the format of sources' rows for `EdgeKernels.attend`: features, and a tail of additive scores."""
        return TailedRows(dtype, self.columns, self.heads if self.additive else 0, self.key is not None)

    def backward_rows(self, dtype: np.dtype[Any]) -> TailedRows:
        """Return the format of targets' rows for `EdgeKernels.attend_back` at sources.

        Values: the output's gradient g, and for dot products the rows. Tail, for each head: target scores where they
        are additive, log_sum, and <g, output without bias>.
        """
        if self.additive:
            return TailedRows(dtype, self.columns, 3 * self.heads, self.key is not None)
        return TailedRows(dtype, 2 * self.columns, 2 * self.heads, self.key is not None)


@dataclass(frozen=True)
class TapeArrays:
    """Arrays of `EdgeKernels.propagate`, of the accumulator's dtype.

    near: [n, k] each, values of destinations. shared: [S], values of all edges. out: [n, width] for each output. edge:
    data of edges [E, D] in the plan's order, or None.
    """

    near: list[Any]
    shared: Any
    out: list[Any]
    edge: Any = None


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
        """out[v] = bias + sum over edges u -> v of weight(u, v) h[u], weights a softmax of scores; without edges, bias.

        src: `Attention.forward_rows`. score: target scores [n, H], if additive. h: targets' rows [n, H C], for dot
        products. bias: [H C]. edge_score: scores of edges [E, H] in the plan's order, if additive, or None.
        Outputs for the backward: log_sum [n, H], the logarithm of the sum of exp(score); above [n, H C] and
        above_weight [n, H], the parts of the sum and of the weights whose score is above 0 (additive), from which the
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
        """Compute gradients of attention at one end of its edges: out [n, H C] is the gradient of h.

        With at_source, over out-edges; src: `Attention.backward_rows` of the destinations. If scores are additive,
        score [n, H] are those of the sources, whose gradient is written into score_gradient [n, H]; edge_score [E, H],
        in the plan's order, and edge_score_gradient [E, H], into which its gradient is written, are given both or not
        at all.

        Without at_source, over in-edges, and for dot products only; src: rows of the sources. gradient [n, H C],
        log_sum and dot [n, H] are values of the destinations.
        """

    @abstractmethod
    def max_ties(self, plan: Plan, src: Rows, out: Any, ties: Any) -> None:
        """out[v, c] = maximum over edges u -> v of x[u, c], 0 without edges; ties [n, F]: number of edges with it."""

    @abstractmethod
    def max_back(self, plan: Plan, src: Rows, x: Any, out: Any) -> None:
        """Compute the adjoint of a maximum, over out-edges.

        src: rows of 2 F columns: the targets' gradients divided by their ties, and their maxima. out[u, c] = sum of the
        divided gradients of the targets whose maximum is x[u, c]; x [n, F].
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
    def propagate(self, plan: Plan, tape: Tape, src: Rows, given: TapeArrays) -> None:
        """given.out[i][v] = reduction of the tape's output i over the edges u -> v; 0 without edges.

        src: rows of ``tape.far_columns`` values of u. (NGra, section 3.2: Scatter, ApplyEdge and Gather in one.) Raises
        InputError where nothing compiles the tape.
        """

    def check_tapes(self) -> None:
        """Raise InputError where `propagate` cannot compile tapes."""
        return
