"""Layers that are computed again in the backward: the same bits as kept ones, more exchanges, and less memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import runs

from mgg_hpc.errors import InputError
from mgg_hpc.nn.inputs import host
from mgg_hpc.training.job import build

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

MODELS = {
    "gcn": {"name": "gcn"},
    "gcn-batch": {"name": "gcn", "norm": "batch", "residual": True},
    "gin": {"name": "gin", "train_eps": True, "norm": "batch"},
    "sage": {"name": "sage", "jumping": "cat", "norm": "layer"},
    "gat": {"name": "gat", "heads": 2, "attention_dropout": 0.3},
}


@pytest.fixture
def path_of(stored):
    """The file of a graph by its name."""
    return lambda kind: stored(kind, runs.GRAPHS[kind]())


def job_of(comm, path: Path, recompute: object, model: dict, transfer: str = "auto"):
    model = {"hidden": 8, "layers": 3, "dropout": 0.4} | model
    train = {"recompute": recompute, "seed": 3}
    return build(runs.settings(path, model=model, train=train, plan={"transfer": transfer}), comm)


def trained(comm, *options: object) -> tuple[bytes, int]:
    """Losses and all that is trained after four epochs, as bits; and the bytes that the last epoch's sums read."""
    job = job_of(comm, *options)
    run = runs.train(job, 4)
    losses, read = run.losses, run.moved.local_bytes
    bits = np.array(losses).tobytes() + b"".join(w.numpy().tobytes() for w in job.weights().values())
    job.backend.memory.close()
    assert np.isfinite(losses).all() and len(set(losses)) == 5
    return bits, read


@pytest.mark.sampled(0)
@pytest.mark.parametrize("transfer", ["direct", "get", "halo"])
@pytest.mark.parametrize("kind", runs.GRAPHS)
def test_gcn_gives_the_same_bits(comm, path_of, kind, transfer):
    path = path_of(kind)
    kept, read = trained(comm, path, [], MODELS["gcn"], transfer)
    for layers in ([2], [1, 3], "all"):
        bits, again = trained(comm, path, layers, MODELS["gcn"], transfer)
        assert bits == kept
        assert again > read or comm.allreduce(read) == 0


@pytest.mark.sampled(0)
@pytest.mark.parametrize("name", [name for name in MODELS if name != "gcn"])
def test_other_models_give_the_same_bits(comm, path_of, name):
    """Running statistics of batch norm too, which a second pass must not count again."""
    path, model = path_of("directed-weighted"), MODELS[name]
    kept, again = (trained(comm, path, which, model, "halo")[0] for which in ([], "all"))
    assert again == kept


@pytest.mark.parametrize("hidden", [5, 12])  # of 12 features: the first layer multiplies first, or sums first
def test_features_in_blocks_give_the_same_bits(comm, path_of, monkeypatch, hidden):
    monkeypatch.setattr(host, "LEAST_BYTES", 0)
    model = {"name": "sage", "hidden": hidden}
    kept, again = (trained(comm, path_of("dense"), which, model, "halo")[0] for which in ([], "all"))
    assert again == kept


def test_only_outputs_are_held_between_forward_and_backward(comm, path_of, monkeypatch):
    def held(recompute: object) -> float:
        """Values in each of this rank's rows that the forward leaves in use."""
        job = job_of(comm, path_of("dense"), recompute, {})
        graph, made = job.graph(), []
        allocate = graph.workspace._allocate
        monkeypatch.setattr(graph.workspace, "_allocate", lambda *of: made.append(allocate(*of)) or made[-1])
        loss = job.model.train()(job.x, graph).sum()
        free = [buffer.nbytes for buffers in graph.workspace._free.values() for buffer in buffers]
        values = (sum(buffer.nbytes for buffer in made) - sum(free)) / 4
        loss.backward()
        job.backend.memory.close()
        return values / graph.rows

    # Layer 1 keeps its 12 inputs as they are aggregated, and hidden layers their output, dropped for the next one; a
    # layer that is computed again keeps what it was given, which is the output before it.
    assert held([]) == (12 + 8) + 8
    assert held([1]) == held("all") == 8 + 8


def test_a_layer_beyond_the_last_is_refused(comm, path_of):
    with pytest.raises(InputError, match=r"train\.recompute names layer 3, and the model has 2"):
        job_of(comm, path_of("dense"), [1, 3], {"layers": 2})
