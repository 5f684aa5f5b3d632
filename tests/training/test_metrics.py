"""Losses and scores against formulas and scikit-learn; empty splits, unlabelled rows, classes that are missing."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import torch
from sklearn.metrics import f1_score, roc_auc_score

from mgg_hpc.errors import InputError
from mgg_hpc.runtime import mpi
from mgg_hpc.training import metrics

ROWS, CLASSES = 50, 4


@pytest.fixture(scope="module")
def alone():
    """A communicator of one rank."""
    mpi.world()
    from mpi4py import MPI

    return MPI.COMM_SELF


@pytest.fixture
def case(rng):
    logits = torch.from_numpy(3 * rng.standard_normal((ROWS, CLASSES)))
    y = rng.integers(CLASSES, size=ROWS)
    kind = rng.integers(3, size=ROWS)
    best = logits.argmax(1).numpy()
    for split in range(3):  # a row of each split is right and one is wrong: no accuracy is 0 or 1 by chance
        kind[[1 + 2 * split, 2 + 2 * split]] = split
        y[1 + 2 * split] = best[1 + 2 * split]
        y[2 + 2 * split] = (best[2 + 2 * split] + 1) % CLASSES
    y[::7] = -1
    masks = {split: kind == i for i, split in enumerate(metrics.SPLITS)}
    return logits, y, masks


@pytest.fixture
def several(rng):
    """Several labels a node; the last class has neither labels nor predictions."""
    logits = 3 * rng.standard_normal((ROWS, CLASSES))
    y = (rng.random((ROWS, CLASSES)) < 0.4).astype(np.float32)
    logits[:, -1], y[:, -1] = -1.0, 0.0
    kind = rng.integers(3, size=ROWS)
    masks = {split: kind == i for i, split in enumerate(metrics.SPLITS)}
    return torch.from_numpy(logits), y, masks


def scored(alone, logits, known, metric=None):
    metric = metric or metrics.Accuracy()
    return metric.score(alone, metric.count(logits, known), known)


def test_rows_without_a_label_are_in_no_split(alone, case):
    logits, y, masks = case
    known = metrics.labels(alone, y, masks)
    for split, mask in masks.items():
        np.testing.assert_array_equal(known.rows[split], np.flatnonzero(mask & (y >= 0)))
        np.testing.assert_array_equal(known.y[split], y[mask & (y >= 0)])
        assert known.totals[split] == (mask & (y >= 0)).sum() > 0
    rows = known.rows["train"]
    expected = reference.cross_entropy(logits[rows].numpy(), y[rows]) * len(rows)
    assert float(metrics.loss_sum(logits, known, "train")) == pytest.approx(expected, rel=1e-12)


def test_loss_of_a_rank_without_training_rows_is_zero_with_zero_gradients(alone, case):
    logits, y, masks = case
    known = metrics.labels(alone, y, masks | {"train": np.zeros(ROWS, bool)})
    logits.requires_grad_()
    loss = metrics.loss_sum(logits, known, "train")
    loss.backward()
    assert loss.item() == 0.0
    assert not logits.grad.any()


def test_scores_are_fractions_of_each_split(alone, case):
    logits, y, masks = case
    found = scored(alone, logits, metrics.labels(alone, y, masks))
    right = logits.argmax(1).numpy() == y
    for split in metrics.SPLITS:
        expected = right[masks[split] & (y >= 0)].mean()
        assert 0 < expected < 1
        assert getattr(found, split) == pytest.approx(expected, rel=1e-12)
    chosen = masks["val"] & (y >= 0)
    loss = reference.cross_entropy(logits.numpy()[chosen], y[chosen])
    assert found.val_loss == pytest.approx(loss, rel=1e-12)


def test_scores_of_splits_that_are_not_there_are_zero(alone, case):
    logits, y, masks = case
    none = {"train": masks["train"], "val": None, "test": np.zeros(ROWS, bool)}
    found = scored(alone, logits, metrics.labels(alone, y, none))
    assert (found.val, found.test, found.val_loss) == (0.0, 0.0, 0.0)
    assert found.train > 0


def test_loss_of_several_labels_is_the_mean_over_their_entries(alone, several):
    logits, y, masks = several
    known = metrics.labels(alone, y, masks)
    z = logits.numpy()[masks["train"]]
    chance = 1 / (1 + np.exp(-z))
    expected = -np.where(y[masks["train"]] == 1, np.log(chance), np.log1p(-chance)).mean()
    found = float(metrics.loss_sum(logits, known, "train")) / known.totals["train"]
    assert found == pytest.approx(expected, rel=1e-12)
    expected = float(metrics.loss_sum(logits, known, "val")) / known.totals["val"]
    assert scored(alone, logits, known, metrics.F1()).val_loss == pytest.approx(expected, rel=1e-12)


def of_each_node(logits, y):
    """As many classes of each node as it has, those with the highest logits, the first of equal ones."""
    predicted = np.zeros(y.shape, bool)
    for row, many in enumerate(y.sum(1).astype(int)):
        best = sorted(range(CLASSES), key=lambda column: (-float(logits[row, column]), column))
        predicted[row, best[:many]] = True
    return predicted


@pytest.mark.parametrize("metric", [metrics.F1(), metrics.TopF1()], ids=["f1", "f1_top"])
def test_f1_of_several_labels_equals_scikit_learns(alone, several, metric):
    logits, y, masks = several
    top = isinstance(metric, metrics.TopF1)
    if top:
        logits[:, 1] = logits[:, 0]  # ties
    found = scored(alone, logits, metrics.labels(alone, y, masks), metric)
    predicted = of_each_node(logits, y) if top else logits.numpy() > 0
    for i, split in enumerate(metrics.SPLITS):
        of = (y[masks[split]], predicted[masks[split]])
        micro, macro = (f1_score(*of, average=average, zero_division=0) for average in ("micro", "macro"))
        assert top or 0 < macro < micro < 1
        assert getattr(found, split) == pytest.approx(micro, rel=1e-12)
        assert found.macro[i] == pytest.approx(macro, rel=1e-12)


def test_f1_of_one_label_equals_scikit_learns(alone, case):
    logits, y, masks = case
    y[y == 3] = 0  # a class that is predicted and has no node
    found = scored(alone, logits, metrics.labels(alone, y, masks), metrics.F1())
    best = logits.argmax(1).numpy()
    for i, split in enumerate(metrics.SPLITS):
        mask = masks[split] & (y >= 0)
        of = (y[mask], best[mask])
        macro = f1_score(*of, labels=range(CLASSES), average="macro", zero_division=0)
        assert getattr(found, split) == pytest.approx(f1_score(*of, average="micro"), rel=1e-12)
        assert found.macro[i] == pytest.approx(macro, rel=1e-12)


def test_area_under_the_curve_counts_pairs_and_ties_by_halves(alone, rng):
    logits = torch.from_numpy(rng.integers(4, size=(ROWS, 2)).astype(np.float32))  # many ties
    y = rng.permutation(np.arange(ROWS) % 2)
    masks = {split: np.arange(ROWS) % 3 == i for i, split in enumerate(metrics.SPLITS)}
    found = scored(alone, logits, metrics.labels(alone, y, masks), metrics.RocAuc())
    margin = (logits[:, 1] - logits[:, 0]).numpy()
    for split, mask in masks.items():
        one, zero = margin[mask & (y == 1), None], margin[mask & (y == 0)]
        expected = ((one > zero) + 0.5 * (one == zero)).mean()
        assert getattr(found, split) == pytest.approx(expected, rel=1e-12)
        assert expected == pytest.approx(roc_auc_score(y[mask], margin[mask]), rel=1e-12)


def test_area_under_the_curve_is_zero_where_a_class_is_missing(alone, case):
    logits, y, masks = case
    none = {"train": masks["train"], "val": None, "test": masks["test"]}
    found = scored(alone, logits, metrics.labels(alone, np.minimum(y, 0) + 1, none), metrics.RocAuc())
    assert found.val == found.val_loss == 0.0


def test_a_metric_fits_the_labels(tmp_path):
    assert metrics.choose("auto", False, 7, tmp_path).name == "accuracy"
    assert metrics.choose("auto", True, 7, tmp_path).name == "f1"
    assert metrics.choose("roc_auc", False, 2, tmp_path).name == "roc_auc"
    for asked, multilabel, classes, reason in (
        ("accuracy", True, 3, 'several labels a node, and train.metric = "accuracy"; take "f1"'),
        ("f1_top", False, 3, 'has one label a node; train.metric = "f1_top" is for several'),
        ("roc_auc", True, 2, 'has several labels a node; train.metric = "roc_auc" is for two classes'),
        ("roc_auc", False, 3, 'has 3 classes; train.metric = "roc_auc" is for two classes'),
    ):
        with pytest.raises(InputError, match=reason):
            metrics.choose(asked, multilabel, classes, tmp_path)
