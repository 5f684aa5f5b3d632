"""Batches of several ranks: together they are those of one rank, and so are losses and gradients."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from test_open_graph import NODES, alone, drawn
from torch.nn import functional as F

import mgg_hpc as mgg

pytestmark = pytest.mark.mpi


def in_edges(batches, graph) -> list[dict[tuple[int, int], list]]:
    """For each batch, the edges of each destination of each block, by the user's nodes.

    Of an edge: its source, the source's first feature and the edge's factor, bit by bit.
    """
    found = []
    for batch in batches:
        sampled: dict[tuple[int, int], list] = {}
        x = batch.x[:, 0].tolist()
        for layer, block in enumerate(batch.blocks):
            ids = np.asarray(block.ids)
            sampled |= {(layer, int(node)): [] for node in ids[: block.destinations]}
            factor = block._hop.factor
            if not block._weighted:
                factor = np.repeat(factor, np.diff(block._hop.indptr))
            for (source, target), value in zip(block.edge_index().T.tolist(), factor.tolist(), strict=True):
                sampled[layer, int(ids[target])].append((int(ids[source]), x[source], value))
        found.append(sampled | {(-1, int(graph.ids[row])): [place] for place, row in enumerate(batch.rows)})
    return found


@pytest.mark.parametrize("weight_attr", [None, "weight"])
def test_ranks_sample_what_one_rank_samples(comm, rng, weight_attr):
    matrix, given = drawn(rng, weighted=True)
    options = {"batch_size": 5, "shuffle": True, "seed": 4, "weight_attr": weight_attr}
    with mgg.from_scipy(matrix, **given, comm=alone()) as whole:
        wanted = in_edges(mgg.NeighborLoader(whole, [3, 4], **options), whole)
    with mgg.from_scipy(matrix, **given, comm=comm) as graph:
        found = in_edges(mgg.NeighborLoader(graph, [3, 4], **options), graph)
    assert len(found) == len(wanted)
    for mine, every in zip(found, wanted, strict=True):
        ours = {key: sources for key, sources in mine.items() if key[0] >= 0}
        assert ours == {key: every[key] for key in ours}
    for every, whole_batch in zip(zip(*comm.allgather(found), strict=True), wanted, strict=True):
        assert set().union(*every) == set(whole_batch)


LAYERS = {
    "gcn": mgg.nn.GCNConv,
    "gin": lambda a, b: mgg.nn.GINConv(mgg.nn.MLP([a, 8, b]), train_eps=True),
    "sage": mgg.nn.SAGEConv,
    "sage max": lambda a, b: mgg.nn.SAGEConv(a, b, aggr="max"),
    "gat": lambda a, b: mgg.nn.GATConv(a, b, heads=2, concat=False, dropout=0.2),
}


class Net(torch.nn.Module):
    def __init__(self, make):
        super().__init__()
        self.first, self.second, self.dropout = make(9, 8), make(8, 3), mgg.nn.Dropout(0.3)

    def forward(self, x, graph):
        h = self.first(x, graph.view(0)).relu()
        return self.second(self.dropout(h, graph.view(1)), graph.view(1))


def trained(graph, make, fanouts=None, batch_size=NODES, epochs=2) -> list[list[float]]:
    """Losses of each batch, or step with the whole graph, and the sums of all gradients' values and magnitudes."""
    mgg.manual_seed(7)
    net = Net(make).double()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    batches, found = [graph], []
    if fanouts is not None:
        batches = mgg.NeighborLoader(graph, fanouts, batch_size=batch_size, shuffle=True, seed=2)
    for batch in itertools.chain(*([batches] * epochs)):
        optimizer.zero_grad()
        loss = batch.loss(net(batch.x, batch), F.cross_entropy)
        loss.backward()
        gradients = torch.cat([p.grad.reshape(-1) for p in net.parameters()])
        found.append([loss.item(), gradients.sum().item(), gradients.abs().sum().item()])
        optimizer.step()
    return found


@pytest.mark.parametrize("way", ["dense", "sparse", "all edges"])
@pytest.mark.parametrize("name", LAYERS)
def test_ranks_train_as_one_rank_does(comm, rng, name, way):
    """One rank samples too, or has the whole graph where all edges of all rows are sampled."""
    matrix, given = drawn(rng)
    if way == "sparse":
        given["x"] = sp.csr_array(given["x"] * (rng.random(given["x"].shape) < 0.4))
    sampled = ([-1, -1],) if way == "all edges" else ([3, 4], 5)
    with mgg.from_scipy(matrix, **given, dtype="float64", comm=alone()) as whole:
        wanted = trained(whole, LAYERS[name], *(() if way == "all edges" else sampled))
    with mgg.from_scipy(matrix, **given, dtype="float64", comm=comm) as graph:
        found = trained(graph, LAYERS[name], *sampled)
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-10)


def test_batch_norm_has_statistics_of_all_ranks_rows(comm, rng):
    matrix, given = drawn(rng)
    with mgg.from_scipy(matrix, **given, dtype="float64", comm=comm) as graph:
        mgg.manual_seed(3)
        norm = mgg.nn.BatchNorm(9).double()
        for batch in mgg.NeighborLoader(graph, [3], batch_size=5, shuffle=True):
            [block] = batch.blocks
            own = batch.x[: block.destinations]
            every = torch.cat(comm.allgather(own))
            if len(every) < 2:  # as in torch
                with pytest.raises(ValueError, match="batch norm trains on two rows or more"):
                    norm(own, block)
                continue
            wanted = (every - every.mean(0)) / (every.var(0, correction=0) + norm.eps).sqrt()
            mine = sum(map(len, comm.allgather(own)[: comm.rank]))
            torch.testing.assert_close(norm(own, block), wanted[mine : mine + len(own)])


def test_a_graph_that_is_closed_within_an_epoch_ends_its_batches(comm, rng):
    matrix, given = drawn(rng)
    graph = mgg.from_scipy(matrix, **given, comm=comm)
    loader = mgg.NeighborLoader(graph, [3, 4], batch_size=5, prefetch=4)
    batches = iter(loader)
    block = next(batches).blocks[0]
    graph.close()
    make = lambda: mgg.NeighborLoader(graph, [3])  # noqa: E731
    for use in (lambda: next(batches), lambda: iter(loader), lambda: block.adjacency("gcn"), make):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_loaders_share_edges_and_see_the_features_that_there_are(comm, rng):
    matrix, given = drawn(rng)
    with mgg.from_scipy(matrix, **given, comm=comm) as graph:
        seen = []
        for factor in (1.0, 2.0, 3.0):
            graph.x = graph.x * factor if factor > 1 or comm.rank else graph.x
            loader = mgg.NeighborLoader(graph, [3], batch_size=NODES)
            [batch] = loader
            every = torch.cat(comm.allgather(graph.x))
            torch.testing.assert_close(
                batch.x, every[torch.from_numpy(batch.blocks[0].numbers)], rtol=0, atol=0
            )
            seen.append(loader._batches._source)
        assert seen[0].edges is seen[1].edges is seen[2].edges
        assert mgg.NeighborLoader(graph, [3])._batches._source is seen[2]
        graph.x = graph.x.clone().requires_grad_()
        with pytest.raises(mgg.InputError, match="get no gradients"):
            mgg.NeighborLoader(graph, [3])
