"""Layers that are computed again in the backward: the same bits as kept ones, more exchanges, and less memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from jobs import blocks, directed_weighted, with_sparse_features

from mgg_hpc import config
from mgg_hpc.data import store
from mgg_hpc.errors import InputError
from mgg_hpc.nn.inputs import host
from mgg_hpc.training.job import build
from mgg_hpc.training.trainer import Trainer

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

GRAPHS = {"dense": blocks, "sparse": lambda: with_sparse_features(blocks()), "directed": directed_weighted}
MODELS = {
    "gcn": {"name": "gcn"},
    "gcn-batch": {"name": "gcn", "norm": "batch", "residual": True},
    "gin": {"name": "gin", "train_eps": True, "norm": "batch"},
    "sage": {"name": "sage", "jumping": "cat", "norm": "layer"},
    "gat": {"name": "gat", "heads": 2, "attention_dropout": 0.3},
}


@pytest.fixture(scope="module")
def folder(comm, tmp_path_factory) -> Path:
    """Where all ranks see the graphs."""
    folder = Path(comm.bcast(str(tmp_path_factory.mktemp("recompute")) if comm.rank == 0 else None))
    if comm.rank == 0:
        for name, made in GRAPHS.items():
            store.write(folder / f"{name}.h5", made())
    comm.Barrier()
    return folder


def trained(comm, path: Path, recompute: object, model: dict, transfer: str) -> tuple[bytes, int]:
    """Losses and all that is trained after four epochs, as bits; and the bytes that the last epoch's sums read."""
    tree = {
        "graph": {"file": str(path)},
        "model": {"hidden": 8, "layers": 3, "dropout": 0.4} | model,
        "train": {"recompute": recompute, "seed": 3},
        "run": {"threads": 1},
        "plan": {"transfer": transfer},
    }
    job = build(config.from_tree(tree, "test"), comm)
    trainer, losses = Trainer(job, job.graph()), []
    for epoch in range(1, 5):
        job.backend.meter.taken()
        trainer.step(epoch)
        losses.append(trainer.loss())
    read = job.backend.meter.local_bytes
    bits = np.array(losses).tobytes() + b"".join(w.numpy().tobytes() for w in job.weights().values())
    job.backend.close()
    assert np.isfinite(losses).all() and len(set(losses)) == 4
    return bits, read


@pytest.mark.sampled(0)
@pytest.mark.parametrize("transfer", ["direct", "get", "halo"])
@pytest.mark.parametrize("kind", GRAPHS)
def test_gcn_gives_the_same_bits(comm, folder, kind, transfer):
    run = (folder / f"{kind}.h5",)
    kept, read = trained(comm, *run, [], MODELS["gcn"], transfer)
    for layers in ([2], [1, 3], "all"):
        bits, again = trained(comm, *run, layers, MODELS["gcn"], transfer)
        assert bits == kept
        assert again > read or comm.allreduce(read) == 0


@pytest.mark.sampled(0)
@pytest.mark.parametrize("name", [name for name in MODELS if name != "gcn"])
def test_other_models_give_the_same_bits(comm, folder, name):
    """Running statistics of batch norm too, which a second pass must not count again."""
    run = folder / "directed.h5", MODELS[name], "halo"
    kept, _ = trained(comm, run[0], [], *run[1:])
    assert trained(comm, run[0], "all", *run[1:])[0] == kept


@pytest.mark.parametrize("hidden", [5, 12])  # of 12 features: the first layer multiplies first, or sums first
def test_features_in_blocks_give_the_same_bits(comm, folder, monkeypatch, hidden):
    monkeypatch.setattr(host, "LEAST_BYTES", 0)
    run = folder / "dense.h5", {"name": "sage", "hidden": hidden}, "halo"
    kept, _ = trained(comm, run[0], [], *run[1:])
    assert trained(comm, run[0], "all", *run[1:])[0] == kept


def test_only_outputs_are_held_between_forward_and_backward(comm, folder, monkeypatch):
    def held(recompute: object) -> float:
        """Values in each of this rank's rows that the forward leaves in use."""
        model = {"hidden": 8, "layers": 3, "dropout": 0.4}
        tree = {
            "graph": {"file": str(folder / "dense.h5")},
            "model": model,
            "train": {"recompute": recompute},
        }
        job = build(config.from_tree(tree, "test"), comm)
        graph, made = job.graph(), []
        allocate = graph.workspace._allocate
        monkeypatch.setattr(graph.workspace, "_allocate", lambda *of: made.append(allocate(*of)) or made[-1])
        loss = job.model.train()(job.x, graph).sum()
        free = [buffer.nbytes for buffers in graph.workspace._free.values() for buffer in buffers]
        values = (sum(buffer.nbytes for buffer in made) - sum(free)) / 4
        loss.backward()
        job.backend.close()
        return values / graph.rows

    # Layer 1 keeps its 12 inputs as they are aggregated, and hidden layers their output, dropped for the next one; a
    # layer that is computed again keeps what it was given, which is the output before it.
    assert held([]) == (12 + 8) + 8
    assert held([1]) == held("all") == 8 + 8


def test_a_layer_beyond_the_last_is_refused(comm, folder):
    tree = {"graph": {"file": str(folder / "dense.h5")}, "train": {"recompute": [1, 3]}}
    with pytest.raises(
        InputError, match=r"train\.recompute names layer 3, and the model has 2 \(model\.layers\)"
    ):
        build(config.from_tree(tree, "test"), comm)
