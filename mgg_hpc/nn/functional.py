"""Aggregation with gradients: transform and aggregate share one autograd function, so that the transform writes
straight into memory that peers read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .features import SparseFeatures
from .graph import Adjacency, GraphHandle


def transform_first(in_channels: int, out_channels: int, needs_input_gradient: bool) -> bool:
    """Whether A (x W^T) moves fewer values than (A x) W^T: forward, and backward where that exchanges at all.

    With the transform first both directions exchange rows of ``out_channels``; otherwise ``in_channels``, and
    nothing backward if nobody wants the gradient of x.
    """
    return 2 * out_channels <= (2 if needs_input_gradient else 1) * in_channels


class _Convolution(torch.autograd.Function):
    """act(S A S x W^T + b), S the diagonal of adjacency.scale.

    The backward of the aggregation is the aggregation over the transposed plan: S A^T S.
    """

    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx: Any, x, features, weight, bias, graph: GraphHandle, adjacency: Adjacency, relu: bool
    ):
        out_channels, in_channels = weight.shape
        training = ctx.needs_input_grad[2]
        wants_input = ctx.needs_input_grad[0] or not training
        first = features is not None or transform_first(in_channels, out_channels, wants_input)
        aggregated = None
        if first:
            rows, local = graph.exchange(out_channels)
            if features is not None:
                features.times_transposed(weight, local, adjacency.scale)
            else:
                torch.mm(x, weight.t(), out=local)
                _scale(local, adjacency)
            out = graph.aggregate(adjacency, rows, bias=bias, relu=relu)
        else:
            rows, local = graph.exchange(in_channels)
            _scaled(x, adjacency, local)
            aggregated = graph.aggregate(adjacency, rows)
            out = graph.workspace.rows(len(x), out_channels, x.dtype)
            torch.mm(aggregated, weight.t(), out=out)
            out = out if bias is None else out.add_(bias)
            out = out.relu_() if relu else out
        ctx.first, ctx.relu, ctx.graph, ctx.adjacency, ctx.features = first, relu, graph, adjacency, features
        ctx.save_for_backward(x if first else aggregated, weight, out if relu else None)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor):  # type: ignore[no-untyped-def]
        kept, weight, out = ctx.saved_tensors
        wants_x, _, wants_weight, wants_bias = ctx.needs_input_grad[:4]
        graph, adjacency = ctx.graph, ctx.adjacency
        if ctx.relu:
            passed = graph.workspace.rows(out.shape[0], out.shape[1], out.dtype)
            gradient = torch.ops.aten.threshold_backward.grad_input(gradient, out, 0, grad_input=passed)
        x_gradient = weight_gradient = None
        bias_gradient = gradient.sum(0) if wants_bias else None
        if ctx.first:
            rows, local = graph.exchange(gradient.shape[1])
            _scaled(gradient, adjacency, local)
            back = graph.aggregate(adjacency, rows, backward=True)
            if wants_weight:
                weight_gradient = back.t() @ kept if ctx.features is None else ctx.features.gradient(back)
            if wants_x:
                x_gradient = graph.workspace.rows(len(back), weight.shape[1], back.dtype)
                torch.mm(back, weight, out=x_gradient)
        else:
            if wants_weight:
                weight_gradient = gradient.t() @ kept
            if wants_x:
                rows, local = graph.exchange(weight.shape[1])
                torch.mm(gradient, weight, out=local)
                _scale(local, adjacency)
                x_gradient = graph.aggregate(adjacency, rows, backward=True)
        return x_gradient, None, weight_gradient, bias_gradient, None, None, None


def _scale(rows: Tensor, adjacency: Adjacency) -> None:
    if adjacency.scale is not None:
        rows.mul_(adjacency.scale[:, None])


def _scaled(x: Tensor, adjacency: Adjacency, out: Tensor) -> None:
    if adjacency.scale is None:
        out.copy_(x)
    else:
        torch.mul(x, adjacency.scale[:, None], out=out)


def graph_convolution(
    x: Tensor | SparseFeatures,
    weight: Tensor,
    bias: Tensor | None,
    graph: GraphHandle,
    adjacency: Adjacency,
    *,
    relu: bool = False,
) -> Tensor:
    """act(S A S x W^T + b) for this rank's rows x [n, in], weight [out, in], bias [out]; returns [n, out].

    Collective: all ranks call it in the same order, and their backward passes too. Weight and bias gradients are
    this rank's part; `training` sums them.
    """
    width = x.shape[1]
    if width != weight.shape[1]:
        raise ValueError(f"x has {width} features, but the weight is for {weight.shape[1]}")
    dense, features = (None, x) if isinstance(x, SparseFeatures) else (x, None)
    return _Convolution.apply(dense, features, weight, bias, graph, adjacency, relu)
