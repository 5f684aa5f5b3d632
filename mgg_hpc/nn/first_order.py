"""The decorator of all backward passes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from . import spans

_Result = TypeVar("_Result")


def first_order(backward: Callable[..., _Result]) -> Callable[..., _Result]:
    """Return a Function's backward whose spans belong to the layer ``ctx.layer``, and which has no gradients itself.

    It writes into rows that are used again, so it raises RuntimeError where gradients of it are asked for. (torch's own
    once_differentiable says nothing where the incoming gradient is a constant.)
    """

    @functools.wraps(backward)
    def checked(ctx: Any, *gradients: torch.Tensor) -> _Result:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "layers of mgg_hpc have first gradients alone: call backward or grad without create_graph=True"
            )
        with spans.layer(getattr(ctx, "layer", "")):
            return backward(ctx, *gradients)

    return checked
