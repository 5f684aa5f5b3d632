"""Generated graphs have the shape that their parameters promise, and follow their seed."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from mgg_hpc.data.generate import draw_rmat, rmat, sbm
from mgg_hpc.data.generate.drawn import spans
from mgg_hpc.data.graph import Graph, from_edges, masks, split_per_class
from mgg_hpc.data.structure import ArraySource, check
from mgg_hpc.data.writer import write

from ..graphs import edge_set, refused


@pytest.fixture
def seed(rng) -> int:
    return int(rng.integers(2**31))


@pytest.mark.parametrize("symmetric", [False, True])
def test_rmat_is_simple_and_sound(symmetric, seed):
    graph = rmat(9, 8, seed, symmetric=symmetric, features=5, classes=3)
    check(ArraySource(graph))
    pairs = edge_set(graph)
    assert graph.nodes == 512 and graph.edges == len(pairs) and graph.directed != symmetric
    assert all(u != v for u, v in pairs)
    assert all((v, u) in pairs for u, v in pairs) == symmetric
    assert (graph.features, graph.classes) == (5, 3) and set(graph.y.tolist()) == {0, 1, 2}
    assert [mask.sum() for mask in (graph.train, graph.val, graph.test)] == [256, 128, 128]


def same_graph(one: Graph, other: Graph) -> None:
    for field in dataclasses.fields(Graph):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        np.testing.assert_array_equal(mine, theirs, err_msg=field.name, strict=isinstance(mine, np.ndarray))


def numpy_rmat(scale, drawn, seed, a, b, c, *, symmetric, features, classes) -> Graph:
    """The graph as NumPy alone draws it, one Generator from the first edge to the last label."""
    rng = np.random.Generator(np.random.Philox(seed))
    ends = []
    for low in range(0, drawn, 2**20):
        count = min(2**20, drawn - low)
        sources, destinations = np.zeros(count, np.int64), np.zeros(count, np.int64)
        for _ in range(scale):
            draw = rng.random(count)
            sources = 2 * sources + (draw >= a + b)
            destinations = 2 * destinations + ((draw >= a) & (draw < a + b) | (draw >= a + b + c))
        ends.append((sources, destinations))
    names = rng.permutation(1 << scale)
    x = rng.standard_normal((1 << scale, features), dtype=np.float32)
    split = masks(1 << scale, np.split(rng.permutation(1 << scale), [1 << scale >> 1, 3 << scale >> 2]))
    y = rng.integers(classes, size=1 << scale)
    sources, destinations = np.concatenate(ends, axis=1)
    options = {
        "symmetric": symmetric,
        "drop_duplicates": True,
        "drop_self_loops": True,
        "name": f"rmat{scale}",
    }
    fields = {"x": x, "y": y, "classes": classes, **split}
    return from_edges(names[sources], names[destinations], 1 << scale, **options, **fields)


@pytest.mark.parametrize("scale, factor", [(0, 3), (1, 1), (7, 5), (12, 300)])
@pytest.mark.parametrize("quarters", [(0.57, 0.19, 0.19), (0.25, 0.25, 0.5), (0.1, 0.0, 0.3)])
def test_rmat_is_what_numpy_draws(scale, factor, quarters, seed):
    """Graphs of before there was native code, bit for bit: blocks that are full, and last ones of odd lengths."""
    options = {"symmetric": scale % 2 == 0, "features": 3, "classes": 4}
    expected = numpy_rmat(scale, factor << scale, seed, *quarters, **options)
    same_graph(expected, rmat(scale, factor, seed, **dict(zip("abc", quarters, strict=True)), **options))


def test_any_block_is_drawn_alone(seed):
    """From a block's mark on, with as many threads as there are."""
    edges = draw_rmat(12, 600, seed).imported.edges
    whole = list(edges.blocks())
    assert [block.mark for block in whole] == [1 << 20, 2 << 20, 600 << 12]
    for before, expected in itertools.pairwise(whole):
        (block, *_) = edges.blocks(before.mark)
        np.testing.assert_array_equal(block.sources, expected.sources)
        np.testing.assert_array_equal(block.destinations, expected.destinations)


def test_rmat_degrees_are_skewed_but_ids_are_not(seed):
    graph = rmat(12, 16, seed)
    degrees = np.diff(graph.indptr)
    assert degrees.max() > 20 * degrees.mean()
    halves = degrees[:2048].sum(), degrees[2048:].sum()
    assert max(halves) < 1.5 * min(halves)  # without the shuffle the low half has most


def test_sbm_has_its_classes_degree_and_homophily(seed):
    graph = sbm(4000, classes=5, features=8, degree=20, homophily=0.7, seed=seed)
    check(ArraySource(graph))
    assert np.bincount(graph.y).tolist() == [800] * 5
    assert 19 < graph.edges / graph.nodes <= 20
    rows = np.repeat(np.arange(graph.nodes), np.diff(graph.indptr))
    same = (graph.y[rows] == graph.y[graph.indices]).mean()
    spread = np.sqrt(0.7 * 0.3 / (graph.edges / 2))
    assert abs(same - 0.7) < 6 * spread + 0.002  # duplicates within a class go
    assert [mask.sum() for mask in (graph.train, graph.val, graph.test)] == [100, 150, 3750]
    # Partners of another class are spread over all of its nodes.
    other = graph.y[graph.indices[graph.y[rows] == 0]]
    shares = np.bincount(other, minlength=5)[1:]
    assert shares.max() < 1.2 * shares.min()


def test_sbm_features_tell_the_class(seed):
    graph = sbm(2000, classes=4, features=32, degree=0, homophily=0.5, seed=seed)
    assert graph.edges == 0
    means = np.stack([graph.x[graph.y == label].mean(axis=0) for label in range(4)])
    nearest = ((graph.x[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == graph.y).mean() > 0.95
    assert abs((graph.x - means[graph.y]).std() - 1) < 0.05


@pytest.mark.parametrize("nodes, classes", [(3, 1), (12, 4), (50, 1), (7, 2)])
def test_small_block_models_are_sound(nodes, classes, seed):
    graph = sbm(nodes, classes=classes, features=0, degree=3, homophily=0.2, seed=seed)
    check(ArraySource(graph))
    assert graph.x is None and graph.train.sum() >= classes and graph.test.sum() >= classes


def numpy_sbm(nodes, classes, features, degree, homophily, seed) -> Graph:
    """The graph as NumPy alone draws it, one Generator from the labels to the split."""
    rng = np.random.Generator(np.random.Philox(seed))
    y = rng.permutation(np.arange(nodes) % classes)
    sources = rng.integers(nodes, size=round(nodes * degree / 2))
    same, draw = rng.random(len(sources)) < homophily, rng.random(len(sources))
    members = [np.flatnonzero(y == label) for label in range(classes)]
    others = [np.concatenate([*members[:label], *members[label + 1 :]]) for label in range(classes)]
    destinations = np.empty_like(sources)
    for label in range(classes):
        for chosen, among in ((same, members[label]), (~same, others[label])):
            mine = (y[sources] == label) & chosen
            destinations[mine] = among[(draw[mine] * len(among)).astype(np.int64)]
    x = rng.standard_normal((nodes, features), dtype=np.float32)
    x += rng.standard_normal((classes, features), dtype=np.float32)[y]
    split = split_per_class(y, classes, rng)
    fields = {"x": x, "y": y, "classes": classes, **split}
    return from_edges(
        sources, destinations, nodes, name="sbm", symmetric=True, drop_self_loops=True, **fields
    )


@pytest.mark.parametrize("degree", [7.3, 2100.0])
def test_sbm_is_what_numpy_draws(degree, seed):
    """Graphs of before edges came in blocks, bit for bit."""
    options = {"classes": 3, "features": 5, "degree": degree, "homophily": 0.6, "seed": seed}
    same_graph(numpy_sbm(1100, **options), sbm(1100, **options))


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: rmat(8, 8, seed, features=4, classes=2),
        lambda seed: sbm(300, classes=3, features=4, degree=5, homophily=0.8, seed=seed),
    ],
    ids=["rmat", "sbm"],
)
def test_the_same_seed_gives_the_same_file(make, seed, path):
    def written(seed):
        write(path, make(seed), force=True)
        return path.read_bytes()

    assert written(seed) == written(seed) != written(seed + 1)


def test_the_draw_does_not_depend_on_the_machine():
    """What seed 7 gave when this was written: a change of the order of draws would change users' graphs."""
    graph = rmat(5, 4, 7)
    assert graph.indptr[[1, 8, 16, 32]].tolist() == [3, 26, 52, 130]
    assert graph.indices[:8].tolist() == [10, 22, 23, 17, 24, 17, 4, 6]


def test_parameters_that_make_no_graph(seed):
    block_model = {"nodes": 50, "classes": 2, "features": 1, "degree": 1, "homophily": 0.5, "seed": seed}
    for wrong in [
        lambda: rmat(4, 4, seed, a=0.9, b=0.2),
        lambda: rmat(4, 4, seed, a=-0.1),
        lambda: rmat(41, 4, seed),
        lambda: rmat(4, -1, seed),
        *(
            lambda changed=changed: sbm(**block_model | changed)
            for changed in ({"nodes": 5}, {"classes": 0}, {"homophily": 1.5}, {"degree": -1})
        ),
    ]:
        with refused(r"expected|must not"):
            wrong()


@pytest.mark.parametrize(
    ("rows", "row_bytes", "step"), [(10, 1 << 20, 4), (8, 1 << 20, 4), (3, 5 << 20, 1), (0, 8, 1)]
)
def test_pieces_of_4_mib_are_all_rows_once(rows, row_bytes, step):
    assert list(spans(rows, row_bytes)) == [(low, min(low + step, rows)) for low in range(0, rows, step)]
