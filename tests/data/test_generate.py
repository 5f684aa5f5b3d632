"""Generated graphs are what NumPy, networkx and their formulas draw; files follow the seed, not the machine."""

from __future__ import annotations

import re
from math import nan
from pathlib import Path

import networkx
import numpy as np
import pytest
from command import mgg, refused
from jobs import python
from scipy import stats
from scipy.sparse import csr_array

from mgg_hpc.data import native
from mgg_hpc.data.generate import draw_grid, draw_like, draw_rmat, draw_sbm, draw_uniform, rmat, sbm
from mgg_hpc.data.generate.degrees import Degrees, alias
from mgg_hpc.data.generate.drawn import counter, key_of
from mgg_hpc.data.generate.like import SHAPES
from mgg_hpc.data.graph import Graph, from_edges, masks, split_per_class
from mgg_hpc.data.verify import ArraySource, check
from mgg_hpc.data.writer import write

from .graphs import edge_set, rows_of_edges, same_graph
from .graphs import refused as not_drawn

UNLIKELY = 1e-7  # a test of a right generator fails this often


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
    options = {"symmetric": symmetric, "drop_duplicates": True, "drop_self_loops": True}
    fields = {"name": f"rmat{scale}", "x": x, "y": y, "classes": classes, **split}
    return from_edges(names[sources], names[destinations], 1 << scale, **options, **fields)


@pytest.mark.parametrize("scale, factor", [(0, 3), (1, 1), (7, 5), (12, 300)])
@pytest.mark.parametrize("quarters", [(0.57, 0.19, 0.19), (0.25, 0.25, 0.5), (0.1, 0.0, 0.3)])
def test_rmat_is_what_numpy_draws(scale, factor, quarters, seed):
    """Graphs of before there was native code, bit for bit: blocks that are full, and last ones of odd lengths.

    Features, too, come in pieces, of 4 MiB.
    """
    options = {"symmetric": scale % 2 == 0, "features": 600 if scale == 12 else 3, "classes": 4}
    expected = numpy_rmat(scale, factor << scale, seed, *quarters, **options)
    same_graph(expected, rmat(scale, factor, seed, **dict(zip("abc", quarters, strict=True)), **options))


def numpy_sbm(nodes, classes, features, degree, homophily, seed) -> Graph:
    """The graph as NumPy alone draws it, one Generator from the labels to the split."""
    rng = np.random.Generator(np.random.Philox(seed))
    y = rng.permutation(np.arange(nodes) % classes)
    sources = rng.integers(nodes, size=round(nodes * degree / 2))
    same, draw = rng.random(len(sources)) < homophily, rng.random(len(sources))
    same |= classes == 1
    members = [np.flatnonzero(y == label) for label in range(classes)]
    others = [np.concatenate([*members[:label], *members[label + 1 :], y[:0]]) for label in range(classes)]
    destinations = np.empty_like(sources)
    for label in range(classes):
        for chosen, among in ((same, members[label]), (~same, others[label])):
            mine = (y[sources] == label) & chosen
            destinations[mine] = among[(draw[mine] * len(among)).astype(np.int64)]
    x = rng.standard_normal((nodes, features), dtype=np.float32)
    x += rng.standard_normal((classes, features), dtype=np.float32)[y]
    third = nodes // classes // 3
    split = split_per_class(y, classes, rng, train=min(20, third), val=min(30, third))
    fields = {"name": "sbm", "x": x if features else None, "y": y, "classes": classes, **split}
    return from_edges(sources, destinations, nodes, symmetric=True, drop_self_loops=True, **fields)


@pytest.mark.parametrize(
    "nodes, classes, features, degree",
    [
        (1100, 3, 5, 7.3),
        (1100, 3, 5, 2100.0),
        (200, 4, 2, 0.0),
        (50, 1, 1, 3.0),
        (7, 2, 0, 3.0),
        (12, 4, 0, 3.0),
    ],
)
def test_sbm_is_what_numpy_draws(nodes, classes, features, degree, seed):
    """Graphs of before edges came in blocks, bit for bit; small classes are split in thirds."""
    options = {"classes": classes, "features": features, "degree": degree, "homophily": 0.6, "seed": seed}
    same_graph(numpy_sbm(nodes, **options), sbm(nodes, **options))


def ends_of(blocks) -> np.ndarray:
    """Sources and destinations of all edges of a stream's blocks; int64 [2, E]."""
    return np.concatenate([np.stack([each.sources, each.destinations]) for each in blocks], axis=1)


@pytest.mark.parametrize("nodes", [1, 7, 300])
def test_uniform_ends_are_uniform_and_independent(nodes, seed):
    sources, destinations = ends_of(draw_uniform(nodes, 500_000, seed).imported.edges.blocks())
    assert len(sources) == 500_000
    pairs = np.bincount(sources.astype(np.int64) * nodes + destinations, minlength=nodes**2)
    assert len(pairs) == nodes**2
    if nodes > 1:
        assert stats.chisquare(pairs).pvalue > UNLIKELY


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


BLOCKS = {
    "rmat": (lambda seed: draw_rmat(12, 600, seed), 1 << 20),  # the size is a part of its formula
    "uniform": (lambda seed: draw_uniform(1000, 30_000, seed), 7_001),
    "like": (lambda seed: draw_like("papers100M", seed, scale=0.0002, features=0), 99_991),
    "grid": (lambda seed: draw_grid((40, 50), seed, periodic=True), 77),
}


@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks_of_any_size_give_the_same_edges_and_each_is_drawn_alone(kind, seed):
    draw, size = BLOCKS[kind]
    edges = draw(seed).imported.edges
    whole = ends_of(edges.blocks())
    edges.block = size
    parts = list(edges.blocks())
    found = ends_of(parts)
    if kind == "grid":  # a block has the edges along one axis after those along another
        whole, found = (ends[:, np.lexsort(ends)] for ends in (whole, found))
    np.testing.assert_array_equal(found, whole)
    np.testing.assert_array_equal(ends_of(edges.blocks(parts[1].mark)), ends_of(parts[2:]))


@pytest.mark.parametrize("count", [1, 2, 3, 100, 4096, 5000, 100_000])
def test_places_are_a_permutation(count, seed):
    """Eighths of many nodes are spread over eighths of the places, and neighbours do not stay together."""
    places, part = np.empty(count, np.int64), np.empty(count // 2, np.int64)
    native.load().places(count, seed, 0, places)
    assert np.array_equal(np.sort(places), np.arange(count))
    native.load().places(count, seed, count - count // 2, part)
    assert np.array_equal(part, places[count - count // 2 :])
    if count == 100_000:
        counts = np.bincount(np.arange(count) * 8 // count * 8 + places * 8 // count, minlength=64)
        assert stats.chisquare(counts).pvalue > UNLIKELY
        assert (np.abs(np.diff(places)) < 100).mean() < 0.01


RMAT = {"scale": 4, "edge_factor": 4}
MODEL = {"nodes": 50, "classes": 2, "features": 1, "degree": 1, "homophily": 0.5}
LIKE = {"name": "reddit"}
NO_GRAPHS = [
    (draw_rmat, RMAT | {"scale": 41}, "scale 41 and edge factor 4: expected 0"),
    (draw_rmat, RMAT | {"edge_factor": -1}, "edge factor -1: expected 0"),
    (draw_rmat, RMAT | {"a": 0.9, "b": 0.2}, "a=0.9, b=0.2, c=0.19 must not be negative nor sum to more than 1"),
    (draw_rmat, RMAT | {"a": nan}, "a=nan, .* must not be"),
    (draw_uniform, {"nodes": 0, "edges": 3}, "0 nodes and 3 edges: expected"),
    (draw_uniform, {"nodes": 5, "edges": -1}, "5 nodes and -1 edges: expected"),
    (draw_grid, {"sides": (3, 0)}, "a mesh of 3 x 0 nodes: expected"),
    (draw_sbm, MODEL | {"nodes": 5}, "5 nodes of 2 classes: expected"),
    (draw_sbm, MODEL | {"classes": 0}, "50 nodes of 0 classes: expected"),
    (draw_sbm, MODEL | {"homophily": nan}, "homophily nan, .* expected"),
    (draw_sbm, MODEL | {"degree": -1}, "degree -1, .* nothing negative"),
    (draw_sbm, MODEL | {"degree": 1e308}, r"degree 1e\+308, .* fewer than 2\*\*63 edges"),
    (draw_like, LIKE | {"name": "facebook"}, "expected one of reddit, products"),
    (draw_like, LIKE | {"scale": 0.001}, "has 233 nodes, too few for 41 classes and a mean degree of 492"),
    (draw_like, LIKE | {"scale": nan}, "expected a number above 0"),
    (draw_like, LIKE | {"scale": 1e308}, r"has more than 2\*\*40 nodes"),
]  # fmt: skip


@pytest.mark.parametrize(("draw", "options", "reason"), NO_GRAPHS)
def test_parameters_that_make_no_graph(draw, options, reason, seed):
    with not_drawn(reason):
        draw(**options, seed=seed)


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


# --- graphs like well-known ones have their counts, degrees, splits and labels

SCALES = {
    "reddit": 0.02,
    "products": 0.01,
    "proteins": 0.04,
    "orkut": 0.005,
    "enwiki": 0.02,
    "papers100M": 0.002,
}


@pytest.mark.parametrize("name", SHAPES)
def test_counts_are_those_of_the_original(name, seed):
    shape, scale = SHAPES[name], SCALES[name]
    graph = draw_like(name, seed, scale=scale, features=3).graph()
    check(ArraySource(graph))
    stored = shape.edges * (1 if shape.directed else 2)
    assert graph.nodes == round(shape.nodes * scale)
    assert abs(graph.edges / (stored * scale) - 1) < 0.015
    assert graph.directed == shape.directed and graph.features == 3
    assert graph.classes == (shape.tasks or shape.classes) and graph.multilabel == (shape.tasks > 0)
    split = [mask.sum() for mask in (graph.train, graph.val, graph.test)]
    expected = shape.split or (shape.nodes / 2, shape.nodes / 4, shape.nodes / 4)
    assert np.abs(np.array(split) - np.array(expected) * scale).max() <= 1.5
    if not shape.tasks:
        labelled = graph.y >= 0
        assert labelled.sum() == sum(split) and set(np.unique(graph.y[labelled])) == set(range(shape.classes))


@pytest.mark.parametrize("name", ["products", "orkut", "papers100M"])
def test_degrees_follow_the_fitted_distribution(name, seed):
    """Quantiles and the largest degrees, of in- and out-degrees; a drawn degree is Poisson about what is expected."""
    shape = SHAPES[name]
    graph = draw_like(name, seed, scale=SCALES[name], features=0).graph()
    assert graph.x is None
    fits = [(np.diff(graph.indptr), Degrees(shape.nodes, shape.mean, shape.maximum, shape.median))]
    if shape.directed:
        out = np.bincount(graph.indices, minlength=graph.nodes)
        fits.append((out, Degrees(shape.nodes, shape.mean, shape.out_maximum)))
    for degrees, fit in fits:
        expected = fit.quantile((np.arange(graph.nodes) + 0.5) / graph.nodes)
        expected *= shape.mean / expected.mean()
        found = np.sort(degrees)[::-1]
        for rank in (0, 1, 5, 20, graph.nodes // 100, graph.nodes // 10):
            assert abs(found[rank] / expected[rank] - 1) < 0.03 + 5 / np.sqrt(expected[rank]), rank
        assert abs(np.median(degrees) - np.median(expected)) <= 1 + 0.03 * np.median(expected)


@pytest.mark.parametrize(
    "degrees",
    [Degrees(100_000, 50, 5000), Degrees(1_000_000, 80, 30_000, 45), Degrees(4_000_000, 24, 400_000, 8)],
)
def test_a_fit_has_the_mean_median_and_maximum(degrees):
    """By the quantiles of all nodes one by one."""
    values = degrees.quantile((np.arange(0, degrees.nodes, 10) + 5) / degrees.nodes)
    top = degrees.quantile((np.arange(2000) + 0.5) / degrees.nodes)
    mean = (10 * values[200:].sum() + top.sum()) / degrees.nodes
    assert mean == pytest.approx(degrees.mean, rel=0.005)
    assert top[0] == pytest.approx(degrees.maximum) and top.max() == top[0]
    if degrees.median:
        assert degrees.quantile(np.array([0.5]))[0] == pytest.approx(degrees.median)
    assert (np.diff(values) <= 0).all()


def test_labels_features_and_neighbours_belong_together(seed):
    graph = draw_like("products", seed, scale=0.02, features=32).graph()
    same = (graph.y[rows_of_edges(graph.indptr)] == graph.y[graph.indices]).mean()
    assert 0.7 < same < 0.81  # hubs have more neighbours than their class has nodes
    means = np.stack([graph.x[graph.y == label].mean(axis=0) for label in range(graph.classes)])
    assert abs((graph.x - means[graph.y]).std() - 1) < 0.02

    def guessed(x: np.ndarray) -> float:
        distance = (means**2).sum(axis=1) - 2 * x @ means.T
        return float((distance.argmin(axis=1) == graph.y).mean())

    # A node's features alone tell little of its class, its neighbourhood's mean most: what a GCN learns.
    shape = (graph.nodes, graph.nodes)
    sums = csr_array((np.ones(graph.edges, np.float32), graph.indices, graph.indptr), shape) @ graph.x
    around = (graph.x + sums) / (np.diff(graph.indptr)[:, None] + 1)
    assert guessed(graph.x) < 0.5
    assert guessed(around) > 0.8


def test_several_labels_follow_from_the_community(seed):
    graph = draw_like("proteins", seed, scale=0.04).graph()
    assert graph.y.shape == (graph.nodes, 112) and set(np.unique(graph.y)) == {0.0, 1.0}
    # Two nodes of one community agree in 0.9**2 + 0.1**2 of the tasks, others in half of them.
    agree = (graph.y[:300, None] == graph.y[None, :300]).mean(axis=2)[np.triu_indices(300, 1)]
    assert abs(np.median(agree[agree > 0.68]) - 0.82) < 0.02
    assert abs(np.median(agree[agree < 0.68]) - 0.5) < 0.03
    assert abs((agree > 0.68).mean() - 1 / 16) < 0.01


@pytest.mark.parametrize("count", [1, 2, 37, 400])
def test_alias_tables_have_their_masses(count, rng):
    mass = rng.random(count) ** 4 * (rng.random(count) < 0.8)
    mass[0] = 0.5
    limit, other = alias(mass)
    kept = (limit.astype(np.float64) + 1) / 2**64
    shares = kept + np.bincount(other, weights=1 - kept, minlength=count)
    np.testing.assert_allclose(shares / count, mass / mass.sum(), atol=1e-12)


def test_edges_fall_on_columns_as_their_masses_say(seed, rng):
    """One class, a row a column, nothing of the rest of the model: the native sampler alone, and its classes."""
    mass = rng.random(60)
    limit, other = alias(mass)
    rows, ones = np.arange(60), np.ones(60, np.int64)
    sources, destinations = np.empty((2, 300_000), np.int32)
    words = np.array([seed, 5, 7, 9], dtype=np.uint64)
    table = (limit, other, *alias(rng.random(60)), limit, other, rows, ones)
    native.load().class_edges(words[:2], words, 0, 60, 1, 0, words[:2], [table], sources, destinations)
    places = np.empty(60, np.int64)
    native.load().places(60, seed, 0, places)
    pairs = np.bincount(places[sources] * 60 + places[destinations], minlength=3600)
    expected = np.outer(mass, mass).reshape(-1)
    assert stats.chisquare(pairs, expected * pairs.sum() / expected.sum()).pvalue > UNLIKELY


# --- mgg generate

FILES = {
    "rmat --scale 12 --features 3 --classes 2": lambda: draw_rmat(12, 16, 0, features=3, classes=2),
    "rmat --scale 9 --edge-factor 5 --directed --probabilities 0.3 0.1 0.2": lambda: draw_rmat(
        9, 5, 0, a=0.3, b=0.1, c=0.2, symmetric=False
    ),
    "uniform --nodes 3000 --edges 20000 --classes 3 --directed": lambda: draw_uniform(
        3000, 20_000, 0, classes=3, symmetric=False
    ),
    "grid --rows 13 --columns 7 --depth 5 --periodic --features 2": lambda: draw_grid(
        (13, 7, 5), 0, periodic=True, features=2
    ),
    "sbm --nodes 900 --features 8 --classes 3 --degree 9.5 --homophily 0.8": lambda: draw_sbm(
        900, features=8, classes=3, degree=9.5, homophily=0.8, seed=0
    ),
    "like PROTEINS --scale 0.037": lambda: draw_like("proteins", 0, scale=0.037),
}


@pytest.mark.parametrize("command", FILES)
def test_files_have_the_graph_in_memory_with_any_threads_and_memory(command, here, capsys):
    graph = FILES[command]().graph()
    assert graph.directed == ("--directed" in command)
    write("whole.h5", graph)
    words = ["generate", *command.split(), "-o"]
    done = python("-m", "mgg_hpc", *words, "one.h5", folder=here, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert mgg(*words, "small.h5", "--memory", "300M") == 0
    whole, one, small = (Path(name).read_bytes() for name in ("whole.h5", "one.h5", "small.h5"))
    assert whole == one == small
    assert mgg("verify", "one.h5") == 0
    if not command.startswith("grid"):
        assert mgg(*words, "other.h5", "--seed", "1") == 0
        assert Path("other.h5").read_bytes() != whole


@pytest.mark.parametrize(
    "arguments, reason",
    [
        ("rmat --scale 35 --memory 4G", "takes 256.0 GiB for its nodes and 256.0 MiB or more"),
        ("uniform --nodes 9 --edges 1000000000000000", "TiB on disk; "),
        ("uniform --nodes 9 --edges 9 --memory 100M", "give --memory 256M or more, or draw a smaller graph"),
        ("rmat --scale x", "'x' is not a valid integer range"),
        ("like facebook", "'facebook' is not one of"),
    ],
)
def test_arguments_that_make_no_graph(arguments, reason, here, capsys):
    assert reason in refused(capsys, "generate", *arguments.split(), "-o", "g.h5")


def test_the_memory_that_a_message_names_would_do(here, capsys):
    arguments = ["rmat", "--scale", "9", "-o", "g.h5", "--memory"]
    [memory] = re.findall(r"give --memory (\d+M)", refused(capsys, "generate", *arguments, "256M"))
    assert mgg("generate", *arguments, memory) == 0
