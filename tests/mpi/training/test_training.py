"""Training over several ranks: the same losses as one rank, the same bits twice, and torch's own gradients."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import numpy as np
import pytest
import reference
import runs
import torch
from convolutions import gcn_matrix
from jobs import blocks, dense_features, directed_weighted, renumbered, with_sparse_features
from mpi4py import MPI
from runs import losses

from mgg_hpc import config
from mgg_hpc.data.graph import Graph, csr_from_edges
from mgg_hpc.errors import InputError
from mgg_hpc.training.job import build
from mgg_hpc.training.trainer import Trainer

pytestmark = pytest.mark.mpi

TOLERANCE = {"float32": 1e-5, "float64": 1e-10}


def lopsided() -> Graph:
    """All training rows among the first few nodes, and one node with an edge to every other: a split over 4
    ranks leaves ranks without training rows."""
    graph = blocks()
    order = np.argsort(~graph.train, kind="stable")
    graph = renumbered(graph, order)
    hub = graph.nodes - 1
    source, destination = reference.edge_list(graph.indptr, graph.indices)
    spokes = np.arange(hub)
    indptr, indices, _ = csr_from_edges(
        np.append(source, spokes), np.append(destination, np.full(hub, hub)), graph.nodes, symmetric=True
    )
    return dataclasses.replace(graph, indptr=indptr, indices=indices, permutation=None)


def tiny() -> Graph:
    """Two nodes: over 3 ranks or more, some own nothing."""
    return Graph(
        "tiny",
        indptr=np.array([0, 1, 2]),
        indices=np.array([1, 0], dtype=np.int32),
        x=np.array([[1.0, 2.0], [0.5, -1.0]], np.float32),
        y=np.array([0, 1]),
        train=np.array([True, False]),
        val=np.array([False, True]),
        test=np.zeros(2, bool),
        directed=False,
        classes=2,
    )


GRAPHS = runs.GRAPHS | {
    "directed-sparse": lambda: with_sparse_features(directed_weighted()),
    "lopsided": lopsided,
    "tiny": tiny,
}


def with_flow(graph: Graph) -> Graph:
    """The same graph with data of its edges, which differ between the directions of an undirected one."""
    flow = np.random.default_rng(8).standard_normal((graph.edges, 3)).astype(np.float32)
    return dataclasses.replace(graph, edge={"flow": flow})


def settings(path: Path, dtype: str, **model: object) -> config.Settings:
    train = {"dtype": dtype, "seed": 20, "normalize_features": "row" if "sparse" in path.name else "none"}
    return runs.settings(path, model={"hidden": 8, "dropout": 0.5} | model, train=train)


MODELS = {
    "gcn float32": {},
    "gcn": {},
    "gin": {"name": "gin", "layers": 3, "train_eps": True, "norm": "batch"},
    "sage": {"name": "sage", "jumping": "cat", "norm": "layer"},
    "sage-max": {"name": "sage", "aggr": "max", "layers": 3, "residual": True},
    "gat": {"name": "gat", "hidden": 4, "heads": 3, "output_heads": 2, "attention_dropout": 0.4},
    "gat-edges": {"name": "gat", "hidden": 4, "heads": 3, "attention_dropout": 0.3, "edge_data": "flow"},
    "gat-dot": {"name": "gat", "hidden": 4, "heads": 2, "attention": "dot", "jumping": "max"},
}


@pytest.mark.ranks(4)
@pytest.mark.sampled
@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("model", MODELS)
def test_losses_do_not_depend_on_the_number_of_ranks(comm, stored, kind, model):
    dtype, epochs = "float32" if "float32" in model else "float64", 30 if "gcn" in model else 8
    chosen = settings(stored(f"{kind} flow", with_flow(GRAPHS[kind]())), dtype, **MODELS[model])
    alone, found = losses(chosen, MPI.COMM_SELF, epochs), losses(chosen, comm, epochs)
    assert len(set(alone)) == len(alone)  # it learns, and dropout is on
    # A bias before a batch norm has no gradient but rounding, of which Adam makes steps: training removes them with
    # the mean, evaluation by the running one does not.
    compared = slice(-1 if chosen.model.norm == "batch" else None)
    np.testing.assert_allclose(found[compared], alone[compared], rtol=TOLERANCE[dtype], atol=0)


@pytest.mark.sampled
@pytest.mark.parametrize("transfer", ["direct", "get", "halo"])
@pytest.mark.parametrize("kind", ["dense", "directed-weighted"])
def test_losses_with_data_of_edges_depend_neither_on_transfer_nor_on_numbering(comm, stored, kind, transfer):
    graph = with_flow(GRAPHS[kind]())
    order = np.random.default_rng(6).permutation(graph.nodes)
    chosen = settings(stored(f"{kind} flow", graph), "float64", **MODELS["gat-edges"])
    base = losses(chosen, MPI.COMM_SELF, 4)
    path = stored(f"{kind} renumbered", renumbered(graph, order))
    moved = config.with_plan(settings(path, "float64", **MODELS["gat-edges"]), [transfer], {})
    np.testing.assert_allclose(losses(moved, comm, 4), base, rtol=TOLERANCE["float64"], atol=0)
    assert (losses(settings(path, "float64", **MODELS["gat"]), comm, 1) != base[:2]).all()


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["sparse", "directed-weighted"])
@pytest.mark.parametrize(
    "transfers", ["direct", "get", "halo", "halo direct get", "get halo halo", "direct halo direct"]
)
def test_by_any_transfers_a_run_gives_the_same_bits_twice(comm, stored, kind, transfers):
    """ "auto" may take another one another time."""
    chosen = settings(stored(kind, GRAPHS[kind]()), "float64", layers=3)
    alone = losses(config.with_plan(chosen, ["direct"], {}), MPI.COMM_SELF, 10)
    chosen = config.with_plan(chosen, transfers.split(), {})
    first, second = losses(chosen, comm, 10), losses(chosen, comm, 10)
    assert first.tobytes() == second.tobytes()
    assert len(set(comm.allgather(first.tobytes()))) == 1  # and every rank knows the same ones
    np.testing.assert_allclose(first, alone, rtol=TOLERANCE["float64"], atol=0)


@pytest.mark.parametrize(
    ("kind", "model", "said"),
    [
        ("dense flow", {"name": "gat", "edge_data": "speed"}, "no data of edges named 'speed'; it has flow$"),
        ("dense", {"name": "gat", "edge_data": "flow"}, "has no data of edges named 'flow'; it has none$"),
        ("dense flow", {"name": "gin", "edge_data": "flow"}, r'takes no data of edges; model\.name = "gat"'),
        (
            "dense flow",
            {"name": "gat", "attention": "dot", "edge_data": "flow"},
            r'takes no data of edges; model\.name = "gat"',
        ),
        ("dense", {"layers": 2}, r"plan\.transfer names 3 transfers, and the model has 2 layers"),
    ],
)
def test_what_a_model_cannot_take_is_refused_by_name(comm, stored, kind, model, said):
    graph = GRAPHS["dense"]()
    chosen = settings(stored(kind, with_flow(graph) if "flow" in kind else graph), "float32", **model)
    if "layers" in model:
        chosen = config.with_plan(chosen, ["halo", "get", "direct"], {})
    with pytest.raises(InputError, match=said):
        build(chosen, comm)


def test_evaluation_exchanges_no_wider_rows_than_were_planned(comm, stored):
    """A layer that would aggregate first if it were trained without a gradient of its input."""
    graph, hidden = blocks(features=3), 7
    assert graph.x.shape[1] < graph.classes < hidden < 2 * graph.classes
    chosen = settings(stored("narrow", graph), "float32", hidden=hidden)
    assert np.isfinite(losses(chosen, comm, 1)).all()


def test_losses_depend_on_the_seed_and_the_original_ids(comm, stored):
    """Were draws constant, or taken by row, the tests above could not tell."""
    graph = blocks()
    order = np.random.default_rng(5).permutation(graph.nodes)
    chosen = settings(stored("dense", graph), "float32")
    base = losses(chosen, comm, 2)
    other = dataclasses.replace(renumbered(graph, order), permutation=None)
    reseeded = msgspec.structs.replace(chosen, train=msgspec.structs.replace(chosen.train, seed=21))
    for changed in (settings(stored("dense-forgotten", other), "float32"), reseeded):
        assert abs(losses(changed, comm, 2)[0] / base[0] - 1) > 1e-4


@pytest.mark.sampled
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("kind", GRAPHS)
def test_loss_and_gradients_equal_torchs_own(comm, stored, kind, layers):
    """One step against dense float64 matrices, with nothing in common but the reference's formulas."""
    graph = GRAPHS[kind]()
    chosen = settings(stored(kind, graph), "float64", layers=layers)
    job = build(chosen, comm)
    trainer = Trainer(job, job.graph())
    weights = [(conv.lin.weight.detach().clone(), conv.bias.detach().clone()) for conv in job.model.convs]
    epoch = 7
    trainer.step(epoch)
    loss = trainer.loss()
    found = [(conv.lin.weight.grad.clone(), conv.bias.grad.clone()) for conv in job.model.convs]
    job.backend.memory.close()

    expected, gradients = torchs_own(graph, weights, epoch, chosen)
    assert loss == pytest.approx(expected, rel=1e-10)
    for pair, expected_pair in zip(found, gradients, strict=True):
        for value, right in zip(pair, expected_pair, strict=True):
            scale = float(right.abs().max())
            assert scale > 0
            torch.testing.assert_close(value, right, rtol=1e-10, atol=1e-12 * scale)


def torchs_own(graph: Graph, weights: list, epoch: int, chosen: config.Settings) -> tuple[float, list]:
    """Loss and gradients (before weight decay) of an epoch, by dense matrices and torch's autograd."""
    matrix = gcn_matrix(graph.indptr, graph.indices, graph.weight)
    h = dense_features(graph)
    if chosen.train.normalize_features == "row":
        total = h.sum(axis=1, keepdims=True)
        h = h / np.where(total == 0, 1, total)
    h = torch.from_numpy(h)
    ids = np.arange(graph.nodes)
    leaves = [(w.requires_grad_(), b.requires_grad_()) for w, b in weights]
    for layer, (weight, bias) in enumerate(leaves):
        ones = np.ones(h.shape)
        mask = reference.dropout(ones, ids, chosen.model.dropout, chosen.train.seed, epoch, layer)
        h = matrix @ (h * torch.from_numpy(mask)) @ weight.t() + bias
        if layer < len(leaves) - 1:
            h = torch.relu(h)  # clamp has a gradient of 1 at 0, where nodes without features may lie
    rows = torch.from_numpy(graph.train)
    chance = torch.log_softmax(h[rows], 1)
    loss = -chance[torch.arange(len(chance)), torch.from_numpy(graph.y)[rows]].mean()
    loss.backward()
    return loss.item(), [(w.grad, b.grad) for w, b in leaves]
