"""Adam (Kingma and Ba, ICLR 2015), by the function that torch's own optimiser calls.

Constructing torch.optim.Adam imports torch's compiler, which takes 70 MB and more than a second of each rank's start,
and which a run does not use unless layers are recomputed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor
from torch.optim.adam import adam

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8


@dataclass
class Group:
    """Parameters with the same weight decay, their moments, and the number of steps [] of each, on its device."""

    parameters: list[Tensor]
    weight_decay: float
    first: list[Tensor] = field(init=False)
    second: list[Tensor] = field(init=False)
    steps: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.first = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.second = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.steps = [torch.zeros((), dtype=torch.float32, device=each.device) for each in self.parameters]


class Adam:
    """The optimiser. capturable: True if steps may be recorded as a CUDA graph; on GPUs only."""

    def __init__(self, groups: Sequence[Group], learning_rate: float, *, capturable: bool) -> None:
        self._groups, self._learning_rate, self._capturable = groups, learning_rate, capturable

    def slots(self) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """Yield each parameter with its moments and step count by name. They may be changed in place."""
        for group in self._groups:
            slots = zip(group.parameters, group.first, group.second, group.steps, strict=True)
            for parameter, first, second, steps in slots:
                yield parameter, {"first": first, "second": second, "steps": steps}

    @torch.no_grad()
    def step(self) -> None:
        """Take one step, over the parameters that have a gradient."""
        for group in self._groups:
            every = zip(group.parameters, group.first, group.second, group.steps, strict=True)
            held = [each for each in every if each[0].grad is not None]
            parameters, first, second, steps = (
                (list(each) for each in zip(*held, strict=True)) if held else ([],) * 4
            )
            adam(
                parameters,
                [cast(Tensor, parameter.grad) for parameter in parameters],
                first,
                second,
                [],
                steps,
                capturable=self._capturable,
                amsgrad=False,
                beta1=BETA1,
                beta2=BETA2,
                lr=self._learning_rate,
                weight_decay=group.weight_decay,
                eps=EPS,
                maximize=False,
            )
