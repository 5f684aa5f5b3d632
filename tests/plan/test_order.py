"""Orders of rows: each is a permutation, and communities come together."""

from __future__ import annotations

import dataclasses

import cases
import numpy as np
import pytest
import reference
from data.graphs import random_graph

from mgg_hpc import _graph
from mgg_hpc.data.generate import rmat
from mgg_hpc.data.graph import Graph, csr_from_edges
from mgg_hpc.errors import InputError
from mgg_hpc.plan import order
from mgg_hpc.plan.row_ranges import edge_balanced
from mgg_hpc.plan.workload import prefix_sum


def share_near(graph: Graph, rows: np.ndarray, window: int) -> float:
    """The share of edges whose ends are at most ``window`` places apart when rows[i] is at place i."""
    place = np.argsort(rows)
    source, row = reference.edge_list(graph.indptr, graph.indices)
    return np.mean(np.abs(place[row] - place[source]) <= window)


@pytest.mark.parametrize("method", order.METHODS)
@pytest.mark.parametrize("name", cases.CASES)
def test_an_order_has_each_row_once(rng, name, method):
    case = cases.CASES[name](rng, 2)
    graph = Graph("case", case.indptr, case.indices)
    rows = order.permutation(graph, method)
    assert rows.dtype == np.int64
    assert sorted(rows.tolist()) == list(range(graph.nodes))
    np.testing.assert_array_equal(order.permutation(graph, method), rows)
    if method == "degree":  # descending; equal ones keep their order
        np.testing.assert_array_equal(rows, np.argsort(-np.diff(graph.indptr), kind="stable"))


@pytest.mark.parametrize(
    ("indptr", "indices", "lengths"),
    [  # in either direction
        ([0, 4, 4, 4, 4, 5, 6], [0, 3, 4, 5, 0, 0], [0, 3, 4, 5, 4, 5]),
        ([0, 2, *[2] * 4000], [1, 4000], [1, 4000]),
    ],
)
def test_locality_is_what_it_says(monkeypatch, indptr, indices, lengths):
    """Near is up to the window."""
    monkeypatch.setattr(order, "WINDOW", 4)
    rows, meter = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr)), order.LocalityMeter()
    for piece in (slice(0, 2), slice(2, None)):
        meter.add(rows[piece], np.array(indices, np.int32)[piece])
    found = meter.result()
    assert found.near == pytest.approx(np.mean(np.array(lengths) <= 4))
    assert found.gap == pytest.approx(np.mean(np.log2(1 + np.array(lengths))))
    assert order.LocalityMeter().result() == order.Locality(0, 0)


@pytest.mark.parametrize("directed", [False, True])
def test_cuthill_mckee_narrows_a_band(rng, directed):
    """A shuffled path: the neighbours end up side by side, with one direction of each edge listed or both."""
    shuffled = rng.permutation(200)
    indptr, indices, _ = csr_from_edges(shuffled[:-1], shuffled[1:], 200, symmetric=not directed)
    graph = Graph("path", indptr, indices, directed=directed)
    assert share_near(graph, order.permutation(graph, "rcm"), 1) == 1
    assert share_near(graph, np.arange(200), 1) < 0.1


@pytest.mark.parametrize("directed", [False, True])
def test_cliques_come_together(rng, directed):
    """A ring of cliques, shuffled: the communities are beyond doubt. Greedy merging cuts a few of them in two."""
    size, count = 8, 25
    shuffled = rng.permutation(size * count)
    within = [(c * size + i, c * size + j) for c in range(count) for i in range(size) for j in range(i)]
    ring = [(c * size, (c + 1) % count * size + 1) for c in range(count)]
    source, destination = shuffled[np.array(within + ring)].T
    indptr, indices, _ = csr_from_edges(source, destination, size * count, symmetric=not directed)
    rows = order.permutation(Graph("ring", indptr, indices, directed=directed), "community")
    clique = np.argsort(shuffled)[rows] // size
    runs = 1 + np.count_nonzero(np.diff(clique))
    assert count <= runs < 2 * count


def test_hubs_outside_of_communities_share_pages(rng):
    """A recursive-matrix graph has next to no communities: what is read most lies in few runs, and so do loners.

    Hubs in front of all else would leave one rank nearly all rows.
    """
    graph = rmat(13, 8, int(rng.integers(1000)))
    degree = np.diff(graph.indptr)
    rows = order.permutation(graph, "community")
    hubs = np.isin(rows, np.argsort(degree)[-graph.nodes // 32 :])
    pages = len(np.unique(np.flatnonzero(hubs) // 32))
    assert pages <= 2 * 32 < len(np.unique(np.flatnonzero(rng.permutation(hubs)) // 32))
    loners = degree[rows] == 0
    assert loners[-1] and 0 < np.count_nonzero(np.diff(loners.astype(int)) == 1) <= 32
    for parts in (2, 4, 8):
        assert np.diff(edge_balanced(prefix_sum(degree[rows]), parts)).max() < 1.5 * graph.nodes / parts


def test_the_directions_of_edges_do_not_matter_to_communities(rng):
    graph = random_graph(rng, nodes=300, edges=900)
    rows = np.repeat(np.arange(300), np.diff(graph.indptr))
    kept = rows <= graph.indices
    indptr, indices, _ = csr_from_edges(graph.indices[kept], rows[kept], 300)
    half = Graph("half", indptr, indices)
    for method in ("rcm", "community"):
        np.testing.assert_array_equal(order.permutation(half, method), order.permutation(graph, method))


def test_what_cannot_be_ordered_is_refused(rng):
    class Long(np.ndarray):
        def __len__(self):
            return 2**31

    graph = random_graph(rng)
    long = dataclasses.replace(graph, indices=graph.indices.view(Long))
    order.check_size("community", 2**31 - 1, 2**40, where="g")
    little = {"where": "g", "available": 10**8}
    for error, said, call, *given in (
        (ValueError, "no order 'size'; expected one of none, degree", order.permutation, graph, "size"),
        (InputError, "rcm is for .* fewer than .*: use degree or community$", order.permutation, long, "rcm"),
        (InputError, "is for .* fewer than .*: use degree$", order.check_size, "community", 2**31, 5),
        (
            InputError,
            "g: .* rcm takes about .* has 0.1 GiB: .*degree$",
            order.check_size,
            "rcm",
            10**7,
            10**8,
        ),
        (InputError, "g: .* community takes about", order.check_size, "community", 10**7, 10**8),
    ):
        with pytest.raises(error, match=said):
            call(*given, **(little if call is order.check_size else {}))


@pytest.mark.parametrize(
    "wrong",
    [
        *({"indices": wrong} for wrong in ([1, 2], [1, -1])),
        *({"indptr": wrong} for wrong in ([0, 1], [0, 1, 3], [1, 1, 2], [0, 3, 2])),
        {"counts": 1},
    ],
)
def test_the_native_module_refuses_what_is_no_csr(wrong):
    def call(indptr=(0, 1, 2), indices=(1, 0), counts=2):
        arrays = np.array(indptr, np.int64), np.array(indices, np.int32)
        _graph.rabbit_order(*arrays, np.empty(2, np.int64), np.empty(counts, np.int64))

    call()
    with pytest.raises(ValueError, match="order: "):
        call(**wrong)
