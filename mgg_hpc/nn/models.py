"""Whole models, built from a job's settings."""

from __future__ import annotations

import itertools
from typing import cast

import torch
from torch import Tensor

from .conv import GCNConv
from .features import SparseFeatures
from .functional import transform_first
from .graph import GraphHandle
from .random import Draws, Dropout, glorot


class GCN(torch.nn.Module):
    """Kipf and Welling's GCN: dropout and a graph convolution for each layer, ReLU between layers.

    Parameters are named ``convs.<i>.lin.weight`` and ``convs.<i>.bias``, as in PyG's models. They are drawn from
    ``draws.seed``; biases start at 0.
    """

    def __init__(
        self, in_channels: int, hidden: int, out_channels: int, layers: int, dropout: float, draws: Draws
    ) -> None:
        super().__init__()
        self.draws = draws
        widths = [in_channels, *[hidden] * (layers - 1), out_channels]
        self.convs = torch.nn.ModuleList(GCNConv(a, b) for a, b in itertools.pairwise(widths))
        self.dropouts = torch.nn.ModuleList(Dropout(dropout, i, draws) for i in range(layers))
        self.reset_parameters()

    @property
    def convolutions(self) -> list[GCNConv]:
        """The layers, first to last."""
        return cast(list[GCNConv], list(self.convs))

    def reset_parameters(self) -> None:
        """Draw the weights by the seed; biases become 0. The same values for any dtype, up to rounding."""
        for i, conv in enumerate(self.convolutions):
            glorot(conv.lin.weight, self.draws.seed, i)
            if conv.bias is not None:
                torch.nn.init.zeros_(conv.bias)

    def exchanged(self, sparse: bool) -> list[int]:
        """The width of the rows that each layer exchanges in training's forward. sparse: whether the input is."""
        return [self._width(i, sparse, i > 0) for i in range(len(self.convs))]

    def exchanges_back(self, sparse: bool) -> list[bool]:
        """Whether each layer exchanges in training's backward too: rows of the same width."""
        return [i > 0 or self._transforms_first(i, sparse, False) for i in range(len(self.convs))]

    def widest(self, sparse: bool) -> int:
        """The largest width that any layer exchanges, in training or evaluation."""
        return max(self._width(i, sparse, wants) for i in range(len(self.convs)) for wants in (i > 0, True))

    def _width(self, layer: int, sparse: bool, wants_input_gradient: bool) -> int:
        conv = self.convolutions[layer]
        first = self._transforms_first(layer, sparse, wants_input_gradient)
        return conv.out_channels if first else conv.in_channels

    def _transforms_first(self, layer: int, sparse: bool, wants_input_gradient: bool) -> bool:
        conv = self.convolutions[layer]
        return (sparse and layer == 0) or transform_first(
            conv.in_channels, conv.out_channels, wants_input_gradient
        )

    def forward(self, x: Tensor | SparseFeatures, graph: GraphHandle) -> Tensor:
        """x: this rank's input rows [n, in]; returns logits [n, out]. Collective."""
        return self.layers(x, graph)[-1]

    def layers(self, x: Tensor | SparseFeatures, graph: GraphHandle) -> list[Tensor]:
        """The output of every layer, the logits last. Collective."""
        last = len(self.convs) - 1
        outputs: list[Tensor] = []
        for i, (dropout, conv) in enumerate(zip(self.dropouts, self.convs, strict=True)):
            dropped = dropout(outputs[-1] if outputs else x, graph)
            outputs.append(conv(dropped, graph, graph.layer(i), relu=i < last))
        return outputs
