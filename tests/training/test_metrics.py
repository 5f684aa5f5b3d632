"""Losses and scores against formulas and scikit-learn, where splits or classes are missing; the epoch they choose."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import torch
from sklearn.metrics import f1_score, roc_auc_score

from mgg_hpc.errors import InputError
from mgg_hpc.runtime import mpi
from mgg_hpc.training import metrics
from mgg_hpc.training.history import History

ROWS, CLASSES = 50, 4


@pytest.fixture(scope="module")
def alone():
    """A communicator of one rank."""
    mpi.world()
    from mpi4py import MPI

    return MPI.COMM_SELF


@pytest.fixture
def case(rng):
    """Logits, labels of which some are missing, and masks of splits."""
    logits = torch.from_numpy(3 * rng.standard_normal((ROWS, CLASSES)))
    y = rng.integers(CLASSES, size=ROWS)
    kind = rng.integers(3, size=ROWS)
    best = logits.argmax(1).numpy()
    for split in range(3):  # a row of each split is right and one is wrong: no accuracy is 0 or 1 by chance
        kind[[1 + 2 * split, 2 + 2 * split]] = split
        y[1 + 2 * split] = best[1 + 2 * split]
        y[2 + 2 * split] = (best[2 + 2 * split] + 1) % CLASSES
    y[::7] = -1
    return logits, y, {split: kind == i for i, split in enumerate(metrics.SPLITS)}


@pytest.fixture
def several(rng):
    """Several labels a node; the last class has neither labels nor predictions."""
    logits = 3 * rng.standard_normal((ROWS, CLASSES))
    y = (rng.random((ROWS, CLASSES)) < 0.4).astype(np.float32)
    logits[:, -1], y[:, -1] = -1.0, 0.0
    kind = rng.integers(3, size=ROWS)
    return torch.from_numpy(logits), y, {split: kind == i for i, split in enumerate(metrics.SPLITS)}


def scored(alone, logits, known, metric=None):
    metric = metric or metrics.Accuracy()
    return metric.score(alone, metric.count(logits, known), known)


def test_losses_and_accuracies_are_of_the_labelled_rows_of_each_split(alone, case):
    logits, y, masks = case
    known = metrics.labels(alone, y, masks)
    found, right = scored(alone, logits, known), logits.argmax(1).numpy() == y
    for split, mask in masks.items():
        rows = np.flatnonzero(mask & (y >= 0))
        np.testing.assert_array_equal(known.rows[split], rows)
        np.testing.assert_array_equal(known.y[split], y[rows])
        assert known.totals[split] == len(rows) > 0
        assert 0 < right[rows].mean() < 1
        assert getattr(found, split) == pytest.approx(right[rows].mean(), rel=1e-12)
        expected = reference.cross_entropy(logits[rows].numpy(), y[rows])
        loss = float(metrics.loss_sum(logits, known, split)) / len(rows)
        assert loss == pytest.approx(expected, rel=1e-12)
        assert split != "val" or found.val_loss == pytest.approx(expected, rel=1e-12)


def test_what_has_no_rows_has_losses_gradients_and_scores_of_zero(alone, case):
    logits, y, masks = case
    logits.requires_grad_()
    known = metrics.labels(alone, y, masks | {"train": np.zeros(ROWS, bool), "val": None})
    loss = metrics.loss_sum(logits, known, "train")
    loss.backward()
    assert loss.item() == 0.0 and not logits.grad.any()
    found = scored(alone, logits.detach(), known)
    assert found.train == found.val == found.val_loss == 0.0 < found.test
    one_class = metrics.labels(alone, np.minimum(y, 0) + 1, masks | {"val": None})
    found = scored(alone, logits.detach(), one_class, metrics.RocAuc())
    assert found.val == found.val_loss == 0.0


def test_loss_of_several_labels_is_the_mean_over_their_entries(alone, several):
    logits, y, masks = several
    known, chance = metrics.labels(alone, y, masks), 1 / (1 + np.exp(-logits.numpy()))
    entries = -np.where(y == 1, np.log(chance), np.log1p(-chance))
    for split in ("train", "val"):
        found = float(metrics.loss_sum(logits, known, split)) / known.totals[split]
        assert found == pytest.approx(entries[masks[split]].mean(), rel=1e-12)
    assert scored(alone, logits, known, metrics.F1()).val_loss == pytest.approx(found, rel=1e-12)


def of_each_node(logits, y):
    """As many classes of each node as it has, those with the highest logits, the first of equal ones."""
    order = np.argsort(-logits.numpy(), axis=1, kind="stable")
    predicted = np.zeros(y.shape, bool)
    np.put_along_axis(predicted, order, np.arange(CLASSES) < y.sum(1, keepdims=True), axis=1)
    return predicted


@pytest.mark.parametrize("kind", ["several", "top", "one"])
def test_f1_equals_scikit_learns(alone, case, several, kind):
    logits, y, masks = case if kind == "one" else several
    if kind == "top":
        logits[:, 1] = logits[:, 0]  # ties
    elif kind == "one":
        y[y == 3] = 0  # a class that is predicted and has no node
    metric = metrics.TopF1() if kind == "top" else metrics.F1()
    found = scored(alone, logits, metrics.labels(alone, y, masks), metric)
    predicted = {"several": logits.numpy() > 0, "one": logits.argmax(1)}
    if kind == "top":
        predicted["top"] = of_each_node(logits, y)
    labels = range(CLASSES) if kind == "one" else None
    for i, split in enumerate(metrics.SPLITS):
        mask = masks[split] & (y >= 0) if kind == "one" else masks[split]
        of = (y[mask], predicted[kind][mask])
        micro, macro = (
            f1_score(*of, average=each, labels=labels, zero_division=0) for each in ("micro", "macro")
        )
        assert kind != "several" or 0 < macro < micro < 1
        assert getattr(found, split) == pytest.approx(micro, rel=1e-12)
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


# (validation accuracy, validation loss) of epochs 1, 2, ...; epoch 3 wins by its lower loss, epoch 4 only equals it.
EPOCHS = [(0.5, 1.0), (0.7, 0.9), (0.7, 0.8), (0.7, 0.8), (0.6, 0.1)]


@pytest.mark.parametrize(("select", "best"), [("best", 3), ("last", 5)])
def test_the_epoch_kept_has_the_highest_accuracy_then_the_lowest_loss_and_is_the_first(select, best):
    history, model = History(), torch.nn.Linear(1, 1)
    for epoch, (accuracy, loss) in enumerate(EPOCHS, 1):
        with torch.no_grad():
            model.bias.fill_(epoch)  # in place: what is kept must be a copy
        scores = metrics.Scores(0.0, accuracy, epoch / 10, loss)
        history.consider(epoch, scores, model.state_dict(), select)
    assert (history.best_epoch, history.scores.test, history.state["bias"].item()) == (best, best / 10, best)
