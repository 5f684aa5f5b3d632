"""Which epoch's weights are kept."""

from __future__ import annotations

import pytest
import torch

from mgg_hpc.training.history import History
from mgg_hpc.training.metrics import Scores

# (validation accuracy, validation loss) of epochs 1, 2, ...; epoch 3 wins by its lower loss, epoch 4 only equals it.
EPOCHS = [(0.5, 1.0), (0.7, 0.9), (0.7, 0.8), (0.7, 0.8), (0.6, 0.1)]


def kept(select: str) -> History:
    history, model = History(), torch.nn.Linear(1, 1)
    for epoch, (accuracy, loss) in enumerate(EPOCHS, 1):
        with torch.no_grad():
            model.bias.fill_(epoch)  # in place: what is kept must be a copy
        history.consider(epoch, Scores(0.0, accuracy, epoch / 10, loss), model.state_dict(), select)
    return history


@pytest.mark.parametrize(("select", "epoch"), [("best", 3), ("last", 5)])
def test_best_is_the_highest_accuracy_then_the_lowest_loss_then_the_first(select, epoch):
    history = kept(select)
    assert (history.best_epoch, history.scores.test) == (epoch, epoch / 10)
    assert history.state["bias"].item() == epoch
