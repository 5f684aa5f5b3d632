"""Layers with PyG's names. Each is a torch.nn.Module whose forward takes this rank's rows and the graph.

Parameters have the names and shapes of PyG's, so that ``load_state_dict`` takes a PyG layer's weights. Weights start
as PyG's do, by torch's generator, or by a run's seed (random.py). Layers are collective: all ranks call them in the
same order, and their backward passes too; gradients of parameters are each rank's part of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...runtime.backends.arguments import RngKey
from ..autograd.aggregation import aggregate, unweighted
from ..autograd.functional import as_rows, convolution, linear, transform_first
from ..graph.matrix import Adjacency
from ..graph.view import GraphView, first_rows
from ..inputs.host import Input
from .base import Convolution, Streamed, Widths
from .perceptron import Step, is_linear, reset, steps, taken_along, through
from .random import Fill, dropped, fill_uniform, glorot


class GCNConv(Convolution):
    """Graph convolution (Kipf and Welling, ICLR 2017): D^-1/2 (A + I) D^-1/2 X W^T + b.

    Arguments come in PyG's order: ``cached`` changes nothing, as a graph is normalised once; other values of
    ``improved``, ``add_self_loops`` and ``normalize`` are refused. Parameters ``lin.weight`` [out, in], ``bias`` [out].
    """

    kind = "gcn"

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        improved: bool = False,
        cached: bool = False,
        add_self_loops: bool | None = True,
        normalize: bool = True,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.set_channels(in_channels, out_channels)
        self.refuse(improved=(improved, False), normalize=(normalize, True))
        self.refuse(add_self_loops=(add_self_loops is not False, True))
        self.lin = torch.nn.Linear(in_channels, out_channels, bias=False)
        self.bias = torch.nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self, fill: Fill = fill_uniform) -> None:
        """Initialise weights as Glorot and Bengio do, and the bias to 0."""
        glorot(self.lin.weight, fill)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    def _convolve(
        self, x: Input, graph: GraphView, adjacency: Adjacency, relu: bool, key: RngKey | None
    ) -> Tensor:
        before = adjacency.scale
        after = None if before is None else before[: graph.destinations]
        weight = self.lin.weight
        return convolution(
            x, weight, self.bias, graph, adjacency, before=before, after=after, relu=relu, key=key
        )

    def product_first(self, wants_gradient: bool) -> bool:
        return transform_first(self.in_channels, self.out_channels, wants_gradient)

    def message(self, x: Tensor, graph: GraphView, *, first: bool) -> Tensor:
        return linear(x, self.lin.weight, None, graph) if first else x

    def update(
        self, x: Tensor, reduced: Tensor, graph: GraphView, *, first: bool, relu: bool, key: RngKey | None
    ) -> Tensor:
        if not first:
            return linear(reduced, self.lin.weight, self.bias, graph, relu=relu, key=key)
        out = reduced if self.bias is None else reduced + self.bias.to(reduced.dtype)
        return dropped(out.relu(), graph, key, rectified=True) if relu else out


class GINConv(Convolution):
    """Graph isomorphism (Xu et al., ICLR 2019): nn((A + (1 + eps) I) X).

    nn: any module of rows; where it begins with a Linear, that is applied before or after the sum, whichever moves
    less. Parameters ``nn.*``, and ``eps`` [1], a buffer unless it is trained.
    """

    kind = "edges"
    eps: Tensor

    def __init__(self, nn: torch.nn.Module, eps: float = 0.0, train_eps: bool = False) -> None:
        super().__init__()
        self.nn, self.initial_eps = nn, eps
        start = torch.full((1,), float(eps))
        if train_eps:
            self.eps = torch.nn.Parameter(start)
        else:
            self.register_buffer("eps", start)

    def reset_parameters(self, fill: Fill = fill_uniform) -> None:
        """Initialise linear maps as torch does, and eps to the value that was given."""
        reset(self.nn, fill)
        with torch.no_grad():
            self.eps.fill_(self.initial_eps)

    @property
    def _lin(self) -> torch.nn.Linear | None:
        """The linear map that the network begins with, if it does."""
        first = next(iter(steps(self.nn)), self.nn)
        return first if is_linear(first) else None

    @property
    def linear_widths(self) -> tuple[int, int] | None:
        return None if self._lin is None else (self._lin.in_features, self._lin.out_features)

    def _convolve(
        self, x: Input, graph: GraphView, adjacency: Adjacency, relu: bool, key: RngKey | None
    ) -> Tensor:
        behind: list[Step] = [torch.nn.ReLU(), *([key] if key else [])] if relu else []
        network = [*steps(self.nn), *behind]
        if network and is_linear(first := network[0]):
            rest = network[1:]
            fused, along = taken_along(rest)
            out = convolution(
                x, first.weight, first.bias, graph, adjacency, eps=self.eps, relu=fused, key=along
            )
            return through(rest, out, graph)
        rows = as_rows(x, graph)
        summed = aggregate(rows, graph, adjacency, "sum")
        summed = summed + (1 + self.eps).to(rows.dtype) * rows[: graph.destinations]
        return through(network, summed, graph)

    @property
    def reads_own(self) -> bool:
        return True

    def product_first(self, wants_gradient: bool) -> bool:
        return self.linear_widths is not None and transform_first(*self.linear_widths, wants_gradient)

    def message(self, x: Tensor, graph: GraphView, *, first: bool) -> Tensor:
        return linear(x, self._lin.weight, None, graph) if first and self._lin else x

    def update(
        self, x: Tensor, reduced: Tensor, graph: GraphView, *, first: bool, relu: bool, key: RngKey | None
    ) -> Tensor:
        behind: list[Step] = [torch.nn.ReLU(), *([key] if key else [])] if relu else []
        out = reduced + (1 + self.eps).to(x.dtype) * self.message(x, graph, first=first)
        if not first or self._lin is None:
            return through([*steps(self.nn), *behind], out, graph)
        out = out if self._lin.bias is None else out + self._lin.bias.to(out.dtype)
        return through([*steps(self.nn)[1:], *behind], out, graph)

    def extra_repr(self) -> str:
        return ""


class SAGEConv(Convolution):
    """GraphSAGE (Hamilton, Ying and Leskovec, NeurIPS 2017): W aggr(X of in-neighbours) + b + V X.

    aggr: "mean", "sum" or "max"; each is 0 without in-neighbours. root_weight: whether there is a V. normalize: divide
    each row of the output by its length. Parameters ``lin_l.weight`` [out, in], ``lin_l.bias`` [out], ``lin_r.weight``.
    """

    kind = "edges"

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        aggr: str = "mean",
        normalize: bool = False,
        root_weight: bool = True,
        project: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.set_channels(in_channels, out_channels)
        self.refuse(project=(project, False))
        if aggr not in ("mean", "sum", "max"):
            raise ValueError(f"aggr is {aggr!r}; known are 'mean', 'sum' and 'max'")
        self.aggr, self.normalize, self.by_edge = aggr, normalize, aggr == "max"
        self.lin_l = torch.nn.Linear(in_channels, out_channels, bias=bias)
        self.lin_r = torch.nn.Linear(in_channels, out_channels, bias=False) if root_weight else None

    def reset_parameters(self, fill: Fill = fill_uniform) -> None:
        """Initialise the parameters as torch's Linear does."""
        reset(self.lin_l, fill)
        if self.lin_r is not None:
            reset(self.lin_r, fill)

    @property
    def saves_by_blocks(self) -> bool:
        if self.aggr == "max":
            return False
        # Where the layer sums first, its gradient takes the place of the rows with dropout, if it is as wide.
        return self.in_channels == self.out_channels or super().saves_by_blocks

    @property
    def state(self) -> int:
        return (
            2 * self.in_channels if self.aggr == "max" else 0
        )  # a maximum, and the number of edges that reach it

    def exchanged(self, products_only: bool, wants_gradient: bool, dtype: torch.dtype) -> Widths:
        if self.aggr != "max":
            return super().exchanged(products_only, wants_gradient, dtype)
        # The backward exchanges the maximum beside the gradient (aggregation.py).
        return Widths(self.in_channels, 2 * self.in_channels if wants_gradient and not products_only else 0)

    def _convolve(
        self, x: Input, graph: GraphView, adjacency: Adjacency, relu: bool, key: RngKey | None
    ) -> Tensor:
        root = None if self.lin_r is None else self.lin_r.weight
        weight, bias = self.lin_l.weight, self.lin_l.bias
        if self.aggr == "max":
            rows = as_rows(x, graph)
            out = linear(aggregate(rows, graph, adjacency, "max"), weight, bias, graph)
            out = (
                out if root is None else out + linear(first_rows(rows, graph.destinations), root, None, graph)
            )
        else:
            fused, after = (
                relu and not self.normalize,
                adjacency.inverse_degree if self.aggr == "mean" else None,
            )
            summed = unweighted(adjacency) if self.aggr == "mean" else adjacency
            out = convolution(x, weight, bias, graph, summed, after=after, root=root, relu=fused, key=key)
            if fused:
                return out
        return self._finished(out, graph, relu, key)

    def _finished(self, out: Tensor, graph: GraphView, relu: bool, key: RngKey | None) -> Tensor:
        out = torch.nn.functional.normalize(out, dim=1) if self.normalize else out
        return dropped(out.relu(), graph, key, rectified=True) if relu else out

    @property
    def accumulator(self) -> str:
        return self.aggr

    @property
    def reads_own(self) -> bool:
        return self.lin_r is not None

    def product_first(self, wants_gradient: bool) -> bool:
        return self.aggr != "max" and transform_first(self.in_channels, self.out_channels, wants_gradient)

    def streamed(self, wants_gradient: bool) -> Streamed:
        # Maxima, how many edges reach them, and what streams past backward: their gradients beside the maxima.
        most = Streamed(2 * self.in_channels, 3 * self.in_channels)
        return most if self.aggr == "max" else super().streamed(wants_gradient)

    def message(self, x: Tensor, graph: GraphView, *, first: bool) -> Tensor:
        return linear(x, self.lin_l.weight, None, graph) if first else x

    def update(
        self, x: Tensor, reduced: Tensor, graph: GraphView, *, first: bool, relu: bool, key: RngKey | None
    ) -> Tensor:
        bias = self.lin_l.bias
        if not first:
            out = linear(reduced, self.lin_l.weight, bias, graph)
        else:
            out = reduced if bias is None else reduced + bias.to(reduced.dtype)
        if self.lin_r is not None:
            out = out + linear(x, self.lin_r.weight, None, graph)
        return self._finished(out, graph, relu, key)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, aggr={self.aggr!r}"
