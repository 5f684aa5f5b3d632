"""The neighbour sampler against its definition, draw by draw, and against the exact distributions."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import reference
from scipy.stats import chi2

from mgg_hpc.runtime.sampling.sampler import Sampled, Sampler, shuffled

SEED = 0x9E3779B97F4A7C15  # above 2^63
LIKELY = 1e-3  # the smallest probability of a chi-square value that passes; seeds are fixed


def graph_of(degrees: Iterable[int], dtype=np.int32):
    """Return (indptr, indices) with random sources: duplicates and self loops among them."""
    degrees = np.asarray(list(degrees), np.int64)
    indptr = np.append(0, np.cumsum(degrees))
    indices = np.random.default_rng(0).integers(0, len(degrees), indptr[-1])
    return indptr, indices.astype(dtype)


def hard_degrees(rng) -> list[int]:
    """Empty rows, rows around the fanouts, a hub with half the edges, and rows on both sides of 64."""
    few = [0, 0, 1, 2, 3, 4, 5, 6, 63, 64, 65, 66, 130, *rng.integers(0, 9, 60)]
    return [*few, int(sum(few))]


def same(sampled: Sampled, expected, *, weighted: bool) -> None:
    nodes, hops = expected
    assert sampled.nodes.dtype == np.int64 and sampled.nodes.tolist() == nodes
    assert len(sampled.hops) == len(hops)
    for hop, (indptr, indices, factor, edge) in zip(sampled.hops, hops, strict=True):
        assert (hop.indptr.dtype, hop.indices.dtype, hop.factor.dtype) == (np.int64, np.int32, np.float64)
        assert hop.indptr.tolist() == indptr and hop.indices.tolist() == indices
        assert hop.edge is not None and hop.edge.dtype == np.int64 and hop.edge.tolist() == edge
        if weighted:  # exp and log of two libraries
            np.testing.assert_allclose(hop.factor, factor, rtol=1e-12)
        else:
            assert hop.factor.tolist() == factor


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("fanouts", [[3, 2], [5, -1], [64], [65], [4, 1, 1], [-1, 6], []])
def test_draws_are_those_of_the_definition(fanouts, weighted, dtype):
    rng = np.random.default_rng(1)
    indptr, indices = graph_of(hard_degrees(rng), dtype=dtype)
    weight = (
        (rng.random(len(indices)) * (rng.random(len(indices)) < 0.8)).astype(np.float32) if weighted else None
    )
    ids = rng.integers(0, 1 << 47, len(indptr) - 1)
    sampler = Sampler(indptr, indices, weight=weight, ids=ids)
    for step, count in ((0, 7), (7, 1), (2**32 - 2, len(indptr) - 1)):
        seeds = rng.permutation(len(indptr) - 1)[:count]
        got = sampler.sample(seeds, fanouts, seed=SEED, step=step, edges=True)
        expected = reference.sample(
            indptr, indices, seeds, fanouts, seed=SEED, step=step, weight=weight, ids=ids
        )
        same(got, expected, weighted=weighted)


@pytest.mark.parametrize("fanout", [1, 64, 100, 256, 257, 999])
def test_large_fanouts(fanout):
    indptr, indices = graph_of([1000, 40, 0, 1500])
    got = Sampler(indptr, indices).sample(np.array([3, 0, 1, 2]), [fanout], seed=5, step=9, edges=True)
    same(got, reference.sample(indptr, indices, [3, 0, 1, 2], [fanout], seed=5, step=9), weighted=False)


@pytest.mark.parametrize("fanout", [10, 200, 300])
def test_words_that_would_favour_some_neighbours_are_refused(fanout):
    """With 3e8 in-edges, which take no memory before they are written, one word in 45 is refused."""
    degree = 300_000_000
    indptr, indices = np.array([0, degree]), np.zeros(degree, np.int32)
    sampler, refused = Sampler(indptr, indices), 0
    for step in range(1200 // fanout):
        got = sampler.sample(np.array([0]), [fanout], seed=1, step=step, edges=True)
        same(got, reference.sample(indptr, indices, [0], [fanout], seed=1, step=step), weighted=False)
        counts = range(degree - fanout + 1, degree + 1)
        words = (reference.word(1, step + 1, 0xE000, 0, pick) for pick in range(fanout))
        refused += sum(drawn * n % 2**32 < 2**32 % n for drawn, n in zip(words, counts, strict=True))
    assert refused > 5


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_more_rows_than_there_was_room_for_are_told_apart(dtype):
    """A batch of 1,000 rows and more, from few seeds, by one sampler that makes several: the table of rows grows."""
    indptr, indices = graph_of([6] * 3000, dtype=dtype)
    sampler = Sampler(indptr, indices)
    for step in range(2):
        seeds = np.arange(8) + 100 * step
        got = sampler.sample(seeds, [6, 6, 5], seed=SEED, step=step, edges=True)
        assert len(got.nodes) > 1000
        same(got, reference.sample(indptr, indices, seeds, [6, 6, 5], seed=SEED, step=step), weighted=False)


def test_one_node_and_none():
    for degree in (0, 1, 3):
        indptr, indices = np.array([0, degree]), np.zeros(degree, np.int32)
        got = Sampler(indptr, indices).sample(np.array([0]), [2, 2], seed=0, step=0, edges=True)
        same(got, reference.sample(indptr, indices, [0], [2, 2], seed=0, step=0), weighted=False)
    none = Sampler(np.zeros(1, np.int64), np.zeros(0, np.int32)).sample(
        np.zeros(0, np.int64), [3], seed=0, step=0
    )
    assert not len(none.nodes) and none.hops[0].indptr.tolist() == [0] and none.hops[0].edge is None
    got = Sampler(*graph_of([2, 2])).sample(np.zeros(0, np.int64), [2, -1], seed=0, step=0)
    assert not len(got.nodes) and [hop.indptr.tolist() for hop in got.hops] == [[0], [0]]


def test_all_neighbours_in_the_order_of_the_graph():
    rng = np.random.default_rng(3)
    indptr, indices = graph_of(hard_degrees(rng))
    seeds = rng.permutation(len(indptr) - 1)
    got = Sampler(indptr, indices).sample(seeds, [-1], seed=0, step=0)
    assert (got.nodes[: len(seeds)] == seeds).all() and (got.hops[0].factor == 1).all()
    for at, row in enumerate(seeds):
        of_row = got.hops[0].indices[got.hops[0].indptr[at] : got.hops[0].indptr[at + 1]]
        assert (got.nodes[of_row] == indices[indptr[row] : indptr[row + 1]]).all()


# ---- distributions


def places_of_rows(count, degree, fanout, *, weight=None, seed=SEED, step=3) -> tuple[np.ndarray, np.ndarray]:
    """Return the places that were drawn for each of ``count`` rows, ascending [count, fanout], and the factors."""
    indptr = np.arange(count + 1) * degree
    indices = np.zeros(count * degree, np.int32)
    weights = None if weight is None else np.tile(np.asarray(weight, np.float32), count)
    got = Sampler(indptr, indices, weight=weights).sample(
        np.arange(count), [fanout], seed=seed, step=step, edges=True
    )
    (hop,) = got.hops
    assert hop.edge is not None and (np.diff(hop.indptr) == fanout).all()
    places = hop.edge.reshape(count, fanout) - indptr[:-1, None]
    factor = hop.factor.reshape(count, -1)
    if weight is None:
        return np.sort(places, 1), factor
    order = np.argsort(places, 1)
    return np.take_along_axis(places, order, 1), np.take_along_axis(factor, order, 1)


def assert_sets(places, degree, probability) -> None:
    """Compare the numbers of rows that drew each set with their probabilities, {set: probability}."""
    seen = (1 << places).sum(1)
    counts = np.bincount(seen, minlength=1 << degree)
    sets = [sum(1 << place for place in each) for each in probability]
    assert counts[sets].sum() == len(places)
    expected = np.array(list(probability.values())) * len(places)
    assert expected.sum() == pytest.approx(len(places))
    value = ((counts[sets] - expected) ** 2 / expected).sum()
    assert LIKELY < chi2.sf(value, len(sets) - 1) < 1 - LIKELY


@pytest.mark.parametrize(("degree", "fanout"), [(7, 3), (12, 2), (9, 8), (5, 1)])
def test_every_set_of_neighbours_is_equally_likely(degree, fanout):
    """10^6 draws; sets of two are the pairs."""
    places, _ = places_of_rows(10**6 // fanout, degree, fanout)
    sets = list(itertools.combinations(range(degree), fanout))
    assert_sets(places, degree, dict.fromkeys(sets, 1 / len(sets)))


@pytest.mark.parametrize(
    ("degree", "fanout"), [(40, 15), (64, 63), (65, 64), (300, 10), (400, 100), (600, 300)]
)
def test_every_neighbour_is_equally_likely(degree, fanout):
    """10^6 draws; a row's draws differ from each other, which makes numbers vary (d - k) / (d - 1) times as much."""
    rows = 10**6 // fanout
    places, factor = places_of_rows(rows, degree, fanout)
    assert (np.diff(places, axis=1) > 0).all() and (factor == degree / fanout).all()
    expected = rows * fanout / degree
    value = ((np.bincount(places.ravel(), minlength=degree) - expected) ** 2).sum() / expected
    assert LIKELY < chi2.sf(value * (degree - 1) / (degree - fanout), degree - 1) < 1 - LIKELY


def test_steps_and_hops_and_seeds_draw_anew():
    """One row that leads to itself, in 2 x 5,000 steps of 2 hops: sets of a hop, and of the hops together."""
    sampler = Sampler(np.array([0, 4]), np.zeros(4, np.int32))
    drawn = []
    for seed, step in itertools.product((1, 2), range(5000)):
        hops = sampler.sample(np.array([0]), [1, 1], seed=seed, step=step, edges=True).hops
        drawn.append([hop.edge[0] for hop in hops])
    first, second = np.array(drawn).T
    pairs = dict.fromkeys(itertools.product(range(4), range(4, 8)), 1 / 16)
    assert_sets(np.stack([first, second + 4], 1), 8, pairs)
    assert_sets(np.stack([first[:5000], first[5000:] + 4], 1), 8, pairs)  # of two seeds
    assert_sets(np.stack([first[:-1], first[1:] + 4], 1), 8, pairs)  # of two steps


def successive(weight, fanout) -> dict[tuple[int, ...], float]:
    """Return the probability of each set: one after the other, by weight among those that are left."""
    total: dict[tuple[int, ...], float] = {}
    positive = [place for place, each in enumerate(weight) if each > 0]
    for order in itertools.permutations(positive, fanout):
        left, probability = float(sum(weight)), 1.0
        for place in order:
            probability *= weight[place] / left
            left -= weight[place]
        key = tuple(sorted(order))
        total[key] = total.get(key, 0.0) + probability
    return total


@pytest.mark.parametrize(
    ("weight", "fanout"), [([1, 2, 0, 3, 4, 10], 2), ([5, 1, 1, 0.25, 2, 0, 8], 3), ([1, 3], 1)]
)
def test_weighted_sets_are_as_likely_as_successive_draws(weight, fanout):
    """10^6 draws."""
    places, _ = places_of_rows(10**6 // fanout, len(weight), fanout, weight=weight)
    assert_sets(places, len(weight), successive(weight, fanout))


@pytest.mark.parametrize("weight", [None, [1, 2, 0, 3, 4, 10, 0.5]])
def test_factors_make_sums_unbiased(weight):
    """Means over 3e5 rows of sums over drawn edges, of two sets of values, within 4 standard errors."""
    degree, fanout, rows = 7, 3, 300_000
    places, factor = places_of_rows(rows, degree, fanout, weight=weight)
    held = np.ones(degree) if weight is None else (np.array(weight) > 0).astype(float)
    for values in (held, np.array([3.0, -1, 4, 1, -5, 9, 2]) * held):
        sums = (values[places] * factor).sum(1)
        error = sums.std() / rows**0.5
        assert abs(sums.mean() - values.sum()) <= 4 * error + 1e-9


# ---- threads, memory, errors


def test_the_same_on_any_number_of_threads():
    rng = np.random.default_rng(4)
    indptr, indices = graph_of(rng.integers(0, 40, 20_000))
    weight = rng.random(len(indices), np.float32)
    for sampler in (Sampler(indptr, indices), Sampler(indptr, indices, weight=weight)):

        def batch(step, sampler=sampler):
            seeds = np.random.default_rng(step).permutation(20_000)[: 40 * (step + 1)]
            got = sampler.sample(seeds, [7, 3], seed=1, step=step, edges=True)
            hops = [(hop.indptr, hop.indices, hop.factor, hop.edge) for hop in got.hops]
            return b"".join(part.tobytes() for part in (got.nodes, *itertools.chain(*hops)))

        alone = [batch(step) for step in range(24)]
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(batch, range(24))) == alone


def test_refusals():
    indptr, indices = graph_of([2, 3, 1])
    seeds = np.array([0, 2])

    def refused(match, *, at=seeds, fanouts=(2,), step=0, indptr=indptr, indices=indices, **arrays):
        with pytest.raises(ValueError, match=match):
            Sampler(indptr, indices, **arrays).sample(at, fanouts, seed=0, step=step)

    refused("seeds: .*3", at=np.array([0, 3]))
    refused("seeds: .*-1", at=np.array([-1]))
    refused("seeds: .*2.* twice", at=np.array([2, 1, 2]))
    for fanouts in ([0], [-2], [3, 0]):
        refused("fanouts", fanouts=fanouts)
    refused("hops", fanouts=[1] * 0x1001)
    for step in (-1, 2**32 - 1):
        refused("step", step=step)
    for epoch in (0, 2**32):
        with pytest.raises(ValueError, match="epoch"):
            shuffled(seeds, 0, epoch)
    refused("indptr", indptr=indptr[:-1])
    refused("indptr", indptr=np.zeros(0, np.int64))
    refused("weight: one for each", weight=np.ones(5, np.float32))
    for bad in (-1, np.nan, np.inf):
        refused("weight: neg", weight=np.array([1, 0, bad, 1, 1, 1], np.float32))
    refused("ids", ids=np.zeros(2, np.int64))


# ---- the order of an epoch


def test_shuffled_by_the_definition():
    rng = np.random.default_rng(5)
    ids = rng.integers(0, 1 << 47, 300)
    for epoch in (1, 2, 2**32 - 1):
        order = shuffled(ids, SEED, epoch)
        assert order.dtype == np.int64 and order.tolist() == reference.shuffled(ids, SEED, epoch)
        other = rng.permutation(300)  # the same nodes in the same order, wherever they are listed
        assert (ids[other][shuffled(ids[other], SEED, epoch)] == ids[order]).all()
    assert not len(shuffled(np.zeros(0, np.int64), 1, 1))
    assert shuffled(np.array([7]), 1, 1).tolist() == [0]


def test_every_order_is_equally_likely():
    """Orders of four ids in 24,000 epochs."""
    ids, orders = np.array([10, 3, 2**40, 11]), list(itertools.permutations(range(4)))
    seen = [orders.index(tuple(shuffled(ids, 8, epoch))) for epoch in range(1, 24_001)]
    value = ((np.bincount(seen, minlength=24) - 1000) ** 2 / 1000).sum()
    assert LIKELY < chi2.sf(value, 23) < 1 - LIKELY


def test_a_large_order_is_a_permutation():
    order = shuffled(np.arange(200_000), 1, 1)
    assert (np.sort(order) == np.arange(200_000)).all()
    keys = [reference.word(1, 1, 0xF000, int(node), 0) for node in order[::5000]]
    assert keys == sorted(keys)
