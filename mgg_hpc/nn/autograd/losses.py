"""Losses over the labels of all ranks: the sum of this rank's terms, and the mean over all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, autograd
from torch.nn import functional as F

from ...errors import InputError
from ...runtime.backends.base import Collectives
from ..spans import first_order
from ..workspace import as_array


def check_classes(out: Tensor, labels: Tensor, where: str, at_least: int = 0) -> None:
    """Raise InputError if labels [k] have more classes than outputs [k, C] have columns.

    where: begins the message. at_least: number of classes that are accepted for any number of columns.
    """
    if labels.dim() == 1 and out.dim() == 2 and len(labels):
        classes = int(labels.max()) + 1
        if classes > max(out.shape[1], at_least):
            raise InputError(
                f"{where}: the model has {out.shape[1]} outputs, but the labels are of {classes} classes"
            )


def summed_loss(fn: Callable[..., Tensor], out: Tensor, labels: Tensor, where: str) -> Tensor:
    """Return the sum of a loss over rows [k, ...] and their labels, a scalar; without rows 0, with zero gradients.

    fn: called with reduction="sum", as the losses of torch.nn.functional are. where: begins messages. Raises InputError
    for labels with more classes than ``out`` has, and ValueError for a loss that is not a scalar.
    """
    one_of_two = out.dim() == 2 and out.shape[1] == 1 and fn not in (F.cross_entropy, F.nll_loss)
    check_classes(out, labels, where, 2 if one_of_two else 0)
    mine = fn(out, labels, reduction="sum") if len(labels) else out.sum()
    if mine.dim():
        raise ValueError(f'the loss is {list(mine.shape)} and not one number: it shall take reduction="sum"')
    return mine


def totals(value: Tensor, count: int, collectives: Collectives) -> Tensor:
    """Return a scalar and a number of terms, each summed over all ranks, float64 [2]. Collective."""
    both = torch.stack([value.detach().double(), torch.full_like(value, count, dtype=torch.float64)])
    collectives.sum(as_array(both))
    return both


def mean_of_all(mine: Tensor, total: Tensor) -> Tensor:
    """Return total[0] / total[1] in the type of ``mine``, with the gradient 1 / total[1] for ``mine``.

    mine: this rank's part of a sum, a scalar. total: `totals` of it and of the number of its terms.
    """
    mean: Tensor = _Mean.apply(mine, total)
    return mean


class _Mean(autograd.Function):
    @staticmethod
    def forward(ctx: Any, mine: Tensor, total: Tensor) -> Tensor:
        ctx.count = total[1].to(mine.dtype)
        return (total[0] / total[1]).to(mine.dtype)

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient / ctx.count, None
