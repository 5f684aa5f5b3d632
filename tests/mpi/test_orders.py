"""Training and predictions over 1, 2 and 4 ranks do not depend on an order that `mgg partition` gave the file."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path

import h5py
import numpy as np
import pytest
from jobs import blocks, directed_weighted, with_sparse_features, write_job

from mgg_hpc.__main__ import main

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

GRAPHS = {
    "dense": blocks,
    "sparse": lambda: with_sparse_features(blocks(features=40)),
    "directed-weighted": directed_weighted,
}


def train_and_predict(folder: Path, tag: str) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The loss of each epoch, and the predictions by the user's ids."""
    runs, out = folder / f"runs-{tag}", folder / f"{tag}.h5"
    assert main(["train", str(folder / "job.toml"), "--set", f"run.folder={runs}"]) == 0
    assert main(["predict", str(runs), "-o", str(out)]) == 0
    with (runs / "001" / "metrics.csv").open() as file:
        losses = np.array([float(line["loss"]) for line in csv.DictReader(file)])
    with h5py.File(out) as file:
        return losses, {name: file[name][:] for name in file}


@pytest.mark.sampled(0)
@pytest.mark.parametrize("method", ["degree", "rcm", "community"])
@pytest.mark.parametrize("kind", GRAPHS)
def test_losses_and_predictions_are_those_of_the_imported_numbering(comm, folder, first, kind, method):
    train = {"epochs": 20, "select": "last"}
    first(lambda: write_job(folder, GRAPHS[kind](), train=train, model={"hidden": 8}))
    losses, predicted = train_and_predict(folder, "imported")
    assert all(a != b for a, b in itertools.pairwise(losses))  # it learns, and dropout is on
    first(lambda: main(["partition", str(folder / "g.h5"), "-n", str(comm.size), "--order", method]))
    moved_losses, moved = train_and_predict(folder, method)
    np.testing.assert_allclose(moved_losses, losses, rtol=1e-5, atol=0)
    for name, values in predicted.items():
        np.testing.assert_allclose(moved[name], values, rtol=1e-3, atol=1e-4)
