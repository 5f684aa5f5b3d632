"""Uniform, Kronecker and mesh graphs have the distributions and edges that their formulas say."""

from __future__ import annotations

import networkx
import numpy as np
import pytest
from scipy import stats

from mgg_hpc.data import native
from mgg_hpc.data.generate import draw_grid, draw_rmat, draw_uniform
from mgg_hpc.data.generate.random_state import counter, key_of
from mgg_hpc.data.structure import ArraySource, check

from ..graphs import edge_set, refused

UNLIKELY = 1e-7  # a test of a right generator fails this often


@pytest.fixture
def seed(rng) -> int:
    return int(rng.integers(2**31))


def drawn_ends(drawn) -> tuple[np.ndarray, np.ndarray]:
    """All sources and all destinations of a stream."""
    blocks = list(drawn.imported.edges.blocks())
    return np.concatenate([each.sources for each in blocks]), np.concatenate(
        [each.destinations for each in blocks]
    )


@pytest.mark.parametrize("nodes", [1, 7, 300])
def test_uniform_ends_are_uniform_and_independent(nodes, seed):
    sources, destinations = drawn_ends(draw_uniform(nodes, 500_000, seed))
    assert len(sources) == 500_000
    pairs = np.bincount(sources.astype(np.int64) * nodes + destinations, minlength=nodes**2)
    assert len(pairs) == nodes**2
    if nodes > 1:
        assert stats.chisquare(pairs).pvalue > UNLIKELY


def test_any_block_size_gives_the_same_uniform_edges(seed):
    drawn = draw_uniform(1000, 30_000, seed)
    whole = drawn_ends(drawn)
    drawn.imported.edges.block = 7_001
    np.testing.assert_array_equal(drawn_ends(drawn), whole)


@pytest.mark.parametrize("symmetric", [False, True])
def test_uniform_graphs_are_simple(symmetric, seed):
    graph = draw_uniform(100, 700, seed, symmetric=symmetric, features=3, classes=2).graph()
    check(ArraySource(graph))
    pairs = edge_set(graph)
    assert graph.edges == len(pairs) and not any(u == v for u, v in pairs)
    assert symmetric == all((v, u) in pairs for u, v in pairs) != graph.directed
    sources, destinations = drawn_ends(draw_uniform(100, 700, seed, symmetric=symmetric))
    listed = {(u, v) for u, v in zip(sources.tolist(), destinations.tolist(), strict=True) if u != v}
    assert pairs == listed | ({(v, u) for u, v in listed} if symmetric else set())


@pytest.mark.parametrize("cells", [(9, 6, 5, 1), (3, 0, 1, 2)])
def test_rmat_edges_fall_into_cells_as_the_probabilities_say(cells, seed):
    """At each level on its own, and at two levels together: cells are chosen independently."""
    levels, shares = 5, np.array(cells) / sum(cells)
    drawn = draw_rmat(levels, 1000, seed, **dict(zip("abc", shares.tolist(), strict=False)))
    sources, destinations = drawn_ends(drawn)
    names = names_of(drawn, 2**levels)
    sources, destinations = np.argsort(names)[sources], np.argsort(names)[destinations]
    chosen = [(sources >> level & 1) * 2 + (destinations >> level & 1) for level in range(levels)]
    for first, second in zip(chosen, chosen[1:] + chosen[:1], strict=True):
        expected = np.outer(shares, shares).reshape(-1) * len(sources)
        counts = np.bincount(first * 4 + second, minlength=16)
        assert not counts[expected == 0].any()
        assert stats.chisquare(counts[expected > 0], expected[expected > 0]).pvalue > UNLIKELY


def names_of(drawn, nodes: int) -> np.ndarray:
    """The id of each node before the shuffle: what the stream's own names are."""
    names = drawn.imported.edges.draw.args[-1]()
    assert sorted(names.tolist()) == list(range(nodes))
    return names


@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("sides", [(1, 1), (5, 1), (2, 7), (6, 9), (3, 4, 5), (1, 3, 2), (2, 2, 2)])
def test_meshes_are_those_of_networkx(sides, periodic):
    graph = draw_grid(sides, 0, periodic=periodic).graph()
    check(ArraySource(graph))
    # networkx has the first axis last.
    expected = networkx.grid_graph(sides[::-1], periodic=periodic)
    expected.remove_edges_from(list(networkx.selfloop_edges(expected)))  # of sides of one node
    pairs = {(np.ravel_multi_index(u, sides), np.ravel_multi_index(v, sides)) for u, v in expected.edges}
    assert edge_set(graph) == pairs | {(v, u) for u, v in pairs} and not graph.directed


def test_blocks_of_a_mesh_go_together():
    drawn = draw_grid((40, 50), 0, periodic=True)
    whole = drawn_ends(drawn)
    drawn.imported.edges.block = 77
    blocks = list(drawn.imported.edges.blocks())
    assert len(blocks) > 20
    together = {
        pair
        for block in blocks
        for pair in zip(block.sources.tolist(), block.destinations.tolist(), strict=True)
    }
    assert together == set(zip(*(each.tolist() for each in whole), strict=True))
    (rest, *_) = drawn.imported.edges.blocks(blocks[3].mark)
    np.testing.assert_array_equal(rest.sources, blocks[4].sources)


@pytest.mark.parametrize("count", [1, 2, 3, 100, 4096, 5000])
def test_places_are_a_permutation(count, seed):
    places = np.empty(count, np.int64)
    native.load().places(count, seed, 0, places)
    assert sorted(places.tolist()) == list(range(count))
    part = np.empty(count // 2, np.int64)
    native.load().places(count, seed, count - count // 2, part)
    np.testing.assert_array_equal(part, places[count - count // 2 :])


def test_places_hide_where_a_node_was(seed):
    """Eighths of the nodes are spread over eighths of the places, and neighbours do not stay together."""
    count = 100_000
    places = np.empty(count, np.int64)
    native.load().places(count, seed, 0, places)
    counts = np.bincount(np.arange(count) * 8 // count * 8 + places * 8 // count, minlength=64)
    assert stats.chisquare(counts).pvalue > UNLIKELY
    assert (np.abs(np.diff(places)) < 100).mean() < 0.01


def test_kinds_that_make_no_graph(seed):
    for wrong in [
        lambda: draw_uniform(0, 3, seed),
        lambda: draw_uniform(5, -1, seed),
        lambda: draw_grid((3, 0), seed),
        lambda: draw_grid((), seed),
        lambda: draw_rmat(3, -4, seed),
        lambda: draw_rmat(41, 4, seed),
        lambda: draw_rmat(3, 4, seed, a=0.9, b=0.2),
        lambda: draw_rmat(3, 4, seed, a=float("nan")),
    ]:
        with refused(r"expected|must not"):
            wrong()


def test_calls_that_would_draw_no_graph_are_refused(seed):
    key, begin = key_of(seed), counter(1)
    for nodes, dtype in ((0, np.int32), (2**31 + 1, np.int32), (0, np.int64)):
        with pytest.raises(ValueError, match="ids of this many nodes do not fit"):
            native.load().uniform_edges(key, begin, 0, nodes, *np.empty((2, 3), dtype))
    names, ends = np.arange(2, dtype=np.int32), np.empty((2, 3), np.int32)
    native.load().rmat_edges(key, begin, 0, 1, np.arange(3, dtype=np.uint64), names, *ends)
    assert ((ends >= 0) & (ends < 2)).all()
    for bounds in ([0, 1], [0, 1, 2, 3], [2, 1, 0]):
        with pytest.raises(ValueError, match="expected the bounds of 2 x 2 cells"):
            native.load().rmat_edges(key, begin, 0, 1, np.array(bounds, np.uint64), names, *ends)
    with pytest.raises(ValueError, match="expected a name for each"):
        native.load().rmat_edges(key, begin, 0, 2, np.arange(3, dtype=np.uint64), names, *ends)
