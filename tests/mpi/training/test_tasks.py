"""Several labels a node, metrics and inputs of graphs without features, over several ranks."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import runs
import torch
from convolutions import gcn_matrix
from jobs import blocks, renumbered
from mpi4py import MPI
from sklearn.metrics import f1_score, roc_auc_score

from mgg_hpc import config
from mgg_hpc.data import writer
from mgg_hpc.data.graph import Graph
from mgg_hpc.runtime import mpi
from mgg_hpc.training import run_folder
from mgg_hpc.training.checkpoints import weights
from mgg_hpc.training.job import build
from mgg_hpc.training.metrics import Scores
from mgg_hpc.training.train import fit
from mgg_hpc.training.trainer import Trainer

pytestmark = pytest.mark.mpi

CLASSES = 4


@pytest.fixture
def chosen(comm, folder):
    """The settings of a job on a graph, which is written once for all ranks."""

    def chosen(graph: Graph, model: dict[str, object] | None = None, **train: object) -> config.Settings:
        if comm.rank == 0:
            writer.write(folder / "g.h5", graph, force=True)
        comm.Barrier()
        train = {"dtype": "float64", "seed": 5} | train
        return runs.settings(folder / "g.h5", model={"hidden": 8} | (model or {}), train=train)

    return chosen


def several_labels(graph: Graph) -> Graph:
    """The same graph with several labels a node; some have none."""
    rng = np.random.default_rng(7)
    y = (rng.random((graph.nodes, CLASSES)) < 0.2) | (np.arange(CLASSES) == graph.y[:, None])
    y[::9] = False
    return dataclasses.replace(graph, y=y.astype(np.float32))


def two_classes(graph: Graph) -> Graph:
    return dataclasses.replace(graph, y=graph.y % 2, classes=2)


def trained(settings: config.Settings, comm: MPI.Intracomm) -> tuple[list[float], Scores, np.ndarray]:
    """The loss of each epoch, the scores after the last, and all nodes' logits by their original ids."""
    job = build(settings, comm)
    run = runs.train(job, 5)
    job.model.eval()
    with torch.no_grad():
        logits = job.model(job.input, run.trainer.graph).clone()
    every = comm.allgather((job.part.slice.ids, logits.numpy()))
    job.backend.memory.close()
    whole = np.empty((job.part.nodes, logits.shape[1]))
    for ids, rows in every:
        whole[ids] = rows
    return run.losses, run.scores, whole


def same(found: tuple, alone: tuple) -> None:
    """Compare what `trained` returns."""
    np.testing.assert_allclose(found[0], alone[0], rtol=1e-10)
    np.testing.assert_allclose(found[2], alone[2], rtol=1e-9, atol=1e-12)
    for name, value in dataclasses.asdict(alone[1]).items():
        assert getattr(found[1], name) == pytest.approx(value, rel=1e-10)


def test_several_labels_train_alike_on_any_number_of_ranks(comm, chosen):
    graph = several_labels(blocks())
    settings = chosen(graph)
    alone = trained(settings, MPI.COMM_SELF)
    assert len(set(alone[0])) == len(alone[0])
    found = trained(settings, comm)
    same(found, alone)
    for i, split in enumerate(("train", "val", "test")):
        mask = getattr(graph, split)
        of = (graph.y[mask], found[2][mask] > 0)
        micro, macro = (f1_score(*of, average=average, zero_division=0) for average in ("micro", "macro"))
        assert (getattr(found[1], split), found[1].macro[i]) == pytest.approx((micro, macro))


def test_the_area_under_the_curve_is_that_of_all_ranks_rows(comm, chosen):
    graph = two_classes(blocks())
    _, scores, logits = trained(chosen(graph, metric="roc_auc"), comm)
    for split in ("train", "val", "test"):
        mask = getattr(graph, split)
        expected = roc_auc_score(graph.y[mask], (logits[:, 1] - logits[:, 0])[mask])
        assert getattr(scores, split) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", ["learned", "degree"])
def test_inputs_without_features_do_not_depend_on_ranks_or_numbering(comm, chosen, kind):
    graph = dataclasses.replace(blocks(), x=None)
    model = {"input": kind, "embedding": 6}
    alone = trained(chosen(graph, model), MPI.COMM_SELF)
    order = np.random.default_rng(5).permutation(graph.nodes)
    with_rows = dataclasses.replace(graph, x=np.zeros((graph.nodes, 1), np.float32))
    shuffled = dataclasses.replace(renumbered(with_rows, order), x=None)
    same(trained(chosen(shuffled, model), comm), alone)


def test_gradients_of_learned_rows_equal_torchs_own(comm, chosen):
    graph = dataclasses.replace(blocks(), x=None)
    settings = chosen(graph, {"input": "learned", "embedding": 6, "dropout": 0.0, "layers": 1})
    job = build(settings, comm)
    trainer, lin = Trainer(job, job.graph()), job.model.convs[0].lin.weight
    trainer.step(1)  # whose gradients must not stay
    bias = job.model.convs[0].bias.detach().clone()
    before, start = job.learned.detach().numpy().copy(), lin.detach().clone().requires_grad_()
    trainer.step(2)
    every = comm.allgather((job.part.slice.ids, before, job.learned.grad.numpy()))
    rows, found = np.empty((graph.nodes, 6)), np.empty((graph.nodes, 6))
    for ids, values, gradients in every:
        rows[ids], found[ids] = values, gradients
    x = torch.from_numpy(rows).requires_grad_()
    logits = gcn_matrix(graph.indptr, graph.indices) @ x @ start.t() + bias
    mask = torch.from_numpy(graph.train)
    torch.nn.functional.cross_entropy(logits[mask], torch.from_numpy(graph.y)[mask]).backward()
    for value, wanted in ((torch.from_numpy(found), x.grad), (lin.grad, start.grad)):
        torch.testing.assert_close(value, wanted, rtol=1e-10, atol=1e-12 * float(wanted.abs().max()))
    job.backend.memory.close()


def test_learned_rows_are_saved_in_the_users_numbering(comm, chosen, folder):
    """Written by all ranks, read by one, and the other way round."""
    graph = dataclasses.replace(blocks(), x=None)
    settings = chosen(graph, {"input": "learned", "embedding": 6}, epochs=3)
    job = build(settings, comm)
    run = None
    with mpi.agree(comm):
        if comm.rank == 0:
            run = run_folder.create(folder / "runs")
    history = fit(job, job.graph(), run, False)
    weights.save(comm, run, job.part, history.state)
    run = comm.bcast(run)
    for each in (MPI.COMM_SELF, comm):
        other = build(settings, each)
        ids = other.part.slice.ids
        drawn = other.learned.detach().clone()
        weights.load_weights(run, other.model)
        weights.load_rows(run, ids, other.part.nodes, other.learned)
        assert len(ids) == 0 or not torch.equal(other.learned, drawn)
        stored = np.load(run / "checkpoints" / "input.npy")
        assert np.array_equal(stored[ids], other.learned.detach().numpy())
        other.backend.memory.close()
    mine = history.state[weights.LEARNED].numpy()
    assert np.array_equal(np.load(run / "checkpoints" / "input.npy")[job.part.slice.ids], mine)
    job.backend.memory.close()
