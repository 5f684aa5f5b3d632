"""Layers with PyG's names. Each is a torch.nn.Module whose forward takes this rank's rows and the graph.

Parameters have the names and shapes of PyG's, so that ``load_state_dict`` takes a PyG layer's weights. Weights start
as PyG's do, by torch's generator, or by a run's seed (random.py). Layers are collective: all ranks call them in the
same order, and their backward passes too; gradients of parameters are each rank's part of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...runtime.backends.arguments import RngKey
from ...runtime.backends.edges import Attention
from ..autograd.aggregation import aggregate, unweighted
from ..autograd.functional import as_rows, check_rows, convolution, linear
from ..graph.edge_data import LoopFill, check_fill
from ..graph.matrix import Adjacency
from ..graph.view import GraphView, first_rows
from ..inputs.host import Input
from ..workspace import row_format
from .attention import EdgeScores, attend
from .base import Convolution, Widths
from .perceptron import Step, is_linear, reset, steps, taken_along, through
from .random import Dropout, Fill, dropped, fill_uniform, glorot


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
    def linear_widths(self) -> tuple[int, int] | None:
        first = next(iter(steps(self.nn)), self.nn)
        return (first.in_features, first.out_features) if is_linear(first) else None

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
        out = torch.nn.functional.normalize(out, dim=1) if self.normalize else out
        return dropped(out.relu(), graph, key, rectified=True) if relu else out

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, aggr={self.aggr!r}"


class GATConv(Convolution):
    """Graph attention (Velickovic et al., ICLR 2018): sums of in-neighbours' rows h = X W^T, weighed by a softmax.

    Each of ``heads`` has ``out_channels`` columns of h. attention: "additive", the score of an edge u -> v is
    LeakyReLU(att_src . h_u + att_dst . h_v); or "dot", it is h_u . h_v / sqrt(out_channels), as DGL's DotGatConv.
    concat: put heads side by side; else they are averaged. dropout: of the weights that come out of the softmax.
    add_self_loops: each node attends to itself once; else to its in-neighbours as the graph has them, and a node
    without any gets 0. residual: add a linear map of X. edge_dim: columns of data of edges that are given beside the
    rows; att_edge . (W_e data) is then a part of an additive score. fill_value: the data of a self loop that is added,
    or takes the place of others: a number, or "mean", "add", "min", "max" or "mul" of the node's other in-edges.

    Parameters ``lin.weight`` [heads * out, in], ``att_src`` and ``att_dst`` [1, heads, out], ``bias``, ``res.weight``;
    ``lin_edge.weight`` [heads * out, edge_dim] and ``att_edge`` [1, heads, out].
    """

    by_edge = True
    saves_by_blocks = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        edge_dim: int | None = None,
        fill_value: LoopFill = "mean",
        bias: bool = True,
        residual: bool = False,
        *,
        attention: str = "additive",
    ) -> None:
        super().__init__()
        self.set_channels(in_channels, out_channels)
        self.edge_dim, self.fill_value = edge_dim, check_fill(fill_value)
        if attention not in ("additive", "dot"):
            raise ValueError(f"attention is {attention!r}; known are 'additive' and 'dot'")
        if heads < 1:
            raise ValueError(f"heads is {heads}; attention has at least one")
        if edge_dim is not None and (edge_dim < 1 or attention != "additive"):
            raise ValueError(
                f"edge_dim is {edge_dim}, of attention {attention!r}; it is at least 1, of 'additive'"
            )
        self.heads, self.concat = heads, concat
        self.negative_slope, self.dropout, self.attention = negative_slope, dropout, attention
        self.kind = "attention" if add_self_loops else "edges"
        self.attention_dropout = Dropout(dropout)
        self.lin = torch.nn.Linear(in_channels, heads * out_channels, bias=False)
        if attention == "additive":
            self.att_src = torch.nn.Parameter(torch.empty(1, heads, out_channels))
            self.att_dst = torch.nn.Parameter(torch.empty(1, heads, out_channels))
        if edge_dim is not None:
            self.lin_edge = torch.nn.Linear(edge_dim, heads * out_channels, bias=False)
            self.att_edge = torch.nn.Parameter(torch.empty(1, heads, out_channels))
        width = heads * out_channels if concat else out_channels
        self.res = torch.nn.Linear(in_channels, width, bias=False) if residual else None
        self.bias = torch.nn.Parameter(torch.empty(width)) if bias else None
        self.reset_parameters()

    def reset_parameters(self, fill: Fill = fill_uniform) -> None:
        """Initialise weights as Glorot and Bengio do, and the bias to 0."""
        for weight in (self.lin.weight, *self._scores()):
            glorot(weight, fill)
        if self.res is not None:
            glorot(self.res.weight, fill)
        if self.edge_dim is not None:
            glorot(self.lin_edge.weight, fill)
            glorot(self.att_edge, fill)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    @property
    def state(self) -> int:
        return self.heads * (
            2 * self.out_channels + 3
        )  # a sum and its part above 0, a maximum, two sums of weights

    def exchanged(self, products_only: bool, wants_gradient: bool, dtype: torch.dtype) -> Widths:
        key = RngKey(0.0, seed=0, epoch=0, stream=0) if self.dropout > 0 else None
        how = Attention(self.heads, self.out_channels, self.attention == "additive", key=key)
        stored = row_format(1, dtype).dtype
        return Widths(how.forward_rows(stored).format.dim, how.backward_rows(stored).format.dim)

    def forward(
        self,
        x: Input,
        graph: GraphView,
        adjacency: Adjacency | None = None,
        *,
        edge_attr: Tensor | str | None = None,
        relu: bool = False,
        key: RngKey | None = None,
    ) -> Tensor:
        """Return the layer's output as every Convolution does.

        edge_attr: with edge_dim, the data of edges, [E, edge_dim] in the order of the graph's edges
        (``graph.edge_index()``), or their name in the graph; "weight" names its weights. Raises ValueError where
        edge_dim and edge_attr do not come together, or have other numbers of columns.
        """
        if (edge_attr is None) != (self.edge_dim is None):
            missing = "edge_dim" if self.edge_dim is None else "edge_attr"
            raise ValueError(
                f"GATConv takes data of edges by edge_dim and edge_attr, and {missing} is missing"
            )
        chosen = self.chosen(graph, adjacency, ordered=edge_attr is not None)
        return self._convolve(x, graph, chosen, relu, key, edge_attr)

    def _edge_scores(
        self, graph: GraphView, adjacency: Adjacency, given: Tensor | str | None
    ) -> EdgeScores | None:
        """Return the part of scores that edges' data make: att_edge . (W_e data) is data . (W_e^T att_edge)."""
        if given is None:
            return None
        values = graph.edge_values(adjacency, given, self.fill_value)
        if values.forward.shape[1] != self.edge_dim:
            raise ValueError(
                f"edge_attr has {values.forward.shape[1]} columns, and edge_dim is {self.edge_dim}"
            )
        of_heads = self.lin_edge.weight.view(self.heads, self.out_channels, -1)
        return EdgeScores(values, (self.att_edge.transpose(0, 1) @ of_heads).squeeze(1).T)

    def _convolve(
        self,
        x: Input,
        graph: GraphView,
        adjacency: Adjacency,
        relu: bool,
        key: RngKey | None,
        edge_attr: Tensor | str | None = None,
    ) -> Tensor:
        check_rows(x, graph)
        transformed = linear(x, self._weights(), None, graph)
        width = self.heads * self.out_channels
        h, source, target = transformed, None, None
        if self.attention == "additive":
            h, source, target = transformed.split((width, self.heads, self.heads), 1)
            target = target[: graph.destinations]
        out = attend(
            h,
            source,
            target,
            graph,
            adjacency,
            self.heads,
            negative_slope=self.negative_slope,
            dropout=self.attention_dropout.key(),
            bias=self.bias if self.concat else None,
            edge_scores=self._edge_scores(graph, adjacency, edge_attr),
        )
        if not self.concat:
            out = out.unflatten(1, (self.heads, self.out_channels)).mean(1)
            out = out if self.bias is None else out + self.bias.to(out.dtype)
        if self.res is not None:
            out = out + linear(first_rows(x, graph.destinations), self.res.weight, None, graph)
        return dropped(out.relu(), graph, key, rectified=True) if relu else out

    def _weights(self) -> Tensor:
        """Return [heads * out + 2 heads, in]: W, and W^T att_src and W^T att_dst of each head, which give the scores.

        So one product of x gives all that is exchanged, also for features that can be multiplied only.
        """
        of_heads = self.lin.weight.view(self.heads, self.out_channels, self.in_channels)
        scores = [(att.transpose(0, 1) @ of_heads).squeeze(1) for att in self._scores()]
        return torch.cat([self.lin.weight, *scores])

    def _scores(self) -> list[Tensor]:
        """Return the vectors that give a row's half scores from its h: as a source, and as a destination."""
        return [self.att_src, self.att_dst] if self.attention == "additive" else []

    def extra_repr(self) -> str:
        of_edges = "" if self.edge_dim is None else f", edge_dim={self.edge_dim}"
        return f"{super().extra_repr()}, heads={self.heads}, attention={self.attention!r}{of_edges}"
