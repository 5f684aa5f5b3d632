"""Gradients of a model that each rank has a copy of, summed over all ranks."""

from __future__ import annotations

from weakref import WeakSet

import torch
import xxhash
from torch import Tensor

from ...errors import InputError
from ..workspace import as_array
from .dist_graph import DistGraph, open_graphs

_alike: WeakSet[torch.nn.Module] = WeakSet()  # models whose parameters were found to be the same on all ranks


def allreduce_gradients(model: torch.nn.Module, graph: DistGraph | None = None) -> None:
    """Replace each parameter's gradient by its sum over all ranks, the same bits on each of them. Collective.

    All go in one exchange, between backward and the optimiser's step. A gradient that this rank does not have counts
    as zero; one that no rank has stays None. graph: whose ranks. [default: of the last that was opened] Raises
    InputError where no graph is open, and at the first call for a model whose parameters differ between ranks.
    """
    if graph is None:
        if not open_graphs:
            raise InputError("allreduce_gradients: no graph is open; open one first (mgg.open)")
        graph = open_graphs[-1]
    parameters = [each for each in model.parameters() if each.requires_grad]
    if graph.ranks == 1 or not parameters:
        return
    if model not in _alike:
        _check_alike(model, graph)
        _alike.add(model)
    gradients = [each.grad for each in parameters]
    # One type for all, so that one exchange is enough; behind the values, how many ranks have each gradient.
    double = any(each.dtype == torch.float64 for each in parameters)
    flat = torch.zeros(
        sum(each.numel() for each in parameters) + len(parameters),
        dtype=torch.float64 if double else torch.float32,
        device=graph.device,
    )
    pieces = flat.split([each.numel() for each in parameters] + [len(parameters)])
    for number, gradient in enumerate(gradients):
        if gradient is not None:
            pieces[number].copy_(gradient.reshape(-1))
            pieces[-1][number] = 1
    graph.backend.collectives.sum(as_array(flat))
    for number, parameter in enumerate(parameters):
        _assign(parameter, pieces[number], pieces[-1][number])


def _assign(parameter: Tensor, total: Tensor, holders: Tensor) -> None:
    """Store a sum as a parameter's gradient, in place where it has one, if any rank has a gradient."""
    if parameter.grad is None:
        if holders == 0:
            return
        parameter.grad = torch.empty_like(parameter)
    parameter.grad.copy_(total.view_as(parameter))


def _check_alike(model: torch.nn.Module, graph: DistGraph) -> None:
    """Raise InputError, the same on all ranks, where parameters differ, or buffers that are saved with them."""
    parameters = {name for name, _ in model.named_parameters()}
    tensors = {name: each for name, each in model.state_dict().items() if isinstance(each, Tensor)}
    mine = [(name, tuple(each.shape), _digest(each)) for name, each in tensors.items()]
    every = graph.comm.allgather(mine)
    for rank, theirs in enumerate(every):
        if [each[:2] for each in theirs] != [each[:2] for each in every[0]]:
            raise InputError(
                f"allreduce_gradients: the model of rank {rank} has other parameters than rank 0's"
            )
        differing = [ours[0] for ours, first in zip(theirs, every[0], strict=True) if ours != first]
        if any(name in parameters for name in differing):
            raise InputError(
                f"allreduce_gradients: the parameters of rank {rank} differ from rank 0's; "
                "call mgg.manual_seed on all ranks before the model is made"
            )
        if differing:
            raise InputError(
                f"allreduce_gradients: the buffer {differing[0]} of rank {rank} differs from rank 0's; "
                "mgg.nn.BatchNorm has the statistics of all ranks' rows"
            )


def _digest(values: Tensor) -> int:
    """Return a digest of a tensor's type and bytes."""
    flat = values.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return xxhash.xxh3_64_intdigest(str(values.dtype).encode() + flat.numpy().tobytes())
