"""Scores of rows by how often mini-batches read them: beside dense matrices, and beside batches that were drawn."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from data.graphs import random_graph

import mgg_hpc as mgg
from mgg_hpc.data.graph import csr_from_edges
from mgg_hpc.errors import InputError
from mgg_hpc.plan import scores
from mgg_hpc.runtime.sampler import Sampler

NODES = 120


@pytest.fixture
def graph(rng):
    """A random directed multigraph: the matrix [N, N] whose entry (v, u) counts edges u -> v, and its `pull`."""
    made = random_graph(rng, nodes=NODES, edges=900)
    dense = np.zeros((NODES, NODES))
    np.add.at(dense, (np.repeat(np.arange(NODES), np.diff(made.indptr)), made.indices), 1)

    def blocks():
        for first in range(0, NODES, 50):
            indptr = made.indptr[first : min(first + 50, NODES) + 1]
            yield first, indptr - indptr[0], made.indices[indptr[0] : indptr[-1]]

    return dense, scores.puller(NODES, blocks)


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("columns", [(), (1,), (5,)])
def test_a_pull_sums_over_out_edges(rng, kind, columns):
    made = random_graph(rng, nodes=NODES, edges=900)
    values, wanted = rng.random((NODES, *columns)), np.zeros((NODES, *columns))
    for row in range(NODES):
        for source in made.indices[made.indptr[row] : made.indptr[row + 1]]:
            wanted[source] += values[row]
    sources = made.indices.astype(kind)
    pull = scores.puller(
        NODES, lambda: [(0, made.indptr, sources), (NODES, np.zeros(1, np.int64), sources[:0])]
    )
    np.testing.assert_allclose(pull(values), wanted, rtol=1e-12)
    for wrong in (-1, NODES):
        sources[rng.integers(len(sources))] = wrong
        with pytest.raises(ValueError, match="a source is no row"):
            pull(values)


def test_out_degrees_are_counted(graph):
    dense, pull = graph
    np.testing.assert_array_equal(scores.out_degree(pull, NODES), dense.sum(0))


def test_reverse_pagerank_solves_its_equation(graph):
    dense, pull = graph
    step = 0.85 * (dense / np.maximum(dense.sum(1), 1)[:, None]).T
    wanted = np.linalg.solve(np.eye(NODES) - step, np.full(NODES, 0.15 / NODES))
    np.testing.assert_allclose(scores.reverse_pagerank(pull, dense.sum(1)), wanted, atol=1e-6)


def test_training_nodes_weigh_more_at_the_start(graph, rng):
    dense, pull = graph
    train = rng.random(NODES) < 0.1
    train[3] = True
    wanted = np.where(train, 1 / train.sum(), 1 / NODES)
    for _ in range(5):
        wanted = 0.15 / NODES + 0.85 * (wanted / np.maximum(dense.sum(1), 1)) @ dense
    np.testing.assert_allclose(scores.training_pagerank(pull, dense.sum(1), train), wanted, rtol=1e-12)


@pytest.mark.parametrize("fanouts", [[2, 2], [3, -1, 1]])
def test_visits_are_the_chances_of_draws_in_a_tree(rng, fanouts):
    """In a tree, whose edges lead to the root, and with all training nodes in each batch, draws are independent."""
    nodes, steps = 85, 4000
    parent = np.arange(nodes - 1) // rng.integers(3, 6)
    indptr, indices, _ = csr_from_edges(np.arange(1, nodes), parent, nodes, symmetric=False)
    train = np.arange(nodes) == 0
    pull = scores.puller(nodes, lambda: [(0, indptr, indices)])
    wanted = scores.visits(pull, np.diff(indptr), train, fanouts, 7, ids=np.arange(nodes))
    sampler, counts = Sampler(indptr, indices), np.zeros(nodes)
    for step in range(steps):
        counts[sampler.sample(np.zeros(1, np.int64), fanouts, seed=5, step=step).nodes] += 1
    deviation = np.sqrt(wanted * (1 - wanted) / steps)
    assert (np.abs(counts / steps - wanted) <= 5 * deviation + 1e-12).all()
    assert ((wanted > 0.05) & (wanted < 0.95)).sum() > 5  # or this shows little


def test_visits_know_that_neighbours_are_met_together(rng):
    """In cliques, whose nodes a batch reads if one of their training nodes is in it, and on any numbering of rows."""
    nodes, clique, count, batch = 4000, 8, 400, 100
    ids = rng.permutation(nodes)
    corner = np.arange(nodes) // clique
    ends = np.array([(v, v // clique * clique + other) for v in range(nodes) for other in range(clique)])
    train = np.isin(np.arange(nodes), rng.choice(nodes, count, replace=False))
    inside = np.bincount(corner, train)[corner].astype(int)
    chance = np.array([1 - math.comb(count - each, batch) / math.comb(count, batch) for each in inside])

    def found(place: np.ndarray) -> np.ndarray:
        indptr, indices, _ = csr_from_edges(*place[ends].T, nodes, symmetric=False)
        old = np.argsort(place)
        pull = scores.puller(nodes, lambda: [(0, indptr, indices)])
        return scores.visits(pull, np.diff(indptr), train[old], [-1, -1], batch, ids=ids[old])[place]

    visits = found(np.arange(nodes))
    assert visits.sum() == pytest.approx(chance.sum(), rel=0.05)
    np.testing.assert_allclose(found(rng.permutation(nodes)), visits, rtol=1e-12)


def test_expected_visits_of_an_edge_list(rng):
    """With all neighbours of one layer a row is read if a training node in its reach is drawn."""
    nodes, train, batch = 2000, rng.random(2000) < 0.5, 10
    edges = np.stack(np.divmod(rng.choice(nodes * nodes, 10_000, replace=False), nodes))
    edges = edges[:, edges[0] != edges[1]]
    given = (torch.from_numpy(edges), torch.from_numpy(train)) if rng.random() < 0.5 else (edges, train)
    found, count = mgg.expected_visits(*given, [-1], batch), int(train.sum())
    for node in range(nodes):
        met = {node, *edges[1][edges[0] == node].tolist()}
        reach = sum(train[each] for each in met)
        chance = 1 - math.comb(count - reach, batch) / math.comb(count, batch)
        assert found[node] == pytest.approx(chance, abs=0.01)
        assert (found[node] == 0) == (reach == 0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"edge_index": [[0, 1]]}, r"edge_index is int64 \[1, 2\]; expected integers \[2, E\]"),
        ({"edge_index": [[0.5], [1]]}, "edge_index is float64"),
        ({"edge_index": [[0, 7], [1, 2]]}, "edge_index has node 7, and train is of nodes 0 to 2"),
        ({"edge_index": [[0, 1], [1, -1]]}, "edge_index has node -1"),
        ({"train": [0, 1]}, r"train is int64 \[2\]; expected bool \[N\]"),
        ({"train": [False] * 3}, "has none"),
        ({"num_neighbors": []}, r"num_neighbors is \[\]; expected one for each layer"),
        ({"num_neighbors": [5, 0]}, "at least 1, or -1 for all"),
        ({"num_neighbors": 5}, "num_neighbors is 5, and batch_size 2; expected whole numbers"),
        ({"num_neighbors": [2.5]}, r"num_neighbors is \[2.5\]"),
        ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
        ({"batch_size": 1.5}, "batch_size 1.5; expected whole numbers"),
    ],
)
def test_edges_and_masks_without_expected_visits_are_refused(given, message):
    right = {"edge_index": [[0, 1], [1, 2]], "train": [True] * 3, "num_neighbors": [5], "batch_size": 2}
    mgg.expected_visits(**right)
    with pytest.raises(InputError, match=message):
        mgg.expected_visits(**(right | given))


def test_scores_of_training_nodes_need_some(graph):
    dense, pull = graph
    visits = partial(scores.visits, fanouts=[5], batch=10, ids=np.arange(NODES))
    for score in (scores.training_pagerank, visits):
        with pytest.raises(InputError, match="has none"):
            score(pull, dense.sum(1), np.zeros(NODES, bool))


def test_equal_scores_keep_their_order():
    for kind in ("f8", "u4", "i1"):
        np.testing.assert_array_equal(scores.order(np.array([1, 3, 1, 3], kind)), [1, 3, 0, 2])
