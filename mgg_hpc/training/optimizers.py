"""The optimiser and scheduler of a job: `Adam`, or those that train.optimizer and train.scheduler name.

A job with plain Adam at a constant learning rate uses `Adam`, which gives the same numbers and imports less.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..config import TrainSettings
from ..errors import InputError, did_you_mean
from ..nn.workspace import as_array
from .adam import Adam, Group
from .metrics import Scores

# Classes that need what a job file cannot give: closures, sparse gradients, functions, other schedulers.
OTHERS = ("Optimizer", "LBFGS", "SparseAdam")
OTHER_SCHEDULERS = ("LRScheduler", "LambdaLR", "MultiplicativeLR", "SequentialLR", "ChainedScheduler")
# Their update of a row depends on other rows, so that a rank cannot compute it from its own rows.
BY_MATRIX = ("Adafactor", "Muon")
KEYS = {"lr": "train.learning_rate", "weight_decay": "train.weight_decay"}


class TorchOptimizer:
    """An optimiser of torch.optim with the job's scheduler, which steps after each epoch."""

    def __init__(self, groups: Sequence[Group], train: TrainSettings) -> None:
        self._torch, self._scheduler = _made(groups, train)

    def slots(self) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """Yield each parameter with the state tensors of the optimiser for it, by name."""
        for group in self._torch.param_groups:
            for parameter in group["params"]:
                state = self._torch.state.get(parameter, {})
                yield parameter, {name: each for name, each in state.items() if isinstance(each, Tensor)}

    def allocate(self, parameter: Tensor, slot: str, like: Tensor) -> None:
        """Allocate a state tensor of the optimiser for a parameter, into which a checkpoint will be copied.

        slot: name of the tensor. like: tensor with its shape and dtype.
        """
        device = parameter.device if like.dim() else like.device
        self._torch.state[parameter][slot] = torch.empty_like(like, device=device)

    def step(self) -> None:
        """Update the parameters that have a gradient."""
        self._torch.step()

    def end_epoch(self, scores: Scores, loss: float) -> None:
        """Step the scheduler, if there is one. Raises InputError if it has no further steps.

        ReduceLROnPlateau gets the validation score in mode "max", else the validation loss, or ``loss`` without
        one. scores: scores of the epoch. loss: training loss of the epoch.
        """
        if self._scheduler is None:
            return
        try:
            if isinstance(self._scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                value = scores.val_loss if scores.val_loss else loss
                self._scheduler.step(scores.val if self._scheduler.mode == "max" else value)
            else:
                self._scheduler.step()
        except ValueError as error:
            raise InputError(f"train.scheduler: {error}") from error

    def facts(self) -> dict[str, Any]:
        """Return the state of optimiser and scheduler that is not in tensors, as JSON can store it."""
        groups = [
            {key: value for key, value in group.items() if key != "params"}
            for group in self._torch.param_groups
        ]
        # Dictionaries in a scheduler's state are its arguments.
        state = {} if self._scheduler is None else self._scheduler.state_dict()
        return {
            "groups": groups,
            "scheduler": {key: each for key, each in state.items() if not isinstance(each, dict)},
        }

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Restore the state that `facts` returned, read from JSON.

        Raises InputError if it does not fit the optimiser.
        """
        try:
            for group, saved in zip(self._torch.param_groups, facts["groups"], strict=True):
                for key in group.keys() - {"params"}:
                    group[key] = tuple(saved[key]) if isinstance(group[key], tuple) else saved[key]
            if self._scheduler is not None:
                self._scheduler.load_state_dict(dict(facts["scheduler"]))
        except (LookupError, TypeError, ValueError) as error:
            raise InputError(f"the checkpoint is of another optimiser or scheduler ({error!r})") from error


def make(groups: Sequence[Group], train: TrainSettings, device: str) -> Adam | TorchOptimizer:
    """Return a job's optimiser. groups: parameter groups. Raises InputError as `check` does."""
    if train.plain_adam:
        return Adam(groups, train.learning_rate, capturable=device != "cpu")
    return TorchOptimizer(groups, train)


def check(train: TrainSettings, *, learned: bool) -> None:
    """Raise InputError if the job's optimiser or scheduler does not exist, or has wrong arguments.

    Two steps are taken on a small parameter to find out. learned: True if input rows are trained, which some
    optimisers do not support.
    """
    if train.plain_adam:
        return
    parameter = torch.nn.Parameter(torch.zeros(2, 2))
    optimizer = TorchOptimizer([Group([parameter], train.weight_decay)], train)
    scheduler = optimizer._scheduler
    name = _named("train.optimizer", train.optimizer)[0]
    if learned and name in BY_MATRIX:
        raise InputError(f'train.optimizer: {name} does not go with model.input = "learned"; take "AdamW"')
    key = "train.optimizer"
    try:  # two steps, which find what the constructors did not
        for _ in range(2):
            key, parameter.grad = "train.optimizer", torch.ones_like(parameter)
            optimizer.step()
            key = "train.scheduler"
            optimizer.end_epoch(Scores(0.0, 0.0, 0.0, 1.0), 1.0)
            float(optimizer._torch.param_groups[0]["lr"])
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{key}: its arguments do not work ({type(error).__name__}: {error})") from error
    total = getattr(scheduler, "total_steps", math.inf)
    if total < train.epochs:
        raise InputError(
            f"train.scheduler: {type(scheduler).__name__} has {total} steps, one an epoch, and train.epochs is "
            f"{train.epochs}"
        )


def _made(groups: Sequence[Group], train: TrainSettings) -> tuple[Any, Any]:
    """Return the optimiser of torch.optim for the parameter groups, and its scheduler, or None without one."""
    key = "train.optimizer"
    kind, arguments = _kind(key, train.optimizer, torch.optim, torch.optim.Optimizer, OTHERS)
    for name in arguments.keys() & KEYS:
        raise InputError(f"{key} has {name}, which {KEYS[name]} sets")
    decays = "weight_decay" in inspect.signature(kind).parameters
    if not decays and train.weight_decay:
        raise InputError(f"{key}: {kind.__name__} has no weight decay; set train.weight_decay = 0")
    given = [
        {"params": each.parameters} | ({"weight_decay": each.weight_decay} if decays else {})
        for each in groups
    ]
    optimizer = _call(key, kind, arguments, params=given, lr=train.learning_rate)
    if not train.scheduler:
        return optimizer, None
    key, schedulers = "train.scheduler", torch.optim.lr_scheduler
    kind, arguments = _kind(key, train.scheduler, schedulers, schedulers.LRScheduler, OTHER_SCHEDULERS)
    return optimizer, _call(key, kind, arguments, optimizer=optimizer)


def _named(key: str, given: str | dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name and the arguments in the value of a key of [train]: a name, or a table with "name"."""
    arguments = {"name": given} if isinstance(given, str) else dict(given)
    name = arguments.pop("name", None)
    if not isinstance(name, str):
        raise InputError(f'{key} is a table without a name; write it as {{ name = "SGD", momentum = 0.9 }}')
    return name, arguments


def _kind(
    key: str, given: Any, module: Any, base: type, without: Sequence[str]
) -> tuple[Any, dict[str, Any]]:
    """Return the class of ``module`` that a key of the job names, and the arguments given for it.

    base: the class must be a subclass of it. without: names of classes that jobs cannot use. Raises InputError
    for any other name.
    """
    name, arguments = _named(key, given)
    found = {each for each, kind in vars(module).items() if isinstance(kind, type) and issubclass(kind, base)}
    known = sorted(each for each in found - set(without) if not each.startswith("_"))
    if name not in known:
        same = [each for each in known if each.lower() == name.lower()]
        near = (
            f"; did you mean {same[0]!r}?"
            if same
            else did_you_mean(name, known) or f"; known are {', '.join(known)}"
        )
        raise InputError(f"{key}: {name!r} is none of {module.__name__} that jobs can use{near}")
    return getattr(module, name), arguments


def _call(key: str, kind: Any, arguments: Mapping[str, Any], **ours: Any) -> Any:
    """Construct an object of a class of torch.

    key: key of the job, for messages. kind: the class. arguments: arguments from the job. ours: arguments that
    mgg sets. Raises InputError for wrong arguments; its message lists those that the class takes.
    """
    signature = inspect.signature(kind)
    taken = [
        each
        for name, each in signature.parameters.items()
        if name not in ours and name not in (*KEYS, "last_epoch")
    ]
    wrong = sorted(arguments.keys() & {*ours, "last_epoch"}) or sorted(
        arguments.keys() - signature.parameters.keys()
    )
    try:
        if wrong:
            raise TypeError(f"no argument {wrong[0]}")
        return kind(**ours, **arguments)
    except (TypeError, ValueError, AttributeError) as error:
        takes = ", ".join(
            str(each) for each in (each.replace(annotation=inspect.Parameter.empty) for each in taken)
        )
        raise InputError(
            f"{key}: {kind.__name__}: {error}; its arguments are {takes.replace('*, ', '')}"
        ) from error


def clip(gradients: Sequence[Tensor], own: Sequence[Tensor], most: float, collectives: Any) -> None:
    """Scale gradients in place so that the norm of all together is at most ``most``, as torch's clip_grad_norm_.

    gradients: gradients that are the same on all ranks. own: gradients of this rank's rows, whose squares are
    summed over ranks; if there are any, the call is collective.
    """

    def squares(tensors: Sequence[Tensor]) -> Tensor:
        return torch.stack(torch._foreach_norm(list(tensors))).square().sum()

    total = squares(gradients) if gradients else torch.zeros(())
    if own:
        mine = squares(own).reshape(1)
        collectives.sum(as_array(mine))
        total = total + mine[0]
    scale = (most / (total.sqrt() + 1e-6)).clamp(max=1.0)
    for each in (*gradients, *own):
        each.mul_(scale)
