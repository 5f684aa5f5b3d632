"""Loss and scores over the rows of all ranks: accuracy, F1 and the area under the ROC curve."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data.graph import SPLITS
from ..errors import InputError
from ..nn.workspace import accumulator
from ..plan.workload import prefix_sum
from ..runtime import mpi
from ..runtime.exchange import send

SAMPLED = 4096  # margins of a rank and class, at most, by which the ranks divide the margins of all


@dataclass(frozen=True)
class Labels:
    """This rank's labelled rows by split, on the backend's device.

    rows: int64 [k], row numbers. y: their labels, int64 [k], or float32 [k, C] of 0 and 1 if nodes have several labels.
    totals: number of labelled rows over all ranks.
    """

    rows: dict[str, Tensor]
    y: dict[str, Tensor]
    totals: dict[str, int]


def labels(
    comm: Any, y: NDArray[Any], masks: dict[str, NDArray[np.bool_] | None], device: str = "cpu"
) -> Labels:
    """Return the labelled rows by split: those with y [n] other than -1, or every row of y [n, C]. Collective.

    masks: bool [n] of each split, or None for an empty one.
    """
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


def loss_sum(logits: Tensor, labels: Labels, split: str, weight: Tensor | None = None) -> Tensor:
    """Return this rank's loss summed over a split's rows, as `loss_of_rows` does. logits: [n, C]. weight: as there.

    Rows are distinct, so no two threads add gradients to the same element.
    """
    return loss_of_rows(logits.index_select(0, labels.rows[split]), labels.y[split], weight)


def loss_of_rows(logits: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the loss summed over rows, float32 or wider; 0 with a gradient of zeros if there are none.

    logits: [k, C]. y: as in `Labels`. With one label a node, the cross entropy of softmax; with several, the binary
    cross entropy of sigmoid, averaged over the C classes. weight: [C] of classes, for one label a node.
    """
    chosen = logits.to(accumulator(logits.dtype))
    if y.ndim == 1:
        return torch.nn.functional.cross_entropy(chosen, y, weight, reduction="sum")
    binary = torch.nn.functional.binary_cross_entropy_with_logits
    return binary(chosen, y.to(chosen.dtype), reduction="sum") / y.shape[1]


@dataclass(frozen=True)
class Scores:
    """The metric of each split as a fraction (0 for an empty one), and the mean loss of the validation rows.

    macro: macro F1 of each split, if the metric is F1.
    """

    train: float
    val: float
    test: float
    val_loss: float
    macro: tuple[float, ...] = ()


class Metric(ABC):
    """Interface of a metric. `count` is launched on the device; only `score` waits for it. title: name in reports."""

    name: str
    title: str

    def count(self, logits: Tensor, labels: Labels) -> Tensor:
        """Return float64 [m]: this rank's counts, and at the end its summed validation loss."""
        loss = loss_sum(logits, labels, "val").double().reshape(1)
        return torch.cat([*self._counts(logits, labels), loss])

    @abstractmethod
    def _counts(self, logits: Tensor, labels: Labels) -> list[Tensor]:
        """Return the counts of this rank's rows, float64 vectors."""

    @abstractmethod
    def score(self, comm: Any, counted: Tensor, labels: Labels) -> Scores:
        """Return the scores over all ranks, from the result of `count` on each. Collective."""


class Accuracy(Metric):
    """Share of the rows whose class is predicted correctly."""

    name, title = "accuracy", "accuracy"

    def _counts(self, logits: Tensor, labels: Labels) -> list[Tensor]:
        predicted = logits.argmax(1)
        right = [(predicted.index_select(0, labels.rows[s]) == labels.y[s]).sum() for s in SPLITS]
        return [each.double().reshape(1) for each in right]

    def score(self, comm: Any, counted: Tensor, labels: Labels) -> Scores:
        totals = counted.cpu().numpy()
        mpi.sum_in_rank_order(comm, totals)
        train, val, test = (float(totals[i]) / _size(labels, split) for i, split in enumerate(SPLITS))
        return Scores(train, val, test, float(totals[-1]) / _size(labels, "val"))


class F1(Metric):
    """F1, 2 tp / (2 tp + fp + fn): over all decisions (micro, the metric), and its mean over classes (macro).

    The predicted class is the one with the largest probability; with several labels a node, every class with a
    probability above 1/2. A class that neither occurs nor is predicted has an F1 of 0, as in scikit-learn.
    """

    name, title = "f1", "micro F1"

    def _counts(self, logits: Tensor, labels: Labels) -> list[Tensor]:
        """Return three vectors [C] per split: of each class, correct predictions, predictions, and labels."""
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
        """Return bool [k, C]: the predicted labels."""
        return logits > 0


class TopF1(F1):
    """F1 if as many labels are predicted as a node has, the most probable ones (Tang and Liu, KDD 2009).

    Usual for graphs with many rare labels, few of which ever reach a probability of 1/2.
    """

    name, title = "f1_top", "micro F1, of as many labels as a node has"

    def _decide(self, logits: Tensor, y: Tensor) -> Tensor:
        # Among equal logits the first classes are predicted.
        place = logits.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        return place < y.sum(1, keepdim=True)


class RocAuc(Metric):
    """Exact area under the ROC curve of two classes; 0 if a class is missing.

    It is the probability that a node of class 1 has a larger margin, logit 1 - logit 0, than a node of class 0; equal
    margins count a half (Hanley and McNeil, 1982).
    """

    name, title = "roc_auc", "ROC AUC"

    def _counts(self, logits: Tensor, labels: Labels) -> list[Tensor]:
        margin = logits[:, 1].double() - logits[:, 0].double()
        return [margin.index_select(0, labels.rows[s]) for s in SPLITS]

    def score(self, comm: Any, counted: Tensor, labels: Labels) -> Scores:
        ends = np.cumsum([len(labels.rows[split]) for split in SPLITS])
        *margins, loss = np.split(counted.cpu().numpy(), ends)
        mpi.sum_in_rank_order(comm, loss)
        y = [labels.y[split].cpu().numpy() for split in SPLITS]
        train, val, test = (area(comm, *split) for split in zip(margins, y, strict=True))
        return Scores(train, val, test, float(loss[0]) / _size(labels, "val"))


METRICS: dict[str, type[Metric]] = {kind.name: kind for kind in (Accuracy, F1, TopF1, RocAuc)}


def choose(asked: str, multilabel: bool, classes: int, path: Path) -> Metric:
    """Return the metric of `train.metric`. Raises InputError if it does not fit the labels of the graph."""
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


def area(comm: Any, margins: NDArray[Any], y: NDArray[Any]) -> float:
    """Return the area under the ROC curve of all ranks' rows, exact; 0 if a class is missing. Collective.

    margins: [k], of this rank's rows. y: [k], their classes, 0 or 1. Each rank takes a range of the margins of all
    ranks, so that its memory is for its share of the rows: distinct margins with their counts.
    """
    held = [np.unique(margins[y == each], return_counts=True) for each in (0, 1)]
    sample = np.concatenate([value[:: len(value) // SAMPLED + 1] for value, _ in held])
    every = np.sort(np.concatenate(comm.allgather(sample)))
    if not len(every):
        return 0.0
    cuts = every[len(every) * np.arange(1, comm.size) // comm.size]
    zeros, ones = (
        [
            send(comm, each, np.diff(np.searchsorted(value, cuts), prepend=0, append=len(value)))
            for each in (value, many)
        ]
        for value, many in held
    )
    order = np.argsort(zeros[0])
    value, below = zeros[0][order], prefix_sum(zeros[1][order])
    twice = ones[1] @ (
        below[np.searchsorted(value, ones[0])] + below[np.searchsorted(value, ones[0], "right")]
    )
    mine = int(twice), int(ones[1].sum()), int(below[-1])
    total, positive, negative = 0, 0, 0
    for wins, more, lower in comm.allgather(mine):  # by ascending margins
        total += wins + 2 * more * negative
        positive, negative = positive + more, negative + lower
    return total / (2 * positive * negative) if positive * negative else 0.0


def _size(labels: Labels, split: str) -> int:
    return max(1, labels.totals[split])


def _f1(right: Any, predicted: Any, labelled: Any) -> Any:
    """Return 2 right / (predicted + labelled), 0 where both are 0."""
    return 2 * right / np.maximum(predicted + labelled, 1)


class ClickScores(NamedTuple):
    """Scores of predicted clicks.

    auc: area under the ROC curve. log_loss: mean of the negative log likelihood. normalised_entropy: log_loss over that
    of predicting the share of clicks for each row (He et al., ADKDD 2014); 0 where all rows are alike.
    """

    auc: float
    log_loss: float
    normalised_entropy: float


def click_scores(comm: Any, logits: NDArray[np.float32], y: NDArray[np.bool_]) -> ClickScores:
    """Return the scores over all ranks. Collective. logits [k], y [k]: of this rank's rows."""
    with np.errstate(invalid="ignore"):  # the caller looks at the loss
        likelihood = np.logaddexp(0, logits, dtype=np.float64).sum() - logits[y].sum(dtype=np.float64)
    totals = np.array([likelihood, np.count_nonzero(y), len(y)])
    mpi.sum_in_rank_order(comm, totals)
    loss, share = totals[:2] / totals[2]
    base = -sum(each * np.log(each) for each in (share, 1 - share) if each > 0)
    return ClickScores(area(comm, logits, y), float(loss), float(loss / base) if base else 0.0)
