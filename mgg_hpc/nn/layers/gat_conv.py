"""Graph attention, with PyG's names: weights of a sum that are computed of both ends of an edge."""

from __future__ import annotations

import torch
from torch import Tensor

from ...runtime.backends.arguments import RngKey
from ...runtime.backends.edges import Attention
from ..autograd.functional import check_rows, linear
from ..graph.matrix import Adjacency, LoopFill, check_fill
from ..graph.view import GraphView, first_rows
from ..inputs.host import Input
from ..workspace import row_format
from .attention import EdgeScores, attend
from .base import Convolution, Widths
from .random import Dropout, Fill, dropped, fill_uniform, glorot


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
