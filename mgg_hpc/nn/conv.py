"""Layers with PyG's names: an ordinary torch.nn.Module each, whose forward takes this rank's rows and the graph."""

from __future__ import annotations

import torch
from torch import Tensor

from . import functional
from .features import SparseFeatures
from .graph import Adjacency, GraphHandle


class GCNConv(torch.nn.Module):
    """Graph convolution (Kipf and Welling, ICLR 2017): D^-1/2 (A + I) D^-1/2 X W^T + b.

    Parameters ``lin.weight`` [out, in] and ``bias`` [out], as in PyG; weights start as torch's Linear has them until
    ``reset_parameters`` of the model draws them by the run's seed.
    """

    def __init__(self, in_channels: int, out_channels: int, bias: bool = True) -> None:
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.lin = torch.nn.Linear(in_channels, out_channels, bias=False)
        self.bias = torch.nn.Parameter(torch.zeros(out_channels)) if bias else None

    def forward(
        self,
        x: Tensor | SparseFeatures,
        graph: GraphHandle,
        adjacency: Adjacency | None = None,
        *,
        relu: bool = False,
    ) -> Tensor:
        """x: this rank's rows [n, in_channels]; returns [n, out_channels], through ReLU in the same kernel if asked.

        adjacency: one of the graph's. [default: graph.gcn]
        """
        chosen = adjacency or graph.gcn
        return functional.graph_convolution(x, self.lin.weight, self.bias, graph, chosen, relu=relu)

    def extra_repr(self) -> str:
        """What print shows."""
        return f"{self.in_channels}, {self.out_channels}"
