"""ReLU and ELU, with dropout behind them, in rows that are used again.

Rows behind a ReLU show by themselves where a gradient passes, so nothing else is kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...runtime.backends.arguments import RngKey
from .. import spans
from ..first_order import first_order
from ..graph.view import GraphView
from ..spans import span
from ..workspace import as_array


def through_relu(
    gradient: Tensor, out: Tensor | None, graph: GraphView, into: Tensor | None = None
) -> Tensor:
    """Return the gradient before the ReLU whose output, perhaps after `drop`, is ``out``; None: there was no ReLU.

    into: rows for the result. [default: rows of the workspace]
    """
    if out is None:
        return gradient
    passed = graph.workspace.rows(out.shape[0], out.shape[1], out.dtype) if into is None else into
    torch.ops.aten.threshold_backward.grad_input(gradient, out, 0, grad_input=passed)
    return passed


def drop(out: Tensor, graph: GraphView, key: RngKey | None) -> None:
    """Apply dropout to a layer's rows in place; nothing if ``key`` is None."""
    if key is not None:
        with span("dropout behind"):
            graph.backend.dropout(as_array(out), as_array(out), graph.ids[: len(out)], key)


def dropped_rows(x: Tensor, graph: GraphView, key: RngKey) -> Tensor:
    """Return x after dropout, in rows of the workspace."""
    x = x if x.stride(1) == 1 else x.contiguous()
    out = graph.workspace.rows(x.shape[0], x.shape[1], x.dtype)
    graph.backend.dropout(as_array(x), as_array(out), graph.ids[: len(x)], key)
    return out


def times_kept(values: Tensor, key: RngKey | None) -> Tensor:
    """Return values / (1 - p), the scale of what dropout keeps; the values themselves if nothing is dropped."""
    return values if key is None else values * (1 / (1 - key.p))


class _Elu(torch.autograd.Function):
    """ELU and dropout behind it, whose draws are made again in the backward instead of kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, graph: GraphView, key: RngKey | None) -> Tensor:
        out = graph.workspace.rows(x.shape[0], x.shape[1], x.dtype)
        with span("activation"):
            torch.ops.aten.elu.out(x, out=out)
        drop(out, graph, key)
        ctx.call, ctx.layer = (graph, key), spans.current()
        ctx.save_for_backward(x)
        return out

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor):  # type: ignore[no-untyped-def]
        graph, key = ctx.call
        (x,) = ctx.saved_tensors
        if key is not None:
            with span("backward: dropout"):
                passed = gradient = dropped_rows(gradient, graph, key)
        else:
            passed = graph.workspace.rows(x.shape[0], x.shape[1], x.dtype)
        with span("backward: activation"):
            torch.ops.aten.elu_backward.grad_input(gradient, 1, 1, 1, False, x, grad_input=passed)
        return passed, None, None


def elu(x: Tensor, graph: GraphView, key: RngKey | None = None) -> Tensor:
    """Return ELU (Clevert et al., ICLR 2016) of rows x [n, F]. key: of the dropout behind it."""
    out: Tensor = _Elu.apply(x, graph, key)
    return out
