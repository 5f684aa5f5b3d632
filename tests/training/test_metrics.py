"""Loss and accuracies against the reference's formulas; empty splits and unlabelled rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mgg_hpc import reference
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


def test_rows_without_a_label_are_in_no_split(alone, case):
    _, y, masks = case
    known = metrics.labels(alone, y, masks)
    for split, mask in masks.items():
        np.testing.assert_array_equal(known.rows[split], np.flatnonzero(mask & (y >= 0)))
        assert known.totals[split] == (mask & (y >= 0)).sum() > 0


def test_loss_is_the_sum_of_the_cross_entropy(alone, case):
    logits, y, masks = case
    known = metrics.labels(alone, y, masks)
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
    found = metrics.score(alone, logits, metrics.labels(alone, y, masks))
    right = logits.argmax(1).numpy() == y
    for split in metrics.SPLITS:
        expected = right[masks[split] & (y >= 0)].mean()
        assert 0 < expected < 1
        assert getattr(found, split) == pytest.approx(expected, rel=1e-12)
    chosen = masks["val"] & (y >= 0)
    assert found.val_loss == pytest.approx(
        reference.cross_entropy(logits.numpy()[chosen], y[chosen]), rel=1e-12
    )


def test_scores_of_splits_that_are_not_there_are_zero(alone, case):
    logits, y, masks = case
    none = {"train": masks["train"], "val": None, "test": np.zeros(ROWS, bool)}
    found = metrics.score(alone, logits, metrics.labels(alone, y, none))
    assert (found.val, found.test, found.val_loss) == (0.0, 0.0, 0.0)
    assert found.train > 0
