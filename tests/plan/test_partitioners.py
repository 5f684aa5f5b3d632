"""Partitioners: every row has a part, parts are balanced as stated, and far fewer edges are cut than by chance."""

from __future__ import annotations

import itertools
import sys

import cases
import numpy as np
import pytest
import reference

from mgg_hpc import _graph
from mgg_hpc.data.generate import sbm
from mgg_hpc.data.graph import csr_from_edges
from mgg_hpc.errors import InputError
from mgg_hpc.plan import partitioners
from mgg_hpc.plan.partitioners import Pattern, SliceOfRows, ldg, metis


def pattern_of(indptr, indices, cut: int = 3) -> Pattern:
    """A pattern given in ``cut`` slices."""
    ends = np.unique(np.linspace(0, len(indptr) - 1, cut + 1).astype(int))

    def slices():
        for first, last in itertools.pairwise(ends):
            low, high = indptr[first], indptr[last]
            yield SliceOfRows(int(first), indptr[first : last + 1] - low, indices[low:high])

    return Pattern(len(indices), np.diff(indptr) + 1, slices)


def symmetric(source, destination, nodes):
    return csr_from_edges(source, destination, nodes, symmetric=True)[:2]


def halo_rows(indptr, indices, part) -> int:
    """Pairs of a part and a row of another one that it needs, counted edge by edge."""
    return len(
        {
            (part[v], u)
            for u, v in zip(*reference.edge_list(indptr, indices), strict=True)
            if part[u] != part[v]
        }
    )


def hard_cases(rng):
    yield "no edges", (np.zeros(8, np.int64), np.zeros(0, np.int32))
    yield "one node", (np.zeros(2, np.int64), np.zeros(0, np.int32))
    yield "a self loop", (np.array([0, 1]), np.zeros(1, np.int32))
    yield "fewer nodes than parts", symmetric([0, 1], [1, 2], 3)
    hub = np.zeros(60, np.int64), np.arange(1, 61)
    yield "hub", symmetric(*hub, 61)
    halves = np.concatenate([rng.integers(0, 30, (2, 80)), rng.integers(30, 60, (2, 80))], axis=1)
    yield "disconnected", symmetric(*halves, 70)
    indptr, indices, _ = csr_from_edges([0, 1, 0, 1, 2, 2], [1, 0, 1, 0, 2, 2], 4)
    yield "copies of edges", (indptr, indices)
    for name, case in cases.CASES.items():
        made = case(rng, 3)
        yield name, symmetric(*reference.edge_list(made.indptr, made.indices), made.nodes)


@pytest.mark.parametrize("parts", [1, 2, 5])
@pytest.mark.parametrize("method", partitioners.FOUND)
def test_hard_cases_are_divided_and_balanced(rng, method, parts):
    for name, (indptr, indices) in hard_cases(rng):
        pattern = pattern_of(indptr, indices)
        part = partitioners.FOUND[method](pattern, parts)
        assert part.dtype == np.int32 and part.shape == (pattern.nodes,), name
        assert ((part >= 0) & (part < parts)).all(), name
        np.testing.assert_array_equal(partitioners.FOUND[method](pattern, parts), part)
        load = np.bincount(part, pattern.weight, minlength=parts)
        mean = pattern.weight.sum() / parts
        if method == "ldg" and pattern.nodes:
            assert load.max() <= max((1 + ldg.SLACK) * mean + 1, mean + pattern.weight.max()), name


@pytest.mark.parametrize("method", partitioners.FOUND)
def test_communities_are_found_whatever_their_numbers(rng, method):
    graph = sbm(3000, classes=12, features=0, degree=10, homophily=0.8, seed=int(rng.integers(1000)))
    part = partitioners.FOUND[method](pattern_of(graph.indptr, graph.indices), 4)
    chance = halo_rows(graph.indptr, graph.indices, rng.permutation(part))
    assert halo_rows(graph.indptr, graph.indices, part) < 0.6 * chance


@pytest.mark.parametrize("method", partitioners.FOUND)
def test_parts_have_edges_alike_and_not_rows(rng, method):
    """Half of the edges are among a tenth of the rows."""
    dense, sparse = rng.integers(0, 100, (2, 3000)), rng.integers(100, 1000, (2, 3000))
    pattern = pattern_of(*symmetric(*np.concatenate([dense, sparse], axis=1), 1000))
    load = np.bincount(partitioners.FOUND[method](pattern, 3), pattern.weight)
    assert load.max() < 1.1 * load.mean()


def test_a_good_numbering_is_not_lost(rng):
    """Blocks numbered one after another, in each first the rows that have no edges among themselves."""
    size, blocks = 80, 20
    inside = [2 * size * k + rng.integers(0, size, (2, 600)) + [[0], [size]] for k in range(blocks)]
    nodes = 2 * size * blocks
    indptr, indices = symmetric(*np.concatenate([*inside, rng.integers(0, nodes, (2, 100))], axis=1), nodes)
    pattern = pattern_of(indptr, indices)
    assert halo_rows(indptr, indices, ldg.assign(pattern, 4)) <= halo_rows(indptr, indices, pattern.ranges(4))


def test_metis_gets_neither_self_loops_nor_copies(rng, monkeypatch):
    given = {}

    class Taken:
        Options = staticmethod(lambda **options: options)
        CSRAdjacency = staticmethod(lambda indptr, indices: given.update(indptr=indptr, indices=indices))

        @staticmethod
        def part_graph(parts, adjacency, **options):
            return type("Found", (), {"vertex_part": [0] * (len(given["indptr"]) - 1)})

    monkeypatch.setitem(sys.modules, "pymetis", Taken)
    ends = rng.integers(0, 12, (2, 60))
    indptr, indices, _ = csr_from_edges(*np.concatenate([ends, ends[::-1], ends, ends[::-1]], axis=1), 12)
    metis.assign(pattern_of(indptr, indices), 3)
    rows = np.repeat(np.arange(12), np.diff(given["indptr"])).tolist()
    assert list(zip(rows, given["indices"].tolist(), strict=True)) == sorted(
        {(v, u) for u, v in zip(*reference.edge_list(indptr, indices), strict=True) if u != v}
    )


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_greedy_places_rows_as_its_formula_says(rng, dtype):
    """Rows one by one in Python: most neighbours times the free share; ties to the lighter part, then the lower."""
    indptr, indices = symmetric(*rng.integers(0, 40, (2, 150)), 40)
    weight, parts, capacity = np.diff(indptr) + 1, 3, int(1.1 * (len(indices) + 40) / 3)
    wanted, load = rng.integers(-1, parts, 40).astype(np.int32), np.zeros(parts, np.int64)
    np.add.at(load, wanted[wanted >= 0], weight[wanted >= 0])
    found, loads = wanted.copy(), load.copy()
    moved, kept = _graph.stream_rows(0, indptr, indices.astype(dtype), weight, capacity, loads, found)
    before, stayed = wanted.copy(), 0
    for row in range(40):
        if wanted[row] >= 0:
            load[wanted[row]] -= weight[row]
        others = indices[indptr[row] : indptr[row + 1]]
        near = [sum(wanted[u] == part for u in others if u != row) for part in range(parts)]
        fits = [part for part in range(parts) if near[part] and load[part] + weight[row] <= capacity]
        scores = {part: near[part] * (1 - load[part] / capacity) for part in fits}
        best = min(
            (part for part in fits if scores[part] > 0),
            key=lambda part: (-scores[part], load[part], part),
            default=min(range(parts), key=lambda part: (load[part], part)),
        )
        wanted[row] = best
        load[best] += weight[row]
        stayed += near[best]
    assert (found.tolist(), loads.tolist()) == (wanted.tolist(), load.tolist())
    assert (moved, kept) == (np.count_nonzero(wanted != before), stayed)


def test_parts_become_ranges(rng):
    part = rng.integers(0, 5, 30)
    part[part == 3] = 4  # a part without rows
    order = rng.permutation(30)
    rows, bounds = partitioners.arranged(part, 5, order)
    wanted = [row for each in range(5) for row in order.tolist() if part[row] == each]
    assert rows.tolist() == wanted
    assert bounds.tolist() == [sum(part < each) for each in range(6)]


def test_what_cannot_be_done_is_said(rng, monkeypatch):
    indptr, indices, _ = csr_from_edges([0, 1, 2], [1, 2, 3], 9)
    with pytest.raises(InputError, match="some edge has no reverse"):
        metis.assign(pattern_of(indptr, indices), 2)
    with pytest.raises(InputError, match=r"method metis takes up to .* more by --memory, or use ldg$"):
        partitioners.check_memory("metis", 9, 3, 100)
    with pytest.raises(InputError, match=r"method ldg takes up to .* or use edges$"):
        partitioners.check_memory("ldg", 9, 3, 100)
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(InputError, match=r"needs pymetis; install it with `pip install mgg-hpc\[metis\]`$"):
        metis.assign(pattern_of(*symmetric([0], [1], 9)), 2)
    with pytest.raises(
        InputError, match=r"a.npy is float64 \[9\]; expected the part of each node, integers \[9\]"
    ):
        partitioners.checked("a.npy", np.zeros(9), 9, 2)
    with pytest.raises(InputError, match=r"a.npy: row 4 has the part 2; expected 0 .. 1$"):
        partitioners.checked("a.npy", np.array([0, 1, 0, 1, 2, -1]), 6, 2)


def test_the_native_module_refuses_what_is_no_csr():
    def call(first=0, indptr=(0, 1, 2), indices=(1, 0), weight=(1, 1), capacity=9, load=(1, 1), part=(0, 1)):
        arrays = np.array(indptr, np.int64), np.array(indices, np.int32), np.array(weight, np.int64)
        _graph.stream_rows(first, *arrays, capacity, np.array(load, np.int64), np.array(part, np.int32))

    call()
    wrong = [{"first": 1}, {"first": -1}, {"indptr": (0, 2)}, {"indptr": (0, 2, 1)}, {"indices": (1, 2)}]
    wrong += [{"indices": (-1, 0)}, {"capacity": 0}, {"load": ()}, {"part": (0, 2)}, {"part": (0, -2)}]
    wrong += [{"part": (2, 0)}, {"part": (-2, 0)}, {"first": 1, "part": (9, 0, 0)}]
    for arguments in wrong:
        with pytest.raises(ValueError, match="partition: "):
            call(**arguments)
    call(part=(0, 1, 9))  # of a row that these have nothing to do with: it is not read for each slice
