"""Operations of which layers are made: sums, means and maxima of neighbours' rows, weighted sums, and edge values.

All have gradients, for rows and for edge weights, and all but `edge_softmax` are collective, like their backward. Edge
values are [E] or [E, H], in the order of ``adjacency.forward``, the plan of this rank's in-edges; `edges` returns the
ends of these edges.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import Function

from ...plan.row_ranges import owner_of
from ...plan.workload import Plan, prefix_sum
from ...runtime.exchange import Crossing
from .. import spans
from ..graph.handle import GraphHandle
from ..graph.matrix import Adjacency, index
from ..graph.view import GraphView
from ..spans import first_order, span
from ..workspace import accumulator, as_array

BYTES = 5  # bytes of a row's global number, which is below 2^40


def aggregate(
    x: Tensor,
    graph: GraphView,
    adjacency: Adjacency,
    reduce: str = "sum",
    edge_weight: Tensor | None = None,
) -> Tensor:
    """Return the sum, mean or maximum of x[u] over the in-edges u -> v of each row v, [n, F]; 0 without edges.

    x: [n, F]. reduce: "sum", "mean" or "max"; a maximum splits its gradient evenly among equal sources, as torch does.
    edge_weight: for sums, [E], or [E, H] with a weight for each of H heads into which the columns are divided. The
    adjacency's own weights and scale are not used, except for sums over a block's sampled edges, whose weights make the
    sums unbiased estimates (`Block`). Raises ValueError for another reduction, or weights that do not fit.
    """
    out: Tensor
    if edge_weight is not None:
        if reduce != "sum":
            raise ValueError(f"edge weights are of sums, and reduce is {reduce!r}")
        edges, shape = adjacency.forward.edges, list(edge_weight.shape)
        heads = shape[1] if len(shape) == 2 else 1
        if len(edge_weight) != edges or len(shape) > 2 or heads < 1 or x.shape[1] % heads:
            raise ValueError(f"edge weights are {shape}, for {edges} edges and rows of {x.shape[1]} columns")
        by_head = edge_weight.reshape(edges, heads).to(accumulator(x.dtype)).contiguous()
        out = _EdgeForm.apply(x, by_head, None, graph, adjacency, heads)
    elif reduce == "max":
        out = _Maximum.apply(x, graph, adjacency, torch.is_grad_enabled())
    elif reduce in ("sum", "mean"):
        estimates = reduce == "sum" and adjacency.kind == "edges"
        summed = adjacency if estimates else unweighted(adjacency)
        out = _Sum.apply(x, graph, summed, mean_scale(graph, adjacency) if reduce == "mean" else None)
    else:
        raise ValueError(f"reduce is {reduce!r}; known are 'sum', 'mean' and 'max'")
    return out


def scaled_sum(x: Tensor, graph: GraphView, adjacency: Adjacency, scale: Tensor | None = None) -> Tensor:
    """Return scale * (A' x), [n, F], with the adjacency's own weights but not its scale. scale: [n] or None."""
    out: Tensor = _Sum.apply(x, graph, adjacency, scale)
    return out


def dot_products(x: Tensor, y: Tensor, graph: GraphView, adjacency: Adjacency, heads: int = 1) -> Tensor:
    """Return out[e, h] = <x[u], y[v]> over the columns of head h for each in-edge e: u -> v. (DGL's u_dot_v.)

    x, y: [n, F]; on a block y has a row for each destination. heads: H. The result is [E, H], of the accumulator's
    type. Raises ValueError for rows that do not fit, or heads that do not divide F.
    """
    if y.shape != (graph.destinations, x.shape[1]) or heads < 1 or x.shape[1] % heads:
        raise ValueError(f"rows are {list(x.shape)} and {list(y.shape)}, for {heads} heads")
    out: Tensor = _EdgeForm.apply(x, None, y, graph, adjacency, heads)
    return out


def edge_sums(source: Tensor, target: Tensor, graph: GraphView, adjacency: Adjacency) -> Tensor:
    """Return out[e] = source[u] + target[v] for each in-edge e: u -> v; [E, H] for [n, H] each. (DGL's u_add_v.)"""
    out: Tensor = _EdgeSums.apply(source, target, graph, adjacency)
    return out


def edge_softmax(scores: Tensor, adjacency: Adjacency) -> Tensor:
    """Return the softmax of scores [E, H] over the in-edges of each destination. Not collective."""
    target = _targets(adjacency.forward, scores.device)
    count = adjacency.forward.destinations
    wide = target[:, None].expand_as(scores)
    lowest = torch.full((count, scores.shape[1]), float("-inf"), dtype=scores.dtype, device=scores.device)
    most = lowest.scatter_reduce(0, wide, scores.detach(), "amax")
    terms = torch.exp(scores - most[target])
    total = torch.zeros_like(lowest).index_add(0, target, terms)
    return terms / total[target]


def unweighted(adjacency: Adjacency) -> Adjacency:
    """Return the adjacency without weights of its edges."""
    if adjacency.forward_weight is None:
        return adjacency
    return replace(adjacency, forward_weight=None, backward_weight=None)


def mean_scale(graph: GraphView, adjacency: Adjacency) -> Tensor:
    """Return 1 / max(1, number of in-edges) of each row, [n]."""
    if adjacency.inverse_degree is not None:
        return adjacency.inverse_degree
    plan = adjacency.forward
    degree = np.bincount(plan.segments["destination"], plan.segments["count"], plan.destinations)
    scale = torch.from_numpy(1.0 / np.maximum(degree, 1.0))
    return scale.to(graph.device, accumulator(graph.dtype))


# ---- sums and maxima


class _Sum(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, graph: GraphView, adjacency: Adjacency, scale: Tensor | None) -> Tensor:
        ctx.call, ctx.layer = (graph, adjacency, scale), spans.current()
        with span("forward: aggregate"):
            return graph.aggregate(adjacency, graph.offer(x), scale=scale)

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        graph, adjacency, scale = ctx.call
        with span("backward: aggregate"):
            scaled = gradient if scale is None else gradient * scale[:, None].to(gradient.dtype)
            rows = graph.offer(scaled)
            return graph.aggregate(adjacency, rows, backward=True), None, None, None


class _Maximum(Function):
    """Maximum; backward, targets publish gradient / ties and the maximum, and sources equal to it add the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, graph: GraphView, adjacency: Adjacency, keeps: bool) -> Tensor:
        plan, rows = adjacency.forward, graph.offer(x)
        graph.publish(rows, plan)
        out = graph.workspace.rows(plan.destinations, x.shape[1], x.dtype)
        with span("forward: aggregate"):
            if not keeps or not ctx.needs_input_grad[0]:
                graph.backend.aggregate(plan, "max", rows, as_array(out))
                return out
            ties = graph.workspace.rows(plan.destinations, x.shape[1], accumulator(x.dtype))
            graph.edge_kernels.max_ties(plan, rows, as_array(out), as_array(ties))
        ctx.call, ctx.layer = (graph, adjacency), spans.current()
        ctx.save_for_backward(x, out, ties)
        return out

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        graph, adjacency = ctx.call
        x, most, ties = ctx.saved_tensors
        with span("backward: aggregate"):
            columns, plan = x.shape[1], adjacency.backward
            rows, local = graph.exchange(2 * columns, backward=True)
            torch.div(gradient, ties.clamp(min=1), out=local[:, :columns])
            local[:, columns:].copy_(most)
            graph.publish(rows, plan)
            back = graph.workspace.rows(len(x), columns, x.dtype)
            graph.edge_kernels.max_back(plan, rows, as_array(x.contiguous()), as_array(back))
            return back, None, None, None


# ---- values of edges


class _EdgeForm(Function):
    """A derivative of T(x, w, y) = sum over edges e: u -> v and heads of w[e] <x[u], y[v]>, which is linear in each.

    Of x, w [E, H] and y one is None: the derivative by it is returned, which is a weighted sum for y, and dot products
    for w. So the gradients of the other two are derivatives of the same T, with the gradient in the place of None.
    """

    @staticmethod
    def forward(ctx: Any, x, w, y, graph: GraphView, adjacency: Adjacency, heads: int):  # type: ignore[no-untyped-def]
        ctx.call, ctx.layer = (graph, adjacency, heads), spans.current()
        ctx.save_for_backward(x, w, y)
        with span("forward: dot products" if w is None else "forward: aggregate"):
            return _derivative(x, w, y, "w" if w is None else "y", graph, adjacency, heads)

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor):  # type: ignore[no-untyped-def]
        x, w, y = ctx.saved_tensors
        with span("backward: dot products" if w is None else "backward: aggregate"):
            w, y = (gradient.contiguous(), y) if w is None else (w, gradient)
            wanted = zip("xwy", ctx.needs_input_grad, strict=False)
            found = [_derivative(x, w, y, by, *ctx.call) if needed else None for by, needed in wanted]
        return *found, None, None, None


def _derivative(
    x: Tensor, w: Tensor, y: Tensor, by: str, graph: GraphView, adjacency: Adjacency, heads: int
) -> Tensor:
    """Return the derivative of `_EdgeForm`'s T by "x", "w" or "y", which does not depend on this argument."""
    if by == "w":
        return _products(graph, adjacency.forward, x, y, heads)
    if by == "y":
        plan, rows = adjacency.forward, graph.offer(x)
    else:
        w = _to_sources(graph, adjacency, w)
        plan, rows = adjacency.backward, graph.offer(y)
    graph.publish(rows, plan)
    out = graph.workspace.rows(plan.destinations, rows.format.dim, graph.dtype)
    graph.edge_kernels.weighted(plan, rows, as_array(w), as_array(out))
    return out


class _EdgeSums(Function):
    """Sums of both ends of edges; values of sources are fetched as dot products of each column with 1."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, target: Tensor, graph: GraphView, adjacency: Adjacency) -> Tensor:
        ctx.call, ctx.layer = (graph, adjacency, source.dtype, target.dtype), spans.current()
        with span("forward: edge sums"):
            ones = torch.ones(graph.destinations, source.shape[1], dtype=source.dtype, device=source.device)
            out = _products(graph, adjacency.forward, source, ones, source.shape[1])
            return out.add_(target.to(out.dtype)[_targets(adjacency.forward, out.device)])

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        graph, adjacency, source_type, target_type = ctx.call
        with span("backward: edge sums"):
            crossed = _to_sources(graph, adjacency, gradient.contiguous())
            of_sources = _sums_by_target(adjacency.backward, crossed)
            of_targets = _sums_by_target(adjacency.forward, gradient)
        return of_sources.to(source_type), of_targets.to(target_type), None, None


def _products(graph: GraphView, plan: Plan, x: Tensor, y: Tensor, heads: int) -> Tensor:
    """Return <x[u], y[v]> by head for each edge of a plan, [E, heads]."""
    rows = graph.offer(x)
    graph.publish(rows, plan)
    out = torch.empty(plan.edges, heads, dtype=accumulator(graph.dtype), device=graph.device)
    graph.edge_kernels.sddmm(plan, rows, as_array(y.contiguous()), as_array(out))
    return out


# ---- ends of edges


def edges(graph: GraphView, adjacency: Adjacency, *, backward: bool = False) -> NDArray[np.int64]:
    """Return int64 [2, E]: source and destination of this rank's or block's in-edges, in the order of edge values.

    Rows are numbered as in the whole graph. backward: return this rank's out-edges v <- u as (v, u). Collective: each
    row publishes the bytes of its own number, so this works for every transfer.
    """
    plan = adjacency.backward if backward else adjacency.forward
    own = torch.from_numpy(graph.numbers)
    published = own[: graph.destinations] if backward else own
    digits = [published >> (8 * place) & 255 for place in range(BYTES)]  # exact in any type of rows
    x = torch.stack(digits, 1).to(graph.device, graph.dtype)
    ones = torch.ones(plan.destinations, BYTES, dtype=x.dtype, device=x.device)
    found = _products(graph, plan, x, ones, BYTES).cpu().to(torch.int64)
    source = sum(found[:, place] << (8 * place) for place in range(BYTES))
    target = own[_targets(plan, graph.device).cpu()]
    return np.stack([cast(Tensor, source).numpy(), target.numpy()])


_target_of: WeakKeyDictionary[Plan, Tensor] = WeakKeyDictionary()


def _targets(plan: Plan, device: torch.device | str) -> Tensor:
    """Return the destination row of each of a plan's edges, int64 [E]. device: the backend's."""
    if plan not in _target_of:
        segments = plan.segments[np.argsort(plan.segments["first_edge"], kind="stable")]
        target = np.repeat(segments["destination"].astype(np.int64), segments["count"])
        with torch.inference_mode(False):
            _target_of[plan] = torch.from_numpy(target).to(device)
    return _target_of[plan]


def _sums_by_target(plan: Plan, values: Tensor) -> Tensor:
    """Return for each row the sum of its edges' values [E, H]: [destinations, H]."""
    out = torch.zeros(plan.destinations, values.shape[1], dtype=values.dtype, device=values.device)
    return out.index_add_(0, _targets(plan, values.device), values)


_crossings: WeakKeyDictionary[Plan, Crossing] = WeakKeyDictionary()


def _to_sources(graph: GraphView, adjacency: Adjacency, values: Tensor) -> Tensor:
    """Return the values [E', H] of this rank's out-edges, from all ranks' values of in-edges. Collective."""
    if adjacency.positions is not None:
        return values[index(adjacency.positions, values)]
    if adjacency.forward not in _crossings:
        assert isinstance(graph, GraphHandle)  # a block's adjacencies have `positions`
        bounds = prefix_sum(graph.counts)
        source, target = edges(graph, adjacency)
        tail, head = edges(graph, adjacency, backward=True)  # of out-edges u -> v: v and u
        owners, readers = owner_of(bounds, source), owner_of(bounds, tail)
        _crossings[adjacency.forward] = (
            Crossing(  # both ends sort their common edges by source, then destination
                send=np.lexsort((target, source, owners)),
                counts=np.bincount(owners, minlength=graph.ranks),
                received=np.argsort(np.lexsort((tail, head, readers))),
                arriving=np.bincount(readers, minlength=graph.ranks),
            )
        )
    if graph.comm is None and graph.ranks > 1:
        raise ValueError("values of edges cross between ranks, and the handle was made without comm=")
    carried = _crossings[adjacency.forward].carry(graph.comm, values.detach().cpu().numpy())
    return torch.from_numpy(carried).to(values.device)
