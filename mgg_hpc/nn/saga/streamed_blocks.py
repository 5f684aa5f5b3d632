"""Blocks of rows in ApplyVertex on a graph that is streamed: entrances, saved tensors, and sums of gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, autograd

from ...runtime.streaming.store import Store
from ..spans import first_order


class Inputs:
    """Entrances of a block into ApplyVertex, which keep the gradients that reach them, but not the values."""

    def __init__(self) -> None:
        self.token = torch.zeros((), requires_grad=True)
        self.gradients: dict[str, Tensor] = {}

    def enter(self, name: str, values: Tensor) -> Tensor:
        """Return values whose gradient will be ``gradients[name]``."""
        entered: Tensor = _Enter.apply(self.token, self, name, values)
        return entered


class _Enter(autograd.Function):
    @staticmethod
    def forward(ctx: Any, token: Tensor, inputs: Inputs, name: str, values: Tensor) -> Tensor:
        ctx.place = inputs, name
        return values.view_as(values)

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        inputs, name = ctx.place
        inputs.gradients[name] = gradient
        return torch.zeros(()), None, None, None


@dataclass(frozen=True, eq=False)
class Block:
    """Tensors of a block that the backward of ApplyVertex reads.

    out: the output, without values. inputs: its entrances. saved, kept: places of tensors that autograd saved, and that
    sums keep.
    """

    out: Tensor
    inputs: Inputs
    saved: list[Any]
    kept: list[Any]

    @property
    def spilled(self) -> list[Any]:
        """Places of all tensors that are out of memory."""
        return [*self.saved, *self.kept]


@dataclass(frozen=True)
class BlockStores:
    """Stores that the backward of a block writes to: gradients of x, and what sources read; None where none do."""

    back: Store | None
    crossing: Store | None


class Gradients:
    """Sums of the gradients of parameters. values: of each, or None."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = parameters
        self.values: list[Tensor | None] = [None] * len(parameters)

    def add(self, gradients: Sequence[Tensor | None]) -> None:
        """Add a gradient of each parameter."""
        for i, gradient in enumerate(gradients):
            if gradient is not None:
                held = self.values[i]
                self.values[i] = gradient.clone() if held is None else held.add_(gradient)

    def through(self, values: Sequence[Tensor], gradients: Sequence[Tensor], leaf: Tensor) -> Tensor | None:
        """Add what gradients of values, computed of rows ``leaf`` and parameters, give; return the rows' gradient.

        None where the rows require none, or the values do not depend on them.
        """
        pairs = [(v, g.to(v.dtype)) for v, g in zip(values, gradients, strict=False) if v.requires_grad]
        if not pairs:
            return None
        outputs, given = zip(*pairs, strict=True)
        wanted = [leaf] if leaf.requires_grad else []
        got = autograd.grad(outputs, [*wanted, *self.parameters], given, allow_unused=True)
        self.add(got[len(wanted) :])
        return got[0].detach() if wanted and got[0] is not None else None


def cut_rows(low: int, high: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield bounds of blocks of at most ``most`` rows, at least one."""
    for first in range(low, max(high, low + 1), most):
        yield first, min(first + most, high)


def together(parts: list[list[Tensor]]) -> list[Tensor]:
    """Return values of consecutive blocks, each as one tensor."""
    return [torch.cat(values) for values in zip(*parts, strict=True)]


def without_values(out: Tensor) -> Tensor:
    """Return the tensor with the same graph and one value's memory, which its backward does not read."""
    kept: Tensor = _Shell.apply(out)
    return kept


class _Shell(autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: Tensor) -> Tensor:
        return out.new_zeros(()).expand(out.shape)

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient
