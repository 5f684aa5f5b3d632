"""The neighbour sampler against its definition, draw by draw, and against the exact distributions."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import reference
from scipy.stats import chi2

from mgg_hpc.runtime.sampler import Sampled, Sampler, shuffled

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


def check(indptr, indices, seeds, fanouts, *, seed=SEED, step=0, sampler=None, **more):
    """Compare a sample with the definition. more: weight, ids."""
    sampler = sampler or Sampler(indptr, indices, **more)
    got = sampler.sample(np.asarray(seeds), fanouts, seed=seed, step=step, edges=True)
    expected = reference.sample(indptr, indices, seeds, fanouts, seed=seed, step=step, **more)
    same(got, expected, weighted=more.get("weight") is not None)
    return got


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("fanouts", [[3, 2], [5, -1], [64], [65], [4, 1, 1], [-1, 6], []])
def test_draws_are_those_of_the_definition(rng, fanouts, weighted, dtype):
    indptr, indices = graph_of(hard_degrees(rng), dtype=dtype)
    some = rng.random(len(indices)) * (rng.random(len(indices)) < 0.8)
    more = {"weight": some.astype(np.float32)} if weighted else {}
    more["ids"] = rng.integers(0, 1 << 47, len(indptr) - 1)
    sampler = Sampler(indptr, indices, **more)
    for step, count in ((0, 7), (7, 1), (2**32 - 2, len(indptr) - 1)):
        seeds = rng.permutation(len(indptr) - 1)[:count]
        check(indptr, indices, seeds, fanouts, step=step, sampler=sampler, **more)


@pytest.mark.parametrize("fanout", [1, 64, 100, 256, 257, 999])
def test_large_fanouts(fanout):
    check(*graph_of([1000, 40, 0, 1500]), [3, 0, 1, 2], [fanout], step=9)


@pytest.mark.parametrize("fanout", [10, 200, 300])
def test_words_that_would_favour_some_neighbours_are_refused(fanout):
    """With 3e8 in-edges, which take no memory before they are written, one word in 45 is refused."""
    degree = 300_000_000
    given = np.array([0, degree]), np.zeros(degree, np.int32)
    sampler, refused = Sampler(*given), 0
    for step in range(1200 // fanout):
        check(*given, [0], [fanout], seed=1, step=step, sampler=sampler)
        counts = range(degree - fanout + 1, degree + 1)
        words = (reference.word(1, step + 1, 0xE000, 0, pick) for pick in range(fanout))
        refused += sum(drawn * n % 2**32 < 2**32 % n for drawn, n in zip(words, counts, strict=True))
    assert refused > 5


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_more_rows_than_there_was_room_for_are_told_apart(dtype):
    """A batch of 1,000 rows and more, from few seeds, by one sampler that makes several: the table of rows grows."""
    given = graph_of([6] * 3000, dtype=dtype)
    sampler = Sampler(*given)
    for step in range(2):
        got = check(*given, np.arange(8) + 100 * step, [6, 6, 5], step=step, sampler=sampler)
        assert len(got.nodes) > 1000


def test_one_node_and_none():
    for degree in (0, 1, 3):
        check(np.array([0, degree]), np.zeros(degree, np.int32), [0], [2, 2])
    nothing = np.zeros(0, np.int64)
    none = Sampler(np.zeros(1, np.int64), nothing.astype(np.int32)).sample(nothing, [3], seed=0, step=0)
    assert not len(none.nodes) and none.hops[0].indptr.tolist() == [0] and none.hops[0].edge is None
    got = Sampler(*graph_of([2, 2])).sample(nothing, [2, -1], seed=0, step=0)
    assert not len(got.nodes) and [hop.indptr.tolist() for hop in got.hops] == [[0], [0]]


# ---- distributions


def places_of_rows(count, degree, fanout, *, weight=None) -> tuple[np.ndarray, np.ndarray]:
    """Return the places that were drawn for each of ``count`` rows, ascending [count, fanout], and their factors."""
    indptr, indices = np.arange(count + 1) * degree, np.zeros(count * degree, np.int32)
    weights = None if weight is None else np.tile(np.asarray(weight, np.float32), count)
    sampler = Sampler(indptr, indices, weight=weights)
    (hop,) = sampler.sample(np.arange(count), [fanout], seed=SEED, step=3, edges=True).hops
    assert hop.edge is not None and (np.diff(hop.indptr) == fanout).all()
    places, factor = hop.edge.reshape(count, fanout) - indptr[:-1, None], hop.factor.reshape(count, -1)
    order = np.argsort(places, 1)
    factor = factor if weight is None else np.take_along_axis(factor, order, 1)
    return np.take_along_axis(places, order, 1), factor


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


def test_the_same_on_any_number_of_threads(rng):
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


@pytest.mark.parametrize(
    ("match", "given"),
    [
        ("seeds: .*3", {"seeds": [0, 3]}),
        ("seeds: .*-1", {"seeds": [-1]}),
        ("seeds: .*2.* twice", {"seeds": [2, 1, 2]}),
        *(("fanouts", {"fanouts": fanouts}) for fanouts in ([0], [-2], [3, 0])),
        ("hops", {"fanouts": [1] * 0x1001}),
        *(("step", {"step": step}) for step in (-1, 2**32 - 1)),
        *(("indptr", {"indptr": np.array(indptr, np.int64)}) for indptr in ([0, 2, 5], [])),
        ("weight: one for each", {"weight": np.ones(5, np.float32)}),
        *(("weight: neg", {"weight": np.float32([1, 0, bad, 1, 1, 1])}) for bad in (-1, np.nan, np.inf)),
        ("ids", {"ids": np.zeros(2, np.int64)}),
    ],
)
def test_refusals(match, given):
    indptr, indices = graph_of([2, 3, 1])
    call = {"seeds": [0, 2], "fanouts": (2,), "step": 0, "indptr": indptr} | given
    seeds, fanouts, step = (call.pop(name) for name in ("seeds", "fanouts", "step"))
    with pytest.raises(ValueError, match=match):
        Sampler(indices=indices, **call).sample(np.array(seeds), fanouts, seed=0, step=step)


# ---- the order of an epoch


def test_shuffled_by_the_definition(rng):
    ids = rng.integers(0, 1 << 47, 300)
    for epoch in (1, 2, 2**32 - 1):
        order = shuffled(ids, SEED, epoch)
        assert order.dtype == np.int64 and order.tolist() == reference.shuffled(ids, SEED, epoch)
        other = rng.permutation(300)  # the same nodes in the same order, wherever they are listed
        assert (ids[other][shuffled(ids[other], SEED, epoch)] == ids[order]).all()
    assert not len(shuffled(np.zeros(0, np.int64), 1, 1))
    assert shuffled(np.array([7]), 1, 1).tolist() == [0]
    for epoch in (0, 2**32):
        with pytest.raises(ValueError, match="epoch"):
            shuffled(ids, 0, epoch)
    order = shuffled(np.arange(200_000), 1, 1)  # of a large number: a permutation, by ascending words
    assert (np.sort(order) == np.arange(200_000)).all()
    keys = [reference.word(1, 1, 0xF000, int(node), 0) for node in order[::5000]]
    assert keys == sorted(keys)


def test_every_order_is_equally_likely():
    """Orders of four ids in 24,000 epochs."""
    ids, orders = np.array([10, 3, 2**40, 11]), list(itertools.permutations(range(4)))
    seen = [orders.index(tuple(shuffled(ids, 8, epoch))) for epoch in range(1, 24_001)]
    value = ((np.bincount(seen, minlength=24) - 1000) ** 2 / 1000).sum()
    assert LIKELY < chi2.sf(value, 23) < 1 - LIKELY
