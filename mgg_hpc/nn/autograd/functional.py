"""Aggregation with gradients: transform and aggregate share one autograd function, so that the transform writes
straight into memory that peers read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...runtime.backends.arguments import RngKey, Rows
from .. import spans
from ..first_order import first_order
from ..graph.handle import Adjacency, GraphHandle
from ..inputs.host import HostFeatures, Input
from ..inputs.sparse import SparseFeatures
from ..spans import span
from .activation import drop, through_relu, times_kept


def transform_first(in_channels: int, out_channels: int, needs_input_gradient: bool) -> bool:
    """Return whether A (x W^T) moves fewer values than (A x) W^T, forward and, where it exchanges, backward.

    With the transform first both directions exchange rows of ``out_channels``; otherwise ``in_channels``, and
    nothing backward if nobody wants the gradient of x.
    """
    return 2 * out_channels <= (2 if needs_input_gradient else 1) * in_channels


@dataclass(frozen=True)
class _Call:
    """Arguments of a convolution beside its tensors.

    features: the input where it is not a tensor, else None. before, after: [n] or None, what rows are scaled
    by before they are summed, and what their sums are scaled by. draw: of dropout behind the ReLU. training: whether
    gradients are wanted at all, which a Function does not know of itself.
    """

    features: SparseFeatures | HostFeatures | None
    graph: GraphHandle
    adjacency: Adjacency
    before: Tensor | None
    after: Tensor | None
    relu: bool
    draw: RngKey | None
    training: bool


class _Convolution(torch.autograd.Function):
    """act((L A R + (1 + eps) I) x W^T + x V^T + b), L and R the diagonals call.after and call.before.

    Without eps there is no I, without V (``root``) no second product; with eps there are neither L nor R. The backward
    of the aggregation is the aggregation over the transposed plan: R A^T L.
    """

    @staticmethod
    def forward(ctx: Any, x, weight, bias, root, eps, call: _Call):  # type: ignore[no-untyped-def]
        graph, adjacency, features = call.graph, call.adjacency, call.features
        out_channels, in_channels = weight.shape
        # In evaluation too the narrower rows move; of equal ones x, which need not be copied on one rank.
        wants_input = ctx.needs_input_grad[0] or (not call.training and out_channels < in_channels)
        has_rows = features is None or features.on_device
        first = not has_rows or transform_first(in_channels, out_channels, wants_input)
        if features is not None and not first:
            # For as long as the forward takes; a gradient as wide finds room there afterwards.
            x = features.written(graph.workspace.rows(*features.shape, features.dtype))
        fused = call.relu and first and root is None and eps is None
        aggregated = None
        if first:
            rows, local = graph.exchange(out_channels)
            with span("forward: transform"):
                _multiply(x, features, weight, local, call.before)
            with span("forward: aggregate"):
                out = graph.aggregate(adjacency, rows, scale=call.after, bias=bias, relu=fused)
            _add_own(out, local, eps)
        else:
            with span("forward: scale"):
                rows = _scaled_rows(x, call.before, graph)
            with span("forward: aggregate"):
                aggregated = graph.aggregate(adjacency, rows, scale=call.after)
            _add_own(aggregated, x, eps)
            with span("forward: transform"):
                out = graph.workspace.rows(len(x), out_channels, x.dtype)
                torch.mm(aggregated, weight.to(x.dtype).t(), out=out)
                out = out if bias is None else out.add_(bias)
        if root is not None:
            with span("forward: transform own rows"):
                _add_product(x, features, root, out, graph)
        if call.relu and not fused:
            out.relu_()
        drop(out, graph, call.draw)
        ctx.first, ctx.call, ctx.layer = first, call, spans.current()
        needs_x = first or root is not None or ctx.needs_input_grad[4]
        kept = x if needs_x and features is None else None
        ctx.save_for_backward(kept, aggregated, weight, root, eps, out if call.relu else None)
        return out

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor):  # type: ignore[no-untyped-def]
        with spans.layer(ctx.layer):
            call: _Call = ctx.call
            x, aggregated, weight, root, eps, out = ctx.saved_tensors
            draw = call.draw  # what it scales by is left to the weights and their gradients, which are small
            wants_x, wants_weight, wants_bias, wants_root, wants_eps, _ = ctx.needs_input_grad
            rows, local = call.graph.exchange(gradient.shape[1]) if ctx.first else (None, None)
            with span("backward: bias and ReLU"):
                # Where nobody needs the gradient beside what is published, it goes there at once.
                gradient = through_relu(gradient, out, call.graph, local if root is None else None)
                bias_gradient = times_kept(gradient.sum(0, dtype=weight.dtype), draw) if wants_bias else None
            if rows is not None and local is not None:
                back = _aggregated_back(gradient, rows, local, eps, call)
                with span("backward: transform"):
                    weight_gradient = _product_gradient(back, x, call.features) if wants_weight else None
                    x_gradient = _times(back, times_kept(weight, draw), call.graph) if wants_x else None
            else:
                with span("backward: transform"):
                    weight_gradient = gradient.t() @ aggregated if wants_weight else None
                x_gradient = (
                    _transformed_back(gradient, times_kept(weight, draw), eps, call) if wants_x else None
                )
            root_gradient = eps_gradient = None
            if root is not None and x_gradient is not None:
                with span("backward: transform own rows"):
                    x_gradient.addmm_(gradient, times_kept(root, draw).to(gradient.dtype))
            if wants_root or wants_eps:
                with span("backward: transform own rows"):
                    own = times_kept(_product_gradient(gradient, x, call.features).to(weight.dtype), draw)
                    root_gradient = own if wants_root else None
                    eps_gradient = (own * weight).sum().reshape(eps.shape) if wants_eps else None
            if weight_gradient is not None:
                weight_gradient = times_kept(weight_gradient.to(weight.dtype), draw)
            return x_gradient, weight_gradient, bias_gradient, root_gradient, eps_gradient, None


def _aggregated_back(gradient: Tensor, rows: Rows, local: Tensor, eps: Tensor | None, call: _Call) -> Tensor:
    """(R A^T L + (1 + eps) I) gradient: what comes back to the transformed rows. gradient may be ``local``."""
    with span("backward: scale"):
        if gradient is not local:
            _scaled(gradient, call.after, local)
        elif call.after is not None:
            local.mul_(call.after[:, None])
    with span("backward: aggregate"):
        back = call.graph.aggregate(call.adjacency, rows, scale=call.before, backward=True)
    return _add_own(back, gradient, eps)


def _transformed_back(gradient: Tensor, weight: Tensor, eps: Tensor | None, call: _Call) -> Tensor:
    """(R A^T L + (1 + eps) I) (gradient W): what comes back to rows that were aggregated before their transform."""
    rows, local = call.graph.exchange(weight.shape[1])
    with span("backward: transform"):
        torch.mm(gradient, weight.to(gradient.dtype), out=local)
        if call.after is not None:
            local.mul_(call.after[:, None])
    with span("backward: aggregate"):
        back = call.graph.aggregate(call.adjacency, rows, scale=call.before, backward=True)
    return _add_own(back, local, eps)


class _Linear(torch.autograd.Function):
    """act(x W^T + b) into rows of the workspace."""

    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx: Any, x, weight, bias, features, graph: GraphHandle, relu: bool, draw: RngKey | None
    ):
        rows = (x if features is None else features).shape[0]
        with span("forward: transform"):
            out = graph.workspace.rows(rows, len(weight), graph.dtype)
            if features is None and bias is not None:
                torch.addmm(bias.to(x.dtype), x, weight.to(x.dtype).t(), out=out)
            else:
                _multiply(x, features, weight, out, None)
                out = out if bias is None else out.add_(bias)
            if relu:
                out.relu_()
        drop(out, graph, draw)
        ctx.features, ctx.graph, ctx.layer, ctx.draw = features, graph, spans.current(), draw
        ctx.save_for_backward(x, weight, out if relu else None)
        return out

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor):  # type: ignore[no-untyped-def]
        with spans.layer(ctx.layer), span("backward: transform"):
            x, weight, out = ctx.saved_tensors
            wants_x, wants_weight, wants_bias = ctx.needs_input_grad[:3]
            gradient = through_relu(gradient, out, ctx.graph)
            bias_gradient = times_kept(gradient.sum(0, dtype=weight.dtype), ctx.draw) if wants_bias else None
            weight_gradient = None
            if wants_weight:
                product = _product_gradient(gradient, x, ctx.features)
                weight_gradient = times_kept(product.to(weight.dtype), ctx.draw)
            x_gradient = _times(gradient, times_kept(weight, ctx.draw), ctx.graph) if wants_x else None
            return x_gradient, weight_gradient, bias_gradient, None, None, None, None


def _multiply(x: Tensor | None, features: Any, weight: Tensor, out: Tensor, scale: Tensor | None) -> None:
    """out = scale * (x W^T), of rows or of features."""
    if x is None:
        features.times_transposed(weight, out, scale)
        return
    torch.mm(x, weight.to(x.dtype).t(), out=out)
    if scale is not None:
        out.mul_(scale[:, None])


def _add_product(x: Tensor | None, features: Any, weight: Tensor, out: Tensor, graph: GraphHandle) -> None:
    """out += x W^T."""
    if x is None:
        product = graph.workspace.rows(len(out), len(weight), out.dtype)
        features.times_transposed(weight, product)
        out.add_(product)
    else:
        out.addmm_(x, weight.to(x.dtype).t())


def _product_gradient(gradient: Tensor, x: Tensor | None, features: Any) -> Tensor:
    """Return the gradient of W in x W^T."""
    return features.gradient(gradient) if x is None else gradient.t() @ x


def _times(gradient: Tensor, weight: Tensor, graph: GraphHandle) -> Tensor:
    """Return the gradient of x in x W^T, in rows of the workspace."""
    out = graph.workspace.rows(len(gradient), weight.shape[1], gradient.dtype)
    return torch.mm(gradient, weight.to(gradient.dtype), out=out)


def _add_own(sums: Tensor, own: Tensor, eps: Tensor | None) -> Tensor:
    """sums + (1 + eps) own, in place."""
    return sums if eps is None else sums.addcmul_(own, (1 + eps).to(own.dtype))


def _scaled_rows(x: Tensor, scale: Tensor | None, graph: GraphHandle) -> Rows:
    if scale is None:
        return graph.offer(x)
    rows, local = graph.exchange(x.shape[1])
    _scaled(x, scale, local)
    return rows


def _scaled(x: Tensor, scale: Tensor | None, out: Tensor) -> None:
    if scale is None:
        out.copy_(x)
    else:
        torch.mul(x, scale[:, None], out=out)


def _convolution(
    x: Input,
    tensors: tuple[Tensor, Tensor | None, Tensor | None, Tensor | None],
    graph: GraphHandle,
    adjacency: Adjacency,
    ends: tuple[Tensor | None, Tensor | None],
    relu: bool,
    draw: RngKey | None,
) -> Tensor:
    """tensors: weight, bias, root, eps. ends: what rows are scaled by before and after they are summed."""
    check_rows(x, graph)
    dense, features = _checked(x, tensors[0])
    training = torch.is_grad_enabled()  # within a Function it never is
    call = _Call(features, graph, adjacency, *ends, relu, draw if relu else None, training)
    out: Tensor = _Convolution.apply(dense, *tensors, call)
    return out


def check_rows(x: Input, graph: GraphHandle) -> None:
    """Raise ValueError for rows of another number or type than the graph's on this rank."""
    if x.shape[0] != graph.rows:
        raise ValueError(f"x has {x.shape[0]} rows, and this rank {graph.rows}")
    if x.dtype != graph.dtype:
        raise ValueError(f"x is of {x.dtype}, and the graph of {graph.dtype}")


def _checked(x: Input, weight: Tensor) -> tuple[Tensor | None, SparseFeatures | HostFeatures | None]:
    """(rows, None), or (None, features). Raises ValueError for another width."""
    if x.shape[1] != weight.shape[1]:
        raise ValueError(f"x has {x.shape[1]} features, but the weight is for {weight.shape[1]}")
    return (x, None) if isinstance(x, Tensor) else (None, x)


def graph_convolution(
    x: Input,
    weight: Tensor,
    bias: Tensor | None,
    graph: GraphHandle,
    adjacency: Adjacency,
    *,
    relu: bool = False,
    draw: RngKey | None = None,
) -> Tensor:
    """act(S A S x W^T + b), S the adjacency's scale, for rows x [n, in], weight [out, in], bias [out]: [n, out].

    draw: of dropout behind the ReLU, without which there is none.
    Rows are of the graph's dtype; with half rows products are taken in it too, and weight and bias are float32.
    Collective: all ranks call it in the same order, and their backward passes too. Gradients of parameters are this
    rank's part; `training` sums them. Raises ValueError for rows of another width than the weight's, or of another
    number or type than the graph's.
    """
    ends = adjacency.scale, adjacency.scale
    return _convolution(x, (weight, bias, None, None), graph, adjacency, ends, relu, draw)


def sampled_convolution(
    x: Input,
    weight: Tensor,
    bias: Tensor | None,
    root: Tensor | None,
    graph: GraphHandle,
    adjacency: Adjacency,
    *,
    mean: bool,
    relu: bool = False,
    draw: RngKey | None = None,
) -> Tensor:
    """act(D^-1 A x W^T + x V^T + b) as GraphSAGE has it, V the ``root`` [out, in] if any; [n, out].

    mean: else there is no D^-1. Adjacencies of kind "edges" know it. The rest as `graph_convolution`.
    """
    if mean and adjacency.inverse_degree is None:
        raise ValueError(
            f"a mean is of the graph's own edges, and this adjacency is of kind {adjacency.kind!r}"
        )
    ends = None, adjacency.inverse_degree if mean else None
    return _convolution(x, (weight, bias, root, None), graph, adjacency, ends, relu, draw)


def isomorphism_convolution(
    x: Input,
    weight: Tensor,
    bias: Tensor | None,
    eps: Tensor,
    graph: GraphHandle,
    adjacency: Adjacency,
    *,
    relu: bool = False,
    draw: RngKey | None = None,
) -> Tensor:
    """act((A + (1 + eps) I) x W^T + b), eps [1]: GIN's sum and the first linear map of its network; [n, out].

    The rest as `graph_convolution`.
    """
    return _convolution(x, (weight, bias, None, eps), graph, adjacency, (None, None), relu, draw)


def linear(
    x: Input,
    weight: Tensor,
    bias: Tensor | None,
    graph: GraphHandle,
    *,
    relu: bool = False,
    draw: RngKey | None = None,
) -> Tensor:
    """act(x W^T + b) for rows x [n, in], weight [out, in], bias [out]; [n, out]. Not collective.

    As torch.nn.functional.linear, of features too that can be multiplied only, into rows that are used again. draw: of
    dropout behind the ReLU, without which there is none. Raises ValueError for rows of another width than the weight's.
    """
    dense, features = _checked(x, weight)
    out: Tensor = _Linear.apply(dense, weight, bias, features, graph, relu, draw if relu else None)
    return out


def as_rows(x: Input, graph: GraphHandle) -> Tensor:
    """Rows [n, F]: x itself, or what features hold that can be multiplied only. Not collective.

    Raises ValueError for rows of another number or type than the graph's.
    """
    check_rows(x, graph)
    if isinstance(x, Tensor):
        return x
    return x.written(graph.workspace.rows(*x.shape, x.dtype))
