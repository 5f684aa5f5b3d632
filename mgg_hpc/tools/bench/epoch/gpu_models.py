"""Two-layer GCNs that train on a GPU: this package's, and PyG's over a list of edges and over a sparse matrix."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....config import ModelSettings
from ....data.graph import Graph
from ....nn.graph.handle import GraphHandle
from ....nn.graph.loading import matrix_of, whole
from ....nn.graph.transfer import planned
from ....nn.layers.models import GNN
from ....nn.layers.random import Draws
from ....nn.workspace import row_format
from ....runtime.backends.cuda.launches import default_geometry
from ....runtime.backends.cuda.module import limits_of
from ..baselines import nets
from ..harness.gpu import Device
from .shape import Shape

ALONE = SimpleNamespace(rank=0, size=1)
IGNORED = -100  # of torch's cross entropy


@dataclass(frozen=True)
class Inputs:
    """The data of an epoch on the device. x [n, features]; labels int64 [n], IGNORED where a row does not train.

    layers: inputs of each timed layer: rows, and a gradient of its output.
    """

    device: Device
    graph: Graph
    shape: Shape
    x: Tensor
    labels: Tensor
    layers: tuple[tuple[Tensor, Tensor], ...]

    @property
    def widths(self) -> tuple[int, int, int]:
        """Widths of the features and of each layer's output."""
        return self.shape.features, self.shape.hidden, self.shape.classes

    @property
    def nbytes(self) -> int:
        """Bytes of all inputs of an epoch."""
        return sum(tensor.nbytes for tensor in (self.x, self.labels))


def inputs_of(device: Device, graph: Graph, shape: Shape) -> Inputs:
    """Return the inputs of a graph with features, labels and training rows (`shape.labelled`)."""
    if not isinstance(graph.x, np.ndarray) or graph.y is None or graph.train is None:
        raise ValueError("expected a graph with dense features, labels and training rows")
    rng = np.random.default_rng(1)
    hidden, gradient = (
        rng.standard_normal((graph.nodes, width), dtype=np.float32) for width in (shape.hidden, shape.classes)
    )
    x, labels, second, after_first, after_second = (
        device.tensor(device.arrays.uploaded(array))
        for array in (graph.x, np.where(graph.train, graph.y, IGNORED), hidden, hidden, gradient)
    )
    layers = ((x, after_first), (second.requires_grad_(), after_second))
    return Inputs(device, graph, shape, x, labels, layers)


@dataclass
class Net:
    """A model, its optimiser, and the loss of its last epoch; ``convolutions[i](x)`` is a layer of it.

    logits(): of all rows, with dropout by the epoch's draws.
    """

    name: str
    inputs: Inputs
    model: torch.nn.Module
    logits: Callable[[], Tensor]
    convolutions: Sequence[Callable[[Tensor], Tensor]]
    optimizer: torch.optim.Optimizer
    last: Tensor = field(default_factory=lambda: torch.zeros(()))

    def step(self) -> None:
        """Launch an epoch: forward, loss over the training rows, backward, Adam. Does not wait for it."""
        self.optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(self.logits(), self.inputs.labels)
        loss.backward()
        self.optimizer.step()
        self.last = loss.detach()

    def loss(self) -> float:
        """Return the loss of the last epoch. Waits for it."""
        return float(self.last)

    def forward(self, layer: int) -> None:
        """Launch a layer's forward pass, as training calls it."""
        self.convolutions[layer](self.inputs.layers[layer][0])

    def forward_and_backward(self, layer: int) -> None:
        """Launch a layer's forward pass and its gradients."""
        x, gradient = self.inputs.layers[layer]
        for tensor in (x, *self.model.parameters()):
            tensor.grad = None
        self.convolutions[layer](x).backward(gradient)


def ours(inputs: Inputs) -> Net:
    """Return this package's model, as the only rank of a job trains it."""
    device, graph = inputs.device, inputs.graph
    draws = Draws(seed=0, epoch=0)
    features, hidden, classes = inputs.widths
    chosen = ModelSettings(hidden=hidden, dropout=inputs.shape.dropout)
    model = GNN(chosen, features, classes, draws)
    format = row_format(model.widest(sparse=False), torch.float32)
    geometry = default_geometry(format, limits_of(device.module))
    backend: Any = device.backend(geometry)
    matrix = matrix_of(ALONE, whole(graph), "gcn", torch.float32, backend.capabilities.device)
    adjacency = planned(ALONE, matrix, ["direct"])
    rows = np.array([graph.nodes])
    handle = GraphHandle(backend, rows, np.arange(graph.nodes), adjacency, widest=format.dim)
    model.to(backend.capabilities.device)

    def logits() -> Tensor:
        draws.epoch += 1
        return model(inputs.x, handle)

    convolutions = [partial(conv, graph=handle) for conv in model.convolutions]
    return Net("mgg", inputs, model, logits, convolutions, nets.adam(model.convolutions))


def _of_pyg(name: str, inputs: Inputs, graph: tuple[Any, ...]) -> Net:
    """Return two GCNConv that are called with x and ``graph``, whose norm is computed already."""
    from torch_geometric.nn import GCNConv

    features, hidden, classes = inputs.widths
    torch.manual_seed(0)
    both = [GCNConv(features, hidden, normalize=False), GCNConv(hidden, classes, normalize=False)]
    model = nets.Net(both, inputs.shape.dropout, lambda layer, x: layer(x, *graph))
    model.to(inputs.labels.device)
    convolutions = [lambda x, layer=layer: layer(x, *graph) for layer in both]
    return Net(name, inputs, model, lambda: model(inputs.x), convolutions, nets.adam(both))


def _normalised(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Return int64 [2, E'] (source, destination) with self loops, and GCN's norm [E'], by PyG."""
    from torch_geometric.nn.conv.gcn_conv import gcn_norm

    graph, device = inputs.graph, inputs.device
    destination = np.repeat(np.arange(graph.nodes), np.diff(graph.indptr))
    edges = device.arrays.uploaded(np.stack([graph.indices.astype(np.int64), destination]))
    return gcn_norm(device.tensor(edges), num_nodes=graph.nodes)


def pyg(inputs: Inputs) -> Net:
    """Return PyG's GCNConv over an edge list, its default."""
    return _of_pyg("pyg", inputs, _normalised(inputs))


def pyg_csr(inputs: Inputs) -> Net:
    """Return PyG's GCNConv over torch's sparse CSR tensor."""
    edges, weight = _normalised(inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that sparse tensors are in beta
        # Self loops stand at the end of the list: the way over coordinates sorts them in.
        sparse = torch.sparse_coo_tensor(edges.flip(0), weight, (inputs.graph.nodes,) * 2).to_sparse_csr()
    return _of_pyg("pyg-csr", inputs, (sparse,))


MAKERS: dict[str, Callable[[Inputs], Net]] = {"mgg": ours, "pyg": pyg, "pyg-csr": pyg_csr}
