"""Losses over the labels of all ranks: the sum of this rank's terms, and the mean over all ranks."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, autograd, nn
from torch.nn import functional as F

from ...errors import InputError
from ...runtime.backends.base import Collectives
from ..calls import is_plain
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


# torch's losses, by what they divide a sum by for the mean: weights of classes, the number of values, or of rows.
OF_CLASSES = {nn.CrossEntropyLoss: F.cross_entropy, nn.NLLLoss: F.nll_loss}
# Of these a loss may have weights.
_OF_WEIGHTS = {nn.MSELoss: F.mse_loss, nn.L1Loss: F.l1_loss, nn.HuberLoss: F.huber_loss}
OF_VALUES = _OF_WEIGHTS | {
    nn.SmoothL1Loss: F.smooth_l1_loss,
    nn.BCELoss: F.binary_cross_entropy,
    nn.BCEWithLogitsLoss: F.binary_cross_entropy_with_logits,
    nn.SoftMarginLoss: F.soft_margin_loss,
    nn.HingeEmbeddingLoss: F.hinge_embedding_loss,
    nn.KLDivLoss: F.kl_div,
    nn.PoissonNLLLoss: F.poisson_nll_loss,
}
OF_ROWS = {
    nn.MultiMarginLoss: F.multi_margin_loss,
    nn.MultiLabelMarginLoss: F.multilabel_margin_loss,
    nn.MultiLabelSoftMarginLoss: F.multilabel_soft_margin_loss,
}
_MODULES: dict[Any, Any] = OF_CLASSES | OF_VALUES | OF_ROWS

SAMPLE = 8  # number of rows on which another loss is examined: a term that is no row's shows among few
_examined: WeakSet[Any] = WeakSet()  # losses that are sums of terms of rows


def _code_of(given: Any) -> Any:
    """Return what is the same of a function that a loop makes anew in each step, as a lambda or a partial."""
    while isinstance(given, partial):
        given = given.func
    return given if getattr(given, "__closure__", ()) is not None else given.__code__


@dataclass(frozen=True)
class Loss:
    """A loss function of a user, with torch's meaning of its mean.

    given: what the user passed. call: calls it with outputs, labels and reduction="sum" or "mean". base: the function
    of torch.nn.functional that it is, whose divisor is known, or None. reduction: "mean", "sum", or "batchmean", which
    divides by the number of rows. weight: of each class, or None. ignored: the label that does not count.
    """

    given: Any
    call: Callable[..., Tensor]
    base: Any
    reduction: str
    weight: Tensor | None
    ignored: int

    def summed(self, out: Tensor, labels: Tensor, where: str) -> tuple[Tensor, float]:
        """Return the sum of the loss over rows [k, ...] and their labels, a scalar, and its divisor in the mean.

        Both are 0 without rows, with zero gradients. where: begins messages. Raises InputError for labels with more
        classes than ``out`` has, and for a loss that is no sum of terms of rows; ValueError for one that is no scalar.
        """
        of_classes = self.base in OF_CLASSES.values()
        if labels.dim() < out.dim():
            one_of_two = out.dim() == 2 and out.shape[1] == 1 and not of_classes
            check_classes(out, self._counted(labels), where, 2 if one_of_two else 0)
        if self.base in OF_VALUES.values() and out.shape != labels.shape:
            raise InputError(
                f"{where}: out is {list(out.shape)}, and labels {list(labels.shape)}; "
                f"{self.base.__name__} takes the same shape"
            )
        if not len(labels):
            return out.sum(), 0
        mine = self.call(out, labels, reduction="sum")
        if not isinstance(mine, Tensor):
            raise InputError(f"{where}: the loss is a {type(mine).__name__}; expected a tensor")
        if mine.dim():
            raise ValueError(
                f'the loss is {list(mine.shape)} and not one number: it shall take reduction="sum"'
            )
        if self.base is not None:
            return mine, self._known(out, labels)
        return mine, self._found(out, labels, float(mine.detach()), where)

    def _known(self, out: Tensor, labels: Tensor) -> float:
        """Return the number, or the sum of weights, that torch divides a sum by for the mean."""
        if self.reduction != "mean" or self.base in OF_ROWS.values():
            return len(labels)
        if self.base in OF_VALUES.values():
            return labels.numel()
        if labels.dim() == out.dim():  # probabilities of classes
            return labels.numel() / labels.shape[1]
        counted = self._counted(labels)
        return counted.numel() if self.weight is None else float(self.weight.detach().double()[counted].sum())

    def _counted(self, labels: Tensor) -> Tensor:
        """Return the labels that are not ignored."""
        left_out = labels == self.ignored
        return labels[~left_out] if left_out.any() else labels

    @torch.no_grad()
    def _found(self, out: Tensor, labels: Tensor, total: float, where: str) -> float:
        """Return the divisor of a loss of which it is not known, by calls on detached outputs. total: the sum."""
        out = out.detach()
        with suppress(TypeError):  # what cannot be in a set is examined each time
            examined = False
            examined = _code_of(self.given) in _examined
        if not examined and self._is_sum(out, labels, where):
            with suppress(TypeError):
                _examined.add(_code_of(self.given))
        if self.reduction != "mean":
            return len(labels)
        divisor = self._ratio(out, labels, total)
        if math.isnan(divisor) and math.isfinite(total):
            raise InputError(
                f"{where}: the number by which the loss divides for the mean cannot be found: with "
                'reduction="mean" it shall be the same sum, divided'
            )
        return len(labels) if math.isnan(divisor) else divisor  # a sum that is not finite stays so

    def _sum(self, out: Tensor, labels: Tensor, reduction: str = "sum") -> float:
        return float(self.call(out, labels, reduction=reduction))

    def _ratio(self, out: Tensor, labels: Tensor, total: float | None = None) -> float:
        """Return the loss's sum divided by its mean; 0 if no label counts, NaN if no outputs tell. total: the sum."""
        # A loss of 0 does not tell. Other outputs are means of these, as probabilities stay what they are.
        others = (lambda: out.flip(0), lambda: out.mean(0).expand_as(out), lambda: out.mean().expand_as(out))
        for made in (lambda: out, *others):
            given = made()
            mean = self._sum(given, labels, "mean")
            total = self._sum(given, labels) if total is None else total
            if total == 0 and math.isnan(mean):
                return 0
            if mean and math.isfinite(ratio := total / mean):
                whole, error = round(ratio), 16 * torch.finfo(out.dtype).eps
                return whole if math.isclose(ratio, whole, rel_tol=error) else ratio
            total = None
        return math.nan

    def _is_sum(self, out: Tensor, labels: Tensor, where: str) -> bool:
        """Return whether the loss is a sum of terms of rows, or False if these rows do not tell.

        Raises InputError for one that is not, that draws random numbers or changes itself, or whose mean is another.
        """
        for count in (min(len(labels), SAMPLE), len(labels)):
            rows = torch.linspace(
                0, len(labels) - 1, max(2, count), dtype=torch.float64, device=out.device
            ).long()
            parts = [rows, rows, rows[: (len(rows) + 2) // 3], rows[(len(rows) + 2) // 3 :]]
            pairs = [(out[part], labels[part]) for part in parts]
            with torch.random.fork_rng([out.device] if out.is_cuda else []):
                before = torch.get_rng_state()
                try:
                    whole, again, *halves = (self._sum(*pair) for pair in pairs)
                    alone = [self._sum(out[row, None], labels[row, None]) for row in rows[:SAMPLE]]
                    ratios = [self._ratio(*pair) for pair in pairs[1:]] if self.reduction == "mean" else []
                    ratios += [self._ratio(pairs[0][0].flip(0), pairs[0][1])] if ratios else []
                except (RuntimeError, ValueError, IndexError) as error:
                    message = str(error).partition("\n")[0]
                    raise InputError(
                        f"{where}: the loss shall run on any rows, without gradients: {message}"
                    ) from error
                drew = not torch.equal(before, torch.get_rng_state())
            if drew or (math.isfinite(whole) and not math.isclose(whole, again, rel_tol=2e-7)):
                raise InputError(
                    f"{where}: the loss draws random numbers, or changes itself: called again it gives "
                    f"{again:g}, not {whole:g}; change it between steps"
                )
            size = abs(halves[0]) + abs(halves[1])
            with suppress(RuntimeError, ValueError, IndexError):  # some losses take no empty tensors
                if (of_none := self._sum(out[:0], labels[:0])) and math.isfinite(of_none):
                    raise InputError(
                        f'{where}: with reduction="sum" the loss of no rows is {of_none:g} and not 0; it shall be a '
                        "sum of terms of rows"
                    )
            near = 1e-5 * size + 1e-7 * len(rows) * float(out[rows].abs().max())
            sums = [sum(halves), *([sum(alone)] if len(rows) <= SAMPLE else [])]
            if math.isfinite(whole + size) and any(abs(whole - each) > near for each in sums):
                if whole == self._sum(*pairs[0], "mean"):
                    raise InputError(
                        f'{where}: the loss is the same with reduction="sum" and "mean"; it shall use it'
                    )
                raise InputError(
                    f'{where}: with reduction="sum" the loss is {whole:g} of some rows, but {halves[0]:g} + '
                    f"{halves[1]:g} of two parts of them and {sum(alone):g} of each by itself; it shall be a sum of "
                    "terms of rows"
                )
            if ratios and not any(math.isnan(each) for each in ratios):
                every, first, second, other = ratios
                if not all(math.isclose(every, each, rel_tol=1e-4) for each in (first + second, other)):
                    raise InputError(
                        f'{where}: with reduction="mean" the loss is not its sum divided by the number of rows, or by '
                        "weights of labels"
                    )
            if whole and math.isfinite(whole):
                return True
        return False


def loss_of(fn: Callable[..., Tensor], where: str) -> Loss:
    """Return a function of torch.nn.functional, a partial of one, a loss module, or another function, as a `Loss`.

    where: begins messages. Raises InputError for one that does not sum.
    """
    base: Any = fn
    options: dict[str, Any] = {}
    known = True
    while isinstance(base, partial):
        known = known and not base.args
        base, options = base.func, base.keywords | options
    if getattr(base, "__name__", None) == "forward" and isinstance(
        getattr(base, "__self__", None), nn.Module
    ):
        base = base.__self__
    call = fn
    if isinstance(base, torch.jit.ScriptModule):
        raise InputError(f"{where}: a scripted module has its reduction compiled in; give the module itself")
    if isinstance(base, nn.Module) and isinstance(getattr(base, "reduction", None), str):
        call = partial(_reduced, fn, base)
        options = {
            name: getattr(base, name, None) for name in ("reduction", "weight", "ignore_index")
        } | options
        known = known and is_plain(base, type(base)) and not (isinstance(fn, partial) and fn.keywords)
        base = _MODULES.get(type(base))
        known = known and base is not None and base is getattr(F, base.__name__)  # which its forward calls
    elif base not in _MODULES.values():  # functions of torch take it
        try:
            takes = inspect.signature(base.forward if isinstance(base, nn.Module) else base).parameters
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
    ignored, weight = options.get("ignore_index"), options.get("weight")
    known = known and base in _MODULES.values() and not (base in _OF_WEIGHTS.values() and weight is not None)
    return Loss(fn, call, base if known else None, reduction, weight, -100 if ignored is None else ignored)


def _reduced(
    fn: Callable[..., Tensor], module: Any, out: Tensor, labels: Tensor, *, reduction: str
) -> Tensor:
    """Call a loss module, by ``fn``, with another reduction. A copy of it would lose what it changes."""
    before, module.reduction = module.reduction, reduction
    try:
        return fn(out, labels)
    finally:
        module.reduction = before


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
