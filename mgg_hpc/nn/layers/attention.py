"""Graph attention with gradients: scores, their softmax and the weighted sum in one pass over edges, each way.

Nothing is kept for an edge. The backward computes weights again from scores and the logarithms of their sums (as Dao
et al., FlashAttention, NeurIPS 2022, do for dense attention): a target publishes its gradient, score, log-sum and
<gradient, output>, from which its sources compute theirs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...plan.workload import Plan
from ...runtime.backends.arguments import RngKey, Rows
from ...runtime.backends.edges import Attention, TailedRows
from .. import spans
from ..graph.matrix import Adjacency, EdgeValues
from ..graph.view import GraphView
from ..spans import first_order, span
from ..workspace import accumulator, as_array, row_format

MOST_HEADS = 1024  # heads that have different dropout draws (semantics.h, draw_edge)
ROWS_AT_ONCE = 512  # not more than the smallest graph of training/footprint.py has, which predicts memory


@dataclass(frozen=True)
class EdgeScores:
    """Scores of edges that are linear in their data: values @ weight, [E, H] for values [E, D] and weight [D, H]."""

    values: EdgeValues
    weight: Tensor


def attend(
    h: Tensor,
    source_score: Tensor | None,
    target_score: Tensor | None,
    graph: GraphView,
    adjacency: Adjacency,
    heads: int,
    *,
    negative_slope: float = 0.2,
    dropout: RngKey | None = None,
    bias: Tensor | None = None,
    edge_scores: EdgeScores | None = None,
) -> Tensor:
    """Return bias + the sum over in-edges u -> v of weight(u, v) h[u] for each head; [n, H C] of this rank's rows.

    h: [n, H C], the graph's dtype. source_score, target_score: [n, H], on a block target_score of its destinations;
    without them the score of an edge is the dot product of its ends' rows over sqrt(C). dropout: key of the weights'
    dropout. bias: [H C] or None; it is the output of nodes without in-edges. edge_scores: added to those of an edge's
    ends. Collective on a graph, its backward too: one exchange forward and one backward, two with dot products. Raises
    ValueError for heads that do not divide the columns, one score without the other, scores of edges beside dot
    products, or a slope < 0.
    """
    if heads < 1 or h.shape[1] % heads:
        raise ValueError(f"{heads} heads do not divide {h.shape[1]} columns")
    if negative_slope < 0:
        raise ValueError(f"negative_slope is {negative_slope}; it must be at least 0")
    if dropout is not None and heads > MOST_HEADS:
        raise ValueError(f"dropout of attention tells {MOST_HEADS} heads apart, and there are {heads}")
    if (source_score is None) != (target_score is None):
        raise ValueError("attention takes the scores of sources and of targets, or neither")
    if edge_scores is not None and source_score is None:
        raise ValueError(
            "attention adds scores of edges to those of sources and targets, which are not given"
        )
    if source_score is not None and target_score is not None:
        wide = accumulator(h.dtype)  # rows of halves carry their scores unrounded
        source_score, target_score = source_score.to(wide), target_score.to(wide)
    ids, additive = graph.ids if dropout is not None else None, source_score is not None
    how = Attention(heads, h.shape[1] // heads, additive, negative_slope, dropout, ids)
    keeps = torch.is_grad_enabled()  # always False within a Function
    values, weight = (edge_scores.values, edge_scores.weight) if edge_scores else (None, None)
    of_edges = (values.backward, weight, values.forward) if values else (None, None, None)
    out: Tensor = _Attention.apply(
        h, source_score, target_score, bias, *of_edges, graph, adjacency, how, keeps
    )
    return out


class _Attention(torch.autograd.Function):
    """`attend`; the formulas are in cuda/cpu/edges.h."""

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
        rows = _published(graph, how.forward_rows(row_format(1, graph.dtype).dtype), [h], [source_score], how)
        graph.publish(rows, plan)
        kept: dict[str, Tensor] = {}
        if keeps:
            kept["log_sum"] = _values(graph, n, how.heads)
            if how.additive:
                kept["above"], kept["above_weight"] = (
                    _values(graph, n, columns) for columns in (how.columns, how.heads)
                )
        out = graph.workspace.rows(n, how.columns, graph.dtype)
        given = {"score": target_score} if how.additive else {"h": h[:n]}
        # The backward subtracts values as large as the sums, so half rows must not be rounded with the bias in them.
        later = bias is not None and graph.dtype.itemsize == 2
        given["bias"] = None if later else bias
        with span("forward: attend"):
            given["edge_score"] = None if in_edges is None else _edge_scores(in_edges, edge_weight)
            graph.edge_kernels.attend(plan, _at(how, plan), rows, as_array(out), **_arrays(given | kept))
        ctx.call, ctx.layer, ctx.biased = (graph, adjacency, how), spans.current(), not later
        ctx.save_for_backward(
            h, source_score, target_score, bias, out_edges, edge_weight, out, *kept.values()
        )
        return out + bias.to(out.dtype) if later else out

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor):  # type: ignore[no-untyped-def]
        with span("backward: attend"):
            return _gradients(ctx, gradient)


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    graph, adjacency, how = ctx.call
    h, source_score, target_score, bias, out_edges, edge_weight, out, log_sum, *parts = ctx.saved_tensors
    gradient = gradient if gradient.stride(1) == 1 else gradient.contiguous()
    dot = _head_products(gradient, out, how, bias if ctx.biased else None)
    source_gradient = target_gradient = None
    back = graph.workspace.rows(len(h), how.columns, graph.dtype)
    layout = how.backward_rows(row_format(1, graph.dtype).dtype)
    own = h[: len(gradient)]
    rows, tail = ([gradient], [target_score]) if how.additive else ([gradient, own], [])
    published = _published(graph, layout, rows, [*tail, log_sum, dot], how)
    graph.publish(published, adjacency.backward)
    given: dict[str, Tensor | None] = {"h": h}
    of_edges: Tensor | None = None
    if out_edges is not None:
        scores = _edge_scores(out_edges, edge_weight)
        of_edges = torch.empty_like(scores)
        given |= {"edge_score": scores, "edge_score_gradient": of_edges}
    if how.additive:
        above, above_weight = parts
        source_gradient = _values(graph, len(h), how.heads)
        target_gradient = _head_products(gradient, above, how) - dot * above_weight
        target_gradient.mul_(1 - how.negative_slope)
        given |= {"score": source_score, "score_gradient": source_gradient}
    _attend_back(graph, adjacency.backward, how, published, back, given, at_source=True)
    if not how.additive:
        published = _published(graph, how.forward_rows(layout.dtype), [h], [], how)
        graph.publish(published, adjacency.forward)
        second = graph.workspace.rows(len(gradient), how.columns, graph.dtype)
        given |= {"h": own, "gradient": gradient, "log_sum": log_sum, "dot": dot}
        _attend_back(graph, adjacency.forward, how, published, second, given, at_source=False)
        back[: len(second)].add_(second)
    bias_gradient = (
        gradient.sum(0, dtype=bias.dtype) if bias is not None and ctx.needs_input_grad[3] else None
    )
    by_edge = _of_edge_scores(ctx, out_edges, edge_weight, of_edges)
    return back, source_gradient, target_gradient, bias_gradient, *by_edge, None, None, None, None, None


def _attend_back(
    graph: GraphView,
    plan: Plan,
    how: Attention,
    rows: Rows,
    out: Tensor,
    given: dict[str, Tensor | None],
    *,
    at_source: bool,
) -> None:
    """Call `EdgeKernels.attend_back` with tensors."""
    graph.edge_kernels.attend_back(
        plan, _at(how, plan), rows, as_array(out), at_source=at_source, **_arrays(given)
    )


def _at(how: Attention, plan: Plan) -> Attention:
    """Return the attention with the ids of a plan's destinations alone."""
    return how if how.ids is None else replace(how, ids=how.ids[: plan.destinations])


def _edge_scores(values: Tensor, weight: Tensor) -> Tensor:
    """Return values [E, D] @ weight [D, H], contiguous."""
    return (values @ weight.to(values.dtype)).contiguous()


def _of_edge_scores(
    ctx: Any, values: Tensor | None, weight: Tensor, gradient: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of `_edge_scores`' values, if these are wanted, and of its weight."""
    if values is None or gradient is None:
        return None, None
    of_values = gradient @ weight.to(gradient.dtype).T if ctx.needs_input_grad[4] else None
    return of_values, (values.T @ gradient).to(weight.dtype)


def _published(
    graph: GraphView, layout: TailedRows, rows: list[Tensor], tail: list[Tensor | None], how: Attention
) -> Rows:
    """Return the next symmetric rows, filled: ``rows`` [n, any] side by side, then ``tail`` [n, H] each, then ids."""
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


def _head_products(a: Tensor, b: Tensor, how: Attention, less: Tensor | None = None) -> Tensor:
    """Return [n, H] of the accumulator: the dot product of the rows of a and b - less over each head's columns.

    CPUs take some rows at a time, whose products stay in a cache.
    """
    wide, n = accumulator(a.dtype), len(a)
    out = torch.empty(n, how.heads, dtype=wide, device=a.device)
    step = ROWS_AT_ONCE if a.device.type == "cpu" else max(1, n)
    for first in range(0, n, step):
        own = slice(first, first + step)
        right = b[own].to(wide)
        products = a[own].to(wide) * (right if less is None else right - less.to(wide))
        torch.sum(products.view(-1, how.heads, how.channels), 2, out=out[own])
    return out


def _values(graph: GraphView, count: int, columns: int) -> Tensor:
    """Allocate [count, columns] of the accumulator, uninitialised."""
    return torch.empty(count, columns, dtype=accumulator(graph.dtype), device=graph.device)


def _arrays(given: dict[str, Tensor | None]) -> dict[str, Any]:
    """Return tensors as arrays that a backend takes, without those that are None."""
    return {name: as_array(tensor) for name, tensor in given.items() if tensor is not None}
