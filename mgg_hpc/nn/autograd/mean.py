"""A mean over all ranks, whose gradient is each rank's part of it."""

from __future__ import annotations

from typing import Any

from torch import Tensor, autograd

from ..first_order import first_order


def mean_of_all(mine: Tensor, total: Tensor) -> Tensor:
    """Return total[0] / total[1], a scalar of the type of ``mine``.

    mine: this rank's part of a sum, a scalar, to which the gradient goes. total: [2], the sum over all ranks, and the
    number of its terms.
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
