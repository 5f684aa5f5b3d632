"""Edge lists become CSR with their weights and data, compared with lists built one edge at a time; and splits."""

from __future__ import annotations

import numpy as np
import pytest

from mgg_hpc.data.graph import csr_from_edges, from_edges, split_per_class, split_random

from .graphs import refused, same


def listed_edges(sources, destinations, *, symmetric, drop_duplicates, drop_self_loops) -> list[tuple]:
    """(destination, source, number of the listed edge) in the order of a CSR, from the definition."""
    kept: list[tuple[int, int, int]] = []
    seen = set()
    for number, (source, destination) in enumerate(zip(sources.tolist(), destinations.tolist(), strict=True)):
        if drop_self_loops and source == destination:
            continue
        for u, v in [(source, destination), (destination, source)][: 2 if symmetric else 1]:
            if (symmetric or drop_duplicates) and (u, v) in seen:
                continue
            seen.add((u, v))
            kept.append((v, u, number))
    return sorted(kept)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("drop_duplicates", [False, True])
@pytest.mark.parametrize("drop_self_loops", [False, True])
def test_a_graph_holds_the_listed_edges(rng, weighted, symmetric, drop_duplicates, drop_self_loops):
    """Of duplicates the first one's weight and data stay; both directions of an edge get the same."""
    nodes, edges = 23, 300  # many duplicates and self loops
    sources, destinations = rng.integers(nodes, size=(2, edges))
    weight = rng.normal(size=edges).astype(np.float32) if weighted else None
    data = {
        "flow": rng.standard_normal((edges, 2, 2)).astype(np.float16),
        "kind": rng.integers(7, size=edges).astype(np.uint8),
    }
    options = {"symmetric": symmetric, "drop_duplicates": drop_duplicates, "drop_self_loops": drop_self_loops}
    graph = from_edges(sources, destinations, nodes, weight=weight, edge=data, **options)
    rows, columns, number = np.array(listed_edges(sources, destinations, **options)).T
    assert same(graph.indptr, np.append(0, np.cumsum(np.bincount(rows, minlength=nodes))))
    assert same(graph.indices, columns.astype(np.int32))
    assert same(graph.weight, None if weight is None else weight[number])
    assert graph.edge.keys() == data.keys()
    assert all(same(graph.edge[name], values[number]) for name, values in data.items())
    assert graph.directed != symmetric


@pytest.mark.parametrize("nodes", [1, 5])
def test_no_edges(nodes):
    graph = from_edges(np.empty(0, int), np.empty(0, int), nodes)
    assert graph.indptr.tolist() == [0] * (nodes + 1)
    assert (graph.nodes, graph.edges, graph.features, graph.multilabel) == (nodes, 0, 0, False)


@pytest.mark.parametrize("bad", [-1, 4])
def test_an_id_out_of_range_is_named(bad):
    with refused(rf"node id {bad} is not in 0 \.\. 3"):
        csr_from_edges(np.array([0, bad]), np.array([1, 2]), 4)


def test_a_split_takes_so_many_of_each_class(rng):
    y = rng.integers(-1, 3, size=500)
    train, val, test = split_per_class(y, 3, rng, train=7, val=11).values()
    for label in range(3):
        counts = [np.count_nonzero(mask & (y == label)) for mask in (train, val, test)]
        assert counts == [7, 11, np.count_nonzero(y == label) - 18]
    assert np.array_equal(train.astype(int) + val + test, y >= 0)
    with refused("class 1 has 50"):
        split_per_class(np.repeat([0, 1, 2], [60, 50, 60]), 3, rng)
    with refused("multi-label"):
        split_per_class(np.zeros((5, 2), np.float32), 2, rng)


@pytest.mark.parametrize("several", [False, True])
def test_a_random_split_takes_its_shares_of_the_labelled(several, rng):
    y = np.zeros((500, 3), np.float32) if several else rng.integers(-1, 3, size=500)
    labelled = np.ones(500, bool) if several else y >= 0
    count = np.count_nonzero(labelled)
    masks = list(split_random(y, rng, train=0.37, val=0.21).values())
    assert (np.sum(masks, axis=0) == labelled).all()
    expected = [int(0.37 * count), int(0.21 * count)]
    assert [mask.sum() for mask in masks] == [*expected, count - sum(expected)]
    assert not np.array_equal(masks[0], split_random(y, rng, train=0.37, val=0.21)["train"])


@pytest.mark.parametrize("shares", [(-0.1, 0.2), (0.2, -0.1), (0.7, 0.4)])
def test_shares_of_a_random_split_are_shares(shares, rng):
    with refused("expected nothing negative, 1 in all at most"):
        split_random(np.zeros(9, np.int64), rng, train=shares[0], val=shares[1])
