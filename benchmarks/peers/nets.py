"""The epoch of the baselines: that of `mgg train` by default, around a baseline's own convolutions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import peers

from .torch import load

LEARNING_RATE, WEIGHT_DECAY = 0.01, 5e-4


@dataclass(frozen=True)
class Layer:
    """A convolution's size: columns of its input and of each head's output; a last layer has one head."""

    inputs: int
    outputs: int
    heads: int


@dataclass(frozen=True)
class Task:
    """The training task: the model (`mgg_hpc.tools.bench.epoch.Shape`) and the input files.

    x float32 [N, F], y int64 [N], train bool [N]; weights: the initial ones, under the names of PyG's parameters.
    """

    model: str
    features: int
    hidden: int
    layers: int
    heads: int
    classes: int
    dropout: float
    x: str
    y: str
    train: str
    weights: str

    @property
    def convolutions(self) -> list[Layer]:
        """Layers, first to last."""
        widths = [self.features, *[self.hidden * self.heads] * (self.layers - 1), self.classes]
        heads = [self.heads] * (self.layers - 1) + [1]
        return [Layer(a, b // h, h) for (a, b), h in zip(itertools.pairwise(widths), heads, strict=True)]

    @property
    def state(self) -> dict[str, Tensor]:
        """Initial weights by name."""
        with np.load(self.weights) as file:
            return {name: torch.from_numpy(file[name]) for name in file.files}


class Net(torch.nn.Module):
    """Dropout and a convolution for each layer, an activation between layers. The convolutions keep their own weights.

    call(convolution, x): a convolution over the baseline's graph.
    """

    def __init__(
        self, task: Task, convolutions: Sequence[torch.nn.Module], call: Callable[[Any, Tensor], Tensor]
    ) -> None:
        super().__init__()
        self.convs, self.dropout, self.call = torch.nn.ModuleList(convolutions), task.dropout, call
        self.activation = torch.nn.functional.elu if task.model == "gat" else torch.relu

    def forward(self, x: Tensor) -> Tensor:
        """Return the class scores [N, C]."""
        for i, convolution in enumerate(self.convs):
            x = self.activation(x) if i else x
            x = self.call(convolution, torch.nn.functional.dropout(x, self.dropout, self.training))
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


def adam(convolutions: Sequence[torch.nn.Module]) -> torch.optim.Adam:
    """Return an Adam optimiser in which only the first layer's weights decay, as in `mgg train`."""
    first, *rest = convolutions
    groups: list[dict[str, Any]] = [{"params": first.parameters(), "weight_decay": WEIGHT_DECAY}]
    groups += [{"params": each.parameters()} for each in rest]
    return torch.optim.Adam(groups, lr=LEARNING_RATE)


def runs(net: Net, task: Task) -> dict[str, Callable[[], Any]]:
    """Return the run of the library's name, a step (forward, loss, backward, Adam) that returns its loss.

    The run "untrained" returns the mean loss of the rows that do not train, without dropout.
    """
    features, labels, train = (load(file) for file in (task.x, task.y, task.train))
    chosen, others = train.nonzero().flatten(), (~train).nonzero().flatten()
    net.to(peers.DEVICE)
    optimizer = adam(list(net.convs))

    def step() -> np.ndarray:
        net.train()
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(features)[chosen], labels[chosen])
        loss.backward()
        optimizer.step()
        return np.array(loss.item())

    @torch.no_grad()
    def untrained() -> np.ndarray:
        net.eval()
        return np.array(torch.nn.functional.cross_entropy(net(features)[others], labels[others]).item())

    return {peers.NAME: step, "untrained": untrained}
