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

HINT = "lower train.learning_rate (it is {}) or scale the features (train.normalize_features)"


class Before:
    """Stands for a watchdog: does something before an epoch or a batch."""

    def __init__(self, what: str, action: Callable[[], object]) -> None:
        self.what, self.action = what, action

    def step(self, what: str, *, repeats: bool = False) -> None:
        if what == self.what:
            self.action()


@pytest.fixture
def job(comm, stored) -> Callable[..., Job]:
    """A job on a small graph, over these ranks or another communicator."""

    def job(of: Any = comm, kind: str = "dense", *, layers: int = 3, dropout: float = 0.5, **train) -> Job:
        graph = blocks(150)
        path = stored("sparse", with_sparse_features(graph)) if kind == "sparse" else stored("dense", graph)
        # "auto" may take another one for the second of two jobs, and so other bits.
        plan = {"memory": "1G"} if kind == "streamed" else {"transfer": "direct"}
        model = {"hidden": 8, "layers": layers, "dropout": dropout}
        return build(runs.settings(path, model=model, train={"epochs": 6, "seed": 5} | train, plan=plan), of)

    return job


def ended(job: Job, folder: Path | None = None, dog: Any = None) -> str:
    """How training ends, the same on all ranks."""
    with pytest.raises(InputError) as caught:
        fit(job, job.graph(), folder, False, dog)
    job.close()
    (line,) = set(job.comm.allgather(str(caught.value)))
    assert "\n" not in line
    return line


@pytest.mark.parametrize(
    ("kind", "value"), [("dense", np.inf), ("dense", np.nan), ("sparse", -np.inf), ("streamed", np.nan)]
)
def test_a_feature_is_named(comm, job, kind, value):
    """In the last row of the last rank that has any; of sparse rows a stored value in their middle."""
    made = job(kind=kind, dropout=0.0)  # which could drop it
    bounds = made.part.bounds
    owner = int(np.flatnonzero(np.diff(bounds))[-1])
    row, column, node = int(bounds[owner + 1] - bounds[owner]) - 1, 7, 0
    if comm.rank == owner:
        if kind == "sparse":
            pattern, place = made.x._pattern, len(made.x.values) // 2
            row = int(np.searchsorted(pattern.indptr, place, side="right")) - 1
            column = int(pattern.indices[place])
            made.x.values[place] = value
        elif kind == "streamed":  # the features lie in a store
            values = made.x.read(row, row + 1).clone()
            values[0, column] = value
            made.x.store.write(made.x.graph.first + row, values.numpy())
        else:
            made.x[row, column] = value
        node = int(made.part.slice.ids[row])
    node, column = comm.bcast((node, column), root=owner)
    where = f"the features at node {node}, column {column}, on rank {owner}"
    assert ended(made) == f"the loss of epoch 1 is nan; first {value} in {where}: {HINT.format(0.01)}"


def test_a_weight_that_is_no_number_is_named_and_the_best_weights_before_it_are_kept(comm, job, folder):
    kept, wanted = None, None
    made, whole = job(), job(epochs=3, select="best")
    if comm.rank == 0:
        kept = run_folder.create(folder / "kept")
    history = fit(whole, whole.graph(), None, False)
    whole.close()
    best = history.best_epoch

    def plant() -> None:
        with torch.no_grad():
            made.model.convs[1].bias[2] = np.nan

    line = ended(made, kept, Before("epoch 4", plant))
    wanted = "the loss of epoch 4 is nan; first nan in convs.1.bias before the epoch (layer 2), on rank 0: "
    assert line == f"{wanted}{HINT.format(0.01)}; the weights of epoch {best} are kept"
    if comm.rank == 0:
        found = safetensors.numpy.load_file(kept / "checkpoints" / "model.safetensors")
        assert found.keys() == history.state.keys()
        for name, values in history.state.items():
            np.testing.assert_array_equal(found[name], values.numpy())


def test_a_batch_is_named_by_its_number(job):
    made = job(mode="sampled", fanouts=[-1] * 3, batch_size=7)
    bias = made.model.convolutions[1].bias.data
    line = ended(made, dog=Before("batch 3 of epoch 2", lambda: bias[:1].fill_(np.inf)))
    wanted = "the loss of batch 3 of epoch 2 is nan; first inf in convs.1.bias before the batch (layer 2)"
    assert line.startswith(wanted)


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
