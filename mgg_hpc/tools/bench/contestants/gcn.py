"""The epoch that the peers train: what `mgg train` does by default, around a peer's own convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

LEARNING_RATE, WEIGHT_DECAY = 0.01, 5e-4


class Net(torch.nn.Module):
    """Dropout, convolution, ReLU, dropout, convolution; ``graph`` is whatever the convolutions take."""

    def __init__(self, first: Any, second: Any, dropout: float, call: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.dropout, self.call = first, second, dropout, call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores [N, C]."""
        drop = torch.nn.functional.dropout
        hidden = self.call(self.first, drop(x, self.dropout, self.training)).relu()
        return self.call(self.second, drop(hidden, self.dropout, self.training))


def epoch(
    first: Any, second: Any, call: Callable[..., torch.Tensor], x: str, y: str, train: str, dropout: float
) -> Callable[[], Any]:
    """One full-graph step: forward, loss over the training rows, backward, Adam. Returns the loss.

    call(convolution, x): a convolution over the peer's graph. x float32 [N, F], y int64 [N], train bool [N]: files.
    """
    net = Net(first, second, dropout, call)
    features, labels = torch.from_numpy(np.load(x)), torch.from_numpy(np.load(y))
    chosen = torch.from_numpy(np.flatnonzero(np.load(train)))
    groups = [{"params": first.parameters(), "weight_decay": WEIGHT_DECAY}, {"params": second.parameters()}]
    optimizer = torch.optim.Adam(groups, lr=LEARNING_RATE)

    def step() -> np.ndarray:
        net.train()
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(features)[chosen], labels[chosen])
        loss.backward()
        optimizer.step()
        return np.array(loss.item())

    return step
