"""Values of edges over ranks: weights, dot products, sums of both ends and softmax, with their gradients, against torch
over the whole graph in float64; by every transfer.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from convolutions import NODES, spread

from mgg_hpc.nn.autograd import aggregation
from mgg_hpc.nn.autograd.aggregation import aggregate

pytestmark = pytest.mark.mpi

HEADS, CHANNELS, WIDTH = 3, 4, 12
TRANSFERS = ["direct", "get", "halo"]


class Whole:
    """A drawn graph on all ranks, and the edges of this rank among those of the whole."""

    def __init__(self, rng, comm, backend, directed, transfer):
        drawn = spread(rng, comm, backend, torch.float64, directed=directed, transfer=transfer)
        self.rng, self.mine, self.graph = rng, drawn.mine, drawn.handle("edges")
        self.adjacency = self.graph.adjacency("edges")
        self.source, self.destination = drawn.edge_index
        self.found = np.asarray(aggregation.edges(self.graph, self.adjacency))
        # The whole graph's edges come by destination and source, those of a rank one after the other.
        self.place = torch.empty(self.found.shape[1], dtype=torch.int64)
        own = torch.arange(len(self.source))[drawn.rows["edge_attr"]]
        self.place[torch.from_numpy(np.lexsort(self.found))] = own

    def draw(self, *shape):
        return torch.from_numpy(self.rng.standard_normal(shape))

    def leaf(self, whole, edges=False):
        """Return the whole and this rank's part, each to be differentiated."""
        part = whole[self.place] if edges else whole[self.mine]
        return whole.clone().requires_grad_(), part.clone().requires_grad_()

    def check(self, whole, part, edges=False, terms=0.0):
        """Compare this rank's part of values, which may be a difference of ``terms``, or of gradients."""
        wanted = whole.detach()[self.place if edges else self.mine]
        size = max(float(whole.detach().abs().max()), terms)
        torch.testing.assert_close(part.detach(), wanted, rtol=0, atol=1e-12 * size)


@pytest.fixture(params=itertools.product((False, True), TRANSFERS), ids=str)
def whole(request, rng, comm, backend):
    made = Whole(rng, comm, backend, *request.param)
    assert np.array_equal(made.found, torch.stack([made.source, made.destination])[:, made.place])
    return made


@pytest.mark.sampled
@pytest.mark.parametrize("heads", [0, HEADS])
def test_weighted_sums(whole, heads):
    edges, x, part, gradient = (
        len(whole.source),
        *whole.leaf(whole.draw(NODES, WIDTH)),
        whole.draw(NODES, WIDTH),
    )
    weight, mine = whole.leaf(whole.draw(edges, heads) if heads else whole.draw(edges), edges=True)
    out = aggregate(part, whole.graph, whole.adjacency, edge_weight=mine)
    out.backward(gradient[whole.mine])
    messages = (x[whole.source].view(edges, heads or 1, -1) * weight.view(edges, -1, 1)).flatten(1)
    wanted = torch.zeros_like(x).index_add(0, whole.destination, messages)
    wanted.backward(gradient)
    whole.check(wanted, out)
    whole.check(x.grad, part.grad)
    whole.check(weight.grad, mine.grad, edges=True)


def test_dot_products_edge_sums_and_softmax_make_attention(whole):
    """As DGL's GATConv is written, and by dot products; each function's gradient is on the way."""
    x, part = whole.leaf(whole.draw(NODES, WIDTH))
    y, own = whole.leaf(whole.draw(NODES, WIDTH))
    s, source = whole.leaf(whole.draw(NODES, HEADS))
    t, target = whole.leaf(whole.draw(NODES, HEADS))
    gradient = whole.draw(NODES, WIDTH)
    graph, adjacency = whole.graph, whole.adjacency
    products = aggregation.dot_products(part, own, graph, adjacency, heads=HEADS)
    scores = aggregation.edge_sums(source, target, graph, adjacency) + products
    weight = aggregation.edge_softmax(scores, adjacency)
    out = aggregate(part, graph, adjacency, edge_weight=weight)
    out.backward(gradient[whole.mine])

    of_sources, of_targets = (
        rows[ends].view(-1, HEADS, CHANNELS) for rows, ends in ((x, whole.source), (y, whole.destination))
    )
    terms = torch.exp(s[whole.source] + t[whole.destination] + (of_sources * of_targets).sum(2))
    total = torch.zeros(NODES, HEADS).double().index_add(0, whole.destination, terms)
    wanted_weight = terms / total[whole.destination]
    messages = (of_sources * wanted_weight[:, :, None]).flatten(1)
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
    x, graph, adjacency, three = whole.draw(NODES, 6)[whole.mine], whole.graph, whole.adjacency, whole.draw(3)
    for call, said in [
        (lambda: aggregate(x, graph, adjacency, "median"), "'sum', 'mean' and 'max'"),
        (lambda: aggregate(x, graph, adjacency, "mean", edge_weight=three), "of sums"),
        (lambda: aggregate(x, graph, adjacency, edge_weight=three), r"edge weights are \[3\], for"),
        (lambda: aggregation.dot_products(x, x, graph, adjacency, heads=4), "for 4 heads"),
    ]:
        with pytest.raises(ValueError, match=said):
            call()
