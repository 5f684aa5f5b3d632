"""Optimisers of embedding rows, which a backward applies at once to the rows that have gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ...errors import InputError


@dataclass
class RowOptimizer(ABC):
    """An optimiser of rows. lr: the learning rate, which may be changed between steps.

    Raises InputError for values that are negative, infinite or no numbers.
    """

    lr: float

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, int | float | np.number) or not 0 <= value < float("inf"):
                raise InputError(f"{name} is {value!r}; expected a finite number, at least 0")

    @abstractmethod
    def columns(self, dim: int) -> int:
        """Return the number of values that are kept for each row of ``dim`` values, 0 at first."""

    @abstractmethod
    def step(self, rows: Tensor, kept: Tensor, gradient: Tensor) -> None:
        """Change rows [k, dim] and what is kept for them [k, columns] by their gradients [k, dim], in place."""


@dataclass
class SGD(RowOptimizer):
    """row -= lr g."""

    def columns(self, dim: int) -> int:
        return 0

    def step(self, rows: Tensor, kept: Tensor, gradient: Tensor) -> None:
        rows.add_(gradient, alpha=-self.lr)


@dataclass
class Adagrad(RowOptimizer):
    """m += g^2; row -= lr g / (sqrt(m) + eps), as `torch.optim.Adagrad` (Duchi, Hazan and Singer, JMLR 2011)."""

    eps: float = 1e-10

    def columns(self, dim: int) -> int:
        return dim

    def step(self, rows: Tensor, kept: Tensor, gradient: Tensor) -> None:
        kept.add_(self._squares(gradient))
        rows.addcdiv_(gradient, kept.sqrt().add_(self.eps), value=-self.lr)

    def _squares(self, gradient: Tensor) -> Tensor:
        return gradient.square()


@dataclass
class RowWiseAdagrad(Adagrad):
    """m += mean(g^2); row -= lr g / (sqrt(m) + eps), with one m for each row, as DLRM's RWSAdagrad."""

    def columns(self, dim: int) -> int:
        return 1

    def _squares(self, gradient: Tensor) -> Tensor:
        return gradient.square().mean(1, keepdim=True)
