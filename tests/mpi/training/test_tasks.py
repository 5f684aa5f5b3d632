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
from mgg_hpc.training import run_folder
from mgg_hpc.training.checkpoints import weights
from mgg_hpc.training.job import Job, build
from mgg_hpc.training.metrics import Scores
from mgg_hpc.training.train import fit
from mgg_hpc.training.trainer import Trainer

pytestmark = pytest.mark.mpi


@pytest.fixture
def chosen(comm, folder, first):
    """The settings of a job on a graph, which is written once for all ranks."""

    def chosen(graph: Graph, model: dict[str, object] | None = None, **train: object) -> config.Settings:
        first(lambda: writer.write(folder / "g.h5", graph, force=True))
        train = {"dtype": "float64", "seed": 5} | train
        return runs.settings(folder / "g.h5", model={"hidden": 8} | (model or {}), train=train)

    return chosen


def trained(settings: config.Settings, comm: MPI.Intracomm) -> tuple[list[float], Scores, np.ndarray]:
    """The loss of each epoch, the scores after the last, and all nodes' logits by their original ids."""
    job = build(settings, comm)
    run = runs.train(job, 5)
    job.model.eval()
    with torch.no_grad():
        logits = job.model(job.input, run.trainer.graph).clone()
    whole = by_node(job, logits)
    job.close()
    return run.losses, run.scores, whole


def by_node(job: Job, rows: torch.Tensor) -> np.ndarray:
    """The rows of all ranks by their original ids."""
    every = job.comm.allgather((job.part.slice.ids, rows.detach().numpy()))
    whole = np.empty((job.part.nodes, rows.shape[1]))
    for ids, mine in every:
        whole[ids] = mine
    return whole


def same(found: tuple, alone: tuple) -> None:
    """Compare what `trained` returns."""
    np.testing.assert_allclose(found[0], alone[0], rtol=1e-10)
    np.testing.assert_allclose(found[2], alone[2], rtol=1e-9, atol=1e-12)
    for name, value in dataclasses.asdict(alone[1]).items():
        assert getattr(found[1], name) == pytest.approx(value, rel=1e-10)


@pytest.mark.parametrize("task", ["several labels", "two classes"])
def test_tasks_train_alike_on_any_number_of_ranks_and_have_scikit_learns_scores(comm, chosen, rng, task):
    """Of several labels a node some have none."""
    graph = blocks()
    if task == "several labels":
        y = (rng.random((graph.nodes, 4)) < 0.2) | (np.arange(4) == graph.y[:, None])
        y[::9] = False
        graph = dataclasses.replace(graph, y=y.astype(np.float32))
        settings = chosen(graph)
    else:
        graph = dataclasses.replace(graph, y=graph.y % 2, classes=2)
        settings = chosen(graph, metric="roc_auc")
    alone, found = trained(settings, MPI.COMM_SELF), trained(settings, comm)
    assert len(set(alone[0])) == len(alone[0])
    same(found, alone)
    _, scores, logits = found
    for i, split in enumerate(("train", "val", "test")):
        mask = getattr(graph, split)
        if task == "two classes":
            expected = roc_auc_score(graph.y[mask], (logits[:, 1] - logits[:, 0])[mask])
        else:
            of = (graph.y[mask], logits[mask] > 0)
            expected, macro = (f1_score(*of, average=each, zero_division=0) for each in ("micro", "macro"))
            assert scores.macro[i] == pytest.approx(macro, rel=1e-12)
        assert getattr(scores, split) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", ["learned", "degree"])
def test_inputs_without_features_do_not_depend_on_ranks_or_numbering(comm, chosen, kind):
    graph = blocks(features=1)
    model = {"input": kind, "embedding": 6}
    alone = trained(chosen(dataclasses.replace(graph, x=None), model), MPI.COMM_SELF)
    shuffled = renumbered(graph, np.random.default_rng(5).permutation(graph.nodes))
    same(trained(chosen(dataclasses.replace(shuffled, x=None), model), comm), alone)


def test_gradients_of_learned_rows_equal_torchs_own(comm, chosen):
    graph = dataclasses.replace(blocks(), x=None)
    settings = chosen(graph, {"input": "learned", "embedding": 6, "dropout": 0.0, "layers": 1})
    job = build(settings, comm)
    trainer, lin = Trainer(job, job.graph()), job.model.convs[0].lin.weight
    trainer.step(1)  # whose gradients must not stay
    bias = job.model.convs[0].bias.detach().clone()
    before, start = job.learned.detach().clone(), lin.detach().clone().requires_grad_()
    trainer.step(2)
    rows, found = by_node(job, before), by_node(job, job.learned.grad)
    x = torch.from_numpy(rows).requires_grad_()
    logits = gcn_matrix(graph.indptr, graph.indices) @ x @ start.t() + bias
    mask = torch.from_numpy(graph.train)
    torch.nn.functional.cross_entropy(logits[mask], torch.from_numpy(graph.y)[mask]).backward()
    for value, wanted in ((torch.from_numpy(found), x.grad), (lin.grad, start.grad)):
        torch.testing.assert_close(value, wanted, rtol=1e-10, atol=1e-12 * float(wanted.abs().max()))
    job.backend.memory.close()


def test_learned_rows_are_saved_in_the_users_numbering(comm, chosen, folder, first):
    """Written by all ranks, read by one, and the other way round."""
    settings = chosen(dataclasses.replace(blocks(), x=None), {"input": "learned", "embedding": 6}, epochs=3)
    job, run = build(settings, comm), folder / "runs" / "001"
    first(lambda: run_folder.create(run.parent))
    mine = run if comm.rank == 0 else None
    history = fit(job, job.graph(), mine, False)
    weights.save(comm, mine, job.part, history.state)
    comm.Barrier()
    stored = np.load(run / "checkpoints" / "input.npy")
    assert np.array_equal(stored[job.part.slice.ids], history.state[weights.LEARNED].numpy())
    job.close()
    for each in (MPI.COMM_SELF, comm):
        other = build(settings, each)
        ids = other.part.slice.ids
        drawn = other.learned.detach().clone()
        weights.load_weights(run, other.model)
        weights.load_rows(run, ids, other.part.nodes, other.learned)
        assert len(ids) == 0 or not torch.equal(other.learned, drawn)
        assert np.array_equal(stored[ids], other.learned.detach().numpy())
        other.close()
