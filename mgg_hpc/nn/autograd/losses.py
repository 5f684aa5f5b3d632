"""Losses over the labels of all ranks: the sum of this rank's terms, and the mean over all ranks."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, autograd
from torch.nn import functional as F

from ...errors import InputError
from ...runtime.backends.base import Collectives
from ..gradients import Backward, form_of, parameters_of, shared, unknown
from ..graph.view import GraphView
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


@dataclass(frozen=True)
class Loss:
    """A loss function of a user, with torch's meaning of its mean.

    fn: called with outputs, labels and reduction="sum" or "mean". base: the function of torch.nn.functional that it
    calls, or fn. reduction: "mean", "sum", or "batchmean", which divides by the number of rows. weight: of each class,
    or None. ignored: the label that does not count.
    """

    fn: Callable[..., Tensor]
    base: Any
    reduction: str
    weight: Tensor | None
    ignored: int

    def summed(self, out: Tensor, labels: Tensor, where: str) -> tuple[Tensor, float]:
        """Return the sum of the loss over rows [k, ...] and their labels, a scalar, and its divisor in the mean.

        Both are 0 without rows, with zero gradients. where: begins messages. Raises InputError for labels with more
        classes than ``out`` has, and for a loss that does not sum; ValueError for one that is no scalar.
        """
        if labels.dim() < out.dim():
            one_of_two = out.dim() == 2 and out.shape[1] == 1 and self.base not in OF_CLASSES
            check_classes(out, labels[labels != self.ignored], where, 2 if one_of_two else 0)
        if not len(labels):
            return out.sum(), 0
        mine = self.fn(out, labels, reduction="sum")
        if mine.dim():
            raise ValueError(
                f'the loss is {list(mine.shape)} and not one number: it shall take reduction="sum"'
            )
        return mine, self._divisor(out, labels, float(mine.detach()), where)

    def _divisor(self, out: Tensor, labels: Tensor, total: float, where: str) -> float:
        """Return the number, or the sum of weights, that torch divides a sum by for the mean."""
        if self.reduction != "mean" or (self.base in OF_CLASSES and labels.dim() == out.dim()):
            return len(labels)
        if self.base in OF_CLASSES:
            if self.weight is None:
                return len(labels) if self.ignored < 0 else int((labels != self.ignored).sum())
            return float(self.weight.detach().double()[labels[labels != self.ignored]].sum())
        if self.base in OF_VALUES and self.weight is None:
            return labels.numel()
        with torch.no_grad():
            for given in (out, out + 1, out * 0):  # a loss of 0 does not tell
                sums, mean = (float(self.fn(given, labels, reduction=how)) for how in ("sum", "mean"))
                if mean != 0:
                    break
        if sums == mean and len(labels) > 1:
            raise InputError(
                f'{where}: the loss is the same with reduction="sum" and "mean"; it shall use it'
            )
        terms = sums / mean if mean else math.nan
        near = [count for count in (len(labels), labels.numel()) if math.isclose(terms, count, rel_tol=1e-5)]
        return near[0] if near else terms if math.isfinite(terms) else len(labels)


# By what torch divides the sum: the weights of the classes of labels that count, and the number of values.
OF_CLASSES = (F.cross_entropy, F.nll_loss)
OF_VALUES = (
    F.mse_loss,
    F.l1_loss,
    F.smooth_l1_loss,
    F.huber_loss,
    F.binary_cross_entropy,
    F.binary_cross_entropy_with_logits,
)


def loss_of(fn: Callable[..., Tensor], where: str) -> Loss:
    """Return a function of torch.nn.functional, a partial of one, a loss module, or another function, as a `Loss`.

    where: begins messages. Raises InputError for one that does not sum.
    """
    base: Any = fn
    options, call = {}, fn
    if isinstance(fn, torch.nn.Module) and isinstance(getattr(fn, "reduction", None), str):
        options = {name: getattr(fn, name, None) for name in ("reduction", "weight", "ignore_index")}
        base = {torch.nn.CrossEntropyLoss: F.cross_entropy, torch.nn.NLLLoss: F.nll_loss}.get(type(fn), fn)

        def call(out: Tensor, labels: Tensor, *, reduction: str) -> Tensor:
            module: Any = copy(fn)
            module.reduction = reduction
            value: Tensor = module(out, labels)
            return value

    else:
        while isinstance(base, partial):
            base, options = base.func, base.keywords | options
        try:
            takes = inspect.signature(base.forward if isinstance(base, torch.nn.Module) else base).parameters
            named = takes.get("reduction")
            if named is None and all(each.kind is not each.VAR_KEYWORD for each in takes.values()):
                raise InputError(
                    f'{where}: the loss does not take reduction="sum"; give a function of torch.nn.functional, a '
                    "partial of one, a loss module, or a function with a keyword reduction"
                )
            if named is not None and named.default == "sum":
                options = {"reduction": "sum"} | options
        except (TypeError, ValueError):  # it has no signature
            pass
        if options.get("size_average") is not None or options.get("reduce") is not None:
            raise InputError(f"{where}: size_average and reduce are no longer torch's; give reduction")
    reduction = options.get("reduction") or "mean"
    if reduction not in ("mean", "sum", "batchmean"):
        raise InputError(f'{where}: reduction is {reduction!r}; a loss is one number, by "mean" or "sum"')
    ignored = options.get("ignore_index")
    return Loss(call, base, reduction, options.get("weight"), -100 if ignored is None else ignored)


def totals(value: Tensor, *numbers: float, collectives: Collectives) -> Tensor:
    """Return a scalar and numbers, each summed over all ranks, float64 [1 + numbers]. Collective."""
    every = torch.stack(
        [value.detach().double(), *(value.new_tensor(each, dtype=torch.float64) for each in numbers)]
    )
    collectives.sum(as_array(every))
    return every


def mean_of_all(
    mine: Tensor, divisor: float, graph: GraphView, where: str, *, rows: int = -1, reduction: str = "mean"
) -> tuple[Tensor, float]:
    """Return the sum of ``mine`` over all ranks divided by the sum of divisors, and that sum. Collective.

    mine: this rank's part of a sum, a scalar. When a backward of the result ends, gradients of parameters are summed
    over ranks. where: begins messages. rows: number of this rank's rows, for which there may be parameters of its own.
    reduction: "sum" does not divide. Raises InputError, the same on all ranks, if
    the parameters behind ``mine`` are not the same on all ranks, and for torch's batch norms.
    """
    collectives, comm = graph.backend.collectives, graph.comm
    parameters = parameters_of(mine, where) if comm.size > 1 else []
    form = form_of(parameters)
    total = totals(mine, divisor, form, form**2, unknown(parameters), collectives=collectives)
    if total[2] ** 2 != total[3] * comm.size:
        raise InputError(f"{where}: the loss depends on other parameters on one rank than on another")
    if parameters:
        parameters = shared(parameters, rows, collectives, comm, where, new=bool(total[4]))
    end = Backward(parameters, collectives) if parameters else None
    mean: Tensor = _Mean.apply(
        mine, total[0], torch.ones_like(total[1]) if reduction == "sum" else total[1], end
    )
    return mean, float(total[1])


class _Mean(autograd.Function):
    @staticmethod
    def forward(ctx: Any, mine: Tensor, total: Tensor, divisor: Tensor, backward: Backward | None) -> Tensor:
        ctx.divisor, ctx.end = divisor.to(mine.dtype), backward
        return (total / divisor).to(mine.dtype)

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        if ctx.end is not None:
            ctx.end.begin()
        return gradient / ctx.divisor, None, None, None
