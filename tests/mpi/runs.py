"""Training over ranks: graphs, and without the command line settings from a tree and epochs of a trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jobs import blocks, directed_weighted, with_sparse_features

from mgg_hpc import config
from mgg_hpc.runtime.backends.base import Meter
from mgg_hpc.training.job import Job, build
from mgg_hpc.training.metrics import Scores
from mgg_hpc.training.trainer import Trainer

GRAPHS = {
    "dense": blocks,
    "sparse": lambda: with_sparse_features(blocks(features=40)),
    "directed-weighted": directed_weighted,
}


class Run(NamedTuple):
    """A trainer after its last epoch; the loss of each epoch and the last validation loss; the last scores.

    moved: the meter of the last epoch's training.
    """

    trainer: Trainer
    losses: list[float]
    scores: Scores
    moved: Meter


def settings(path: Path, **sections: dict[str, object]) -> config.Settings:
    """Return the settings of a job on the graph file ``path``, with one thread."""
    return config.from_tree({"graph": {"file": str(path)}, "run": {"threads": 1}} | sections, "test")


def train(job: Job, epochs: int) -> Run:
    """Train a job for some epochs; its backend stays open."""
    trainer, losses = Trainer(job, job.graph()), []
    for epoch in range(1, epochs + 1):
        for _ in trainer.run(epoch):
            pass
        losses.append(trainer.loss())
    trainer.evaluate()
    scores = trainer.scores()
    return Run(trainer, [*losses, scores.val_loss], scores, trainer.cost.meter)


def losses(chosen: config.Settings, comm: Any, epochs: int = 30) -> np.ndarray:
    """Return the loss of each epoch, and the final validation loss."""
    job = build(chosen, comm)
    found = train(job, epochs).losses
    job.close()
    return np.array(found)
