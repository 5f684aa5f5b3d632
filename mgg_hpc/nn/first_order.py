"""What backward passes here have in common."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def first_order(backward: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """A Function's backward whose own gradients nobody knows: it writes into rows that are used again.

    Raises RuntimeError where they are asked for, instead of leaving them out without a word. (torch's own
    once_differentiable says nothing where the incoming gradient is a constant.)
    """

    @functools.wraps(backward)
    def checked(*given: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "layers of mgg_hpc have first gradients alone: call backward or grad without create_graph=True"
            )
        return backward(*given, **named)

    return checked
