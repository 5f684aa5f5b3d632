"""Orders of rows: each is a permutation that loses nothing, and communities come together."""

from __future__ import annotations

import dataclasses
from collections import Counter

import cases
import numpy as np
import pytest
import reference
from data.graphs import random_graph

from mgg_hpc import _graph
from mgg_hpc.data.generate import rmat, sbm
from mgg_hpc.data.graph import Graph, csr_from_edges
from mgg_hpc.errors import InputError
from mgg_hpc.plan import order
from mgg_hpc.plan.ranges import edge_balanced


def graph_of(case) -> Graph:
    return Graph("case", case.indptr, case.indices)


def edges_by_ids(graph: Graph) -> Counter:
    """(source, destination, weight) of each edge, by the ids that the user knows, read one by one."""
    ids = range(graph.nodes) if graph.permutation is None else graph.permutation.tolist()
    weight = [None] * graph.edges if graph.weight is None else graph.weight.tolist()
    ends = zip(*reference.edge_list(graph.indptr, graph.indices), weight, strict=True)
    return Counter((ids[source], ids[row], value) for source, row, value in ends)


def share_near(graph: Graph, rows: np.ndarray, window: int) -> float:
    """The share of edges whose ends are at most ``window`` places apart when rows[i] is at place i."""
    place = {int(row): at for at, row in enumerate(rows)}
    ends = zip(*reference.edge_list(graph.indptr, graph.indices), strict=True)
    return sum(abs(place[row] - place[source]) <= window for source, row in ends) / graph.edges


@pytest.mark.parametrize("method", order.METHODS)
@pytest.mark.parametrize("name", cases.CASES)
def test_an_order_has_each_row_once_and_loses_no_edge(rng, name, method):
    graph = graph_of(cases.CASES[name](rng, 2))
    rows = order.permutation(graph, method)
    assert rows.dtype == np.int64
    assert sorted(rows.tolist()) == list(range(graph.nodes))
    moved = order.renumbered(graph, rows)
    assert edges_by_ids(moved) == edges_by_ids(graph)
    for row in range(moved.nodes):
        sources = moved.indices[moved.indptr[row] : moved.indptr[row + 1]].tolist()
        assert sources == sorted(sources)
    np.testing.assert_array_equal(order.permutation(graph, method), rows)


def test_orders_compose(rng):
    """Two renumberings are one, and one that undoes the other leaves no permutation."""
    graph = random_graph(rng)
    first, second = rng.permutation(40), rng.permutation(40)
    moved = order.renumbered(order.renumbered(graph, first), second)
    assert moved.permutation.tolist() == [first[at] for at in second]
    assert edges_by_ids(moved) == edges_by_ids(graph)


def test_edges_listed_twice_keep_their_order(rng):
    """So that restoring a numbering restores every weight to its place."""
    weight = rng.random(300).astype(np.float32)
    indptr, indices, weight = csr_from_edges(*rng.integers(4, size=(2, 300)), 4, weight=weight)
    graph = Graph("g", indptr, indices, weight=weight)
    back = order.renumbered(order.renumbered(graph, np.array([2, 0, 3, 1])), np.array([1, 3, 0, 2]))
    np.testing.assert_array_equal(back.weight, weight)


def test_runs_of_any_size_give_the_same(rng, monkeypatch):
    graph = random_graph(rng, symmetric=False, weighted=True)
    rows = rng.permutation(40)
    whole, measured = order.renumbered(graph, rows), order.locality(graph.indptr, graph.indices)
    for size in (1, 7, 64):
        monkeypatch.setattr(order, "BLOCK_EDGES", size)
        again = order.renumbered(graph, rows)
        np.testing.assert_array_equal(again.indices, whole.indices)
        np.testing.assert_array_equal(again.weight, whole.weight)
        assert order.locality(graph.indptr, graph.indices).gap == pytest.approx(measured.gap)


def test_near_is_up_to_the_window(monkeypatch):
    """Ends 0, 3, 4 and 5 rows apart, in either direction."""
    monkeypatch.setattr(order, "WINDOW", 4)
    found = order.locality(np.array([0, 4, 4, 4, 4, 5, 6]), np.array([0, 3, 4, 5, 0, 0], np.int32))
    assert found.near == pytest.approx(4 / 6)
    assert found.gap == pytest.approx((np.log2(4) + 2 * np.log2(5) + 2 * np.log2(6)) / 6)


def test_degrees_descend_and_equal_ones_keep_their_order(rng):
    graph = graph_of(cases.hub(rng, 1))
    counts = np.diff(graph.indptr).tolist()
    wanted = sorted(range(graph.nodes), key=lambda row: (-counts[row], row))
    assert order.permutation(graph, "degree").tolist() == wanted


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


def test_planted_communities_come_together(rng):
    graph = sbm(2000, classes=40, features=0, degree=24, homophily=0.9, seed=int(rng.integers(1000)))
    found = share_near(graph, order.permutation(graph, "community"), 50)
    assert found > 0.6
    assert found > 8 * share_near(graph, rng.permutation(2000), 50)


def test_hubs_outside_of_communities_share_pages(rng):
    """A recursive-matrix graph has next to no communities: what is read most lies in few runs, and so do loners."""
    graph = rmat(13, 8, int(rng.integers(1000)))
    degree = np.diff(graph.indptr)
    rows = order.permutation(graph, "community")
    hubs = np.isin(rows, np.argsort(degree)[-graph.nodes // 32 :])
    pages = len(np.unique(np.flatnonzero(hubs) // 32))
    assert pages <= 2 * 32 < len(np.unique(np.flatnonzero(rng.permutation(hubs)) // 32))
    loners = degree[rows] == 0
    assert loners[-1] and 0 < np.count_nonzero(np.diff(loners.astype(int)) == 1) <= 32


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_ranks_get_rows_and_edges_alike(rng, parts):
    """Hubs in front of all else would leave one rank nearly all rows."""
    graph = rmat(13, 8, int(rng.integers(1000)))
    moved = order.renumbered(graph, order.permutation(graph, "community"))
    rows = np.diff(edge_balanced(moved.indptr, parts))
    assert rows.max() < 1.5 * graph.nodes / parts


def test_the_directions_of_edges_do_not_matter_to_communities(rng):
    graph = random_graph(rng, nodes=300, edges=900)
    rows = np.repeat(np.arange(300), np.diff(graph.indptr))
    kept = rows <= graph.indices
    indptr, indices, _ = csr_from_edges(graph.indices[kept], rows[kept], 300)
    half = Graph("half", indptr, indices)
    for method in ("rcm", "community"):
        np.testing.assert_array_equal(order.permutation(half, method), order.permutation(graph, method))


def test_locality_is_what_it_says():
    """1 -> 0 and 4000 -> 0: lengths 1 and 4000."""
    indptr, indices, _ = csr_from_edges([1, 4000], [0, 0], 4001)
    found = order.locality(indptr, indices)
    assert found.gap == pytest.approx((np.log2(2) + np.log2(4001)) / 2)
    assert found.near == 0.5
    assert order.locality(np.array([0]), np.zeros(0, np.int32)) == order.Locality(0, 0)


def test_what_cannot_be_ordered_is_refused(rng, monkeypatch):
    graph = random_graph(rng)
    with pytest.raises(ValueError, match="no order 'size'; expected one of none, degree, rcm, community"):
        order.permutation(graph, "size")

    class Long(np.ndarray):
        def __len__(self):
            return 2**31

    long = dataclasses.replace(graph, indices=graph.indices.view(Long))
    with pytest.raises(
        InputError, match=r"order rcm is for graphs of fewer than .*: use degree or community$"
    ):
        order.permutation(long, "rcm")
    with pytest.raises(InputError, match=r"order community is for graphs of fewer than .*: use degree$"):
        order.check_size("community", 2**31, 5, where="g")
    order.check_size("community", 2**31 - 1, 2**40, where="g")
    for method in ("rcm", "community"):
        with pytest.raises(
            InputError, match=rf"g: the order {method} takes about .* has 0.1 GiB: .*use degree$"
        ):
            order.check_size(method, 10**7, 10**8, where="g", available=10**8)


def test_the_native_module_refuses_what_is_no_csr():
    def call(indptr, indices, nodes=2, counts=2):
        arrays = np.array(indptr, np.int64), np.array(indices, np.int32)
        _graph.rabbit_order(*arrays, np.empty(nodes, np.int64), np.empty(counts, np.int64))

    call([0, 1, 2], [1, 0])
    wrong_indices = [{"indices": wrong} for wrong in ([1, 2], [1, -1])]
    wrong_indptr = [{"indptr": wrong} for wrong in ([0, 1], [0, 1, 3], [1, 1, 2], [0, 3, 2])]
    for wrong in (*wrong_indices, *wrong_indptr, {"counts": 1}):
        with pytest.raises(ValueError, match="order: "):
            call(**{"indptr": [0, 1, 2], "indices": [1, 0]} | wrong)
