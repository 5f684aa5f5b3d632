"""Draws that depend on what they are for, not on who makes them: Philox4x32-10 by counter (semantics.h).

The counter holds (epoch, stream, original node id, column), so that dropout and initial weights are the same on
any number of ranks and for any numbering of the rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..runtime.backends.base import Draw
from ..runtime.backends.host import uniform
from .features import SparseFeatures
from .graph import GraphHandle
from .workspace import as_array

INITIAL_WEIGHTS = 0x8000  # streams from here on are initial parameters; below, dropout by layer


@dataclass
class Draws:
    """The seed of a run and the epoch it is in (from 1)."""

    seed: int
    epoch: int = 1


def glorot(weight: Tensor, seed: int, stream: int) -> None:
    """Fill ``weight`` [out, in] in place with uniform draws in +-sqrt(6 / (in + out)) (Glorot and Bengio, 2010)."""
    limit = math.sqrt(6.0 / (weight.shape[0] + weight.shape[1]))
    values = torch.empty(weight.shape, dtype=torch.float64)
    uniform(values.numpy(), -limit, limit, seed, INITIAL_WEIGHTS + stream)
    with torch.no_grad():
        weight.copy_(values)


class _Dropout(torch.autograd.Function):
    """The backward is dropout of the gradient by the same draws, which are made again rather than kept."""

    @staticmethod
    def forward(ctx, x: Tensor, graph: GraphHandle, draw: Draw) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.call = (graph, draw)
        return _drop(x, graph, draw)

    @staticmethod
    def backward(ctx, gradient: Tensor):  # type: ignore[no-untyped-def]
        return _drop(gradient, *ctx.call), None, None


def _drop(x: Tensor, graph: GraphHandle, draw: Draw) -> Tensor:
    x = x if x.stride(1) == 1 else x.contiguous()
    out = graph.workspace.rows(x.shape[0], x.shape[1], x.dtype)
    graph.backend.dropout(as_array(x), as_array(out), graph.ids, draw)
    return out


class Dropout(torch.nn.Module):
    """Sets features to 0 with probability ``p`` and scales the others by 1 / (1 - p), while training.

    stream: a number of its own for each place in the model. ``draws`` is shared by all modules of a model; the
    training loop counts its epoch.
    """

    def __init__(self, p: float, stream: int, draws: Draws) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"dropout is {p}; it must be at least 0 and less than 1")
        self.p, self.stream, self.draws = p, stream, draws

    def forward(self, x: Tensor | SparseFeatures, graph: GraphHandle) -> Tensor | SparseFeatures:
        """x: this rank's rows, dense [n, F] or sparse; the same kind comes back."""
        if not self.training or self.p == 0:
            return x
        draw = Draw(self.p, self.draws.seed, self.draws.epoch, self.stream)
        if isinstance(x, SparseFeatures):
            return x.dropped(graph.ids, draw)
        return _Dropout.apply(x, graph, draw)

    def extra_repr(self) -> str:
        """What print shows."""
        return f"p={self.p}, stream={self.stream}"
