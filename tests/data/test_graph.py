"""Edge lists become CSR, compared with dictionaries built one edge at a time."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

from mgg_hpc.data.graph import csr_from_edges, from_edges, split_per_class, split_random

from .graphs import refused


def listed_edges(sources, destinations, weight, *, symmetric, drop_duplicates, drop_self_loops):
    """Destination -> [(source, weight)] in the order of sources, from the definition."""
    kept: list[tuple[int, int, float]] = []
    seen = set()
    given = (array.tolist() for array in (sources, destinations, weight))
    for source, destination, value in zip(*given, strict=True):
        if drop_self_loops and source == destination:
            continue
        for u, v in [(source, destination), (destination, source)][: 2 if symmetric else 1]:
            if (symmetric or drop_duplicates) and (u, v) in seen:
                continue
            seen.add((u, v))
            kept.append((v, u, value))
    rows: dict[int, list[tuple[int, float]]] = {}
    for v, u, value in sorted(kept, key=lambda edge: edge[:2]):
        rows.setdefault(v, []).append((u, value))
    return rows


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("drop_duplicates", [False, True])
@pytest.mark.parametrize("drop_self_loops", [False, True])
def test_csr_holds_the_listed_edges(rng, weighted, symmetric, drop_duplicates, drop_self_loops):
    nodes, edges = 23, 300  # many duplicates and self loops
    sources, destinations = rng.integers(nodes, size=(2, edges))
    weight = rng.normal(size=edges).astype(np.float32)
    options = {"symmetric": symmetric, "drop_duplicates": drop_duplicates, "drop_self_loops": drop_self_loops}
    given = weight if weighted else None
    indptr, indices, stored = csr_from_edges(sources, destinations, nodes, weight=given, **options)
    expected = listed_edges(sources, destinations, weight, **options)
    assert indptr.dtype == np.int64 and indices.dtype == np.int32
    assert indptr[0] == 0 and indptr[-1] == len(indices)
    for row in range(nodes):
        lo, hi = indptr[row], indptr[row + 1]
        assert indices[lo:hi].tolist() == [u for u, _ in expected.get(row, [])]
        if weighted:
            assert stored[lo:hi].tolist() == [w for _, w in expected.get(row, [])]
    assert (stored is None) == (not weighted)


def test_symmetric_weights_are_the_same_both_ways(rng):
    sources, destinations = rng.integers(9, size=(2, 200))
    graph = from_edges(sources, destinations, 9, weight=rng.random(200).astype(np.float32), symmetric=True)
    matrix = scipy.sparse.csr_matrix((graph.weight, graph.indices, graph.indptr), shape=(9, 9)).toarray()
    assert np.array_equal(matrix, matrix.T)
    assert not graph.directed


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
    assert not (train & val | train & test | val & test).any()
    assert not (train | val | test)[y == -1].any()


def test_a_class_too_small_for_the_split_is_named(rng):
    y = np.repeat([0, 1, 2], [60, 50, 60])
    with refused("class 1 has 50"):
        split_per_class(y, 3, rng)
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
