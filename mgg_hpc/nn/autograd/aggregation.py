"""Sums, means and maxima of neighbours' rows, sums with a weight for each edge, and edge weights from rows: for layers
of one's own. All of them have gradients, for rows and for weights, and all are collective, their backward too.

Values of edges are [E] or [E, H] in the order of ``adjacency.forward``, the plan of this rank's in-edges; `edges`
returns the ends of these edges.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...plan.row_ranges import owner_of
from ...plan.workload import Plan, prefix_sum
from ...runtime import exchange
from ...runtime.backends.arguments import Rows
from .. import spans
from ..first_order import first_order
from ..graph.handle import GraphHandle
from ..graph.matrix import Adjacency
from ..graph.view import GraphView
from ..spans import span
from ..workspace import accumulator, as_array

BYTES = 5  # bytes of a row's global number, which is below 2^40


def aggregate(
    x: Tensor,
    graph: GraphView,
    adjacency: Adjacency,
    reduce: str = "sum",
    edge_weight: Tensor | None = None,
) -> Tensor:
    """Return out[v] = the sum, mean or maximum over in-edges u -> v of x[u]; [n, F] for rows x [n, F]. No edges: 0.

    A maximum splits its gradient evenly among the sources that reach it, as torch does. edge_weight: for sums, [E], or
    [E, H] where H divides the columns among heads. The adjacency's own weights and scale are not applied, but for sums
    over a block's sampled edges, whose weights make them estimates of the sums over all edges (`Block`). Raises
    ValueError for another reduction, or weights that do not fit.
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
        out = _Weighted.apply(x, by_head, graph, adjacency)
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
    """Return scale * (A' x), [n, F], with the adjacency's own weights, but not its scale. scale: [n], or None."""
    out: Tensor = _Sum.apply(x, graph, adjacency, scale)
    return out


def dot_products(x: Tensor, y: Tensor, graph: GraphView, adjacency: Adjacency, heads: int = 1) -> Tensor:
    """Return out[e, head] = <x[u], y[v]> over the head's columns for each in-edge e: u -> v; [E, H], accumulator type.

    x, y: [n, F]; of a block y has a row for each destination. (DGL's u_dot_v; a sampled dense-dense product.) Raises
    ValueError for rows that do not fit, or heads that do not divide F.
    """
    if y.shape != (graph.destinations, x.shape[1]) or heads < 1 or x.shape[1] % heads:
        raise ValueError(f"rows are {list(x.shape)} and {list(y.shape)}, for {heads} heads")
    out: Tensor = _DotProducts.apply(x, y, graph, adjacency, heads)
    return out


def edge_sums(source: Tensor, target: Tensor, graph: GraphView, adjacency: Adjacency) -> Tensor:
    """Return out[e] = source[u] + target[v] for each in-edge e: u -> v; [E, H] for [n, H] each. (DGL's u_add_v.)

    Each distinct remote source sends H values.
    """
    out: Tensor = _EdgeSums.apply(source, target, graph, adjacency)
    return out


def edge_softmax(scores: Tensor, adjacency: Adjacency) -> Tensor:
    """Return exp(scores[e]) over the sum of exp(scores) of all in-edges of e's destination; [E, H]. Not collective."""
    target = _targets(adjacency.forward, scores.device)
    count = adjacency.forward.destinations
    index = target[:, None].expand_as(scores)
    lowest = torch.full((count, scores.shape[1]), float("-inf"), dtype=scores.dtype, device=scores.device)
    most = lowest.scatter_reduce(0, index, scores.detach(), "amax")
    terms = torch.exp(scores - most[target])
    total = torch.zeros_like(lowest).index_add(0, target, terms)
    return terms / total[target]


# ---- sums and maxima


def mean_scale(graph: GraphView, adjacency: Adjacency) -> Tensor:
    """Return [n]: one over the number of in-edges, 1 where there are none."""
    if adjacency.inverse_degree is not None:
        return adjacency.inverse_degree
    plan = adjacency.forward
    degree = np.bincount(plan.segments["destination"], plan.segments["count"], plan.destinations)
    scale = torch.from_numpy(1.0 / np.maximum(degree, 1.0))
    return scale.to(graph.device, accumulator(graph.dtype))


class _Sum(torch.autograd.Function):
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


class _Maximum(torch.autograd.Function):
    """Maximum; backward, targets publish gradient / ties and maximum, and sources equal to it take the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, graph: GraphView, adjacency: Adjacency, keeps: bool) -> Tensor:
        plan, rows = adjacency.forward, graph.offer(x)
        graph.publish(rows, plan)
        out = graph.workspace.rows(plan.destinations, x.shape[1], x.dtype)
        with span("forward: aggregate"):
            if not keeps or not ctx.needs_input_grad[0]:
                graph.backend.aggregate(plan, "copy", "max", rows, as_array(out))
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
            back = graph.workspace.rows(len(x), x.shape[1], x.dtype)
            graph.edge_kernels.max_back(plan, rows, as_array(x.contiguous()), as_array(back))
            return back, None, None, None


# ---- values of edges


class _Weighted(torch.autograd.Function):
    """Weighted sum; the gradient of rows sums over out-edges, whose weights are sent to the sources' owners."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, graph: GraphView, adjacency: Adjacency) -> Tensor:
        ctx.call, ctx.layer = (graph, adjacency), spans.current()
        ctx.save_for_backward(x, weight)
        with span("forward: aggregate"):
            return _weighted_sum(graph, adjacency.forward, graph.offer(x), weight)

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        graph, adjacency = ctx.call
        x, weight = ctx.saved_tensors
        x_gradient = weight_gradient = None
        with span("backward: aggregate"):
            if ctx.needs_input_grad[0]:
                crossed = _to_sources(graph, adjacency, weight)
                x_gradient = _weighted_sum(graph, adjacency.backward, graph.offer(gradient), crossed)
            if ctx.needs_input_grad[1]:
                weight_gradient = _products(graph, adjacency.forward, x, gradient, weight.shape[1])
        return x_gradient, weight_gradient, None, None


class _DotProducts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, graph: GraphView, adjacency: Adjacency, heads: int) -> Tensor:
        ctx.call, ctx.layer = (graph, adjacency), spans.current()
        ctx.save_for_backward(x, y)
        with span("forward: dot products"):
            return _products(graph, adjacency.forward, x, y, heads)

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        graph, adjacency = ctx.call
        x, y = ctx.saved_tensors
        x_gradient = y_gradient = None
        gradient = gradient.contiguous()
        with span("backward: dot products"):
            if ctx.needs_input_grad[0]:
                crossed = _to_sources(graph, adjacency, gradient)
                x_gradient = _weighted_sum(graph, adjacency.backward, graph.offer(y), crossed)
            if ctx.needs_input_grad[1]:
                y_gradient = _weighted_sum(graph, adjacency.forward, graph.offer(x), gradient)
        return x_gradient, y_gradient, None, None, None


class _EdgeSums(torch.autograd.Function):
    """Sums by edge; a source's values reach its edges as dot products by head of its row with ones."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, target: Tensor, graph: GraphView, adjacency: Adjacency) -> Tensor:
        ctx.call, ctx.layer = (graph, adjacency, source.dtype, target.dtype), spans.current()
        with span("forward: edge sums"):
            ones = torch.ones(graph.destinations, source.shape[1], dtype=source.dtype, device=source.device)
            of_sources = _products(graph, adjacency.forward, source, ones, source.shape[1])
            index = _targets(adjacency.forward, of_sources.device)
            return of_sources.add_(target.to(of_sources.dtype)[index])

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        graph, adjacency, source_type, target_type = ctx.call
        with span("backward: edge sums"):
            crossed = _to_sources(graph, adjacency, gradient.contiguous())
            of_sources = _sums_by_target(adjacency.backward, crossed)
            of_targets = _sums_by_target(adjacency.forward, gradient)
        return of_sources.to(source_type), of_targets.to(target_type), None, None


def _weighted_sum(graph: GraphView, plan: Plan, rows: Rows, weight: Tensor) -> Tensor:
    graph.publish(rows, plan)
    out = graph.workspace.rows(plan.destinations, rows.format.dim, graph.dtype)
    graph.edge_kernels.weighted(plan, rows, as_array(weight), as_array(out))
    return out


def _products(graph: GraphView, plan: Plan, x: Tensor, y: Tensor, heads: int) -> Tensor:
    rows = graph.offer(x)
    graph.publish(rows, plan)
    out = torch.empty(plan.edges, heads, dtype=accumulator(graph.dtype), device=graph.device)
    graph.edge_kernels.sddmm(plan, rows, as_array(y.contiguous()), as_array(out))
    return out


def unweighted(adjacency: Adjacency) -> Adjacency:
    """Return the adjacency without weights of its edges."""
    if adjacency.forward_weight is None:
        return adjacency
    return replace(adjacency, forward_weight=None, backward_weight=None)


# ---- which edges they are


def edges(graph: GraphView, adjacency: Adjacency, *, backward: bool = False) -> NDArray[np.int64]:
    """Return int64 [2, E]: source and destination of each edge of a plan, as rows of the whole graph. Collective.

    These are this rank's in-edges, or a block's, in the order of edge values; backward: its out-edges, from their heads
    to their tails. Each row publishes the bytes of its own number, so this works for every transfer.
    """
    plan = adjacency.backward if backward else adjacency.forward
    own = torch.from_numpy(graph.numbers)
    published = own[: graph.destinations] if backward else own
    digits = torch.stack(
        [published >> (8 * place) & 255 for place in range(BYTES)], 1
    )  # exact in any type of rows
    x = digits.to(graph.device, graph.dtype)
    ones = torch.ones(plan.destinations, BYTES, dtype=x.dtype, device=x.device)
    found = _products(graph, plan, x, ones, BYTES).cpu().to(torch.int64)
    source = sum(found[:, place] << (8 * place) for place in range(BYTES))
    target = own[_targets(plan, "cpu")]
    return np.stack([cast(Tensor, source).numpy(), target.numpy()])


_target_of: WeakKeyDictionary[Plan, dict[str, Tensor]] = WeakKeyDictionary()  # by device


def _targets(plan: Plan, device: torch.device | str) -> Tensor:
    """Return int64 [E]: the destination row, of this rank, of each of a plan's edges."""
    made = _target_of.setdefault(plan, {})
    if str(device) not in made:
        segments = plan.segments[np.argsort(plan.segments["first_edge"], kind="stable")]
        target = np.repeat(segments["destination"].astype(np.int64), segments["count"])
        made[str(device)] = torch.from_numpy(target).to(device)
    return made[str(device)]


def _sums_by_target(plan: Plan, values: Tensor) -> Tensor:
    """Return [destinations, H]: for each row the sum of its edges' values [E, H]."""
    out = torch.zeros(plan.destinations, values.shape[1], dtype=values.dtype, device=values.device)
    return out.index_add_(0, _targets(plan, values.device), values)


@dataclass(frozen=True)
class _EdgeExchange:
    """Schedule that sends values of this rank's in-edges to the owners of their sources.

    send: int64, the in-edges in the order in which they are sent. counts: int64 [P], number sent to each rank.
    received: int64, the out-edge of each value received.
    """

    send: NDArray[np.int64]
    counts: NDArray[np.int64]
    received: NDArray[np.int64]


_edge_exchanges: WeakKeyDictionary[Plan, _EdgeExchange] = WeakKeyDictionary()


def _to_sources(graph: GraphView, adjacency: Adjacency, values: Tensor) -> Tensor:
    """Exchange values [E, H] of in-edges for those of this rank's out-edges, in the order of adjacency.backward."""
    if adjacency.places is not None:
        return values[torch.from_numpy(adjacency.places).to(values.device)]
    if adjacency.forward not in _edge_exchanges:
        _edge_exchanges[adjacency.forward] = _edge_exchange(graph, adjacency)
    exchanged = _edge_exchanges[adjacency.forward]
    heads, comm = values.shape[1], graph.comm
    here = values.detach().cpu().numpy()
    going = here[exchanged.send]
    if graph.ranks == 1:
        came = going
    elif comm is None:
        raise ValueError("values of edges cross between ranks, and the handle was made without comm=")
    else:
        came = exchange.send(comm, going.reshape(-1), exchanged.counts * heads).reshape(-1, heads)
    out = np.empty((adjacency.backward.edges, heads), here.dtype)
    out[exchanged.received] = came
    return torch.from_numpy(out).to(values.device)


def _edge_exchange(graph: GraphView, adjacency: Adjacency) -> _EdgeExchange:
    """Make the schedule of `_to_sources`: both ends sort their common edges by source, then destination. Collective."""
    assert isinstance(graph, GraphHandle)  # a block's adjacencies have `places`
    bounds = prefix_sum(graph.counts)
    source, target = edges(graph, adjacency)
    tail, head = edges(graph, adjacency, backward=True)  # of out-edges u -> v: v and u
    send = np.lexsort((target, source, owner_of(bounds, source)))
    received = np.lexsort((tail, head, owner_of(bounds, tail)))
    return _EdgeExchange(send, np.bincount(owner_of(bounds, source), minlength=graph.ranks), received)
