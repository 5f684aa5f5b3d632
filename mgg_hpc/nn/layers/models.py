"""Whole models, built from a job's settings."""

from __future__ import annotations

import itertools
from typing import cast

import torch
from torch import Tensor

from ...config import ModelSettings
from .. import spans
from ..autograd.functional import elu, linear
from ..autograd.recompute import recomputed
from ..graph.view import GraphView, Views
from ..inputs.host import Input
from ..streaming.rows import StreamedRows
from .base import Convolution, Widths
from .conv import GCNConv, GINConv, SAGEConv
from .gat_conv import GATConv
from .norms import made
from .perceptron import MLP, reset, through
from .random import ATTENTION_DROPOUT, Draws, Dropout, fill_by_seed
from .streamed import StreamedLayer

OUTPUT_PARAMETERS = 14  # the last two of layer 0's 16 streams for initial weights are for the output layer


def kind_of(chosen: ModelSettings) -> str:
    """Return the kind of the adjacency that the layers of a model sum with."""
    return _convolution(chosen, 1, 1, last=True, edge_dim=0).kind


class GNN(torch.nn.Module):
    """Dropout, a convolution, a normalisation and an activation for each layer; the last one gives the classes.

    With ``jumping`` the last layer is like the others, and a linear map of all layers' outputs, side by side or their
    maximum (Xu et al., ICML 2018), gives the classes. With ``residual`` a hidden layer's input is added to its output,
    where they are as wide (Kipf and Welling, ICLR 2017, appendix B). The activation is ReLU, and ELU for GAT.

    Parameters are named as in PyG's GCN, GIN, GraphSAGE and GAT: ``convs.<i>.*``, ``norms.<i>.*``, ``lin.*``. They are
    drawn from ``draws.seed``. widths: width of each layer's output. dtype: type of rows. edge_dim: columns of the data
    of edges that GAT takes, 0 for none; the graph has them by the name ``chosen.edge_data``.
    """

    def __init__(
        self,
        chosen: ModelSettings,
        in_channels: int,
        out_channels: int,
        draws: Draws,
        dtype: torch.dtype = torch.float32,
        edge_dim: int = 0,
    ) -> None:
        super().__init__()
        self.chosen, self.draws, self.dtype, self.edge_dim = chosen, draws, dtype, edge_dim
        self._of_edges = {"edge_attr": chosen.edge_data} if edge_dim else {}
        self.recompute: frozenset[int] = frozenset()  # layers, from 1 on, that the backward repeats
        self._streamed: dict[int, StreamedLayer] = {}  # layers as programs, of graphs that are streamed
        self.in_blocks = False  # whether to apply dropout to the input in blocks where that saves memory
        hidden = chosen.hidden * (chosen.heads if chosen.name == "gat" else 1)
        jumps = chosen.jumping != "none"
        self.widths = [hidden] * chosen.layers
        if not jumps:
            self.widths[-1] = out_channels
        self._activated = chosen.layers if jumps else chosen.layers - 1  # number of layers with an activation
        self.convs, self.dropouts, self.norms = (torch.nn.ModuleList() for _ in range(3))
        for i, (a, b) in enumerate(itertools.pairwise([in_channels, *self.widths])):
            hides = i < self._activated
            self.dropouts.append(Dropout(chosen.dropout, i, draws))
            self.convs.append(_convolution(chosen, a, b, last=not hides, edge_dim=edge_dim))
            self.norms.append(made(chosen.norm if hides else "none", b))
        self.activation = torch.nn.ELU() if chosen.name == "gat" else torch.nn.ReLU()
        self.lin: torch.nn.Linear | None = None
        if jumps:
            self.dropouts.append(Dropout(chosen.dropout, chosen.layers, draws))
            self.lin = torch.nn.Linear(sum(self.widths) if chosen.jumping == "cat" else hidden, out_channels)
        for i, conv in enumerate(self.convolutions):
            if isinstance(conv, GATConv):
                conv.attention_dropout = Dropout(conv.dropout, ATTENTION_DROPOUT + i, draws)
        self.reset_parameters()

    @property
    def kind(self) -> str:
        """Kind of the adjacency that the layers sum with."""
        return self.convolutions[0].kind

    @property
    def by_edge(self) -> bool:
        """Whether any layer uses EdgeKernels."""
        return any(each.by_edge for each in self.convolutions)

    @property
    def convolutions(self) -> list[Convolution]:
        """The layers, first to last."""
        return cast(list[Convolution], list(self.convs))

    def reset_parameters(self) -> None:
        """Draw the weights by the seed, as PyG's layers draw theirs. The same values for any dtype, up to rounding."""
        for i, conv in enumerate(self.convolutions):
            conv.reset_parameters(fill_by_seed(self.draws.seed, i))
        for norm in self.norms:
            reset(norm)
        if self.lin is not None:
            reset(self.lin, fill_by_seed(self.draws.seed, 0, OUTPUT_PARAMETERS))

    def exchanged(self, sparse: bool) -> list[int]:
        """Return the widths that each layer exchanges in the forward of training.

        sparse: whether the input can be multiplied only: it is sparse, or stays on the host.
        """
        return [each.forward for each in self._widths(sparse)]

    def exchanged_back(self, sparse: bool) -> list[int]:
        """Return the widths that each layer exchanges in the backward of training; 0 where it exchanges none."""
        return [each.backward for each in self._widths(sparse)]

    def widest(self, sparse: bool) -> int:
        """Return the largest width that any layer exchanges, in training or evaluation."""
        trained = [max(each.forward, each.backward) for each in self._widths(sparse)]
        return max(*trained, *(each.forward for each in self._widths(sparse, of_input=True)))

    def _widths(self, sparse: bool, *, of_input: bool = False) -> list[Widths]:
        """Return the widths of each layer. of_input: as where the input's gradient is wanted, which evaluation does."""
        wants = of_input or self.chosen.input == "learned"
        return [
            conv.exchanged(sparse and i == 0, i > 0 or wants, self.dtype)
            for i, conv in enumerate(self.convolutions)
        ]

    def forward(self, x: Input | StreamedRows, graph: Views) -> Tensor:
        """Return logits [n, out] for this rank's input rows x [n, in]. Collective.

        graph: one for all layers; or a batch, whose blocks lead from the rows x to those of the batch itself.
        """
        if self.lin is not None:
            return tensor_of(self.layers(x, graph)[-1])
        out: Input | StreamedRows = x
        for i in range(len(self.convs)):  # keeps no outputs of earlier layers
            out = self._layer(i, out, graph)
        return tensor_of(out)

    def layers(self, x: Input | StreamedRows, graph: Views) -> list[Tensor | StreamedRows]:
        """Return the output of every layer, the logits last. Collective.

        In training some layers' outputs have the next one's dropout applied. On a graph that is streamed they stay in
        their stores.
        """
        found: list[Tensor | StreamedRows] = []
        for i in range(len(self.convs)):
            found.append(self._layer(i, found[-1] if found else x, graph))
        if self.lin is not None:
            outputs = [tensor_of(out) for out in found]
            with spans.layer("output"):
                last, cat = graph.view(len(self.convs) - 1), self.chosen.jumping == "cat"
                same = [out[: last.destinations] for out in outputs]
                joined = torch.cat(same, 1) if cat else torch.stack(same).amax(0)
                dropped = self.dropouts[-1](joined, last)
                found.append(linear(dropped, self.lin.weight, self.lin.bias, last))
        return found

    def _layer(self, i: int, x: Input | StreamedRows, graphs: Views) -> Tensor | StreamedRows:
        """Return the output of layer ``i`` (from 0 on); its inside is computed again in the backward if asked for."""
        if isinstance(x, StreamedRows):
            with spans.layer(f"layer {i + 1}"):
                return self._streamed_layer(i, x, graphs.view(i))

        def run(x: Input, graph: GraphView) -> Tensor:
            with spans.layer(f"layer {i + 1}"):
                by_elu, dropped = isinstance(self.activation, torch.nn.ELU), x
                if not self._drops_behind(i - 1):
                    in_blocks = i == 0 and self.in_blocks and self.convolutions[0].saves_by_blocks
                    rectified = i > 0 and not by_elu
                    dropped = self.dropouts[i](x, graph, rectified=rectified, in_blocks=in_blocks)
                key = cast(Dropout, self.dropouts[i + 1]).key() if self._drops_behind(i) else None
                activated, norm = i < self._activated, self.norms[i]
                # ReLU right behind a convolution is a part of it.
                fused = activated and not by_elu and isinstance(norm, torch.nn.Identity)
                adjacency = graph.layer(i)
                behind = key if fused else None
                out: Tensor = self.convs[i](
                    dropped, graph, adjacency, relu=fused, key=behind, **self._of_edges
                )
                if activated and by_elu:
                    out = elu(through([norm], out, graph), graph, key)
                elif activated and not fused:
                    out = through([norm, self.activation, *([key] if key else [])], out, graph)
                adds = self.chosen.residual and i > 0 and activated
                return out + x[: len(out)] if adds and isinstance(x, Tensor) else out

        graph, again = graphs.view(i), i + 1 in self.recompute and torch.is_grad_enabled()
        return recomputed(run, x, graph) if again else run(x, graph)

    def _streamed_layer(self, i: int, x: StreamedRows, graph: GraphView) -> StreamedRows:
        """Return the output of layer ``i`` of a graph that is streamed, which is traced once."""
        if i not in self._streamed:
            activated = i < self._activated
            adds = self.chosen.residual and i > 0 and activated
            self._streamed[i] = StreamedLayer(
                self.convolutions[i],
                self.norms[i],
                relu=activated,
                adds=adds and x.shape[1] == self.widths[i],
            )
        dropouts = cast(list[Dropout], list(self.dropouts))
        before = None if self._drops_behind(i - 1) else dropouts[i].key()
        behind = dropouts[i + 1].key() if self._drops_behind(i) else None
        made = self._streamed[i].train(self.training).drawn(before, behind, x)
        out: StreamedRows = made(x, graph)
        return out

    def _drops_behind(self, i: int) -> bool:
        """Return whether layer ``i`` applies the next one's dropout, as only that one uses its output."""
        return 0 <= i < self._activated and self.lin is None and not self.chosen.residual


def tensor_of(out: Input | StreamedRows) -> Tensor:
    """Return a layer's output as a tensor: of a graph that is streamed, the rows out of their store."""
    if isinstance(out, StreamedRows):
        return out.tensor()
    assert isinstance(out, Tensor)
    return out


def _convolution(
    chosen: ModelSettings, in_channels: int, out_channels: int, *, last: bool, edge_dim: int
) -> Convolution:
    """Return a layer of the chosen model. last: whether its output gives the classes."""
    if chosen.name == "gin":
        network = MLP([in_channels, out_channels, out_channels], chosen.norm)
        return GINConv(network, train_eps=chosen.train_eps)
    if chosen.name == "sage":
        return SAGEConv(in_channels, out_channels, chosen.aggr)
    if chosen.name == "gat":
        heads = chosen.output_heads if last else chosen.heads
        each = out_channels if last else chosen.hidden
        dropout, attention = chosen.attention_dropout, chosen.attention
        return GATConv(
            in_channels,
            each,
            heads,
            concat=not last,
            dropout=dropout,
            edge_dim=edge_dim or None,
            attention=attention,
        )
    return GCNConv(in_channels, out_channels)
