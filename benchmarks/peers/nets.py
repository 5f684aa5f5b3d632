"""Networks of the baselines and their training: on whole graphs as `mgg train` has it by default, and on batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, dropout, elu

import peers

from .torch import load

LEARNING_RATE, WEIGHT_DECAY = 0.01, 5e-4
WORKERS = (0, 2)  # worker processes of other libraries' loaders; 0: the library's own process samples
Batches = Iterable[tuple[Tensor, Tensor, Any, int]]


@dataclass(frozen=True)
class Layer:
    """A convolution's size: columns of its input and of each head's output; a last layer has one head."""

    inputs: int
    outputs: int
    heads: int = 1


@dataclass(frozen=True, kw_only=True)
class Task:
    """A network, and the files of a graph; weights: the initial ones, under the names of PyG's parameters."""

    dropout: float
    indptr: str
    indices: str
    x: str = ""
    y: str = ""
    weights: str = ""

    @property
    def state(self) -> dict[str, Tensor]:
        """Initial weights by name."""
        return {name: torch.from_numpy(value) for name, value in np.load(self.weights).items()}


@dataclass(frozen=True, kw_only=True)
class Epoch(Task):
    """Training on the whole graph: the model (`harness.shapes.Shape`) and its rows.

    x float32 [N, F], y int64 [N], train bool [N]. file: the graph, for mgg.
    """

    model: str
    features: int
    hidden: int
    layers: int
    heads: int
    classes: int
    train: str
    file: str

    @property
    def convolutions(self) -> list[Layer]:
        """Layers, first to last."""
        widths = [self.features, *[self.hidden * self.heads] * (self.layers - 1), self.classes]
        heads = [self.heads] * (self.layers - 1) + [1]
        return [Layer(a, b // h, h) for (a, b), h in zip(itertools.pairwise(widths), heads, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Sampled(Task):
    """Batches of rows with sampled in-edges, and the GraphSAGE that is trained on them (benchmarks/sampling.py).

    fanouts: edges to draw of each row, the batch's own rows first. widths: columns of the features, of each hidden
    layer, and of the scores. graph: an .h5. rows: int64 [k], which batches are made of.
    """

    fanouts: list[int]
    batch_size: int
    widths: list[int]
    graph: str
    rows: str

    @property
    def convolutions(self) -> list[Layer]:
        """Layers, first to last."""
        return [Layer(*each) for each in itertools.pairwise(self.widths)]


class Net(torch.nn.Module):
    """Convolutions one after the other, which keep their own weights.

    ready(h, i, graph): layer i's input, after activation and dropout. layer(convolution, i, h, graph): its output.
    """

    def __init__(self, convolutions: Iterable[torch.nn.Module], layer: Any, ready: Any) -> None:
        super().__init__()
        self.convs, self.layer, self.ready = torch.nn.ModuleList(convolutions), layer, ready

    def forward(self, x: Tensor, graph: Any = None) -> Tensor:
        """Return the class scores [N, C], or those of a batch's own rows."""
        for i, convolution in enumerate(self.convs):
            x = self.layer(convolution, i, self.ready(x, i, graph), graph)
        return x


class Perceptron(torch.nn.Module):
    """GIN's perceptron: Linear, ReLU, Linear; parameters are named as in PyG's MLP."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        widths = [layer.inputs, layer.outputs, layer.outputs]
        self.lins = torch.nn.ModuleList(torch.nn.Linear(a, b) for a, b in itertools.pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the perceptron to x [N, inputs]; return [N, outputs]."""
        return self.lins[1](self.lins[0](x).relu())


def trained(net: Net, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, graph: Any, rows: Any) -> float:
    """Take a step: forward, loss over the labels y of these rows of the output, backward; return the loss."""
    optimizer.zero_grad()
    loss = cross_entropy(net(x, graph)[rows], y)
    loss.backward()
    optimizer.step()
    return loss.item()


def epochs(
    task: Epoch, convolutions: Sequence[torch.nn.Module], call: Callable[[Any, Tensor], Tensor], state: Any
) -> dict[str, Callable[[], Any]]:
    """Return the run of the library's name: the first call returns the loss before training, as `untrained` of mgg.

    Each further call is an epoch, and returns its loss; only the first layer's weights decay, as in `mgg train`.
    call(convolution, x): a convolution over the library's graph. state: the initial weights by the library's names.
    """
    activation = elu if task.model == "gat" else torch.relu
    net = Net(
        convolutions,
        lambda convolution, i, h, graph: call(convolution, h),
        lambda h, i, graph: dropout(activation(h) if i else h, task.dropout, net.training),
    )
    net.load_state_dict(state)
    net.to(peers.DEVICE)
    features, labels, train = (load(file) for file in (task.x, task.y, task.train))
    chosen, others = train.nonzero().flatten(), (~train).nonzero().flatten()
    groups = [
        {"params": each.parameters(), "weight_decay": 0.0 if i else WEIGHT_DECAY}
        for i, each in enumerate(net.convs)
    ]
    optimizer = torch.optim.Adam(groups, lr=LEARNING_RATE)

    def losses() -> Iterator[np.ndarray]:
        with torch.no_grad():
            net.eval()
            loss = cross_entropy(net(features)[others], labels[others]).item()
        net.train()
        while True:
            yield np.array(loss)
            loss = trained(net, optimizer, features, labels[chosen], None, chosen)

    return {peers.NAME: losses().__next__}


def sage(task: Sampled, convolution: Any, layer: Any, state: dict[str, Tensor]) -> Net:
    """Return the GraphSAGE of a task, whose ReLU and dropout are torch's. convolution: takes columns in and out."""
    made = [convolution(each.inputs, each.outputs) for each in task.convolutions]
    net = Net(made, layer, lambda h, i, _: torch.dropout(h.relu(), task.dropout, True) if i else h)
    net.load_state_dict(state)
    return net


def means(batches: Iterable[tuple[float, float]]) -> np.ndarray:
    """Return the means over batches of their sampled edges, and of their input rows or losses; [2]."""
    return np.array(list(batches), dtype=np.float64).mean(axis=0)


def epoch_of(net: Net, batches: Callable[[], Batches]) -> Callable[[], np.ndarray]:
    """Return a callable that runs one epoch and returns (mean sampled edges, mean loss).

    batches: yields each batch's input rows, labels of its own rows, form that the net takes, and number of edges.
    """
    optimizer = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE)
    return lambda: means(
        (edges, trained(net, optimizer, x, y, batch, slice(None))) for x, y, batch, edges in batches()
    )
