"""Modes in turn: a model that is evaluated and trained in any order, beside another one and on another graph, has the
bits of a new model on a new graph.
"""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch.nn import functional as F

import mgg_hpc as mgg
from mgg_hpc.config import ModelSettings
from mgg_hpc.nn.autograd import aggregation
from mgg_hpc.nn.layers.models import GNN
from mgg_hpc.nn.layers.random import Draws

NODES, FEATURES, CLASSES = 120, 6, 3


class Gated(mgg.nn.saga.Layer):
    """A program over the weights of edges, which is another one in evaluation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.near, self.far = torch.nn.Linear(width, width), torch.nn.Linear(width, width)

    def apply_edge(self, edge):
        gate = self.near(edge.dst) * edge.weight
        return torch.sigmoid(gate if self.training else 2 * gate) * self.far(edge.src)

    def apply_vertex(self, vertex, accum):
        return torch.tanh(accum)


class OwnLayers(torch.nn.Module):
    """Layers that keep data of edges, a batch norm and dropout that counts its own draws."""

    def __init__(self) -> None:
        super().__init__()
        self.gated, self.norm, self.dropout = Gated(FEATURES), mgg.nn.BatchNorm(FEATURES), mgg.nn.Dropout(0.4)
        self.last = mgg.nn.GATConv(FEATURES, CLASSES, edge_dim=1, dropout=0.3)

    def forward(self, x, graphs):
        first, last = graphs.view(0), graphs.view(1)
        edges, ends = first.adjacency("edges"), x[:, :1]
        scores = aggregation.edge_sums(ends, ends[: first.destinations], first, edges)
        attended = aggregation.aggregate(x, first, edges, edge_weight=aggregation.edge_softmax(scores, edges))
        h = self.dropout(self.norm(self.gated(x, first) + attended, first), first)
        return self.last(h, last, edge_attr="weight")


class OwnProgram(Gated):
    """A program alone, also over rows that are streamed."""

    def __init__(self) -> None:
        super().__init__(FEATURES)

    def forward(self, x, graphs):
        out = super().forward(x, graphs.view(1))
        return (out if isinstance(out, torch.Tensor) else out.tensor())[:, :CLASSES]


def gnn(**options):
    chosen = ModelSettings(hidden=4, layers=2, dropout=0.4, **options)
    return lambda: GNN(chosen, FEATURES, CLASSES, Draws(5))


STREAMED = {
    "gcn": gnn(),
    "gin": gnn(name="gin", norm="layer", train_eps=True),
    "sage": gnn(name="sage", residual=True),
    "max": gnn(name="sage", aggr="max", jumping="max"),
    "program": OwnProgram,
}
MODELS = STREAMED | {
    "batch norm": gnn(name="gin", norm="batch"),
    "gat": gnn(name="gat", heads=2, attention_dropout=0.3, jumping="cat"),
    "dot": gnn(name="gat", heads=2, attention="dot"),
    "own layers": OwnLayers,
}
CASES = [
    (way, name) for way in ("memory", "sampled") for name in MODELS if (way, name) != ("sampled", "program")
]
CASES += [("streamed", name) for name in STREAMED]


def opened(way, number):
    """One of two graphs, which are always the same."""
    rng = np.random.default_rng(number)
    matrix = sp.random_array((NODES, NODES), density=0.06, rng=rng, dtype=np.float32, format="csr")
    x = rng.standard_normal((NODES, FEATURES)).astype(np.float32)
    streaming = mgg.Streaming(100_000, copies=True) if way == "streamed" else None
    y = rng.integers(0, CLASSES, NODES)
    return mgg.from_scipy(
        matrix, x, y, train=np.ones(NODES, bool), backend="serial", threads=1, streaming=streaming
    )


def given(way, graph, epoch):
    """Rows, views and labels for a model."""
    if way != "sampled":
        return graph.x, graph, graph.y
    [batch] = mgg.NeighborLoader(graph, [4, 3], batch_size=NODES, seed=epoch, edge_data=["weight"])
    return batch.x, batch, batch.y


def forward(model, x, views, epoch, train):
    """The model's output in one of both modes."""
    if hasattr(model, "draws"):
        model.draws.begin(epoch)
    model.train(train).zero_grad()
    with torch.set_grad_enabled(train):
        return model(x, views)


def state(model, out):
    """An output, the gradients and the buffers."""
    gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    return [out.detach().clone(), *gradients, *(value.clone() for value in model.buffers())]


def outcome(way, model, graph, epoch, train=True):
    """Evaluate, or train: what comes out, the gradients and the buffers."""
    x, views, y = given(way, graph, epoch)
    out = forward(model, x, views, epoch, train)
    if train:
        F.cross_entropy(out, y).backward()
    return state(model, out)


def pair(name, factor=1.0):
    """Two models of a kind, always the same ones; the second's weights times a factor."""
    mgg.manual_seed(1)
    models = [MODELS[name]() for _ in range(2)]
    scale(models[1], factor)
    return models


def scale(model, factor):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)


def same(one, other):
    return all(
        a is b if a is None or b is None else torch.equal(a, b) for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize(("way", "name"), CASES)
def test_models_in_turn_are_new_ones(rng, way, name):
    """Each of two models of one kind is evaluated and trained on each of two graphs, in a drawn order."""
    with contextlib.ExitStack() as held:
        graphs = [held.enter_context(opened(way, number)) for number in range(2)]
        models, order = pair(name), rng.permutation(8)
        for epoch, at in enumerate([*order, *order[:2]]):
            of, on, train = at // 4, at // 2 % 2, bool(at % 2)
            fresh = pair(name)[of]
            fresh.load_state_dict(models[of].state_dict())
            for mine, theirs in zip(fresh.modules(), models[of].modules(), strict=True):
                if isinstance(mine, mgg.nn.Dropout) and mine.counts:
                    mine.draws.begin(theirs.draws.epoch)
            with opened(way, on) as alone:
                wanted = outcome(way, fresh, alone, epoch, train)
            found = outcome(way, models[of], graphs[on], epoch, train)
            assert same(found, wanted), (epoch, of, on, train)
            scale(models[of], 1.01)  # the weights of the next turn


@pytest.mark.parametrize(("way", "name"), CASES)
def test_passes_of_two_models_that_overlap_are_those_of_each_alone(rng, way, name):
    """Both go forward before one goes back; in between one is evaluated, and an output is dropped without backward."""
    wanted = []
    for number, model in enumerate(pair(name, 1.3)):
        with opened(way, 0) as graph:
            wanted.append(outcome(way, model, graph, number + 1))
    models, other = pair(name, 1.3), MODELS[name]()
    with opened(way, 0) as graph:
        inputs = [given(way, graph, number + 1) for number in range(2)]
        outs = []
        for number, (model, (x, views, _)) in enumerate(zip(models, inputs, strict=True)):
            outs.append(forward(model, x, views, number + 1, train=True))
            forward(other, x, views, 7, train=bool(number))
        for number in rng.permutation(2):
            F.cross_entropy(outs[number], inputs[number][2]).backward()
            forward(other, *inputs[number][:2], 9, train=True)
        for model, out, alone in zip(models, outs, wanted, strict=True):
            assert same(state(model, out), alone)
