"""Differentiable convolutions, linear maps, ReLU, ELU and dropout over rows of a graph.

The transform and the aggregation of a convolution share one autograd Function, so that the transform writes straight
into memory that peers read. A ReLU's output shows where its gradient passes, also after dropout, so nothing else is
kept for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ...runtime.backends.arguments import RngKey, Rows
from .. import spans
from ..graph.matrix import Adjacency
from ..graph.view import GraphView, first_rows
from ..inputs.host import HostFeatures, Input
from ..inputs.sparse import SparseFeatures
from ..spans import first_order, span
from ..workspace import accumulator, as_array

# Multiply-adds of a matrix product in the time in which a sum over edges adds one value: a core multiplies about
# 50 x 10^9 float32 a second, and reads about 3 x 10^9 values from its caches. A factor of two changes few choices.
PRODUCTS = 16


def transform_first(in_channels: int, out_channels: int, needs_input_gradient: bool) -> bool:
    """Return whether A (x W^T) exchanges fewer values than (A x) W^T, forward and backward together.

    With the transform first both directions exchange rows of ``out_channels``. Otherwise they exchange rows of
    ``in_channels``, and none backward unless the gradient of x is needed.
    """
    return 2 * out_channels <= (2 if needs_input_gradient else 1) * in_channels


def _transforms_first(
    graph: GraphView, edges: int, in_channels: int, out_channels: int, needs_input_gradient: bool
) -> bool:
    """Return whether to transform before the sum: to exchange less on a graph, to compute less on a block.

    A block has several times as many sources as destinations, so a product of all sources may take longer than sums of
    wider rows.
    """
    if graph.rows == graph.destinations:
        return transform_first(in_channels, out_channels, needs_input_gradient)
    product = (2 + needs_input_gradient) * in_channels * out_channels
    before = 2 * edges * PRODUCTS * out_channels + graph.rows * product
    after = (1 + needs_input_gradient) * edges * PRODUCTS * in_channels + graph.destinations * product
    return before < after


@dataclass(frozen=True)
class _Call:
    """Arguments of a convolution that are not differentiable.

    features: the input if it is sparse or on the host, else None. before, after: [n] or None, factors of the
    rows before they are summed, and of the sums. key: random key of the dropout after the ReLU. training: True
    if gradients are enabled, which code within an autograd Function cannot query.
    """

    features: SparseFeatures | HostFeatures | None
    graph: GraphView
    adjacency: Adjacency
    before: Tensor | None
    after: Tensor | None
    relu: bool
    key: RngKey | None
    training: bool

    def aggregated_back(self, rows: Rows, own: Tensor, eps: Tensor | None) -> Tensor:
        """Return (R A^T L + (1 + eps) I) g, without the second term if eps is None.

        rows: L g, in rows that peers read. own: g.
        """
        with span("backward: aggregate"):
            back = self.graph.aggregate(self.adjacency, rows, scale=self.before, backward=True)
        return _add_own(back, own, eps)


class _Convolution(Function):
    """Compute act((L A R + (1 + eps) I) x W^T + x V^T + b), in either order of transform and aggregation.

    A is the adjacency matrix, L and R are diagonal matrices with the entries call.after and call.before
    (identity if None), V is ``root``, and act is ReLU with dropout, or the identity. The term (1 + eps) I is
    present only if eps is given, which excludes L and R; x V^T only if ``root`` is. The backward of the
    aggregation L A R is R A^T L, over the backward plan.
    """

    @staticmethod
    def forward(ctx: Any, x, weight, bias, root, eps, call: _Call):  # type: ignore[no-untyped-def]
        graph, adjacency, features = call.graph, call.adjacency, call.features
        out_channels, in_channels = weight.shape
        # Evaluation also exchanges the narrower rows, and x for equal widths, which one rank need not copy.
        wants_input = ctx.needs_input_grad[0] or (not call.training and out_channels < in_channels)
        has_rows = features is None or features.on_device
        edges = adjacency.forward.edges
        first = not has_rows or _transforms_first(graph, edges, in_channels, out_channels, wants_input)
        if features is not None and not first:
            # These rows are needed only in the forward; a gradient of the same width can use them afterwards.
            x = features.written(graph.workspace.rows(*features.shape, features.dtype))
        source: Any = features if x is None else x
        fused = call.relu and first and root is None and eps is None
        aggregated = None
        if first:
            rows, local = graph.exchange(out_channels)
            with span("forward: transform"):
                _multiply(source, weight, local, call.before)
            with span("forward: aggregate"):
                out = graph.aggregate(adjacency, rows, scale=call.after, bias=bias, relu=fused)
            _add_own(out, local, eps)
        else:
            with span("forward: scale"):
                if call.before is None:
                    rows = graph.offer(x)
                else:
                    rows, local = graph.exchange(in_channels)
                    _scaled(x, call.before, local)
            with span("forward: aggregate"):
                aggregated = graph.aggregate(adjacency, rows, scale=call.after)
            _add_own(aggregated, x, eps)
            with span("forward: transform"):
                out = graph.workspace.rows(len(aggregated), out_channels, x.dtype)
                _multiply(aggregated, weight, out)
                out = out if bias is None else out.add_(bias)
        if root is not None:
            with span("forward: transform own rows"):
                own = first_rows(source, graph.destinations)
                if isinstance(own, Tensor):
                    out.addmm_(own, root.to(own.dtype).t())
                else:
                    product = graph.workspace.rows(len(out), len(root), out.dtype)
                    own.times_transposed(root, product)
                    out.add_(product)
        if call.relu and not fused:
            out.relu_()
        _drop(out, graph, call.key)
        ctx.first, ctx.call, ctx.layer = first, call, spans.current()
        needs_x = first or root is not None or ctx.needs_input_grad[4]
        kept = x if needs_x and features is None else None
        ctx.save_for_backward(kept, aggregated, weight, root, eps, out if call.relu else None)
        return out

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor):  # type: ignore[no-untyped-def]
        call: _Call = ctx.call
        graph = call.graph
        kept, aggregated, weight, root, eps, out = ctx.saved_tensors
        x: Any = call.features if kept is None else kept
        key = call.key  # dropout's factor is applied to weights and their gradients, which are small
        wants_x, wants_weight, wants_bias, wants_root, wants_eps, _ = ctx.needs_input_grad
        rows, local = graph.exchange(gradient.shape[1], backward=True) if ctx.first else (None, None)
        with span("backward: bias and ReLU"):
            # A gradient that is needed only in what is published is written there at once.
            gradient = through_relu(gradient, out, graph, local if root is None else None)
            bias_gradient = _rescaled(gradient.sum(0, dtype=weight.dtype), key) if wants_bias else None
        x_gradient = weight_gradient = root_gradient = eps_gradient = None
        if rows is not None and local is not None:
            with span("backward: scale"):
                if gradient is not local:
                    _scaled(gradient, call.after, local)
                elif call.after is not None:
                    local.mul_(call.after[:, None])
            back = call.aggregated_back(rows, gradient, eps)
            with span("backward: transform"):
                weight_gradient = _weight_gradient(back, x) if wants_weight else None
                x_gradient = _times(back, _rescaled(weight, key), graph) if wants_x else None
        else:
            with span("backward: transform"):
                weight_gradient = gradient.t() @ aggregated if wants_weight else None
            if wants_x:
                rows, local = graph.exchange(weight.shape[1], backward=True)
                with span("backward: transform"):
                    torch.mm(gradient, _rescaled(weight, key).to(gradient.dtype), out=local)
                    if call.after is not None:
                        local.mul_(call.after[:, None])
                x_gradient = call.aggregated_back(rows, local, eps)
        if root is not None and x_gradient is not None:
            with span("backward: transform own rows"):
                x_gradient[: len(gradient)].addmm_(gradient, _rescaled(root, key).to(gradient.dtype))
        if wants_root or wants_eps:
            with span("backward: transform own rows"):
                product = _weight_gradient(gradient, first_rows(x, len(gradient)))
                own = _rescaled(product.to(weight.dtype), key)
                root_gradient = own if wants_root else None
                eps_gradient = (own * weight).sum().reshape(eps.shape) if wants_eps else None
        if weight_gradient is not None:
            weight_gradient = _rescaled(weight_gradient.to(weight.dtype), key)
        return x_gradient, weight_gradient, bias_gradient, root_gradient, eps_gradient, None


class _Linear(Function):
    """Compute act(x W^T + b) into rows of the workspace; act is ReLU with dropout, or the identity."""

    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx: Any, x, weight, bias, features, graph: GraphView, relu: bool, key: RngKey | None
    ):
        given: Input = features if x is None else x
        with span("forward: transform"):
            out = graph.workspace.rows(given.shape[0], len(weight), graph.dtype)
            if x is not None and bias is not None:
                torch.addmm(bias.to(x.dtype), x, weight.to(x.dtype).t(), out=out)
            else:
                _multiply(given, weight, out)
                out = out if bias is None else out.add_(bias)
            if relu:
                out.relu_()
        _drop(out, graph, key)
        ctx.features, ctx.graph, ctx.layer, ctx.key = features, graph, spans.current(), key
        ctx.save_for_backward(x, weight, out if relu else None)
        return out

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor):  # type: ignore[no-untyped-def]
        with span("backward: transform"):
            x, weight, out = ctx.saved_tensors
            wants_x, wants_weight, wants_bias = ctx.needs_input_grad[:3]
            gradient = through_relu(gradient, out, ctx.graph)
            bias_gradient = _rescaled(gradient.sum(0, dtype=weight.dtype), ctx.key) if wants_bias else None
            weight_gradient = None
            if wants_weight:
                product = _weight_gradient(gradient, ctx.features if x is None else x)
                weight_gradient = _rescaled(product.to(weight.dtype), ctx.key)
            x_gradient = _times(gradient, _rescaled(weight, ctx.key), ctx.graph) if wants_x else None
            return x_gradient, weight_gradient, bias_gradient, None, None, None, None


def _multiply(x: Input, weight: Tensor, out: Tensor, scale: Tensor | None = None) -> None:
    """Compute out = scale * (x W^T)."""
    if not isinstance(x, Tensor):
        x.times_transposed(weight, out, scale)
        return
    torch.mm(x, weight.to(x.dtype).t(), out=out)
    if scale is not None:
        out.mul_(scale[:, None])


def _weight_gradient(gradient: Tensor, x: Input) -> Tensor:
    """Return the gradient of W in x W^T, [out, in]. gradient: of x W^T, [n, out]."""
    return gradient.t() @ x if isinstance(x, Tensor) else x.gradient(gradient)


def _times(gradient: Tensor, weight: Tensor, graph: GraphView) -> Tensor:
    """Return the gradient of x in x W^T, [n, in], in rows of the workspace. gradient: of x W^T, [n, out]."""
    out = graph.workspace.rows(len(gradient), weight.shape[1], gradient.dtype)
    return torch.mm(gradient, weight.to(gradient.dtype), out=out)


def _add_own(sums: Tensor, own: Tensor, eps: Tensor | None) -> Tensor:
    """Add (1 + eps) * own to ``sums`` in place unless eps is None, and return ``sums``.

    If one of them has fewer rows, as on a block, only that many rows are added.
    """
    if eps is not None:
        count = min(len(sums), len(own))
        sums[:count].addcmul_(own[:count], (1 + eps).to(own.dtype))
    return sums


def _scaled(x: Tensor, scale: Tensor | None, out: Tensor) -> None:
    if scale is None:
        out.copy_(x)
    else:
        torch.mul(x, scale[:, None], out=out)


def check_rows(x: Input, graph: GraphView) -> None:
    """Raise ValueError unless x [n, F] has as many rows as the graph on this rank, of the graph's dtype."""
    if len(x.shape) != 2:
        raise ValueError(f"x is {list(x.shape)}; expected [{graph.rows}, F]")
    if x.shape[0] != graph.rows:
        raise ValueError(f"x has {x.shape[0]} rows; expected {graph.rows}")
    if x.dtype != graph.dtype:
        raise ValueError(f"x is of {x.dtype}, and the graph of {graph.dtype}")


def check_parameters(graph: GraphView, *parameters: Tensor | None) -> None:
    """Raise ValueError for parameters that are not of the type in which the graph's rows are summed."""
    wanted = accumulator(graph.dtype)
    for each in parameters:
        if each is not None and each.dtype is not wanted:
            raise ValueError(
                f"the layer's parameters are of {each.dtype}; a graph of {graph.dtype} takes {wanted}: convert the "
                "model, or open the graph with another dtype"
            )


def _checked(x: Input, weight: Tensor) -> tuple[Tensor | None, SparseFeatures | HostFeatures | None]:
    """Return (x, None) if x is a tensor, or (None, x) if it is sparse or host-resident.

    Autograd Functions take the first as an operand, the second as a separate argument. Raises ValueError if x
    has another number of columns than the weight, [out, in].
    """
    if x.shape[1] != weight.shape[1]:
        raise ValueError(f"x has {x.shape[1]} features, but the weight is for {weight.shape[1]}")
    return (x, None) if isinstance(x, Tensor) else (None, x)


def convolution(
    x: Input,
    weight: Tensor,
    bias: Tensor | None,
    graph: GraphView,
    adjacency: Adjacency,
    *,
    before: Tensor | None = None,
    after: Tensor | None = None,
    root: Tensor | None = None,
    eps: Tensor | None = None,
    relu: bool = False,
    key: RngKey | None = None,
) -> Tensor:
    """Return act((L A R + (1 + eps) I) x W^T + x V^T + b), [n, out], for x [n, in], weight W [out, in], bias b [out].

    A is the adjacency matrix. before, after: [n], diagonals of R and L, the identity if None. root: V [out,
    in]; None leaves out x V^T. eps: [1]; None leaves out (1 + eps) I. relu: apply ReLU. key: random key of
    dropout after the ReLU, or None. Rows have the graph's dtype; with half-precision rows, products are in half
    precision too, while weight and bias are float32. Collective, and so is its backward. Gradients of
    parameters are this rank's summand: their sum over ranks is the gradient. Raises ValueError for rows of the
    wrong width, number or dtype.
    """
    check_rows(x, graph)
    check_parameters(graph, weight, bias, root)
    dense, features = _checked(x, weight)
    training = torch.is_grad_enabled()  # always False within a Function
    call = _Call(features, graph, adjacency, before, after, relu, key if relu else None, training)
    out: Tensor = _Convolution.apply(dense, weight, bias, root, eps, call)
    return out


def linear(
    x: Input,
    weight: Tensor,
    bias: Tensor | None,
    graph: GraphView,
    *,
    relu: bool = False,
    key: RngKey | None = None,
) -> Tensor:
    """Return act(x W^T + b), [n, out], for x [n, in], weight W [out, in], bias b [out]. Not collective.

    As torch.nn.functional.linear, but x may also be sparse or host-resident features, and the output is in rows
    of the workspace. relu: apply ReLU. key: random key of dropout after the ReLU, or None. Raises ValueError
    for rows of the wrong width.
    """
    check_parameters(graph, weight, bias)
    dense, features = _checked(x, weight)
    out: Tensor = _Linear.apply(dense, weight, bias, features, graph, relu, key if relu else None)
    return out


def as_rows(x: Input, graph: GraphView) -> Tensor:
    """Return features as a dense tensor [n, F]. Not collective.

    Raises ValueError for a wrong number or dtype of rows.
    """
    check_rows(x, graph)
    return dense(x, graph)


def dense(x: Input, graph: GraphView) -> Tensor:
    """Return features as a dense tensor: a tensor as it is, others written into rows of the workspace."""
    return x if isinstance(x, Tensor) else x.written(graph.workspace.rows(x.shape[0], x.shape[1], x.dtype))


# ---- activations and dropout


def through_relu(
    gradient: Tensor, out: Tensor | None, graph: GraphView, into: Tensor | None = None
) -> Tensor:
    """Return the gradient of a ReLU's input from that of its output. If ``out`` is None there was no ReLU.

    out: output of the ReLU, or of dropout after it: the gradient passes where it is positive. into: rows for
    the result. [default: rows of the workspace]
    """
    if out is None:
        return gradient
    passed = graph.workspace.rows(out.shape[0], out.shape[1], out.dtype) if into is None else into
    torch.ops.aten.threshold_backward.grad_input(gradient, out, 0, grad_input=passed)
    return passed


def _drop(out: Tensor, graph: GraphView, key: RngKey | None) -> None:
    """Apply dropout to a layer's output in place, unless ``key`` is None."""
    if key is not None:
        with span("dropout behind"):
            graph.backend.dropout(as_array(out), as_array(out), graph.ids[: len(out)], key)


def dropped_rows(x: Tensor, graph: GraphView, key: RngKey) -> Tensor:
    """Return x after dropout, in rows of the workspace."""
    x = x if x.stride(1) == 1 else x.contiguous()
    out = graph.workspace.rows(x.shape[0], x.shape[1], x.dtype)
    graph.backend.dropout(as_array(x), as_array(out), graph.ids[: len(x)], key)
    return out


def _rescaled(values: Tensor, key: RngKey | None) -> Tensor:
    """Return values / (1 - p), as dropout with this key scales what it keeps; ``values`` if ``key`` is None."""
    return values if key is None else values * (1 / (1 - key.p))


class _Elu(Function):
    """ELU followed by dropout. The backward draws the dropout mask again, so that it need not be saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, graph: GraphView, key: RngKey | None) -> Tensor:
        out = graph.workspace.rows(x.shape[0], x.shape[1], x.dtype)
        with span("activation"):
            torch.ops.aten.elu.out(x, out=out)
        _drop(out, graph, key)
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
    """Return ELU (Clevert et al., ICLR 2016) of rows x [n, F]. key: random key of dropout after it, or None."""
    out: Tensor = _Elu.apply(x, graph, key)
    return out
