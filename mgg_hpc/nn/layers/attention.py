"""Graph attention with gradients: scores, their softmax and the weighted sum in one pass over edges per direction.

No value of an edge is kept. The backward computes the weights again from scores and the logarithms of their sums (as
Dao et al., FlashAttention, NeurIPS 2022, do for dense attention): a destination publishes its gradient, score, log-sum
and <gradient, output>, from which its sources compute their gradients.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...plan.workload import Plan
from ...runtime.backends.arguments import RngKey, Rows
from ...runtime.backends.edges import Attention, TailedRows
from .. import spans
from ..autograd.functional import check_rows, linear
from ..calls import layer_call
from ..graph.matrix import Adjacency, LoopFill, check_fill
from ..graph.view import GraphView, first_rows
from ..inputs.host import Input
from ..spans import first_order, span
from ..workspace import accumulator, as_array, row_format
from .conv import Convolution
from .networks import matrix, product
from .random import Dropout, Fill, dropped, fill_uniform, glorot

MOST_HEADS = 1024  # number of heads with different dropout draws (semantics.h, draw_edge)
ROWS_AT_ONCE = 512  # at most the rows of the smallest graph that training/footprint.py measures


class GATConv(Convolution):
    """Graph attention (Velickovic et al., ICLR 2018): sums of in-neighbours' rows h = X W^T, weighted by a softmax.

    Each of ``heads`` has ``out_channels`` columns of h. attention: with "additive" the score of an edge u -> v is
    LeakyReLU(att_src . h_u + att_dst . h_v); with "dot" it is h_u . h_v / sqrt(out_channels), as in DGL's DotGatConv.
    concat: concatenate the heads; else average them. dropout: probability that an attention weight is set to 0.
    add_self_loops: each node attends to itself once; else to the in-neighbours that the graph has, and a node without
    any gets 0. residual: add a linear map of X. edge_dim: number of columns of edge data; att_edge . (W_e data) is then
    a term of an additive score. fill_value: edge data of self loops that are added or replaced: a number, or "mean",
    "add", "min", "max" or "mul" of the node's other in-edges.

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
        if negative_slope < 0:
            raise ValueError(f"negative_slope is {negative_slope}; it must be at least 0")
        if dropout > 0 and heads > MOST_HEADS:
            raise ValueError(f"dropout of attention tells {MOST_HEADS} heads apart, and there are {heads}")
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
        # A sum and its part above 0, a maximum, and two sums of weights.
        return self.heads * (2 * self.out_channels + 3)

    def exchanged(self, products_only: bool, wants_gradient: bool, dtype: torch.dtype) -> tuple[int, int]:
        key = RngKey(0.0, seed=0, epoch=0, stream=0) if self.dropout > 0 else None
        how = Attention(self.heads, self.out_channels, self.attention == "additive", key=key)
        stored = row_format(1, dtype).dtype
        return how.forward_rows(stored).format.dim, how.backward_rows(stored).format.dim

    @layer_call
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
        """Return the layer's output, as `SumConvolution.forward` does.

        edge_attr: with edge_dim, edge data [E, edge_dim] in the order of ``graph.edge_index()``, or the name of edge
        data of the graph; "weight" names its weights. Raises ValueError for edge_dim without edge_attr, or the other
        way round, and for another number of columns.
        """
        if (edge_attr is None) != (self.edge_dim is None):
            missing = "edge_dim" if self.edge_dim is None else "edge_attr"
            raise ValueError(
                f"GATConv takes data of edges by edge_dim and edge_attr, and {missing} is missing"
            )
        adjacency = self.chosen(graph, adjacency, ordered=edge_attr is not None)
        check_rows(x, graph)
        source = target = None
        additive, wide = self.attention == "additive", accumulator(graph.dtype)
        if isinstance(matrix(self.lin), Tensor):
            h = linear(x, self._weights(), None, graph)
            if additive:
                h, source, target = h.split((self.heads * self.out_channels, self.heads, self.heads), 1)
        else:
            h = product(x, self.lin, None, graph)
            if h.shape[1] != self.heads * self.out_channels:
                raise ValueError(f"lin returns {h.shape[1]} columns, not {self.heads} x {self.out_channels}")
            if additive:
                source, target = (self._by_head(h.to(wide), att) for att in self._scores())
        if source is not None and target is not None:  # rows of halves carry their scores unrounded
            source, target = source.to(wide), target[: graph.destinations].to(wide)
        drops = self.attention_dropout.key()
        ids = None if drops is None else graph.ids
        how = Attention(self.heads, self.out_channels, additive, self.negative_slope, drops, ids)
        bias, edge = self.bias if self.concat else None, self._edge_data(graph, adjacency, edge_attr)
        keeps = torch.is_grad_enabled()  # always False within a Function
        out: Tensor = _Attention.apply(h, source, target, bias, *edge, graph, adjacency, how, keeps)
        if keeps and self.concat and bias is None and self.res is None:
            out = out.clone()  # the backward reads the sums, and the caller may change what it gets in place
        if not self.concat:
            out = out.unflatten(1, (self.heads, self.out_channels)).mean(1)
            out = out if self.bias is None else out + self.bias.to(out.dtype)
        if self.res is not None:
            out = out + product(first_rows(x, graph.destinations), matrix(self.res), None, graph)
        return dropped(out.relu(), graph, key, rectified=True) if relu else out

    def _edge_data(
        self, graph: GraphView, adjacency: Adjacency, edge_attr: Tensor | str | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return edge data of out-edges, their weights [D, H] in scores, and edge data of in-edges.

        The term of a score is att_edge . (W_e data) = data . (W_e^T att_edge).
        """
        if edge_attr is None:
            return None, None, None
        values = graph.edge_values(adjacency, edge_attr, self.fill_value)
        if values.forward.shape[1] != self.edge_dim:
            raise ValueError(
                f"edge_attr has {values.forward.shape[1]} columns, and edge_dim is {self.edge_dim}"
            )
        if not isinstance(matrix(self.lin_edge), Tensor):
            both = torch.cat([values.backward, values.forward])
            backward, forward = self._by_head(self.lin_edge(both), self.att_edge).chunk(2)
            return backward, torch.eye(self.heads, dtype=both.dtype, device=both.device), forward.detach()
        of_heads = self.lin_edge.weight.view(self.heads, self.out_channels, -1)
        weight = (self.att_edge.transpose(0, 1) @ of_heads).squeeze(1).T
        return values.backward, weight, values.forward

    def _weights(self) -> Tensor:
        """Return [heads * out + 2 heads, in]: W, and W^T att_src and W^T att_dst of each head, for the scores.

        So one product of x computes all values that are exchanged, also where x is available only in products.
        """
        of_heads = self.lin.weight.view(self.heads, self.out_channels, self.in_channels)
        scores = [(att.transpose(0, 1) @ of_heads).squeeze(1) for att in self._scores()]
        return torch.cat([self.lin.weight, *scores])

    def _by_head(self, rows: Tensor, att: Tensor) -> Tensor:
        """Return the products [n, heads] of rows [n, heads * out] with a vector of each head, [1, heads, out]."""
        return (rows.unflatten(1, (self.heads, self.out_channels)) * att).sum(2)

    def _scores(self) -> list[Tensor]:
        """Return att_src and att_dst, or nothing for dot products."""
        return [self.att_src, self.att_dst] if self.attention == "additive" else []

    def extra_repr(self) -> str:
        edge_dim = "" if self.edge_dim is None else f", edge_dim={self.edge_dim}"
        return f"{super().extra_repr()}, heads={self.heads}, attention={self.attention!r}{edge_dim}"


class _Attention(torch.autograd.Function):
    """bias + the sum over in-edges u -> v of weight(u, v) h[u] for each head; the formulas are in cuda/cpu/edges.h.

    h: [n, H C], the graph's dtype. source_score, target_score: [n, H], of the accumulator type, or None with dot
    products. bias: [H C] or None; it is the output of nodes without in-edges. out_edges, in_edges: edge data [E, D].
    edge_weight: [D, H]; the products of edge data with it are added to scores. keeps: whether a backward may follow.
    Collective on a graph: one exchange in each direction, two in the backward of dot products.
    """

    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx: Any,
        h,
        source_score,
        target_score,
        bias,
        out_edges,
        edge_weight,
        in_edges,
        graph: GraphView,
        adjacency: Adjacency,
        how: Attention,
        keeps: bool,
    ):
        plan = adjacency.forward
        n = plan.destinations
        rows = _published(graph, how.forward_rows(row_format(1, graph.dtype).dtype), [h], [source_score])
        graph.publish(rows, plan)
        kept: dict[str, Tensor] = {}
        if keeps:
            kept["log_sum"] = _values(graph, n, how.heads)
            if how.additive:
                kept["above"], kept["above_weight"] = (
                    _values(graph, n, columns) for columns in (how.columns, how.heads)
                )
        out = graph.workspace.rows(n, how.columns, graph.dtype)
        tensors = {"score": target_score} if how.additive else {"h": h[:n]}
        # The backward reads the sums without the bias, of which half rows must not be rounded with it either, and the
        # caller may change the result in place.
        later = bias is not None and (keeps or graph.dtype.itemsize == 2)
        tensors["bias"] = None if later else bias
        with span("forward: attend"):
            tensors["edge_score"] = None if in_edges is None else _edge_scores(in_edges, edge_weight)
            graph.edge_kernels.attend(plan, _at(how, plan), rows, as_array(out), **_arrays(tensors | kept))
        ctx.call, ctx.layer = (graph, adjacency, how), spans.current()
        ctx.save_for_backward(
            h, source_score, target_score, bias, out_edges, edge_weight, out, *kept.values()
        )
        if not later:
            return out
        return torch.add(out, bias.to(out.dtype), out=graph.workspace.rows(n, how.columns, graph.dtype))

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor):  # type: ignore[no-untyped-def]
        with span("backward: attend"):
            return _gradients(ctx, gradient)


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    graph, adjacency, how = ctx.call
    h, source_score, target_score, bias, out_edges, edge_weight, out, log_sum, *parts = ctx.saved_tensors
    gradient = gradient if gradient.stride(1) == 1 else gradient.contiguous()
    dot = _head_products(gradient, out, how)
    source_gradient = target_gradient = None
    back = graph.workspace.rows(len(h), how.columns, graph.dtype)
    layout = how.backward_rows(row_format(1, graph.dtype).dtype)
    own = h[: len(gradient)]
    rows, tail = ([gradient], [target_score]) if how.additive else ([gradient, own], [])
    published = _published(graph, layout, rows, [*tail, log_sum, dot])
    graph.publish(published, adjacency.backward)
    tensors: dict[str, Tensor | None] = {"h": h}

    def attend_back(plan: Plan, rows: Rows, out: Tensor, *, at_source: bool) -> None:
        arrays = _arrays(tensors)
        graph.edge_kernels.attend_back(
            plan, _at(how, plan), rows, as_array(out), at_source=at_source, **arrays
        )

    score_gradient: Tensor | None = None
    if out_edges is not None:
        scores = _edge_scores(out_edges, edge_weight)
        score_gradient = torch.empty_like(scores)
        tensors |= {"edge_score": scores, "edge_score_gradient": score_gradient}
    if how.additive:
        above, above_weight = parts
        source_gradient = _values(graph, len(h), how.heads)
        target_gradient = _head_products(gradient, above, how) - dot * above_weight
        target_gradient.mul_(1 - how.negative_slope)
        tensors |= {"score": source_score, "score_gradient": source_gradient}
    attend_back(adjacency.backward, published, back, at_source=True)
    if not how.additive:
        published = _published(graph, how.forward_rows(layout.dtype), [h], [])
        graph.publish(published, adjacency.forward)
        second = graph.workspace.rows(len(gradient), how.columns, graph.dtype)
        tensors |= {"h": own, "gradient": gradient, "log_sum": log_sum, "dot": dot}
        attend_back(adjacency.forward, published, second, at_source=False)
        back[: len(second)].add_(second)
    bias_gradient = (
        gradient.sum(0, dtype=bias.dtype) if bias is not None and ctx.needs_input_grad[3] else None
    )
    value_gradient = weight_gradient = None  # of edge data
    if score_gradient is not None:
        if ctx.needs_input_grad[4]:
            value_gradient = score_gradient @ edge_weight.to(score_gradient.dtype).T
        weight_gradient = (out_edges.T @ score_gradient).to(edge_weight.dtype)
    score_gradients = source_gradient, target_gradient, bias_gradient, value_gradient, weight_gradient
    return back, *score_gradients, None, None, None, None, None


def _at(how: Attention, plan: Plan) -> Attention:
    """Return ``how`` with its node ids cut to those of a plan's destinations."""
    return how if how.ids is None else replace(how, ids=how.ids[: plan.destinations])


def _edge_scores(values: Tensor, weight: Tensor) -> Tensor:
    """Return values [E, D] @ weight [D, H], contiguous."""
    return (values @ weight.to(values.dtype)).contiguous()


def _published(graph: GraphView, layout: TailedRows, rows: list[Tensor], tail: list[Tensor | None]) -> Rows:
    """Fill the next symmetric rows of the graph, which the caller publishes, and return them.

    A row has the columns of ``rows`` [n, any], in the graph's dtype, then those of ``tail`` [n, H], in the
    accumulator's type, without the Nones, then the node id if ``layout`` has one.
    """
    published, local = graph.exchange(layout.format.dim, backward=len(rows[0]) != graph.rows)
    at = 0
    for part in rows:
        local[:, at : at + part.shape[1]].copy_(part)
        at += part.shape[1]
    values = [each for each in tail if each is not None]
    if values or layout.with_id:
        wide = local.view(accumulator(local.dtype))
        at = layout.first
        for each in values:
            wide[:, at : at + each.shape[1]].copy_(each)
            at += each.shape[1]
        if layout.with_id:
            words = 8 // wide.dtype.itemsize
            kind = torch.int64 if words == 1 else torch.int32
            ids = torch.as_tensor(graph.ids)[: len(local)].unsqueeze(1).view(kind)
            local.view(kind)[:, at : at + words].copy_(ids)
    return published


def _head_products(a: Tensor, b: Tensor, how: Attention) -> Tensor:
    """Return [n, H]: the dot product of the rows of a and b over each head's columns, in the accumulator type.

    On CPUs ROWS_AT_ONCE rows at a time, so that their products stay in a cache.
    """
    wide, n = accumulator(a.dtype), len(a)
    out = torch.empty(n, how.heads, dtype=wide, device=a.device)
    step = ROWS_AT_ONCE if a.device.type == "cpu" else max(1, n)
    for first in range(0, n, step):
        own = slice(first, first + step)
        products = a[own].to(wide) * b[own].to(wide)
        torch.sum(products.view(-1, how.heads, how.channels), 2, out=out[own])
    return out


def _values(graph: GraphView, count: int, columns: int) -> Tensor:
    """Return an uninitialised tensor [count, columns] of the accumulator's type."""
    return torch.empty(count, columns, dtype=accumulator(graph.dtype), device=graph.device)


def _arrays(tensors: dict[str, Tensor | None]) -> dict[str, Any]:
    """Return tensors as a backend's arrays, without the Nones."""
    return {name: as_array(tensor) for name, tensor in tensors.items() if tensor is not None}
