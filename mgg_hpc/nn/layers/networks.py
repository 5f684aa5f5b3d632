"""Networks that are applied to each row: batch normalisation over all ranks' rows, MLPs, and chains of modules."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, TypeGuard, cast

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm as TorchBatchNorm
from torch.nn.modules.dropout import _DropoutNd

from ...runtime.backends.arguments import RngKey
from .. import spans
from ..autograd import recompute
from ..autograd.functional import check_parameters, dense, linear, through_relu
from ..calls import is_plain, layer_call, on_graph
from ..graph.view import GraphView
from ..inputs.host import Input
from ..spans import first_order, span
from ..workspace import accumulator, as_array
from .random import Dropout, Fill, dropped, fill_linear, fill_uniform


class _BatchNorm(torch.autograd.Function):
    """act(w (x - mean) / sqrt(variance + epsilon) + b), with mean and variance over the rows of all ranks.

    With y = (x - mean) / deviation and N rows, the gradient of x is w / deviation (g - (sum g + y sum (g y)) / N), both
    sums over all ranks (Ioffe and Szegedy, ICML 2015). Half rows are computed in float32: squares of halves overflow.
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
    """Return x - mean, in rows of the workspace of the accumulator type."""
    out = graph.workspace.rows(len(x), x.shape[1], accumulator(x.dtype))
    return torch.sub(x, mean.to(out.dtype), out=out)


def _stored(values: Tensor, dtype: torch.dtype, graph: GraphView) -> Tensor:
    """Return ``values`` as rows of ``dtype``, without a copy if they have it."""
    if values.dtype == dtype:
        return values
    return graph.workspace.rows(len(values), values.shape[1], dtype).copy_(values)


class BatchNorm(torch.nn.BatchNorm1d):
    """Batch normalisation over the rows of all ranks (Ioffe and Szegedy, ICML 2015).

    Parameters and buffers are torch's. The state of a PyG BatchNorm, with names such as ``module.weight``, loads too.
    Evaluation uses the running statistics.
    """

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__(num_features, eps, momentum)
        self.register_load_state_dict_pre_hook(_without_module)

    @layer_call
    def forward(self, x: Tensor, graph: GraphView, *, relu: bool = False) -> Tensor:
        """Return normalised rows [n, num_features] of this rank's rows x. relu: apply ReLU. Collective in training.

        Raises ValueError for another width, and in training for fewer than two rows on all ranks.
        """
        return normalised(self, x, graph, relu=relu)


def normalised(norm: torch.nn.BatchNorm1d, x: Tensor, graph: GraphView, *, relu: bool = False) -> Tensor:
    """Apply a batch norm, which may be torch's, over all ranks' rows, as `BatchNorm.forward` does."""
    check_parameters(graph, norm.weight, norm.running_mean)
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
    """Return mean and variance [num_features] of all ranks' rows, and update the running ones. Collective.

    The mean is summed first: sums of squares of large values would cancel.
    """
    wide, rows = accumulator(x.dtype), graph.all_destinations
    mean = x.sum(0, dtype=wide)
    graph.backend.collectives.sum(as_array(mean))
    mean /= rows
    variance = _centred(x, mean, graph).square_().sum(0, dtype=wide)
    graph.backend.collectives.sum(as_array(variance))
    variance /= rows
    if not norm.training or not norm.track_running_stats or recompute.again():
        return mean, variance
    count, share = norm.num_batches_tracked, norm.momentum
    if count is not None:
        count += 1
    if norm.running_mean is not None:
        if share is None:
            share = 0 if count is None else 1 / int(count)
        norm.running_mean.lerp_(mean, share)
        norm.running_var.lerp_(variance * (rows / (rows - 1)), share)
    return mean, variance


def _without_module(norm: torch.nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    """Rename the state of a PyG BatchNorm, which holds torch's as ``module``, before it is loaded."""
    for name in [name for name in state if name.startswith(f"{prefix}module.")]:
        state[prefix + name.removeprefix(f"{prefix}module.")] = state.pop(name)


def normalisation(norm: str, width: int) -> torch.nn.Module:
    """Return a normalisation of rows [n, width]. norm: as in job files, "none", "layer" or "batch"."""
    if norm == "none":
        return torch.nn.Identity()
    return BatchNorm(width) if norm == "batch" else torch.nn.LayerNorm(width)


class MLP(torch.nn.Module):
    """Linear maps with a normalisation and ReLU between them, as PyG's MLP with ``act="relu"``.

    channels: [in, hidden.., out]. norm: "none", "layer" or "batch". Parameters ``lins.<i>.*`` and ``norms.<i>.*``, as
    in PyG.
    """

    def __init__(self, channels: Sequence[int], norm: str = "none") -> None:
        super().__init__()
        pairs = itertools.pairwise(channels)
        self.lins = torch.nn.ModuleList(torch.nn.Linear(a, b) for a, b in pairs)
        self.norms = torch.nn.ModuleList(normalisation(norm, width) for width in channels[1:-1])

    @layer_call
    def forward(self, x: Tensor, graph: GraphView) -> Tensor:
        """Return [n, channels[-1]] for this rank's rows x [n, channels[0]]. Collective with batch norm."""
        return through(self._steps(), x, graph)

    def _steps(self) -> list[torch.nn.Module]:
        *first, last = self.lins
        between = zip(first, self.norms, strict=True)
        found = [step for lin, norm in between for step in (lin, norm, torch.nn.ReLU())]
        return [step for step in found if not is_plain(step, torch.nn.Identity)] + [last]


Step = torch.nn.Module | RngKey
Weight = Tensor | torch.nn.Module  # of a linear map; a module that is not a plain Linear is called


def steps(network: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the modules that a network applies one after another: a plain Sequential's or MLP's, or itself."""
    if is_plain(network, torch.nn.Sequential):
        return [step for child in network for step in steps(child)]
    if is_plain(network, MLP):
        return network._steps()
    return [] if is_plain(network, torch.nn.Identity) else [network]


def through(network: Sequence[Step], x: Tensor, graph: GraphView) -> Tensor:
    """Apply modules to rows x [n, F], one after another. An RngKey means dropout of the output of a ReLU.

    A ReLU is fused with the linear map or batch norm before it, and dropout with both, if they are plain (`is_plain`);
    other modules are called. torch's BatchNorm1d is computed over all ranks' rows. Modules of other packages see only
    this rank's rows. Raises ValueError on several ranks for torch's dropout and batch norms that are not plain, whose
    results would depend on the division into ranks.
    """
    left = list(network)
    while left:
        step = left.pop(0)
        if isinstance(step, RngKey):
            x = dropped(x, graph, step, rectified=True)
        elif is_linear(step):
            relu, key = pop_relu(left)
            x = linear(x, step.weight, step.bias, graph, relu=relu, key=key)
        elif is_plain(step, BatchNorm) or is_plain(step, torch.nn.BatchNorm1d):
            relu, key = pop_relu(left)
            x = dropped(normalised(step, x, graph, relu=relu), graph, key, rectified=True)
        elif isinstance(step, (Dropout, BatchNorm, MLP)):
            x = step(x, graph)
        else:
            _check_alone(step, graph)
            with on_graph(graph):
                x = step(x)
    return x


def pop_relu(left: list[Step]) -> tuple[bool, RngKey | None]:
    """Remove a leading ReLU, and dropout after it, from ``left``; return whether there was one, and the random key."""
    if not left or not is_plain(left[0], torch.nn.ReLU):
        return False, None
    left.pop(0)
    if not left or not (isinstance(left[0], RngKey) or is_plain(left[0], Dropout)):
        return True, None
    step = left.pop(0)
    return True, step if isinstance(step, RngKey) else cast(Dropout, step).key()


def _check_alone(step: torch.nn.Module, graph: GraphView) -> None:
    """Raise ValueError for a module whose result would depend on the number of ranks."""
    for inside in step.modules() if graph.backend.collectives.size > 1 else ():
        draws = isinstance(inside, _DropoutNd) and inside.training and inside.p > 0
        sums = isinstance(inside, TorchBatchNorm) and not isinstance(inside, BatchNorm)
        sums = sums and (inside.training or inside.running_mean is None)
        if draws or sums:
            name, ours = type(inside).__name__, "Dropout" if draws else "BatchNorm"
            raise ValueError(
                f"torch's {name} would see each rank's rows alone: put mgg_hpc.nn.{ours} into the Sequential or MLP"
            )


def is_linear(step: Step) -> TypeGuard[torch.nn.Linear]:
    """Return whether a module is a plain Linear, so that a product with its weight takes the place of a call."""
    return is_plain(step, torch.nn.Linear)


def taken_apart(step: torch.nn.Module) -> tuple[Weight, Tensor | None]:
    """Return weight and bias of a plain Linear, and any other module itself, which is to be called."""
    held: dict[str, Any] = step._parameters
    if is_linear(step) and held.get("weight") is not None and "bias" in held:
        return held["weight"], held["bias"]
    return step, None


def matrix(step: torch.nn.Module) -> Weight:
    """Return the weight of a plain Linear without bias, and any other module itself, which is to be called."""
    weight, bias = taken_apart(step)
    return weight if bias is None else step


def product(
    x: Input,
    weight: Weight,
    bias: Tensor | None,
    graph: GraphView,
    *,
    relu: bool = False,
    key: RngKey | None = None,
) -> Tensor:
    """Return `linear` of rows x, or of a module in the place of the weight its result, which has no further bias."""
    if isinstance(weight, Tensor):
        return linear(x, weight, bias, graph, relu=relu, key=key)
    return through([*steps(weight), *activation(relu, key)], dense(x, graph), graph)


def activation(relu: bool, key: RngKey | None) -> list[Step]:
    """Return ReLU and dropout after it as steps of a network."""
    return [torch.nn.ReLU(), *([key] if key else [])] if relu else []


def reset(network: torch.nn.Module, fill: Fill = fill_uniform) -> None:
    """Initialise linear maps as torch does, with these draws, and other modules by their own reset_parameters."""
    for module in network.modules():
        if isinstance(module, torch.nn.Linear):
            fill_linear(module, fill)
        elif callable(start := getattr(module, "reset_parameters", None)):
            start()
