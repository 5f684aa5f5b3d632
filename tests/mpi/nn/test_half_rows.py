"""Training on half rows: losses near those of float32, weights of float32, and half the memory of activations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from jobs import blocks, with_sparse_features

from mgg_hpc import config
from mgg_hpc.data import store
from mgg_hpc.training.job import build
from mgg_hpc.training.trainer import Trainer

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

GRAPHS = {"dense": lambda: blocks(400), "sparse": lambda: with_sparse_features(blocks(400, features=40))}


@pytest.fixture(scope="module")
def folder(comm, tmp_path_factory) -> Path:
    """Where all ranks see the graphs."""
    folder = Path(comm.bcast(str(tmp_path_factory.mktemp("half")) if comm.rank == 0 else None))
    if comm.rank == 0:
        for name, made in GRAPHS.items():
            store.write(folder / f"{name}.h5", made())
    comm.Barrier()
    return folder


def trained(comm, path: Path, dtype: str, model: dict, transfer: str = "auto") -> tuple[list[float], int]:
    """The loss of 20 epochs and the last validation loss; and the bytes of rows that are held after a forward."""
    tree = {
        "graph": {"file": str(path)},
        "model": {"hidden": 16, "layers": 3, "dropout": 0.3} | model,
        "train": {"dtype": dtype, "seed": 4},
        "plan": {"transfer": transfer},
    }
    job = build(config.from_tree(tree, "test"), comm)
    graph = job.graph()
    trainer, losses = Trainer(job, graph), []
    for epoch in range(1, 21):
        trainer.step(epoch)
        losses.append(trainer.loss())
    trainer.evaluate()
    losses.append(trainer.scores().val_loss)
    assert all(weight.dtype == torch.float32 for weight in job.model.parameters())
    held = sum(buffer.nbytes for buffers in graph.workspace._free.values() for buffer in buffers)
    job.backend.close()
    return losses, held


@pytest.mark.sampled(0)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", GRAPHS)
def test_losses_are_within_a_percent_of_those_of_float32(comm, folder, kind, dtype):
    path = folder / f"{kind}.h5"
    single, held = trained(comm, path, "float32", {})
    losses, held_by_halves = trained(comm, path, dtype, {})
    np.testing.assert_allclose(losses, single, rtol=0.01)
    assert losses[-2] < 0.9 * losses[0] and losses != single
    assert held_by_halves == pytest.approx(held / 2, rel=0.1)


@pytest.mark.sampled(0)
@pytest.mark.parametrize("transfer", ["direct", "get", "halo"])
def test_by_any_transfer(comm, folder, transfer):
    path = folder / "dense.h5"
    one = trained(comm, path, "bfloat16", {}, "direct")[0]
    np.testing.assert_allclose(trained(comm, path, "bfloat16", {}, transfer)[0], one, rtol=0.003)


@pytest.mark.sampled(0)
@pytest.mark.parametrize(
    "model",
    [
        {"name": "gin", "norm": "batch"},
        {"name": "sage", "residual": True},
        {"name": "sage", "jumping": "max", "norm": "layer"},
        {"name": "gat", "heads": 2, "hidden": 8},
    ],
    ids=lambda model: "-".join(map(str, model.values())),
)
def test_by_any_model(comm, folder, model):
    path = folder / "dense.h5"
    single, half = (trained(comm, path, dtype, model)[0] for dtype in ("float32", "bfloat16"))
    np.testing.assert_allclose(half[:-1], single[:-1], rtol=0.01, atol=0.005 * single[0])
    assert half[-1] == pytest.approx(single[-1], rel=0.05)  # by the statistics of few epochs, with batch norm


def test_gradients_of_float16_that_are_as_small_as_with_many_rows_do_not_vanish(comm, folder):
    """One of 2^-24 a row would be rounded to 0; with the scale they are those of float32."""
    gradients = {}
    for dtype in ("float32", "float16"):
        tree = {
            "graph": {"file": str(folder / "dense.h5")},
            "model": {"dropout": 0.0},
            "train": {"dtype": dtype},
        }
        job = build(config.from_tree(tree, "test"), comm)
        trainer = Trainer(job, job.graph())
        job.model.train()
        logits = job.model(job.input, trainer.graph)
        trainer.backward(trainer.loss_of(logits) * 2.0**-13)
        gradients[dtype] = [parameter.grad.clone() for parameter in job.model.parameters()]
        job.backend.close()
    for half, single in zip(gradients["float16"], gradients["float32"], strict=True):
        np.testing.assert_allclose(half, single, atol=0.02 * float(single.abs().max()))
