"""Gradients of losses over all ranks: each rank has a part, and parameters get the sum at the end of a backward.

As in torch's DistributedDataParallel (Li et al., VLDB 2020), nothing is left to do between backward and the optimiser's
step. A backward begins at a loss, where gradients of earlier ones are set aside, and ends with one exchange.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch
import xxhash
from torch import Tensor
from torch.autograd import Variable
from torch.nn import Parameter
from torch.nn.parameter import is_lazy
from torch.utils.weak import WeakTensorKeyDictionary

from ..errors import InputError
from ..runtime.backends.base import Collectives
from ..runtime.watchdog import collective
from .workspace import as_array

LOCAL, WHOLE, MIXED = "local", "whole", "mixed"
# What gradients of parameters are: this rank's part of a sum over ranks (LOCAL, or absent), that sum, or both added.
_kinds: MutableMapping[Tensor, str] = WeakTensorKeyDictionary()
# Of parameters that were compared: whether they are of a rank's own rows.
_own: MutableMapping[Tensor, bool] = WeakTensorKeyDictionary()
_losses: WeakKeyDictionary[Collectives, int] = WeakKeyDictionary()  # number of losses so far


def parameters_of(loss: Tensor, where: str) -> list[Parameter]:
    """Return the parameters that a loss depends on, in an order that is the same on all ranks.

    Raises InputError, which begins with ``where``, for batch norms of torch, whose statistics are of one rank's rows,
    and for checkpoints that hide parameters.
    """
    found, seen, nodes = list[Parameter](), set[Any](), [loss.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if "BatchNormBackward" in node.name() and getattr(node, "_saved_training", False):
            raise InputError(
                f"{where}: torch's BatchNorm has the statistics of this rank's rows alone; use mgg.nn.BatchNorm"
            )
        if node.name() == "CheckpointFunctionBackward":
            raise InputError(
                f"{where}: torch's checkpoint hides parameters; use mgg.recomputed, or use_reentrant=False"
            )
        parameter = getattr(node, "variable", None)
        if isinstance(parameter, Parameter):
            found.append(parameter)
        nodes += [each for each, _ in node.next_functions]
    return found


def form_of(parameters: Sequence[Tensor]) -> int:
    """Return a hash below 2^20 of the shapes of parameters, without their first dimensions."""
    shapes = [(each.dim(), *each.shape[1:]) for each in parameters]
    return xxhash.xxh3_64_intdigest(str(shapes).encode()) % 2**20


def unknown(parameters: Sequence[Tensor]) -> int:
    """Return the number of parameters that `shared` has not compared yet."""
    return sum(each not in _own for each in parameters)


def digest(*arrays: Any) -> int:
    """Return a digest of the types, shapes and bytes of arrays or tensors, some of which may be None."""
    found = xxhash.xxh3_64()
    for each in arrays:
        array = as_array(each.cpu()) if isinstance(each, Tensor) else each
        if array is None:
            found.update(b"None")
            continue
        found.update(f"{array.dtype} {array.shape}".encode())
        found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.intdigest()


def check_alike(where: str, state: Mapping[str, Any], comm: Any) -> None:
    """Raise InputError, the same on all ranks, if parameters or buffers differ between ranks. Collective.

    state: by name; what is no tensor, and parameters without values yet, are not compared. where: begins the message.
    """
    tensors = {name: each for name, each in state.items() if isinstance(each, Tensor) and not is_lazy(each)}
    mine = {name: (isinstance(each, Parameter), digest(each.detach())) for name, each in tensors.items()}
    every = comm.allgather(mine)
    for rank, theirs in enumerate(every):
        both = every[0] | theirs
        found = [(not both[name][0], name) for name in both if theirs.get(name) != every[0].get(name)]
        if found:
            of_buffer, name = min(found)
            what = "buffer" if of_buffer else "parameter"
            told = "call mgg.manual_seed on all ranks before the model is made"
            told = "mgg.nn.BatchNorm has the statistics of all ranks' rows" if of_buffer else told
            raise InputError(f"{where}: the {what} {name} of rank {rank} differs from rank 0's; {told}")


def shared(
    parameters: Sequence[Parameter], rows: int, collectives: Collectives, comm: Any, where: str, *, new: bool
) -> list[Parameter]:
    """Return the parameters of a loss that all ranks share, without those that hold a rank's rows. Collective.

    The latter have the shape [rows, ...] on every rank, and values that differ between ranks. Parameters are
    compared if ``new``, and at the calls 1, 2, 4, 8 and so on. rows: number of this rank's rows. where: begins
    messages. Raises InputError, the same on all ranks, if parameters that must be the same differ.
    """
    _losses[collectives] = number = _losses.get(collectives, 0) + 1
    if new or not number & (number - 1):
        mine = [(digest(each), each.dim() > 1 and len(each) == rows) for each in parameters]
        for parameter, *every in zip(parameters, *comm.allgather(mine), strict=True):
            differing = [rank for rank, (found, _) in enumerate(every) if found != every[0][0]]
            _own[parameter] = bool(differing) and (
                _own.get(parameter) or all(of_rows for _, of_rows in every)
            )
            if differing and not _own[parameter]:
                raise InputError(
                    f"{where}: a parameter {list(parameter.shape)} of rank {differing[0]} differs from rank 0's; call "
                    "mgg.manual_seed on all ranks before the model is made, and take the same steps on all"
                )
    return [each for each in parameters if not _own[each]]


def sum_gradients(parameters: Sequence[Tensor], collectives: Collectives) -> None:
    """Replace gradients by their sums over all ranks, in one exchange. Collective.

    Gradients that are such sums on all ranks stay as they are. One that is None on this rank counts as zero; one that
    is None on all ranks stays None. Raises InputError, the same on all ranks, for a sum to which a later backward has
    added, and for sparse gradients.
    """
    if not parameters:
        return
    # One type for all, so that one exchange is enough. After the values, for each parameter: the number of ranks with a
    # gradient, with one that is no sum yet, with one that is a mixture, and with a sparse one.
    double = any(each.dtype == torch.float64 for each in parameters)
    dtype = torch.float64 if double else torch.float32
    sizes = [*(each.numel() for each in parameters), 4 * len(parameters)]
    flat = torch.zeros(sum(sizes), dtype=dtype, device=parameters[0].device)
    *sums, counts = flat.split(sizes)
    found = []
    for mine, parameter in zip(sums, parameters, strict=True):
        grad, kind = parameter.grad, _kinds.get(parameter, LOCAL)
        sparse = grad is not None and grad.layout != torch.strided
        if grad is not None and not sparse:
            mine.copy_(grad.reshape(-1))
        found.append(
            [grad is not None, grad is None or kind == LOCAL, grad is not None and kind == MIXED, sparse]
        )
    counts.copy_(torch.tensor(found, dtype=dtype).reshape(-1))
    collectives.sum(as_array(flat))
    every = counts.reshape(-1, 4).tolist()
    if any(sparse for *_, sparse in every):
        raise InputError("a parameter has a sparse gradient; make its embedding with sparse=False")
    if any(mixed for *_, mixed, _ in every):
        raise InputError(
            "the gradient of a parameter is the sum of one loss over ranks and this rank's part of another; add the "
            "losses before backward, or call allreduce_gradients after the backward of each one of your own"
        )
    for parameter, total, (holding, local, *_) in zip(parameters, sums, every, strict=True):
        if not holding or not local:
            continue
        if parameter.grad is None:
            parameter.grad = torch.empty_like(parameter)
        parameter.grad.copy_(total.view_as(parameter))
        _set(parameter, WHOLE)


def _set(parameter: Tensor, kind: str) -> None:
    if parameter not in _kinds:
        parameter.register_hook(partial(_added, ref(parameter)))
    _kinds[parameter] = kind


def _added(parameter: ref[Tensor], _: Tensor) -> None:
    """Note that a backward is about to add to the gradient of a parameter."""
    here = parameter()
    if here is not None and _kinds[here] != LOCAL:
        _kinds[here] = MIXED if _holds(here.grad) else LOCAL


def _holds(grad: Tensor | None) -> bool:
    return grad is not None and bool(grad.any())


@dataclass(frozen=True)
class Backward:
    """The sum over ranks that ends each backward of a loss. parameters: of the loss, in the same order on all ranks."""

    parameters: list[Parameter]
    collectives: Collectives

    def begin(self) -> None:
        """Set earlier gradients aside; when the backward ends, the ranks' sum of its own is added to them."""
        before = [(each.grad, _kinds.get(each, LOCAL)) for each in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None
            _set(parameter, LOCAL)
        Variable._execution_engine.queue_callback(partial(self._end, before))

    @collective("the sum of gradients after a backward")
    @torch.no_grad()
    def _end(self, before: list[tuple[Tensor | None, str]]) -> None:
        try:
            sum_gradients(self.parameters, self.collectives)
        finally:
            for parameter, (earlier, kind) in zip(self.parameters, before, strict=True):
                if earlier is not None:
                    _set(parameter, WHOLE if kind == WHOLE or not _holds(earlier) else MIXED)
                    parameter.grad = earlier if parameter.grad is None else earlier.add_(parameter.grad)
