"""Training on half rows: losses near those of float32, weights of float32, and half the memory of activations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import runs
import torch
from jobs import blocks, with_sparse_features

from mgg_hpc.training.job import build
from mgg_hpc.training.trainer import Trainer

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

GRAPHS = {"dense": lambda: blocks(400), "sparse": lambda: with_sparse_features(blocks(400, features=40))}


@pytest.fixture
def path_of(stored):
    """The file of a graph by its name."""
    return lambda kind: stored(kind, GRAPHS[kind]())


def trained(comm, path: Path, dtype: str, model: dict, transfer: str = "auto") -> tuple[list[float], int]:
    """The loss of 20 epochs and the last validation loss; and the bytes of rows that are held after a forward."""
    model = {"hidden": 16, "layers": 3, "dropout": 0.3} | model
    chosen = runs.settings(path, model=model, train={"dtype": dtype, "seed": 4}, plan={"transfer": transfer})
    job = build(chosen, comm)
    run = runs.train(job, 20)
    assert all(weight.dtype == torch.float32 for weight in job.model.parameters())
    free = run.trainer.graph.workspace._free.values()
    job.backend.memory.close()
    return run.losses, sum(buffer.nbytes for buffers in free for buffer in buffers)


@pytest.mark.sampled(0)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", GRAPHS)
def test_losses_are_within_a_percent_of_those_of_float32(comm, path_of, kind, dtype):
    path = path_of(kind)
    single, held = trained(comm, path, "float32", {})
    losses, held_by_halves = trained(comm, path, dtype, {})
    np.testing.assert_allclose(losses, single, rtol=0.01)
    assert losses[-2] < 0.9 * losses[0] and losses != single
    assert held_by_halves == pytest.approx(held / 2, rel=0.1)


@pytest.mark.sampled(0)
@pytest.mark.parametrize("transfer", ["direct", "get", "halo"])
def test_by_any_transfer(comm, path_of, transfer):
    path = path_of("dense")
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
def test_by_any_model(comm, path_of, model):
    path = path_of("dense")
    single, half = (trained(comm, path, dtype, model)[0] for dtype in ("float32", "bfloat16"))
    np.testing.assert_allclose(half[:-1], single[:-1], rtol=0.01, atol=0.005 * single[0])
    assert half[-1] == pytest.approx(single[-1], rel=0.05)  # by the statistics of few epochs, with batch norm


def test_gradients_of_float16_that_are_as_small_as_with_many_rows_do_not_vanish(comm, path_of):
    """One of 2^-24 a row would be rounded to 0; with the scale they are those of float32."""
    gradients = {}
    for dtype in ("float32", "float16"):
        chosen = runs.settings(path_of("dense"), model={"dropout": 0.0}, train={"dtype": dtype})
        job = build(chosen, comm)
        trainer = Trainer(job, job.graph())
        job.model.train()
        logits = job.model(job.input, trainer.graph)
        trainer.backward(trainer.loss_of(logits) * 2.0**-13)
        gradients[dtype] = [parameter.grad.clone() for parameter in job.model.parameters()]
        job.backend.memory.close()
    for half, single in zip(gradients["float16"], gradients["float32"], strict=True):
        np.testing.assert_allclose(half, single, atol=0.02 * float(single.abs().max()))
