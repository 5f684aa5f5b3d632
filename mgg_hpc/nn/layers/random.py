"""Random draws by counter, the same on any number of ranks: Philox4x32-10 (semantics.h).

The counter holds (epoch, random stream, original node id, column), so that dropout and initial weights are the same on
any number of ranks and for any order of the rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...runtime.backends.arguments import RngKey
from ...runtime.backends.native import uniform
from .. import spans
from ..autograd import recompute
from ..autograd.functional import dropped_rows, through_relu
from ..calls import layer_call
from ..graph.view import GraphView
from ..inputs.host import HostFeatures, Input
from ..spans import first_order, span
from ..workspace import as_array

INITIAL_WEIGHTS = 0x8000  # first random stream of initial parameters; lower ones are for dropout, by layer
LAST_INITIAL_WEIGHTS = (
    0xC000  # their end; then the streams of inputs/features.py and of sampling (semantics.h)
)
ATTENTION_DROPOUT = 0x4000  # first random stream of attention's dropout, by layer
MOST_LAYERS = 1024
DRAWS = "_mgg_draws"  # attribute of a converted model: a Dropout that counts its draws


@dataclass
class Draws:
    """The seed of a run and its current epoch, from 1.

    epoch_at: int32 [1] on a GPU or None; kernels read the epoch there, so that each replay of a CUDA graph draws anew.
    """

    seed: int
    epoch: int = 1
    epoch_at: Tensor | None = None

    def begin(self, epoch: int) -> None:
        """Set the epoch of the following draws."""
        self.epoch = epoch
        if self.epoch_at is not None:
            self.epoch_at.fill_(epoch)


Fill = Callable[[Tensor, float], None]  # (parameter, limit): fill it with uniform draws in +-limit


def fill_uniform(parameter: Tensor, limit: float) -> None:
    """Fill with draws of torch's generator: the same values on all ranks if they seeded it alike."""
    torch.nn.init.uniform_(parameter, -limit, limit)


def fill_by_seed(seed: int, layer: int, first: int = 0) -> Fill:
    """Return a Fill for the parameters of a layer, called in their order: the same values in any dtype, up to rounding.

    layer: 0 .. 1023. Each call draws from the next of the layer's 16 random streams. first: number of streams to skip.
    """
    start = INITIAL_WEIGHTS + layer + first * MOST_LAYERS
    streams = iter(range(start, LAST_INITIAL_WEIGHTS, MOST_LAYERS))

    def fill(parameter: Tensor, limit: float) -> None:
        columns = parameter.shape[-1] if parameter.dim() else 1
        values = torch.empty(parameter.numel() // max(1, columns), columns, dtype=torch.float64)
        uniform(values.numpy(), -limit, limit, seed, next(streams))
        with torch.no_grad():
            parameter.copy_(values.view(parameter.shape))

    return fill


def glorot(weight: Tensor, fill: Fill) -> None:
    """Fill ``weight`` [.., out, in] with draws in +-sqrt(6 / (in + out)) (Glorot and Bengio, AISTATS 2010)."""
    fill(weight, math.sqrt(6.0 / (weight.shape[-2] + weight.shape[-1])))


def fill_linear(linear: torch.nn.Linear, fill: Fill) -> None:
    """Fill weight and bias as torch's Linear does: draws in +-1 / sqrt(in)."""
    limit = 1.0 / math.sqrt(max(1, linear.in_features))
    for parameter in (linear.weight, linear.bias):
        if parameter is not None:
            fill(parameter, limit)


@dataclass
class _Unseeded:
    """Seed and random streams of dropout modules that belong to no run."""

    seed: int = 0
    streams: Iterator[int] = field(default_factory=lambda: itertools.cycle(range(INITIAL_WEIGHTS)))


_unseeded = _Unseeded()


def manual_seed(seed: int) -> None:
    """Seed torch's generator, and the dropout modules created afterwards. seed: 0 .. 2^63 - 1, the same on all ranks.

    Models that are created afterwards are the same on all ranks, and on any number of ranks.
    """
    global _unseeded  # noqa: PLW0603 - one seed for the process, as torch's
    torch.manual_seed(seed)
    _unseeded = _Unseeded(seed)


class _Dropout(torch.autograd.Function):
    """Dropout of rows; the backward repeats the draws instead of keeping them.

    For the output of a ReLU the backward needs no draws: where the result is 0, ReLU or dropout lets no
    gradient pass.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, graph: GraphView, key: RngKey, rectified: bool) -> Tensor:
        ctx.call, ctx.layer = (graph, key, rectified), spans.current()
        out = dropped_rows(x, graph, key)
        ctx.save_for_backward(out if rectified else None)
        return out

    @staticmethod
    @first_order
    def backward(ctx, gradient: Tensor):  # type: ignore[no-untyped-def]
        graph, key, rectified = ctx.call
        (out,) = ctx.saved_tensors
        with span("backward: dropout"):
            if rectified:
                return through_relu(gradient, out, graph).mul_(1 / (1 - key.p)), None, None, None
            return dropped_rows(gradient, graph, key), None, None, None


def dropped(x: Tensor, graph: GraphView, key: RngKey | None, *, rectified: bool = False) -> Tensor:
    """Return x after dropout with a random key, or x itself without one. rectified: x is the output of a ReLU."""
    if key is None:
        return x
    with span("dropout behind"):
        out: Tensor = _Dropout.apply(x, graph, key, rectified)
        return out


class Dropout(torch.nn.Module):
    """Sets features to 0 with probability ``p`` and scales the others by 1 / (1 - p), while training.

    stream: random stream, a different one for each module of a model. draws: shared by all modules of a model, whose
    training loop sets the epoch. By default the seed is that of `manual_seed`, modules take successive streams, and
    each call draws anew (attribute ``counts``): the same on any number of ranks if all of them create and call the same
    modules. Layers that are computed again (recompute.py) repeat their first draws.
    """

    def __init__(self, p: float = 0.5, stream: int | None = None, draws: Draws | None = None) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"dropout is {p}; it must be at least 0 and less than 1")
        self.p, self.stream = p, next(_unseeded.streams) if stream is None else stream
        self.draws, self.counts = draws or Draws(_unseeded.seed, epoch=0), draws is None

    @layer_call
    def forward(
        self, x: Input, graph: GraphView, *, rectified: bool = False, in_blocks: bool = False
    ) -> Input:
        """Return this rank's rows x [n, F] after dropout, of x's type.

        rectified: x is the output of a ReLU, which makes the backward cheaper. in_blocks: for a tensor x that
        is contiguous on the host and needs no gradient, return HostFeatures over it without a copy: each
        product with them applies dropout block by block, with the same draws in forward and backward.
        """
        key = self.key()
        if key is None:
            return x
        if in_blocks and isinstance(x, Tensor) and not x.requires_grad:
            x = HostFeatures.over(graph.backend, x)
        if isinstance(x, HostFeatures):
            return x.dropped(graph.ids, key)
        with span("dropout"):
            if not isinstance(x, Tensor):
                return x.dropped(graph.ids, key)
            out: Tensor = _Dropout.apply(x, graph, key, rectified)
            return out

    def key(self) -> RngKey | None:
        """Return the random key of this epoch, or None if nothing is dropped."""
        if not self.training or self.p == 0:
            return None
        draws = self.draws
        epoch = recompute.once(self._next_epoch) if self.counts else draws.epoch
        return RngKey(self.p, draws.seed, epoch, self.stream, epoch_at=as_array(draws.epoch_at))

    def _next_epoch(self) -> int:
        self.draws.begin(self.draws.epoch + 1)
        return self.draws.epoch

    def extra_repr(self) -> str:
        return f"p={self.p}, stream={self.stream}"
