"""Optimisers and schedulers of torch.optim: all that jobs can use go on with the same bits; others are refused."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch.nn.utils import clip_grad_norm_

from mgg_hpc import config
from mgg_hpc.errors import InputError
from mgg_hpc.training import optimizers
from mgg_hpc.training.adam import Group
from mgg_hpc.training.metrics import Scores

ARGUMENTS = {
    "ConstantLR": {"total_iters": 3},
    "CosineAnnealingLR": {"T_max": 9},
    "CosineAnnealingWarmRestarts": {"T_0": 2},
    "CyclicLR": {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 2, "cycle_momentum": False},
    "ExponentialLR": {"gamma": 0.9},
    "MultiStepLR": {"milestones": [2, 5]},
    "OneCycleLR": {"max_lr": 0.1, "total_steps": 12},
    "StepLR": {"step_size": 2},
}


def known(module, base: type, without: tuple[str, ...]) -> list[str]:
    names = [name for name, kind in vars(module).items() if isinstance(kind, type) and issubclass(kind, base)]
    return sorted(name for name in names if name not in without and not name.startswith("_"))


OPTIMIZERS = known(torch.optim, torch.optim.Optimizer, optimizers.OTHERS)
SCHEDULERS = known(
    torch.optim.lr_scheduler, torch.optim.lr_scheduler.LRScheduler, optimizers.OTHER_SCHEDULERS
)


def settings(**train: object) -> config.TrainSettings:
    return config.from_tree({"train": {"epochs": 12, "weight_decay": 0.0} | train}, "test").train


def stepped(
    made: optimizers.TorchOptimizer, parameters: list, gradients: torch.Tensor, first: int, last: int
) -> None:
    for epoch in range(first, last):
        for parameter in parameters:
            parameter.grad = gradients[epoch].view_as(parameter).clone()
        made.step()
        made.end_epoch(Scores(0.0, 0.0, 0.0, 1.0 + epoch % 3), 1.0)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_what_a_checkpoint_holds_of_an_optimiser_gives_the_same_bits(rng, optimizer, scheduler):
    if (
        optimizer != "SGD"
        and scheduler not in ("OneCycleLR", "ReduceLROnPlateau")
        and scheduler != SCHEDULERS[0]
    ):
        return  # each scheduler with one optimiser, each optimiser with three schedulers
    cycles = (
        {}
        if scheduler != "OneCycleLR" or optimizer in ("SGD", "Adam", "AdamW")
        else {"cycle_momentum": False}
    )
    chosen = {"name": scheduler} | ARGUMENTS.get(scheduler, {}) | cycles
    momentum = {"momentum": 0.9} if optimizer == "SGD" else {}
    train = settings(optimizer={"name": optimizer} | momentum, scheduler=chosen)
    optimizers.check(train, learned=False)
    parameters = [torch.nn.Parameter(torch.from_numpy(rng.normal(size=(3, 2)))) for _ in range(2)]
    gradients = torch.from_numpy(rng.normal(size=(8, 6)))
    made = optimizers.make([Group(parameters, 0.0)], train, "cpu")
    stepped(made, parameters, gradients, 0, 4)
    begun, kept = copy.deepcopy(parameters), json.loads(json.dumps(made.facts()))
    slots = [{slot: value.clone() for slot, value in held.items()} for _, held in made.slots()]
    stepped(made, parameters, gradients, 4, 8)
    other = optimizers.make([Group(begun, 0.0)], train, "cpu")
    for parameter, held in zip(begun, slots, strict=True):
        for slot, value in held.items():
            other.allocate(parameter, slot, value)
    for (_, targets), held in zip(other.slots(), slots, strict=True):
        for slot, value in held.items():
            targets[slot].copy_(value)
    other.restore(kept)
    stepped(other, begun, gradients, 4, 8)
    assert all(torch.equal(*pair) for pair in zip(begun, parameters, strict=True))
    assert not torch.equal(begun[0].detach(), torch.zeros(3, 2))


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ({"optimizer": "LBFGS"}, ["train.optimizer: 'LBFGS' is none of torch.optim that jobs can use"]),
        ({"optimizer": "sgd"}, ["did you mean 'SGD'?"]),
        ({"optimizer": {"momentum": 0.9}}, ["train.optimizer is a table without a name"]),
        (
            {"optimizer": {"name": "SGD", "lr": 1.0}},
            ["train.optimizer has lr, which train.learning_rate sets"],
        ),
        (
            {"optimizer": {"name": "SGD", "momentun": 1}},
            ["SGD: no argument momentun; its arguments are momentum=0"],
        ),
        ({"optimizer": {"name": "AdamW", "betas": [2.0, 3.0]}}, ["train.optimizer: AdamW: Invalid beta"]),
        (
            {"optimizer": "Rprop", "weight_decay": 0.1},
            ["Rprop has no weight decay; set train.weight_decay = 0"],
        ),
        (
            {"scheduler": "StepLR"},
            ["train.scheduler: StepLR: ", "step_size", "; its arguments are step_size, gamma="],
        ),
        ({"scheduler": "LambdaLR"}, ["'LambdaLR' is none of torch.optim.lr_scheduler that jobs can use"]),
        (
            {"scheduler": {"name": "OneCycleLR", "max_lr": 0.1, "total_steps": 5}},
            ["OneCycleLR has 5 steps, one an epoch"],
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(train, said):
    with pytest.raises(InputError) as error:
        optimizers.check(settings(**train), learned=False)
    assert all(each in str(error.value) for each in said), str(error.value)


def test_optimisers_that_need_whole_matrices_do_not_learn_the_rows_of_ranks():
    for name in set(optimizers.BY_MATRIX) & set(OPTIMIZERS):
        with pytest.raises(InputError, match=f"{name} does not go with model.input"):
            optimizers.check(settings(optimizer=name), learned=True)


def test_clipping_is_torchs(rng):
    for most in (0.5, 1e3):
        parameters = [torch.nn.Parameter(torch.zeros(each)) for each in ((3, 4), (5,))]
        for each in parameters:
            each.grad = torch.from_numpy(rng.normal(size=each.shape)).float()
        mine = [each.grad.clone() for each in parameters]
        clip_grad_norm_(parameters, most)
        optimizers.clip(mine, [], most, None)
        for found, each in zip(mine, parameters, strict=True):
            torch.testing.assert_close(found, each.grad)
