"""Values of edges over ranks: weights, dot products, sums of both ends and softmax, with their gradients, against torch
over the whole graph in float64; by every transfer.
"""

from __future__ import annotations

import itertools

import cases
import numpy as np
import pytest
import torch
from convolutions import Spread, drawn_edges

from mgg_hpc.nn.autograd import aggregation

pytestmark = pytest.mark.mpi

NODES, HEADS, CHANNELS = 50, 3, 4
TRANSFERS = ["direct", "get", "halo"]


class Whole:
    """A drawn graph on all ranks, and the edges of this rank among those of the whole."""

    def __init__(self, rng, comm, backend, directed, transfer, dtype=torch.float64):
        source, destination = drawn_edges(rng, NODES, directed=directed)
        case = cases.csr(source, destination, NODES, cases.even(NODES, comm.size))
        self.spread = Spread(comm, backend, case, directed, dtype, transfer)
        self.graph = self.spread.handle("edges")
        self.adjacency = self.graph.adjacency("edges")
        self.source, self.destination = self.spread.edge_index
        self.mine = self.spread.mine
        self.rng, self.dtype = rng, dtype
        # Where each of this rank's edges stands among the whole graph's: duplicates in their order.
        found = aggregation.edges(self.graph, self.adjacency)
        key = lambda ends: np.asarray(ends[1]) * NODES + np.asarray(ends[0])  # noqa: E731
        whole = np.argsort(key((self.source, self.destination)), kind="stable")
        low = np.searchsorted(key((self.source, self.destination))[whole], key(found), side="left")
        order = np.argsort(key(found), kind="stable")
        repeat = np.arange(len(low)) - np.searchsorted(low[order], low[order], side="left")
        place = np.empty(len(low), np.int64)
        place[order] = whole[low[order] + repeat]
        self.place = torch.from_numpy(place)

    def draw(self, *shape):
        return torch.from_numpy(self.rng.standard_normal(shape)).to(self.dtype)

    def leaf(self, whole, edges=False):
        """(the whole, this rank's part), each to be differentiated."""
        part = whole[self.place] if edges else whole[self.mine]
        return whole.clone().requires_grad_(), part.clone().requires_grad_()

    def check(self, whole, part, edges=False, terms=0.0):
        """This rank's part of values, or of gradients. terms: how large the values are that it is a difference of."""
        wanted = whole.detach()[self.place if edges else self.mine]
        assert part.shape == wanted.shape
        size = max(float(whole.detach().abs().max()), terms)
        assert float((part.detach() - wanted).abs().max()) <= 1e-12 * size if len(wanted) else True


@pytest.fixture(params=itertools.product((False, True), TRANSFERS), ids=str)
def whole(request, rng, comm, backend):
    return Whole(rng, comm, backend, *request.param)


def test_edges_say_which_they_are(whole, comm):
    found = np.concatenate(comm.allgather(aggregation.edges(whole.graph, whole.adjacency)), 1)
    wanted = np.stack([whole.source, whole.destination])
    assert np.array_equal(found[:, np.lexsort(found)], wanted[:, np.lexsort(wanted)])


@pytest.mark.sampled
@pytest.mark.parametrize("heads", [0, HEADS])
def test_weighted_sums(whole, heads):
    x, part = whole.leaf(whole.draw(NODES, HEADS * CHANNELS))
    shape = (len(whole.source), heads) if heads else (len(whole.source),)
    weight, mine = whole.leaf(whole.draw(*shape), edges=True)
    gradient = whole.draw(NODES, HEADS * CHANNELS)
    out = aggregation.aggregate(part, whole.graph, whole.adjacency, edge_weight=mine)
    out.backward(gradient[whole.mine])
    by_head = weight.view(len(whole.source), heads or 1, 1)
    messages = (x[whole.source].view(len(whole.source), heads or 1, -1) * by_head).flatten(1)
    wanted = torch.zeros_like(x).index_add(0, whole.destination, messages)
    wanted.backward(gradient)
    whole.check(wanted, out)
    whole.check(x.grad, part.grad)
    whole.check(weight.grad, mine.grad, edges=True)


@pytest.mark.sampled
@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_reductions(whole, reduce):
    x, part = whole.leaf(torch.from_numpy(2.0 * whole.rng.integers(-3, 3, (NODES, 5)) + 1))  # with ties
    gradient = whole.draw(NODES, 5)
    out = aggregation.aggregate(part, whole.graph, whole.adjacency, reduce)
    out.backward(gradient[whole.mine])
    index = whole.destination[:, None].expand(-1, 5)
    name = {"max": "amax"}.get(reduce, reduce)
    wanted = torch.zeros_like(x).scatter_reduce(0, index, x[whole.source], name, include_self=False)
    wanted.backward(gradient)
    whole.check(wanted, out)
    whole.check(x.grad, part.grad)


def test_dot_products_edge_sums_and_softmax_make_attention(whole):
    """As DGL's GATConv is written, and by dot products; each function's gradient is on the way."""
    x, part = whole.leaf(whole.draw(NODES, HEADS * CHANNELS))
    y, own = whole.leaf(whole.draw(NODES, HEADS * CHANNELS))
    s, source = whole.leaf(whole.draw(NODES, HEADS))
    t, target = whole.leaf(whole.draw(NODES, HEADS))
    gradient = whole.draw(NODES, HEADS * CHANNELS)
    graph, adjacency = whole.graph, whole.adjacency
    products = aggregation.dot_products(part, own, graph, adjacency, heads=HEADS)
    scores = aggregation.edge_sums(source, target, graph, adjacency) + products
    weight = aggregation.edge_softmax(scores, adjacency)
    out = aggregation.aggregate(part, graph, adjacency, edge_weight=weight)
    out.backward(gradient[whole.mine])

    def by_head(rows):
        return rows.view(-1, HEADS, CHANNELS)

    wanted_scores = s[whole.source] + t[whole.destination]
    wanted_scores = wanted_scores + (by_head(x)[whole.source] * by_head(y)[whole.destination]).sum(2)
    terms = torch.exp(wanted_scores)
    total = torch.zeros(NODES, HEADS).double().index_add(0, whole.destination, terms)
    wanted_weight = terms / total[whole.destination]
    messages = (by_head(x)[whole.source] * wanted_weight[:, :, None]).flatten(1)
    wanted = torch.zeros_like(x).index_add(0, whole.destination, messages)
    wanted.backward(gradient)
    whole.check(wanted_weight, weight, edges=True)
    whole.check(wanted, out)
    for found, right in ((part, x), (own, y), (source, s)):
        whole.check(right.grad, found.grad)
    # What is added to all scores of a destination changes no weight.
    whole.check(t.grad, target.grad, terms=float(s.grad.abs().max()))


def test_what_does_not_fit_is_refused(rng, comm, backend):
    whole = Whole(rng, comm, backend, True, "direct")
    x, graph, adjacency = whole.draw(len(whole.draw(NODES, 1)[whole.mine]), 6), whole.graph, whole.adjacency
    aggregate, three = aggregation.aggregate, whole.draw(3)
    for call, said in [
        (lambda: aggregate(x, graph, adjacency, "median"), "'sum', 'mean' and 'max'"),
        (lambda: aggregate(x, graph, adjacency, "mean", edge_weight=three), "of sums"),
        (lambda: aggregate(x, graph, adjacency, edge_weight=three), r"edge weights are \[3\], for"),
        (lambda: aggregation.dot_products(x, x, graph, adjacency, heads=4), "for 4 heads"),
    ]:
        with pytest.raises(ValueError, match=said):
            call()
