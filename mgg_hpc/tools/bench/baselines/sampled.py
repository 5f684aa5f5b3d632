"""The task, the net and the training loop of all libraries in benchmarks/sampling.py."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

LEARNING_RATE = 0.01


@dataclass(frozen=True)
class Task:
    """Batches of rows with sampled in-edges, and the GraphSAGE that is trained on them.

    fanouts: edges to draw of each row, the batch's own rows first. rows: file of int64 [k], the rows that batches are
    made of. Of a training: x float32 [N, F] and y int64 [N], files; widths: columns of x, of each hidden layer, and of
    the scores; dropout: probability; weights: file of the initial weights, under the names of PyG's parameters.
    """

    fanouts: list[int]
    batch_size: int
    rows: str
    x: str = ""
    y: str = ""
    widths: list[int] = field(default_factory=list)
    dropout: float = 0.0
    weights: str = ""

    @property
    def seeds(self) -> Tensor:
        """Rows that batches are made of, int64 [k]."""
        return torch.from_numpy(np.load(self.rows))

    @property
    def layers(self) -> list[tuple[int, int]]:
        """Columns of each layer's input and output."""
        return list(itertools.pairwise(self.widths))

    @property
    def state(self) -> dict[str, Tensor]:
        """Initial weights by name."""
        with np.load(self.weights) as file:
            return {name: torch.from_numpy(file[name]) for name in file.files}


class Net(torch.nn.Module):
    """GraphSAGE: a convolution for each layer, ReLU and dropout between layers.

    call(convolutions, i, h, batch): layer i over its part of the batch, which returns the rows that the next one takes.
    """

    def __init__(
        self,
        convolutions: Sequence[torch.nn.Module],
        dropout: float,
        call: Callable[[Any, int, Tensor, Any], Tensor],
    ) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList(convolutions)
        self.dropout, self.call = dropout, call

    def forward(self, x: Tensor, batch: Any) -> Tensor:
        """Return the class scores of the batch's own rows."""
        last = len(self.convs) - 1
        for i in range(last):
            x = self.call(self.convs, i, x, batch).relu()
            x = torch.nn.functional.dropout(x, self.dropout, self.training)
        return self.call(self.convs, last, x, batch)


def counted(batches: Iterable[tuple[int, int]]) -> np.ndarray:
    """Return the means over batches of sampled edges and of input rows; [2]."""
    return np.array(list(batches), dtype=np.float64).mean(axis=0)


def epoch_of(
    net: torch.nn.Module, parts: Callable[[], Iterable[tuple[Tensor, Tensor, Any, int]]]
) -> Callable[[], np.ndarray]:
    """Return a run: an epoch that returns the means over its batches of sampled edges and of losses; [2].

    parts: yields, for each batch, its input rows, the labels of its own rows, what the net takes beside them, and the
    number of its edges.
    """
    optimizer = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE)

    def epoch() -> np.ndarray:
        net.train()
        losses, counts = [], []
        for x, y, batch, edges in parts():
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(x, batch), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            counts.append(edges)
        return np.array([np.mean(counts), np.mean(losses)])

    return epoch
