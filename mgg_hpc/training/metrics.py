"""Loss and scores over the rows of all ranks: accuracy, F1 and the area under the ROC curve."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data.graph import SPLITS
from ..errors import InputError
from ..nn.workspace import accumulator
from ..runtime import mpi


@dataclass(frozen=True)
class Labels:
    """This rank's labels and splits, on the backend's device.

    rows: int64 [k], this rank's rows of each split. y: their labels, int64 [k], or float32 [k, C] of 0 and 1 if nodes
    have several. totals: number of rows of each split over all ranks.
    """

    rows: dict[str, Tensor]
    y: dict[str, Tensor]
    totals: dict[str, int]


def labels(
    comm: Any, y: NDArray[Any], masks: dict[str, NDArray[np.bool_] | None], device: str = "cpu"
) -> Labels:
    """Return the labelled rows (y [n] is not -1; every row of y [n, C]) by split. Collective."""
    labelled = y >= 0 if y.ndim == 1 else np.ones(len(y), bool)
    rows, chosen_y = {}, {}
    for split in SPLITS:
        mask = masks[split]
        chosen = np.flatnonzero(np.zeros(len(y), bool) if mask is None else mask & labelled)
        rows[split] = torch.from_numpy(chosen).to(device)
        chosen_y[split] = torch.from_numpy(y[chosen]).to(device)
    counts = np.array([len(rows[split]) for split in SPLITS], dtype=np.int64)
    mpi.sum_in_rank_order(comm, counts)
    return Labels(rows, chosen_y, dict(zip(SPLITS, counts.tolist(), strict=True)))


def loss_sum(logits: Tensor, labels: Labels, split: str) -> Tensor:
    """Return this rank's loss summed over a split's rows, float32 or wider; 0 with a gradient of zeros without rows.

    Rows are distinct, so that no two threads add gradients to the same place.
    """
    return loss_of_rows(logits.index_select(0, labels.rows[split]), labels.y[split])


def loss_of_rows(logits: Tensor, y: Tensor) -> Tensor:
    """Return the loss summed over rows with labels y, as in `Labels`; 0 with a gradient of zeros without rows.

    One label a node: the cross entropy of softmax. Several: the binary cross entropy of sigmoid, its mean over the C
    classes. It is float32 or wider.
    """
    chosen = logits.to(accumulator(logits.dtype))
    if y.ndim == 1:
        return torch.nn.functional.cross_entropy(chosen, y, reduction="sum")
    binary = torch.nn.functional.binary_cross_entropy_with_logits
    return binary(chosen, y.to(chosen.dtype), reduction="sum") / y.shape[1]


@dataclass(frozen=True)
class Scores:
    """The metric of each split as a fraction (0 for an empty one), and the mean loss of the validation rows.

    macro: the macro F1 of each split, where the metric is F1.
    """

    train: float
    val: float
    test: float
    val_loss: float
    macro: tuple[float, ...] = ()


class Metric(ABC):
    """Interface of a metric. `count` is launched on the device; only `score` waits for it. title: as users see it."""

    name: str
    title: str

    def count(self, logits: Tensor, labels: Labels) -> Tensor:
        """Return float64, flat: this rank's counts, and last its sum of the validation loss."""
        loss = loss_sum(logits, labels, "val").double().reshape(1)
        return torch.cat([*self._counts(logits, labels), loss])

    @abstractmethod
    def _counts(self, logits: Tensor, labels: Labels) -> list[Tensor]:
        """Return what this rank's rows contribute, float64."""

    @abstractmethod
    def score(self, comm: Any, counted: Tensor, labels: Labels) -> Scores:
        """Return the scores of all ranks, from what each has counted. Collective."""


class Accuracy(Metric):
    """The share of rows whose class is predicted."""

    name, title = "accuracy", "accuracy"

    def _counts(self, logits: Tensor, labels: Labels) -> list[Tensor]:
        """Return the number of right rows of each split."""
        predicted = logits.argmax(1)
        right = [(predicted.index_select(0, labels.rows[s]) == labels.y[s]).sum() for s in SPLITS]
        return [each.double().reshape(1) for each in right]

    def score(self, comm: Any, counted: Tensor, labels: Labels) -> Scores:
        totals = counted.cpu().numpy()
        mpi.sum_in_rank_order(comm, totals)
        train, val, test = (float(totals[i]) / _size(labels, split) for i, split in enumerate(SPLITS))
        return Scores(train, val, test, float(totals[-1]) / _size(labels, "val"))


class F1(Metric):
    """2 tp / (2 tp + fp + fn): over all decisions (micro, which is the metric), and the mean of each class's (macro).

    A class is predicted where its probability is the largest, or with several labels a node where it is more than 1/2.
    A class that neither occurs nor is predicted counts as 0, as in scikit-learn.
    """

    name, title = "f1", "micro F1"

    def _counts(self, logits: Tensor, labels: Labels) -> list[Tensor]:
        """Return [C] for each split: decisions that are right, nodes predicted, and nodes labelled, of each class."""
        return [each for s in SPLITS for each in self._decisions(logits, labels.rows[s], labels.y[s])]

    def score(self, comm: Any, counted: Tensor, labels: Labels) -> Scores:
        totals = counted.cpu().numpy()
        mpi.sum_in_rank_order(comm, totals)
        by_split = totals[:-1].reshape(len(SPLITS), 3, -1)
        train, val, test = (float(_f1(*each.sum(1))) for each in by_split)
        macro = tuple(float(_f1(*each).mean()) for each in by_split)
        return Scores(train, val, test, float(totals[-1]) / _size(labels, "val"), macro)

    def _decisions(self, logits: Tensor, rows: Tensor, y: Tensor) -> list[Tensor]:
        chosen = logits.index_select(0, rows)
        if y.ndim == 2:
            predicted, has = self._decide(chosen, y), y > 0
            return [each.sum(0).double() for each in (predicted & has, predicted, has)]
        best = chosen.argmax(1)
        counts = ((y, best == y), (best, torch.ones_like(y)), (y, torch.ones_like(y)))
        none = torch.zeros(logits.shape[1], dtype=torch.float64, device=logits.device)
        return [none.index_add(0, classes, amount.double()) for classes, amount in counts]

    def _decide(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return bool [k, C]: the labels of a probability above 1/2."""
        return logits > 0


class TopF1(F1):
    """F1 where each node is given as many labels as it has, the most probable ones (Tang and Liu, KDD 2009).

    Published figures of graphs with many rare labels, few of which ever reach a probability of 1/2, are computed so.
    """

    name, title = "f1_top", "micro F1, of as many labels as a node has"

    def _decide(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return bool [k, C]: in each row as many labels as y [k, C] has there, the most probable (ties: the first)."""
        place = logits.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        return place < y.sum(1, keepdim=True)


class RocAuc(Metric):
    """The area under the ROC curve of two classes, exact: the chance that a node of class 1 has a larger margin over
    class 0 than a node of class 0 has; equal ones count a half (Hanley and McNeil, 1982). 0 where a class is missing.
    """

    name, title = "roc_auc", "ROC AUC"

    def _counts(self, logits: Tensor, labels: Labels) -> list[Tensor]:
        """Return the margins of all splits' rows."""
        margin = logits[:, 1].double() - logits[:, 0].double()
        return [margin.index_select(0, labels.rows[s]) for s in SPLITS]

    def score(self, comm: Any, counted: Tensor, labels: Labels) -> Scores:
        ends = np.cumsum([len(labels.rows[split]) for split in SPLITS])
        *margins, loss = np.split(counted.cpu().numpy(), ends)
        mpi.sum_in_rank_order(comm, loss)
        y = [labels.y[split].cpu().numpy() for split in SPLITS]
        every = comm.gather(list(zip(margins, y, strict=True)), root=0)
        areas = None
        if every is not None:  # rank 0 sorts the margins of all ranks
            areas = [
                area(*map(np.concatenate, zip(*split, strict=True))) for split in zip(*every, strict=True)
            ]
        train, val, test = comm.bcast(areas, root=0)
        return Scores(train, val, test, float(loss[0]) / _size(labels, "val"))


METRICS: dict[str, type[Metric]] = {kind.name: kind for kind in (Accuracy, F1, TopF1, RocAuc)}


def choose(asked: str, multilabel: bool, classes: int, path: Path) -> Metric:
    """Return the metric of `train.metric`. Raises InputError if it does not fit the labels of the graph at ``path``."""
    if asked == "auto":
        asked = "f1" if multilabel else "accuracy"
    if asked == "accuracy" and multilabel:
        raise InputError(f'{path}: has several labels a node, and train.metric = "accuracy"; take "f1"')
    if asked == "f1_top" and not multilabel:
        raise InputError(f'{path}: has one label a node; train.metric = "f1_top" is for several, take "auto"')
    if asked == "roc_auc" and (multilabel or classes != 2):
        kind = "several labels a node" if multilabel else f"{classes} classes"
        raise InputError(f'{path}: has {kind}; train.metric = "roc_auc" is for two classes, take "auto"')
    return METRICS[asked]()


def area(margins: NDArray[np.float64], y: NDArray[np.int64]) -> float:
    """Return the area under the ROC curve of ``margins`` [k] for classes y [k], 0 and 1; 0 if a class is missing."""
    _, place, many = np.unique(margins, return_inverse=True, return_counts=True)
    rank = (np.cumsum(many) - (many - 1) / 2)[place]  # equal margins have the mean rank
    ones = int(np.count_nonzero(y))
    pairs = ones * (len(y) - ones)
    return float(rank[y == 1].sum() - ones * (ones + 1) / 2) / pairs if pairs else 0.0


def _size(labels: Labels, split: str) -> int:
    return max(1, labels.totals[split])


def _f1(right: Any, predicted: Any, labelled: Any) -> Any:
    """Return 2 right / (predicted + labelled), 0 where both are 0."""
    return 2 * right / np.maximum(predicted + labelled, 1)
