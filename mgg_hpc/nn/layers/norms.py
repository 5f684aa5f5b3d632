"""Normalisation between layers. Over columns each row is alone (torch.nn.LayerNorm); over rows all ranks take part."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import spans
from ..autograd import recompute
from ..autograd.functional import through_relu
from ..graph.view import GraphView
from ..spans import first_order, span
from ..workspace import accumulator, as_array


class _BatchNorm(torch.autograd.Function):
    """act(w (x - mean) / sqrt(variance + epsilon) + b), mean and variance over the rows of all ranks.

    The variance is of distances from the global mean, which is summed first: in one pass, squares of large values
    would cancel. With y = (x - mean) / deviation and N rows, the gradient of x is
    w / deviation (g - (sum g + y sum (g y)) / N), both sums over all ranks (Ioffe and Szegedy, ICML 2015). Half rows
    are computed with in float32: squares of halves overflow.
    """

    @staticmethod
    def forward(ctx: Any, x, weight, bias, mean, inverse, graph: GraphView, relu: bool):  # type: ignore[no-untyped-def]
        centred = _centred(x, mean, graph)
        scale, shift = ((weight * inverse).to(centred.dtype), bias.to(centred.dtype))
        out = _stored(torch.addcmul(shift, centred, scale, out=centred), x.dtype, graph)
        if relu:
            out.relu_()
        ctx.graph, ctx.layer = graph, spans.current()
        ctx.save_for_backward(x, weight, mean, inverse, out if relu else None)
        return out

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor):  # type: ignore[no-untyped-def]
        with span("backward: batch norm"):
            x, weight, mean, inverse, out = ctx.saved_tensors
            graph: GraphView = ctx.graph
            gradient = through_relu(gradient, out, graph)
            centred = _centred(x, mean, graph)
            product = graph.workspace.rows(len(x), x.shape[1], centred.dtype)
            torch.mul(gradient, centred, out=product)
            sum_g, sum_gy = gradient.sum(0, dtype=weight.dtype), product.sum(0, dtype=weight.dtype)
            own = torch.cat([sum_g, sum_gy * inverse])
            sums = own.clone()
            graph.backend.collectives.sum(as_array(sums))
            of_gradient, of_product = (sums / graph.all_destinations).chunk(2)
            # In place: w / deviation (g - a - centred b), a and b of each column.
            wide = product.dtype
            torch.addcmul(gradient.to(wide), centred, (-of_product * inverse).to(wide), out=product)
            product.sub_(of_gradient.to(wide)).mul_((weight * inverse).to(wide))
            bias_gradient, weight_gradient = own.chunk(2)
            return _stored(product, x.dtype, graph), weight_gradient, bias_gradient, None, None, None, None


def _centred(x: Tensor, mean: Tensor, graph: GraphView) -> Tensor:
    """Return x - mean, in rows of the workspace of the accumulator's type."""
    out = graph.workspace.rows(len(x), x.shape[1], accumulator(x.dtype))
    return torch.sub(x, mean.to(out.dtype), out=out)


def _stored(values: Tensor, dtype: torch.dtype, graph: GraphView) -> Tensor:
    """Return ``values`` in rows of ``dtype``: the same rows, or others of the workspace."""
    if values.dtype == dtype:
        return values
    return graph.workspace.rows(len(values), values.shape[1], dtype).copy_(values)


class BatchNorm(torch.nn.BatchNorm1d):
    """Batch normalisation over the rows of all ranks (Ioffe and Szegedy, ICML 2015).

    Parameters and buffers are torch's; a state of PyG's BatchNorm, with names such as ``module.weight``, loads too.
    Evaluation takes the running statistics.
    """

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__(num_features, eps, momentum)
        self.register_load_state_dict_pre_hook(_without_module)

    def forward(self, x: Tensor, graph: GraphView, *, relu: bool = False) -> Tensor:  # type: ignore[override]
        """Return normalised rows for this rank's rows x [n, num_features]. relu: apply ReLU. Collective while training.

        Raises ValueError for another width, or for one row in all while training: it has no variance.
        """
        return normalised(self, x, graph, relu=relu)


def normalised(norm: torch.nn.BatchNorm1d, x: Tensor, graph: GraphView, *, relu: bool = False) -> Tensor:
    """Return `BatchNorm`'s result with the parameters, buffers and options of a module, which may be torch's."""
    if x.shape[1] != norm.num_features:
        raise ValueError(f"x has {x.shape[1]} features, but this batch norm is for {norm.num_features}")
    of_rows = norm.training or norm.running_mean is None
    if of_rows and graph.all_destinations < 2:
        raise ValueError("batch norm trains on two rows or more, and there are fewer")
    with span("batch norm"):
        wide = accumulator(x.dtype)
        running: Any = norm.running_mean, norm.running_var
        mean, variance = _statistics(norm, x, graph) if of_rows else running
        inverse = torch.rsqrt(variance + norm.eps)
        weight = torch.ones_like(mean) if norm.weight is None else norm.weight
        bias = torch.zeros_like(mean) if norm.bias is None else norm.bias
        if of_rows:
            out: Tensor = _BatchNorm.apply(x, weight, bias, mean, inverse, graph, relu)
            return out
        scale = weight * inverse
        shift = bias - mean * scale
        out = torch.addcmul(shift.to(wide), x.to(wide), scale.to(wide)).to(x.dtype)
        return out.relu_() if relu else out


@torch.no_grad()
def _statistics(norm: Any, x: Tensor, graph: GraphView) -> tuple[Tensor, Tensor]:
    """Return mean and variance [num_features] of all ranks' rows, and update the running ones. Collective."""
    wide, rows = accumulator(x.dtype), graph.all_destinations
    mean = x.sum(0, dtype=wide)
    graph.backend.collectives.sum(as_array(mean))
    mean /= rows
    variance = _centred(x, mean, graph).square_().sum(0, dtype=wide)
    graph.backend.collectives.sum(as_array(variance))
    variance /= rows
    if norm.running_mean is not None and not recompute.again():
        norm.num_batches_tracked += 1
        share = 1 / int(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
        norm.running_mean.lerp_(mean, share)
        norm.running_var.lerp_(variance * (rows / (rows - 1)), share)
    return mean, variance


def _without_module(norm: torch.nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    """Rename weights of PyG's BatchNorm, which holds torch's as ``module``, before they are loaded."""
    for name in [name for name in state if name.startswith(f"{prefix}module.")]:
        state[prefix + name.removeprefix(f"{prefix}module.")] = state.pop(name)


def made(norm: str, width: int) -> torch.nn.Module:
    """Return the normalisation of rows [n, width] by its name in job files: "none", "layer" or "batch"."""
    if norm == "none":
        return torch.nn.Identity()
    return BatchNorm(width) if norm == "batch" else torch.nn.LayerNorm(width)
