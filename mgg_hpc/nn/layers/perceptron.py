"""Networks that are applied to each row, as GIN has behind its sums."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeGuard, cast

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from ...runtime.backends.arguments import RngKey
from ..autograd.functional import linear
from ..graph.view import GraphView
from .norms import made, normalised
from .random import Dropout, Fill, dropped, fill_linear, fill_uniform


class MLP(torch.nn.Module):
    """Linear maps with a normalisation and ReLU between them, as PyG's MLP with ``act="relu"``.

    channels: [in, hidden.., out]. norm: "none", "layer" or "batch". Parameters ``lins.<i>.weight``, ``lins.<i>.bias``
    and those of ``norms.<i>``, as in PyG.
    """

    def __init__(self, channels: Sequence[int], norm: str = "none") -> None:
        super().__init__()
        pairs = itertools.pairwise(channels)
        self.lins = torch.nn.ModuleList(torch.nn.Linear(a, b) for a, b in pairs)
        self.norms = torch.nn.ModuleList(made(norm, width) for width in channels[1:-1])

    def forward(self, x: Tensor, graph: GraphView) -> Tensor:
        """Return [n, channels[-1]] for this rank's rows x [n, channels[0]]. Collective with batch norm."""
        return through(steps(self), x, graph)


Step = torch.nn.Module | RngKey


def steps(network: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the modules that a network applies one after another; the network alone where that is not known."""
    if isinstance(network, torch.nn.Sequential):
        return [step for child in network for step in steps(child)]
    if isinstance(network, MLP):
        *first, last = network.lins
        between = zip(first, network.norms, strict=True)
        found = [step for lin, norm in between for step in (lin, norm, torch.nn.ReLU())]
        return [step for step in found if not isinstance(step, torch.nn.Identity)] + [last]
    return [] if isinstance(network, torch.nn.Identity) else [network]


def through(network: Sequence[Step], x: Tensor, graph: GraphView) -> Tensor:
    """Apply these modules to rows x [n, F], one after another; an RngKey stands for dropout behind a ReLU.

    A ReLU is fused with the linear map or the batch norm before it, and dropout with both. Modules of this package get
    the graph, and torch's BatchNorm1d is computed as ours, over all ranks' rows; others see only this rank's rows.
    Raises ValueError on several ranks for torch's dropout and batch norms, whose results would depend on the ranks.
    """
    left = list(network)
    while left:
        step = left.pop(0)
        if isinstance(step, RngKey):
            x = dropped(x, graph, step, rectified=True)
        elif is_linear(step):
            relu, key = taken_along(left)
            x = linear(x, step.weight, step.bias, graph, relu=relu, key=key)
        elif isinstance(step, torch.nn.BatchNorm1d):
            relu, key = taken_along(left)
            x = dropped(normalised(step, x, graph, relu=relu), graph, key, rectified=True)
        elif isinstance(step, (Dropout, MLP)):
            x = step(x, graph)
        else:
            _check_alone(step, graph)
            x = step(x)
    return x


def taken_along(left: list[Step]) -> tuple[bool, RngKey | None]:
    """Remove a leading ReLU, and dropout right behind it, from ``left``; return whether there was one, and the key."""
    if not left or not isinstance(left[0], torch.nn.ReLU):
        return False, None
    left.pop(0)
    if not left or not (isinstance(left[0], RngKey) or type(left[0]) is Dropout):
        return True, None
    step = left.pop(0)
    return True, step if isinstance(step, RngKey) else cast(Dropout, step).key()


def _check_alone(step: torch.nn.Module, graph: GraphView) -> None:
    """Refuse modules whose results would depend on the number of ranks."""
    for inside in step.modules() if graph.backend.collectives.size > 1 else ():
        draws = isinstance(inside, _DropoutNd) and inside.training and inside.p > 0
        sums = isinstance(inside, _BatchNorm) and (inside.training or inside.running_mean is None)
        if draws or sums:
            name, ours = type(inside).__name__, "Dropout" if draws else "BatchNorm"
            raise ValueError(
                f"torch's {name} would see each rank's rows alone: put mgg_hpc.nn.{ours} into the Sequential or MLP"
            )


def is_linear(step: Step) -> TypeGuard[torch.nn.Linear]:
    """Return whether a module is torch's own linear map, and not a subclass."""
    return type(step) is torch.nn.Linear


def reset(network: torch.nn.Module, fill: Fill = fill_uniform) -> None:
    """Initialise linear maps as torch does, by these draws; other modules by their own reset_parameters."""
    for module in network.modules():
        if isinstance(module, torch.nn.Linear):
            fill_linear(module, fill)
        elif callable(start := getattr(module, "reset_parameters", None)):
            start()
