"""Sampled batches (benchmarks/sampling.py): the inputs, the GraphSAGE and its training, for all libraries."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

Batches = Iterable[tuple[Tensor, Tensor, Any, int]]

LEARNING_RATE = 0.01
WORKERS = (0, 2)  # worker processes of other libraries' loaders; 0: the library's own process samples


@dataclass(frozen=True)
class Task:
    """Batches of rows with sampled in-edges, and the GraphSAGE that is trained on them.

    fanouts: edges to draw of each row, the batch's own rows first. widths: columns of the features, of each hidden
    layer, and of the scores. Files: graph, an .h5; indptr int64 [N + 1]; indices int32 [E]; rows int64 [k], which
    batches are made of; and for a training x float32 [N, F], y int64 [N], and the initial weights, which mgg writes.
    """

    fanouts: list[int]
    batch_size: int
    widths: list[int]
    dropout: float
    graph: str
    indptr: str
    indices: str
    rows: str
    x: str = ""
    y: str = ""
    weights: str = ""

    def load(self, name: str) -> Tensor:
        """Return the array of one of the files."""
        return torch.from_numpy(np.load(getattr(self, name)))

    def state(self) -> dict[str, Tensor]:
        """Return the initial weights, under the names of PyG's parameters."""
        return {name: torch.from_numpy(value) for name, value in np.load(self.weights).items()}

    def layers(self, layer: Callable[[int, int], torch.nn.Module]) -> list[torch.nn.Module]:
        """Return the convolutions. layer: takes the columns of its input and output."""
        return [layer(*widths) for widths in itertools.pairwise(self.widths)]


class Net(torch.nn.Module):
    """GraphSAGE, whose convolutions are called by ``layer(convolution, i, h, batch)``: it returns the next one's input.

    between(h, i, batch): ReLU and dropout of layer i's input, but for the first.
    """

    def __init__(self, convolutions: Sequence[torch.nn.Module], layer: Any, between: Any) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList(convolutions)
        self.layer, self.between = layer, between

    def forward(self, x: Tensor, batch: Any) -> Tensor:
        """Return the class scores of the batch's own rows."""
        for i, convolution in enumerate(self.convs):
            x = self.layer(convolution, i, self.between(x, i, batch) if i else x, batch)
        return x


def with_torch(task: Task, convolution: Any, layer: Any, state: dict[str, Tensor]) -> Net:
    """Return a net of these weights, whose ReLU and dropout are torch's."""
    net = Net(task.layers(convolution), layer, lambda h, *_: torch.dropout(h.relu(), task.dropout, True))
    net.load_state_dict(state)
    return net


def means(batches: Iterable[tuple[float, float]]) -> np.ndarray:
    """Return the means over batches of their sampled edges, and of their input rows or losses; [2]."""
    return np.array(list(batches), dtype=np.float64).mean(axis=0)


def epoch_of(net: Net, batches: Callable[[], Batches]) -> Callable[[], np.ndarray]:
    """Return a run: an epoch of training, which returns the means of sampled edges and losses.

    batches: yields each batch's input rows, labels of its own rows, form that the net takes, and number of edges.
    """
    optimizer = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE)

    def step(x: Tensor, y: Tensor, batch: Any) -> float:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x, batch), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return lambda: means((edges, step(x, y, batch)) for x, y, batch, edges in batches())
