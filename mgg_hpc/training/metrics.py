"""Scores over the rows of all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..runtime import mpi

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Labels:
    """This rank's labels and splits. y: int64 [n], -1 unlabelled. rows: this rank's rows of each split, int64.

    totals: how many rows each split has over all ranks.
    """

    y: Tensor
    rows: dict[str, Tensor]
    totals: dict[str, int]


def labels(comm: Any, y: NDArray[np.int64], masks: dict[str, NDArray[np.bool_] | None]) -> Labels:
    """Rows that carry a label, by split. Collective."""
    rows = {}
    for split in SPLITS:
        mask = masks[split]
        chosen = np.zeros(len(y), bool) if mask is None else mask & (y >= 0)
        rows[split] = torch.from_numpy(np.flatnonzero(chosen))
    counts = np.array([len(rows[split]) for split in SPLITS], dtype=np.int64)
    mpi.sum_in_rank_order(comm, counts)
    return Labels(torch.from_numpy(y), rows, dict(zip(SPLITS, counts.tolist(), strict=True)))


def loss_sum(logits: Tensor, labels: Labels, split: str) -> Tensor:
    """This rank's sum of the cross entropy over a split; 0 with a gradient of zeros where it has no such rows."""
    rows = labels.rows[split]
    return torch.nn.functional.cross_entropy(logits[rows], labels.y[rows], reduction="sum")


@dataclass(frozen=True)
class Scores:
    """Accuracies as fractions (0 for an empty split), and the mean loss of the validation rows."""

    train: float
    val: float
    test: float
    val_loss: float


def score(comm: Any, logits: Tensor, labels: Labels) -> Scores:
    """Accuracies over all ranks. Collective."""
    predicted = logits.argmax(1)
    right = [float((predicted[labels.rows[s]] == labels.y[labels.rows[s]]).sum()) for s in SPLITS]
    totals = np.array([*right, float(loss_sum(logits, labels, "val"))])
    mpi.sum_in_rank_order(comm, totals)
    sizes = [max(1, labels.totals[split]) for split in SPLITS]
    train, val, test = (float(totals[i]) / sizes[i] for i in range(3))
    return Scores(train, val, test, float(totals[3]) / sizes[1])
