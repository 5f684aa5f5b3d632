"""Whole models, built from a job's settings."""

from __future__ import annotations

import itertools
from copy import copy
from typing import Self, cast

import torch
from torch import Tensor

from ...config import ModelSettings
from ...errors import InputError
from ...runtime.backends.arguments import RngKey
from .. import spans
from ..autograd.functional import elu, linear
from ..autograd.recompute import recomputed
from ..graph.view import GraphView, Views
from ..inputs.host import Input
from ..saga.layer import Layer
from ..saga.tracing import Edge
from ..streaming.rows import StreamedRows
from .attention import GATConv
from .conv import Convolution, GCNConv, GINConv, SAGEConv, SumConvolution
from .networks import MLP, activation, normalisation, reset, through
from .random import ATTENTION_DROPOUT, Draws, Dropout, dropped, fill_by_seed

OUTPUT_PARAMETERS = 14  # the last two of layer 0's 16 streams for initial weights are for the output layer


def kind_of(chosen: ModelSettings) -> str:
    """Return the kind of adjacency that the layers of a model sum over."""
    return _convolution(chosen, 1, 1, last=True, edge_dim=0).kind


class StreamedLayer(Layer):
    """A layer of a model on a streamed graph: dropout, convolution, normalisation, ReLU and dropout in one pass.

    conv: the convolution. norm: a normalisation of each row by itself, such as LayerNorm. relu: True if a ReLU
    follows. adds: True if the layer's input is added to its output.
    """

    def __init__(self, conv: SumConvolution, norm: torch.nn.Module, *, relu: bool, adds: bool) -> None:
        super().__init__()
        self.conv, self.norm, self.relu, self.adds = conv, norm, relu, adds
        self.kind, self.accumulator = conv.kind, conv.formula.reduce
        self._before: RngKey | None = None
        self._after: RngKey | None = None
        self._transforms_first = False

    def drawn(self, before: RngKey | None, after: RngKey | None, x: StreamedRows) -> Self:
        """Return a copy of the layer for one pass over rows x; its backward repeats the same random draws.

        before, after: random keys of dropout of the input and of dropout after the ReLU, or None for none.
        """
        made = copy(self)
        made._before, made._after = before, after
        made._transforms_first = self.conv.transforms_first(x.requires_grad)
        made.enters = before is not None or made._transforms_first
        return made

    def enter(self, x: Tensor) -> Tensor:
        rows = dropped(x, self.rows, self._before)
        return self.conv.message(rows, self.rows, transform=self._transforms_first)

    def apply_edge(self, edge: Edge) -> Tensor:
        return edge.src * edge.weight if self.kind == "gcn" else edge.src

    @property
    def _reads_own(self) -> bool:
        return self.conv.formula.root is not None or self.conv.formula.eps is not None

    def reads_vertex(self) -> bool:
        return self._reads_own or self.adds

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        own = dropped(vertex, self.rows, self._before) if self._reads_own else vertex
        fused = self.relu and isinstance(self.norm, torch.nn.Identity)
        key = self._after if fused else None
        first = self._transforms_first
        out = self.conv.update(own, accum, self.rows, transformed=first, relu=fused, key=key)
        if not fused:
            out = through([self.norm, *activation(self.relu, self._after)], out, self.rows)
        return out + vertex if self.adds else out


class GNN(torch.nn.Module):
    """A GNN of layers of dropout, a convolution, a normalisation and an activation.

    The last one returns the logits. With ``jumping`` the last layer is like the others, and the logits are a
    linear map of all layers' outputs, concatenated or their maximum (Xu et al., ICML 2018). With ``residual``
    the input of each hidden layer after the first is added to its output (Kipf and Welling, ICLR 2017, appendix
    B). The activation is ReLU; for GAT, ELU.

    Parameters are named as in PyG's GCN, GIN, GraphSAGE and GAT: ``convs.<i>.*``, ``norms.<i>.*``, ``lin.*``.
    They are drawn from ``draws.seed``. widths: width of each layer's output. dtype: type of rows. edge_dim:
    number of columns of the graph's edge data ``chosen.edge_data`` that GAT reads, or 0.
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
        self._edge_options = {"edge_attr": chosen.edge_data} if edge_dim else {}
        self.recompute: frozenset[int] = frozenset()  # layers, from 1, computed again in the backward
        self._streamed: dict[int, StreamedLayer] = {}  # the same layers for streamed graphs
        self.in_blocks = False  # apply dropout to the input in blocks if that saves memory
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
            self.norms.append(normalisation(chosen.norm if hides else "none", b))
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
        """Kind of adjacency that the layers sum over."""
        return self.convolutions[0].kind

    @property
    def by_edge(self) -> bool:
        """Whether any layer uses EdgeKernels."""
        return any(each.by_edge for each in self.convolutions)

    @property
    def convolutions(self) -> list[Convolution]:
        """The convolution of each layer, first to last."""
        return cast(list[Convolution], list(self.convs))

    def reset_parameters(self) -> None:
        """Draw the parameters by the seed ``draws.seed``, from the distributions that PyG's layers use.

        The values are the same for any dtype, up to rounding.
        """
        for i, conv in enumerate(self.convolutions):
            conv.reset_parameters(fill_by_seed(self.draws.seed, i))
        for norm in self.norms:
            reset(norm)
        if self.lin is not None:
            reset(self.lin, fill_by_seed(self.draws.seed, 0, OUTPUT_PARAMETERS))

    def exchanged(self, sparse: bool) -> list[int]:
        """Return the width of the rows that each layer exchanges in the forward pass of training.

        sparse: True if only ``x @ W`` is available (sparse or host-resident x).
        """
        return [forward for forward, _ in self._widths(sparse)]

    def exchanged_back(self, sparse: bool) -> list[int]:
        """Return the width of the rows that each layer exchanges in the backward pass; 0 for none."""
        return [backward for _, backward in self._widths(sparse)]

    def widest(self, sparse: bool) -> int:
        """Return the largest width of rows that any layer exchanges, in training or evaluation."""
        trained = [max(widths) for widths in self._widths(sparse)]
        return max(*trained, *(forward for forward, _ in self._widths(sparse, of_input=True)))

    def streamed_columns(self) -> tuple[int, int]:
        """Return the maxima over all layers of the two numbers of `SumConvolution.streamed_columns`."""
        layers = [cast(SumConvolution, conv) for conv in self.convolutions]
        # Evaluation needs no gradients.
        found = [conv.streamed_columns(wants) for i, conv in enumerate(layers) for wants in {False, i > 0}]
        sources, targets = zip(*found, strict=True)
        return max(sources), max(targets)

    def _widths(self, sparse: bool, *, of_input: bool = False) -> list[tuple[int, int]]:
        """Return the (forward, backward) widths of the rows that each layer exchanges; 0 for none.

        sparse: as in `exchanged`. of_input: True to assume that the gradient of the input is needed; the
        forward widths are then those of evaluation.
        """
        wants = of_input or self.chosen.input == "learned"
        return [
            conv.exchanged(sparse and i == 0, i > 0 or wants, self.dtype)
            for i, conv in enumerate(self.convolutions)
        ]

    def forward(self, x: Input | StreamedRows, graph: Views) -> Tensor:
        """Return logits [n, out] for this rank's input rows x [n, in]. Collective.

        graph: a graph, used by all layers, or a sampled batch with one block per layer.
        """
        if self.lin is not None:
            return tensor_of(self.layers(x, graph)[-1])
        out: Input | StreamedRows = x
        for i in range(len(self.convs)):  # keeps no outputs of earlier layers
            out = self._layer(i, out, graph)
        return tensor_of(out)

    def layers(self, x: Input | StreamedRows, graph: Views) -> list[Tensor | StreamedRows]:
        """Return the output of every layer, the logits last. Collective.

        In training some outputs include the dropout of the next layer. On a streamed graph outputs stay in stores.
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
        """Return the output of layer ``i``, counted from 0: dropout, convolution, normalisation and activation.

        graphs: gives the graph or block of each layer. If layer number i + 1 is in ``recompute``, its
        activations are not saved in training, and the backward computes them again.
        """
        if isinstance(x, StreamedRows):
            with spans.layer(f"layer {i + 1}"):
                return self._streamed_layer(i, x, graphs.view(i))

        def run(x: Input, graph: GraphView) -> Tensor:
            with spans.layer(f"layer {i + 1}"):
                by_elu, dropped = isinstance(self.activation, torch.nn.ELU), x
                if not self._drops_after(i - 1):
                    in_blocks = i == 0 and self.in_blocks and self.convolutions[0].saves_by_blocks
                    rectified = i > 0 and not by_elu
                    dropped = self.dropouts[i](x, graph, rectified=rectified, in_blocks=in_blocks)
                key = cast(Dropout, self.dropouts[i + 1]).key() if self._drops_after(i) else None
                activated, norm = i < self._activated, self.norms[i]
                # The convolution's kernel applies a ReLU that follows it.
                fused = activated and not by_elu and isinstance(norm, torch.nn.Identity)
                adjacency = graph.layer(i)
                after = key if fused else None
                out: Tensor = self.convs[i](
                    dropped, graph, adjacency, relu=fused, key=after, **self._edge_options
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
        """Return the output of layer ``i`` on a streamed graph."""
        if i not in self._streamed:
            conv, activated = self.convolutions[i], i < self._activated
            if not isinstance(conv, SumConvolution):
                name = type(conv).__name__
                raise InputError(
                    f"{name} does not run on a graph that is streamed; GCNConv, GINConv and SAGEConv do"
                )
            adds = self.chosen.residual and i > 0 and activated
            self._streamed[i] = StreamedLayer(conv, self.norms[i], relu=activated, adds=adds)
        dropouts = cast(list[Dropout], list(self.dropouts))
        before = None if self._drops_after(i - 1) else dropouts[i].key()
        after = dropouts[i + 1].key() if self._drops_after(i) else None
        made = self._streamed[i].train(self.training).drawn(before, after, x)
        out: StreamedRows = made(x, graph)
        return out

    def _drops_after(self, i: int) -> bool:
        """Return True if layer ``i`` applies the dropout of layer ``i + 1``, its output's only reader."""
        return 0 <= i < self._activated and self.lin is None and not self.chosen.residual


def tensor_of(out: Input | StreamedRows) -> Tensor:
    """Return a layer's output as a tensor. On a streamed graph, its rows are read from their store."""
    if isinstance(out, StreamedRows):
        return out.tensor()
    assert isinstance(out, Tensor)
    return out


def _convolution(
    chosen: ModelSettings, in_channels: int, out_channels: int, *, last: bool, edge_dim: int
) -> Convolution:
    """Return the convolution of one layer of the chosen model. last: True if its output are the logits."""
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
    if chosen.name == "gcn":
        return GCNConv(in_channels, out_channels)
    raise ValueError(f"no layer of the model {chosen.name!r}")
