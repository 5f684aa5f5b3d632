"""Graphs like well-known ones have their counts, degrees, splits and labels."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.sparse import csr_array

from mgg_hpc.data import generate, native, schema
from mgg_hpc.data.generate import draw_like
from mgg_hpc.data.generate.alias import alias, table_of
from mgg_hpc.data.generate.degrees import Degrees
from mgg_hpc.data.generate.shapes import SHAPES
from mgg_hpc.data.structure import ArraySource, check

from ..graphs import refused

SCALES = {
    "reddit": 0.02,
    "products": 0.01,
    "proteins": 0.04,
    "orkut": 0.005,
    "enwiki": 0.02,
    "papers100M": 0.002,
}


@pytest.fixture
def seed(rng) -> int:
    return int(rng.integers(2**31))


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
    rows = np.repeat(np.arange(graph.nodes), np.diff(graph.indptr))
    same = (graph.y[rows] == graph.y[graph.indices]).mean()
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
    kinds = np.unique(
        (graph.y @ graph.y[:400].T * 2 - graph.y.sum(1)[:, None] - graph.y[:400].sum(1)).argmax(axis=1)
    )
    assert len(kinds) > 100  # noise makes rows differ
    # Two nodes of one community agree in 0.9**2 + 0.1**2 of the tasks, others in half of them.
    agree = (graph.y[:300, None] == graph.y[None, :300]).mean(axis=2)[np.triu_indices(300, 1)]
    assert (
        abs(np.median(agree[agree > 0.68]) - 0.82) < 0.02 and abs(np.median(agree[agree < 0.68]) - 0.5) < 0.03
    )
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
    assert stats.chisquare(pairs, expected * pairs.sum() / expected.sum()).pvalue > 1e-7


def test_any_block_size_gives_the_same_edges(seed):
    edges = draw_like("papers100M", seed, scale=0.0002, features=0).imported.edges
    whole = list(edges.blocks())
    edges.block = 99_991
    parts = list(edges.blocks())
    assert len(parts) > len(whole)
    for end in ("sources", "destinations"):
        one, other = (np.concatenate([getattr(each, end) for each in blocks]) for blocks in (whole, parts))
        np.testing.assert_array_equal(one, other)


def test_features_may_be_left_out(seed):
    assert schema.X not in draw_like("proteins", seed, scale=0.04, features=0).imported.rows


def test_graphs_that_there_is_no_room_for(seed):
    with refused("expected one of reddit, products"):
        draw_like("facebook", seed)
    with refused("has 233 nodes, too few for 41 classes and a mean degree of 492"):
        draw_like("reddit", seed, scale=0.001)
    for scale in (0.0, -1.0, float("nan"), float("inf")):
        with refused("expected a number above 0"):
            generate.draw_like("reddit", seed, scale=scale)


@pytest.mark.parametrize("classes", [1, 2, 7])
@pytest.mark.parametrize("nodes", [7, 8, 20, 1000, 12345])
def test_each_row_of_a_class_is_in_one_column_of_its_table(nodes, classes):
    *_, first, sizes = table_of(nodes, classes, lambda ranks: (1 / ranks, np.ones(len(ranks))))
    for label, (starts, counts) in enumerate(
        zip(first.reshape(classes, -1), sizes.reshape(classes, -1), strict=True)
    ):
        rows = [start + np.arange(count) for start, count in zip(starts, counts, strict=True)]
        wanted = np.arange(len(range(label, nodes, classes)))
        np.testing.assert_array_equal(np.concatenate(rows), wanted)
        assert (starts >= 0).all() and (starts < len(wanted)).all()
