"""The batches of a NeighborLoader: which rows they have, that nothing but the key decides them, and what is refused."""

from __future__ import annotations

import itertools
import weakref

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

import mgg_hpc as mgg

NODES = 200


@pytest.fixture
def matrix(rng):
    return sp.random_array((NODES, NODES), density=0.05, rng=rng, dtype=np.float32, format="csr")


@pytest.fixture
def graph(rng, matrix):
    x = rng.standard_normal((NODES, 7)).astype(np.float32)
    y = rng.integers(-1, 3, NODES)
    options = {"train": (y >= 0) & (rng.random(NODES) < 0.4), "backend": "serial", "transpose": True}
    with mgg.from_scipy(matrix, x, y, **options) as opened:
        yield opened


def rows_of(batches) -> list[int]:
    return list(itertools.chain(*(batch.rows.tolist() for batch in batches)))


def test_an_epoch_has_each_row_of_the_split_once_and_in_another_order_than_the_next(graph):
    loader = mgg.NeighborLoader(graph, [4, 3], batch_size=16, shuffle=True, seed=3)
    wanted = torch.nonzero(graph.train).reshape(-1).tolist()
    epochs = [list(loader) for _ in range(2)]
    for batches in epochs:
        assert sorted(rows_of(batches)) == wanted
        assert [len(each.rows) for each in batches[:-1]] == [16] * (len(loader) - 1)
    assert rows_of(epochs[0]) != rows_of(epochs[1])
    assert rows_of(mgg.NeighborLoader(graph, [4, 3], batch_size=16)) == wanted
    whole = mgg.NeighborLoader(graph, [4, 3], batch_size=16, drop_last=True)
    assert [len(batch.rows) for batch in whole] == [16] * (len(wanted) // 16)


def test_batches_carry_the_rows_features_labels_and_edges_of_their_nodes(graph, matrix):
    for batch in mgg.NeighborLoader(graph, [4, 3], batch_size=16, shuffle=True, edge_data=["weight"]):
        first, second = batch.blocks
        assert second.rows == first.destinations
        assert second.destinations == len(batch.rows) == batch.total
        np.testing.assert_array_equal(first.numbers[: second.rows], second.numbers)
        np.testing.assert_array_equal(second.numbers[: len(batch.rows)], batch.rows)
        assert len(np.unique(first.numbers)) == first.rows
        torch.testing.assert_close(batch.x, graph.x[torch.from_numpy(first.numbers)], rtol=0, atol=0)
        torch.testing.assert_close(batch.y, graph.y[torch.from_numpy(batch.rows)], rtol=0, atol=0)
        for block in batch.blocks:
            source, destination = block.numbers[block.edge_index().numpy()]
            np.testing.assert_array_equal(
                np.ravel(block.edge_data("weight")), np.ravel(matrix[destination, source])
            )


@pytest.mark.parametrize("beside", [False, True])
def test_the_rows_of_a_batch_are_free_for_the_next(graph, monkeypatch, beside):
    """Of two batches, where a second stream gathers one ahead."""
    batches = mgg.NeighborLoader(graph, [4, 3], batch_size=16, prefetch=1)._batches
    monkeypatch.setattr(type(batches._source), "gathers_beside", beside)
    gather, alive, most = batches._source.input, weakref.WeakSet(), []

    def gathered(numbers):
        x = gather(numbers)
        alive.add(x)
        most.append(len(alive))
        return x

    monkeypatch.setattr(batches._source, "input", gathered)
    epoch = batches.epoch(1)
    while next(epoch, None) is not None:
        pass
    assert len(most) == batches.steps and max(most) == 1 + beside


def fingerprint(batch) -> list[list[int]]:
    return [batch.rows.tolist(), *([*block.edge_index().flatten().tolist()] for block in batch.blocks)]


def test_batches_are_the_same_however_many_are_sampled_ahead(graph):
    """Also where a loop left the epoch before early."""

    def drawn(left_early=False, **options):
        loader = mgg.NeighborLoader(graph, [4, -1], batch_size=9, shuffle=True, **options)
        first = [fingerprint(batch) for batch in (itertools.islice(loader, 1) if left_early else loader)]
        return [first[:1] if left_early else first, [fingerprint(batch) for batch in loader]]

    wanted = drawn(seed=1, prefetch=0)
    for prefetch in (1, 2, 7, 100):
        assert drawn(seed=1, prefetch=prefetch) == wanted
    for prefetch in (0, 4):
        assert drawn(left_early=True, seed=1, prefetch=prefetch) == [wanted[0][:1], wanted[1]]
    assert drawn(seed=2, prefetch=0) != wanted


@pytest.mark.parametrize("several", [False, True])
def test_a_loss_is_the_mean_over_the_batch(graph, rng, several):
    """Over all labels of all rows, where a row has several."""
    if several:
        graph.y = torch.from_numpy(rng.integers(2, size=(NODES, 3))).float()
    function = binary_cross_entropy_with_logits if several else cross_entropy
    for batch in mgg.NeighborLoader(graph, [4], batch_size=16):
        out = torch.from_numpy(rng.standard_normal((len(batch.rows), 3))).float().requires_grad_()
        loss, wanted = batch.loss(out, function), function(out, batch.y)
        torch.testing.assert_close(loss, wanted)
        torch.testing.assert_close(*torch.autograd.grad(loss, out), *torch.autograd.grad(wanted, out))


def test_losses_that_cannot_be(graph):
    [batch] = mgg.NeighborLoader(graph, [4], batch_size=NODES)
    [every] = mgg.NeighborLoader(graph, [4], batch_size=NODES, input_nodes=torch.arange(NODES))
    out = torch.zeros(len(batch.rows), 3)
    for of, given, function, said in [
        (batch, out[:, :2], cross_entropy, "2 outputs, but the labels are of 3 classes"),
        (batch, out[:3], cross_entropy, r"out is \[3, 3\]"),
        (batch, out, lambda out, y, reduction: out.sum(1), 'it shall take reduction="sum"'),
        (every, torch.zeros(NODES, 3), cross_entropy, "a node of the batch has no label"),
    ]:
        with pytest.raises((mgg.InputError, ValueError), match=said):
            of.loss(given, function)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_neighbors": []}, "fanouts are \\[\\]"),
        ({"num_neighbors": [3, 0]}, "at least 1, or -1"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"prefetch": -1}, "prefetch is -1"),
        ({"num_neighbors": [2.5]}, "num_neighbors has 2.5"),
        ({"num_neighbors": [True]}, "num_neighbors has True"),
        ({"num_neighbors": 3}, "num_neighbors is 3; it is a list"),
        ({"num_neighbors": [2**31]}, "fanouts are"),
        ({"batch_size": "8"}, "batch_size has '8'"),
        ({"seed": 0.5}, "seed has 0.5"),
        ({"edge_data": "weight"}, "it is a list of names"),
        ({"split": "dev"}, "split is 'dev'"),
        ({"split": "val"}, "no rank has labelled nodes of the split 'val'"),
        ({"weight_attr": "w"}, "weight_attr is 'w'"),
        ({"seed": -1}, "seed is -1"),
        ({"input_nodes": torch.tensor([1.5])}, "expected bool"),
        ({"input_nodes": torch.tensor([1, 1])}, "distinct nodes"),
        ({"input_nodes": torch.tensor([NODES])}, "distinct nodes"),
        ({"input_nodes": torch.ones(3, dtype=torch.bool)}, "bool \\[3\\]"),
        ({"batch_size": NODES, "drop_last": True}, "no batch is left"),
        ({"edge_data": ["flow"]}, "no data of edges named 'flow'"),
    ],
)
def test_refusals(graph, options, message):
    with pytest.raises(mgg.InputError, match=message):
        mgg.NeighborLoader(graph, **{"num_neighbors": [3, 2]} | options)


def test_data_of_edges_that_a_loader_was_not_told_of_are_refused(graph):
    [batch] = mgg.NeighborLoader(graph, [3], batch_size=NODES)
    layer = mgg.nn.GATConv(7, 2, edge_dim=1)
    with pytest.raises(ValueError, match="these batches have data of edges none, and not 'flow'"):
        layer(batch.x, batch.blocks[0], edge_attr="flow")
    with pytest.raises(ValueError, match="no such kind of adjacency: 'square'"):
        batch.blocks[0].adjacency("square")
