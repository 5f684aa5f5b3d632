"""Layers of models as programs on vertices and edges, for graphs whose rows lie in stores (`nn.streaming`)."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Self

import torch
from torch import Tensor

from ...runtime.backends.arguments import RngKey
from ..saga.layer import Layer
from ..saga.tracing import Edge
from ..streaming.rows import StreamedRows
from .base import Convolution, Streamed
from .perceptron import Step, through
from .random import dropped


def widest(layers: Sequence[Convolution]) -> Streamed:
    """Return the most columns of any layer of a model, in training and evaluation, where no gradients are needed."""
    found = [conv.streamed(wants) for i, conv in enumerate(layers) for wants in {False, i > 0}]
    return Streamed(max(each.sources for each in found), max(each.targets for each in found))


class StreamedLayer(Layer):
    """Dropout, a convolution, a normalisation, ReLU and dropout behind it, in one pass over the edges.

    conv: whose `message` and `update` run. norm: of each row alone. relu: whether there is one. adds: whether the
    layer's input is added to its output.
    """

    def __init__(self, conv: Convolution, norm: torch.nn.Module, *, relu: bool, adds: bool) -> None:
        super().__init__()
        self.conv, self.norm, self.relu, self.adds = conv, norm, relu, adds
        self.kind, self.accumulator = conv.kind, conv.accumulator
        self._before: RngKey | None = None
        self._behind: RngKey | None = None
        self._first = False

    def drawn(self, before: RngKey | None, behind: RngKey | None, x: StreamedRows) -> Self:
        """Return the same layer for one pass over rows x, whose backward repeats its draws.

        before, behind: keys of the dropout of the input, and behind the ReLU.
        """
        made = copy(self)
        made._before, made._behind = before, behind
        made._first = self.conv.product_first(x.requires_grad)
        made.enters = before is not None or made._first
        return made

    def enter(self, x: Tensor) -> Tensor:
        return self.conv.message(dropped(x, self.rows, self._before), self.rows, first=self._first)

    def apply_edge(self, edge: Edge) -> Tensor:
        return edge.src * edge.weight if self.kind == "gcn" else edge.src

    def reads_vertex(self) -> bool:
        return self.conv.reads_own or self.adds

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        own = dropped(vertex, self.rows, self._before) if self.conv.reads_own else vertex
        fused = self.relu and isinstance(self.norm, torch.nn.Identity)
        key = self._behind if fused else None
        out = self.conv.update(own, accum, self.rows, first=self._first, relu=fused, key=key)
        if not fused:
            behind: list[Step] = [torch.nn.ReLU(), *([self._behind] if self._behind else [])]
            out = through([self.norm, *(behind if self.relu else [])], out, self.rows)
        return out + vertex if self.adds else out
