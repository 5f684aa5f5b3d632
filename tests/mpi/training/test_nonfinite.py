"""A value that is not finite ends a run with its epoch, layer, node and rank, and the last good weights are kept."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs
import safetensors.numpy
import torch
from jobs import blocks, with_sparse_features
from mpi4py import MPI

from mgg_hpc.errors import InputError
from mgg_hpc.training import run_folder
from mgg_hpc.training.job import Job, build
from mgg_hpc.training.train import fit

pytestmark = pytest.mark.mpi

NODES = 150
HINT = "lower train.learning_rate (it is {}) or scale the features (train.normalize_features)"


class AtEpoch:
    """Stands for a watchdog: does something before an epoch."""

    def __init__(self, epoch: int, action: Callable[[], object]) -> None:
        self.epoch, self.action = epoch, action

    def step(self, what: str, *, repeats: bool = False) -> None:
        if what == f"epoch {self.epoch}":
            self.action()


@pytest.fixture
def job(comm, stored) -> Callable[..., Job]:
    """A job on a small graph, over these ranks or another communicator."""

    def job(of: Any = comm, *, sparse: bool = False, **train: object) -> Job:
        graph = blocks(NODES)
        path = stored("sparse", with_sparse_features(graph)) if sparse else stored("dense", graph)
        model = {"hidden": 8, "layers": train.pop("layers", 3), "dropout": train.pop("dropout", 0.5)}
        # "auto" may take another one for the second of two jobs, and so other bits.
        plan = {"transfer": "direct"}
        return build(runs.settings(path, model=model, train={"epochs": 6, "seed": 5} | train, plan=plan), of)

    return job


def ended(job: Job, folder: Path | None = None, dog: Any = None) -> str:
    """How training ends, the same on all ranks."""
    with pytest.raises(InputError) as caught:
        fit(job, job.graph(), folder, False, dog)
    job.backend.memory.close()
    (line,) = set(job.comm.allgather(str(caught.value)))
    assert "\n" not in line
    return line


def of_last_node(job: Job) -> tuple[int, int, bool]:
    """The last row of the whole graph: its node, its row on the rank that owns it, and whether this rank does."""
    last = job.part.nodes - 1
    first, end = job.part.bounds[job.comm.rank : job.comm.rank + 2]
    mine = bool(first <= last < end)
    node = job.comm.allreduce(int(job.part.slice.ids[last - first]) if mine else 0)
    return node, int(last - first), mine


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_an_infinite_feature_is_named(comm, job, value):
    made = job(dropout=0.0)  # which could drop it
    node, row, mine = of_last_node(made)
    if mine:
        made.x[row, 7] = value
    owner = comm.allreduce(comm.rank if mine else 0)
    line = ended(made)
    wanted = f"the loss of epoch 1 is nan; first {value} in the features at node {node}, column 7, on rank {owner}: "
    assert line == wanted + HINT.format(0.01)


def test_an_infinite_stored_value_is_named(comm, job):
    made = job(sparse=True, dropout=0.0)
    mine = comm.rank == comm.size - 1
    place, row, column = (len(made.x.values) // 2, 0, 0) if mine else (0, 0, 0)
    if mine:
        pattern = made.x._pattern
        rows = np.repeat(np.arange(made.x.shape[0]), np.diff(pattern.indptr))
        row, column = made.part.slice.ids[rows[place]], pattern.indices[place]
        made.x.values[place] = -np.inf
    row, column = comm.bcast((row, column), root=comm.size - 1)
    wanted = f"; first -inf in the features at node {row}, column {column}, on rank {comm.size - 1}: "
    assert wanted in ended(made)


def test_a_weight_that_is_no_number_is_named_and_the_best_weights_before_it_are_kept(comm, job, folder):
    kept, wanted = None, None
    made, whole = job(), job(epochs=3, select="best")
    if comm.rank == 0:
        kept = run_folder.create(folder / "kept")
    history = fit(whole, whole.graph(), None, False)
    whole.backend.memory.close()
    best = history.best_epoch

    def plant() -> None:
        with torch.no_grad():
            made.model.convs[1].bias[2] = np.nan

    line = ended(made, kept, AtEpoch(4, plant))
    wanted = "the loss of epoch 4 is nan; first nan in convs.1.bias before the epoch (layer 2), on rank 0: "
    assert line == f"{wanted}{HINT.format(0.01)}; the weights of epoch {best} are kept"
    if comm.rank == 0:
        found = safetensors.numpy.load_file(kept / "checkpoints" / "model.safetensors")
        assert found.keys() == history.state.keys()
        for name, values in history.state.items():
            np.testing.assert_array_equal(found[name], values.numpy())


def test_a_learning_rate_that_is_far_too_large_overflows_in_a_layer(comm, job):
    """The same node and layer on any number of ranks; the rank is the one that owns the node."""
    settings = {"learning_rate": 1e6, "layers": 8}
    alone, line = ended(job(MPI.COMM_SELF, **settings)), ended(job(**settings))
    wanted = r"the loss of epoch 2 is nan; first \S+ in layer (\d+)'s output at node \d+, column \d+, on rank (\d+): "
    found = re.match(wanted, line)
    assert found, line
    assert 1 < int(found[1]) < 8
    assert line.replace(f"on rank {found[2]}", "on rank 0") == alone
    assert line.endswith(HINT.format(1e6) + "; the weights of epoch 1 are kept")


def test_a_gradient_that_overflows_is_named(comm, job):
    """Large features and small first weights, and large weights after them: only the gradient of the first ones is
    out of range, and the weights that it leaves."""
    made = job(layers=2)
    made.x.mul_(1e13)
    with torch.no_grad():
        made.model.convs[0].lin.weight.mul_(1e-13)
        made.model.convs[1].lin.weight.mul_(1e30)
    line = ended(made)
    wanted = r"first \S+ in the gradient of convs\.0\.lin\.weight \(layer 1\), on rank \d: "
    assert re.match(f"weights are no longer finite after epoch 1; {wanted}", line), line
