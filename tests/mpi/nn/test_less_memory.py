"""Training with less memory. On half rows: losses near those of float32, and weights of float32. With layers that are
computed again in the backward: the same bits as kept ones, and more exchanges.
"""

from __future__ import annotations

import numpy as np
import pytest
import runs
import torch
from jobs import blocks, with_sparse_features
from tiers import long_except

from mgg_hpc.errors import InputError
from mgg_hpc.nn.inputs import host
from mgg_hpc.training.job import build
from mgg_hpc.training.trainer import Trainer

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

LARGE = {
    "large dense": lambda: blocks(400),
    "large sparse": lambda: with_sparse_features(blocks(400, features=40)),
}
MODELS = {
    "gcn-batch": {"name": "gcn", "norm": "batch", "residual": True},
    "gin": {"name": "gin", "train_eps": True, "norm": "batch"},
    "sage": {"name": "sage", "jumping": "cat", "norm": "layer"},
    "sage-max": {"name": "sage", "jumping": "max", "norm": "layer"},
    "gat": {"name": "gat", "heads": 2, "attention_dropout": 0.3},
}


@pytest.fixture
def job_of(comm, stored):
    """Return build(kind of graph, transfer, model, options of training): a job, whose backend the fixture closes."""
    built = []

    def make(kind, transfer="auto", model=None, **train):
        path, model = (
            stored(kind, (runs.GRAPHS | LARGE)[kind]()),
            {"layers": 3, "dropout": 0.4} | (model or {}),
        )
        train = {"seed": 3} | train
        built.append(build(runs.settings(path, model=model, train=train, plan={"transfer": transfer}), comm))
        return built[-1]

    yield make
    for job in built:
        job.backend.memory.close()


@pytest.fixture
def halves(job_of):
    """Return train(kind, dtype, transfer, model): 20 losses and the last validation loss; and bytes held of rows."""

    def train(kind, dtype, transfer="auto", model=None):
        job = job_of(kind, transfer, {"hidden": 16} | (model or {}), dtype=dtype)
        run = runs.train(job, 20)
        assert all(weight.dtype == torch.float32 for weight in job.model.parameters())
        free = run.trainer.graph.workspace._free.values()
        return run.losses, sum(buffer.nbytes for buffers in free for buffer in buffers)

    return train


@pytest.mark.sampled(0)
@pytest.mark.parametrize("transfer", ["direct", "get", "halo"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", LARGE)
def test_losses_of_half_rows_are_within_a_percent_of_those_of_float32(halves, kind, dtype, transfer):
    single, held = halves(kind, "float32")
    losses, held_by_halves = halves(kind, dtype, transfer)
    np.testing.assert_allclose(losses, single, rtol=0.01)
    np.testing.assert_allclose(losses, halves(kind, dtype, "direct")[0], rtol=0.003)
    assert losses[-2] < 0.9 * losses[0] and losses != single
    assert held_by_halves == pytest.approx(held / 2, rel=0.1)


@pytest.mark.sampled(0)
@pytest.mark.parametrize("name", MODELS)
def test_losses_of_half_rows_by_any_model(halves, name):
    single, half = (
        halves("large dense", dtype, model=MODELS[name] | {"hidden": 8})[0]
        for dtype in ("float32", "bfloat16")
    )
    np.testing.assert_allclose(half[:-1], single[:-1], rtol=0.01, atol=0.005 * single[0])
    assert half[-1] == pytest.approx(single[-1], rel=0.05)  # by the statistics of few epochs, with batch norm


def test_gradients_of_float16_that_are_as_small_as_with_many_rows_do_not_vanish(job_of):
    """One of 2^-24 a row would be rounded to 0; with the scale they are those of float32."""
    gradients = []
    for dtype in ("float16", "float32"):
        job = job_of("large dense", model={"dropout": 0.0}, dtype=dtype)
        trainer = Trainer(job, job.graph())
        job.model.train()
        trainer.backward(trainer.loss_of(job.model(job.input, trainer.graph)) * 2.0**-13)
        gradients.append([parameter.grad.clone() for parameter in job.model.parameters()])
    for half, single in zip(*gradients, strict=True):
        np.testing.assert_allclose(half, single, atol=0.02 * float(single.abs().max()))


@pytest.fixture
def same_bits(comm, job_of):
    """Compare losses and all that is trained after four epochs; sums are read again where layers are."""

    def same_bits(*of, recomputed=("all",)):
        bits, read = [], []
        for layers in ([], *recomputed):
            job = job_of(*of, recompute=layers)
            run = runs.train(job, 4)
            assert np.isfinite(run.losses).all() and len(set(run.losses)) == 5
            bits.append(
                [np.array(run.losses).tobytes(), *(w.numpy().tobytes() for w in job.weights().values())]
            )
            read.append(run.moved.local_bytes)
        assert bits[1:] == bits[:1] * len(recomputed)
        assert min(read[1:]) > read[0] or comm.allreduce(read[0]) == 0

    return same_bits


@pytest.mark.sampled(0)
@pytest.mark.parametrize("transfer", ["direct", "get", "halo"])
@pytest.mark.parametrize("kind", runs.GRAPHS)
def test_gcn_gives_the_same_bits(same_bits, kind, transfer):
    same_bits(kind, transfer, {"hidden": 8}, recomputed=([2], [1, 3], "all"))


@pytest.mark.parametrize("name", long_except(MODELS, "gcn-batch", draw=1))
def test_other_models_give_the_same_bits(same_bits, name):
    """Running statistics of batch norm too, which a second pass must not count again."""
    same_bits("directed-weighted", "halo", MODELS[name] | {"hidden": 8})


@pytest.mark.parametrize("hidden", [5, 12])  # of 12 features: the first layer multiplies first, or sums first
def test_features_in_blocks_give_the_same_bits(same_bits, monkeypatch, hidden):
    monkeypatch.setattr(host, "LEAST_BYTES", 0)
    same_bits("dense", "halo", {"name": "sage", "hidden": hidden})


@pytest.mark.parametrize(("recompute", "values"), [([], 12 + 8 + 8), ([1], 8 + 8), ("all", 8 + 8)])
def test_only_outputs_are_held_between_forward_and_backward(job_of, monkeypatch, recompute, values):
    """Layer 1 keeps its 12 inputs as they are aggregated, and hidden layers their output, dropped for the next one; a
    layer that is computed again keeps what it was given, which is the output before it.
    """
    job = job_of("dense", model={"hidden": 8}, recompute=recompute)
    graph, made = job.graph(), []
    allocate = graph.workspace._allocate
    monkeypatch.setattr(graph.workspace, "_allocate", lambda *of: made.append(allocate(*of)) or made[-1])
    loss = job.model.train()(job.x, graph).sum()
    free = [buffer.nbytes for buffers in graph.workspace._free.values() for buffer in buffers]
    assert sum(buffer.nbytes for buffer in made) - sum(free) == 4 * graph.rows * values
    loss.backward()


def test_a_layer_beyond_the_last_is_refused(job_of):
    with pytest.raises(InputError, match=r"train\.recompute names layer 3, and the model has 2"):
        job_of("dense", model={"layers": 2}, recompute=[1, 3])
