"""The record of a training: times and scores of its epochs, and the weights chosen so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..nn.sampling.batches import Batch
from ..runtime.backends.base import Meter
from .metrics import Scores


@dataclass
class BatchCounts:
    """Sums over the batches that this rank has trained on in this process.

    edges: of all blocks. rows: of the input. waited: seconds spent waiting for samples. tiers: share of each tier in
    the rows that all ranks have read, of each epoch.
    """

    batches: int = 0
    edges: int = 0
    rows: int = 0
    waited: float = 0.0
    tiers: list[dict[str, float]] = field(default_factory=list)

    def add(self, batch: Batch) -> None:
        """Count a batch."""
        self.batches += 1
        self.edges += batch.edges
        self.rows += batch.blocks[0].rows


@dataclass
class History:
    """Times of the epochs in ms, and the best validation score so far with its weights."""

    epoch_ms: list[float] = field(default_factory=list)
    eval_ms: list[float] = field(default_factory=list)
    aggregate_ms: list[float] = field(default_factory=list)
    moved: Meter = field(default_factory=Meter)  # rows read by the last epoch's training
    best_epoch: int = 0
    best: tuple[float, float] = (-1.0, 0.0)  # validation score, minus the validation loss
    scores: Scores = field(default_factory=lambda: Scores(0.0, 0.0, 0.0, 0.0))
    state: dict[str, torch.Tensor] = field(default_factory=dict)  # the chosen weights
    loss: float = float("nan")
    tuned: list[dict[str, Any]] = field(default_factory=list)  # values found for ps, dist and wpb
    recorded: bool = False  # whether epochs were replayed as a CUDA graph
    not_recorded: str = ""  # why recording failed
    timed_epochs: int = 0  # epochs of this process
    batches: BatchCounts | None = None  # of this process, if it trained on batches
    phases: dict[str, float] = field(default_factory=dict)  # seconds of these epochs on this rank by phase

    def add(self, meter: Meter, step_seconds: float, eval_seconds: float, replayed: bool) -> None:
        """Add an epoch's times and bytes. replayed: the times of its aggregations are unknown."""
        self.epoch_ms.append(step_seconds * 1e3)
        self.eval_ms.append(eval_seconds * 1e3)
        if not replayed:
            self.aggregate_ms.append(meter.seconds * 1e3)
        self.moved = meter

    def consider(self, epoch: int, scores: Scores, weights: Mapping[str, torch.Tensor], select: str) -> None:
        """Copy these weights if they are to be chosen: the last, or the best (ties: the lower validation loss)."""
        value = (scores.val, -scores.val_loss if np.isfinite(scores.val_loss) else -np.inf)
        if select == "last" or value > self.best:
            self.best, self.best_epoch, self.scores = value, epoch, scores
            self.state = {name: tensor.detach().clone() for name, tensor in weights.items()}
