"""Layers with PyG's names that sum, average or take the maximum of in-neighbours' rows.

Each is a torch.nn.Module whose forward takes this rank's rows and the graph. Parameters have the names and shapes of
PyG's, so that ``load_state_dict`` accepts the weights of a PyG layer. Initial weights have PyG's distributions, drawn
by torch's generator or from the seed of a run (random.py). Layers are collective: all ranks call them in the same
order, and their backward passes too. The gradient of a parameter is this rank's part of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...runtime.backends.arguments import RngKey
from ..autograd.aggregation import aggregate, scaled_sum, unweighted
from ..autograd.functional import as_rows, convolution, transform_first
from ..calls import layer_call
from ..graph.matrix import Adjacency
from ..graph.view import GraphView
from ..inputs.host import Input
from .networks import (
    Step,
    Weight,
    activation,
    is_linear,
    matrix,
    pop_relu,
    product,
    reset,
    steps,
    taken_apart,
    through,
)
from .random import Fill, fill_uniform, glorot


class Convolution(torch.nn.Module, ABC):
    """Interface of a layer, called as a `SumConvolution` is. kind: of the adjacency that it sums over (`Matrix`)."""

    streams = False
    kind: str
    in_channels: int
    out_channels: int

    @property
    @abstractmethod
    def by_edge(self) -> bool:
        """Whether the layer calls `EdgeKernels`."""

    @property
    @abstractmethod
    def state(self) -> int:
        """Number of accumulator values per row that CPU EdgeKernels keep between rounds of a halo exchange."""

    @property
    @abstractmethod
    def saves_by_blocks(self) -> bool:
        """Whether a step takes less memory with features to which dropout is applied in blocks (HostFeatures.over)."""

    def set_channels(self, in_channels: object, out_channels: object) -> None:
        """Store the widths. Raises ValueError for values that only PyG accepts: -1 (inferred later) and pairs."""
        for name, value in (("in_channels", in_channels), ("out_channels", out_channels)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value}: {type(self).__name__} is told its channels, at least 1")
            setattr(self, name, value)

    def refuse(self, **options: tuple[object, object]) -> None:
        """Raise ValueError for unsupported options of PyG. Each is (value passed, only value supported)."""
        for name, (passed, supported) in options.items():
            if passed != supported:
                raise ValueError(
                    f"{type(self).__name__} has no {name}={passed!r}; {name}={supported!r} alone is there"
                )

    @abstractmethod
    def exchanged(self, products_only: bool, wants_gradient: bool, dtype: torch.dtype) -> tuple[int, int]:
        """Return the widths of the rows of ``dtype`` exchanged in the forward and backward of training; 0 for none.

        products_only: whether only products of the input with a matrix are available (sparse or host-resident rows).
        wants_gradient: whether the gradient of the input is needed.
        """

    @abstractmethod
    def reset_parameters(self, fill: Fill = fill_uniform) -> None:
        """Initialise the parameters by these draws."""

    def chosen(self, graph: GraphView, adjacency: Adjacency | None, *, ordered: bool = False) -> Adjacency:
        """Return ``adjacency``, or the graph's if it is None. ordered: as in `GraphView.adjacency`."""
        chosen = graph.adjacency(self.kind, ordered=ordered) if adjacency is None else adjacency
        if chosen.kind != self.kind:
            name = type(self).__name__
            raise ValueError(
                f"{name} sums with an adjacency of kind {self.kind!r}, and this one is {chosen.kind!r}"
            )
        return chosen

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}"


@dataclass(frozen=True)
class Formula:
    """A layer as rest(reduce(x) W^T + (1 + eps) x W^T + x V^T + b), for rows x and their in-neighbours' rows.

    reduce: "sum", with the weights and scales of the adjacency, "mean" or "max". weight: W [out, in], or None for the
    identity. bias: b [out]. root: V [out, in]. eps: [1]. A term whose parameter is None is left out. rest: modules that
    are applied to the result, one after another. A module in the place of W or V, whose linear map is not plain, is
    called, with its own bias. ahead: call W's before the reduction, as in PyG.
    """

    reduce: str = "sum"
    weight: Weight | None = None
    bias: Tensor | None = None
    root: Weight | None = None
    eps: Tensor | None = None
    rest: Sequence[Step] = ()
    ahead: bool = False


class SumConvolution(Convolution):
    """A layer that is a `Formula`, which runs fused on rows in memory, or in two parts around a streamed reduction.

    A sum is linear, so W is applied before it where that makes the rows that are read narrower, else after it.
    """

    @property
    @abstractmethod
    def formula(self) -> Formula:
        """The layer's computation with its current parameters."""

    def transforms_first(self, wants_gradient: bool) -> bool:
        """Return whether fewer values move if W is applied before the reduction. wants_gradient: as in `exchanged`."""
        formula = self.formula
        weight = formula.weight
        if not isinstance(weight, Tensor) or formula.reduce == "max":
            return formula.ahead
        return transform_first(weight.shape[1], weight.shape[0], wants_gradient)

    @layer_call
    def forward(
        self,
        x: Input,
        graph: GraphView,
        adjacency: Adjacency | None = None,
        *,
        relu: bool = False,
        key: RngKey | None = None,
    ) -> Tensor:
        """Return the layer's output [n, out] for this rank's rows x [n, in]. Collective.

        adjacency: one of the graph's. [default: graph.adjacency(self.kind)] relu: apply ReLU, within the kernel where
        possible. key: random key of dropout after the ReLU. Raises ValueError for an adjacency of another kind.
        """
        formula, adjacency = self.formula, self.chosen(graph, adjacency)
        before = adjacency.scale
        after = None if before is None else before[: graph.destinations]
        weight, root = formula.weight, formula.root
        if not isinstance(weight, Tensor) or isinstance(root, torch.nn.Module) or formula.reduce == "max":
            rows, first = as_rows(x, graph), formula.ahead
            sent = self.message(rows, graph, transform=first)
            if before is None:
                reduced = aggregate(sent, graph, adjacency, formula.reduce)
            else:
                reduced = scaled_sum(sent * before[:, None].to(sent.dtype), graph, adjacency, after)
            return self.update(rows, reduced, graph, transformed=first, relu=relu, key=key)
        if formula.reduce == "mean":
            adjacency, after = unweighted(adjacency), adjacency.inverse_degree
        rest = [*formula.rest, *activation(relu, key)]
        fused, along = pop_relu(rest)
        out = convolution(
            x,
            weight,
            formula.bias,
            graph,
            adjacency,
            before=before,
            after=after,
            root=root,
            eps=formula.eps,
            relu=fused,
            key=along,
        )
        return through(rest, out, graph)

    def message(self, x: Tensor, graph: GraphView, *, transform: bool) -> Tensor:
        """Return the rows to reduce, for rows x [n, in]. transform: apply W (`transforms_first`)."""
        weight = self.formula.weight
        return product(x, weight, None, graph) if transform and weight is not None else x

    def update(
        self,
        x: Tensor,
        reduced: Tensor,
        graph: GraphView,
        *,
        transformed: bool,
        relu: bool,
        key: RngKey | None,
    ) -> Tensor:
        """Return the layer's output for rows x [n, in] and their reduced messages.

        transformed: whether W was applied to the messages. relu, key: as in `forward`.
        """
        formula, out = self.formula, reduced
        rest = [*formula.rest, *activation(relu, key)]
        own = x if len(x) == graph.destinations else x[: graph.destinations]
        if formula.eps is not None:
            out = out + (1 + formula.eps).to(x.dtype) * self.message(own, graph, transform=transformed)
        if formula.weight is not None and not transformed:
            fused, along = pop_relu(rest) if formula.root is None else (False, None)
            out = product(out, formula.weight, formula.bias, graph, relu=fused, key=along)
        elif formula.bias is not None:
            out = out + formula.bias.to(out.dtype)
        if formula.root is not None:
            out = out + product(own, formula.root, None, graph)
        return through(rest, out, graph)

    @property
    def by_edge(self) -> bool:
        return self.formula.reduce == "max"

    @property
    def state(self) -> int:
        # A maximum, and the number of edges that attain it.
        return 2 * self.in_channels if self.formula.reduce == "max" else 0

    @property
    def saves_by_blocks(self) -> bool:
        formula = self.formula
        if not isinstance(formula.weight, Tensor) or formula.reduce == "max":
            return False
        # Where the sum comes first, the gradient of V takes the place of the rows after dropout if it is as wide.
        out_channels, in_channels = self._widths
        as_wide = formula.root is not None and out_channels == in_channels
        return as_wide or self.transforms_first(wants_gradient=False)

    def exchanged(self, products_only: bool, wants_gradient: bool, dtype: torch.dtype) -> tuple[int, int]:
        out_channels, in_channels = self._widths
        if self.formula.reduce == "max":  # the backward exchanges the gradient and the maximum
            return in_channels, 2 * in_channels if wants_gradient and not products_only else 0
        if products_only or self.transforms_first(wants_gradient):
            return out_channels, out_channels
        return in_channels, in_channels if wants_gradient else 0

    def streamed_columns(self, wants_gradient: bool) -> tuple[int, int]:
        """Return the columns of source rows in chunks, and of values kept per destination row, on a streamed graph."""
        out_channels, in_channels = self._widths
        if self.formula.reduce == "max":  # maxima, numbers of edges that attain them, and gradients
            return 2 * in_channels, 3 * in_channels
        width = out_channels if self.transforms_first(wants_gradient) else in_channels
        return width, width

    @property
    def _widths(self) -> tuple[int, int]:
        """Output and input width of W, which layers of models have."""
        weight = self.formula.weight
        assert isinstance(weight, Tensor)
        return weight.shape[0], weight.shape[1]


class GCNConv(SumConvolution):
    """Graph convolution (Kipf and Welling, ICLR 2017): D^-1/2 (A + I) D^-1/2 X W^T + b.

    Arguments come in PyG's order: ``cached`` has no effect, since a graph is normalised once; other values of
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

    @property
    def formula(self) -> Formula:
        weight = matrix(self.lin)
        return Formula(weight=weight, bias=self.bias, ahead=not isinstance(weight, Tensor))

    def reset_parameters(self, fill: Fill = fill_uniform) -> None:
        """Initialise weights as Glorot and Bengio do, and the bias to 0."""
        glorot(self.lin.weight, fill)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)


class GINConv(SumConvolution):
    """Graph isomorphism (Xu et al., ICLR 2019): nn((A + (1 + eps) I) X).

    nn: any module of rows. If it begins with a plain Linear (without hooks or computed weights), that is applied before
    or after the sum, whichever moves fewer values. Parameters ``nn.*``, and ``eps`` [1], a buffer unless ``train_eps``.
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

    @property
    def formula(self) -> Formula:
        network = steps(self.nn)
        if not network or not is_linear(first := network[0]):
            return Formula(eps=self.eps, rest=network)
        return Formula(weight=first.weight, bias=first.bias, eps=self.eps, rest=network[1:])

    def reset_parameters(self, fill: Fill = fill_uniform) -> None:
        """Initialise linear maps as torch does, and eps to its initial value."""
        reset(self.nn, fill)
        with torch.no_grad():
            self.eps.fill_(self.initial_eps)

    def extra_repr(self) -> str:
        return ""


class SAGEConv(SumConvolution):
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
        self.aggr, self.normalize = aggr, normalize
        self.lin_l = torch.nn.Linear(in_channels, out_channels, bias=bias)
        self.lin_r = torch.nn.Linear(in_channels, out_channels, bias=False) if root_weight else None

    @property
    def formula(self) -> Formula:
        root = None if self.lin_r is None else matrix(self.lin_r)
        rest = [_UNIT_ROWS] if self.normalize else []
        return Formula(self.aggr, *taken_apart(self.lin_l), root, rest=rest)

    def reset_parameters(self, fill: Fill = fill_uniform) -> None:
        """Initialise the parameters as torch's Linear does."""
        reset(self.lin_l, fill)
        if self.lin_r is not None:
            reset(self.lin_r, fill)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, aggr={self.aggr!r}"


class _UnitRows(torch.nn.Module):
    """Division of each row by its length."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.normalize(x, dim=1)


_UNIT_ROWS = _UnitRows()
