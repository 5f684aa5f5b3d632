"""Partitioners: every row has a part, parts are balanced as stated, and far fewer edges are cut than by chance."""

from __future__ import annotations

import itertools
import sys
from types import SimpleNamespace

import cases
import numpy as np
import pytest
import reference

from mgg_hpc import _graph
from mgg_hpc.data.generate import sbm
from mgg_hpc.data.graph import csr_from_edges
from mgg_hpc.errors import InputError
from mgg_hpc.plan import partitioners
from mgg_hpc.plan.partitioners import SLACK, SliceOfRows, SymmetricEdges, check_memory, checked, ldg, metis


def pattern_of(indptr, indices, cut: int = 3) -> SymmetricEdges:
    """A pattern given in ``cut`` slices."""
    ends = np.unique(np.linspace(0, len(indptr) - 1, cut + 1).astype(int))

    def slices():
        for first, last in itertools.pairwise(ends):
            low, high = indptr[first], indptr[last]
            yield SliceOfRows(int(first), indptr[first : last + 1] - low, indices[low:high])

    return SymmetricEdges(len(indices), np.diff(indptr) + 1, slices)


def symmetric(source, destination, nodes):
    return csr_from_edges(source, destination, nodes, symmetric=True)[:2]


def halo_rows(indptr, indices, part) -> int:
    """Pairs of a part and a row of another one that it needs."""
    source, row = reference.edge_list(indptr, indices)
    far = part[source] != part[row]
    return len(np.unique(np.stack([part[row[far]], source[far]]), axis=1).T)


def hard_cases(rng):
    yield "fewer nodes than parts", symmetric([0, 1], [1, 2], 3)
    halves = np.concatenate([rng.integers(0, 30, (2, 80)), rng.integers(30, 60, (2, 80))], axis=1)
    yield "disconnected", symmetric(*halves, 70)
    yield "star", symmetric(np.zeros(60, np.int64), np.arange(1, 61), 61)
    yield "copies of edges", csr_from_edges([0, 1, 0, 1, 2, 2], [1, 0, 1, 0, 2, 2], 4)[:2]
    for name, case in cases.CASES.items():
        made = case(rng, 3)
        yield name, symmetric(*made.edge_list, made.nodes)


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
            assert load.max() <= max((1 + SLACK) * mean + 1, mean + pattern.weight.max()), name


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
    assert halo_rows(indptr, indices, ldg(pattern, 4)) <= halo_rows(indptr, indices, pattern.ranges(4))


def test_metis_gets_neither_self_loops_nor_copies(rng, monkeypatch):
    given = []
    taken = SimpleNamespace(
        Options=lambda **options: options,
        CSRAdjacency=lambda *arrays: given.extend(arrays),
        part_graph=lambda *_, **__: SimpleNamespace(vertex_part=[0] * 12),
    )
    monkeypatch.setitem(sys.modules, "pymetis", taken)
    ends = rng.integers(0, 12, (2, 60))
    indptr, indices, _ = csr_from_edges(*np.concatenate([ends, ends[::-1], ends, ends[::-1]], axis=1), 12)
    metis(pattern_of(indptr, indices), 3)
    found = zip(*map(np.ndarray.tolist, reference.edge_list(*map(np.asarray, given))), strict=True)
    edges = zip(*map(np.ndarray.tolist, reference.edge_list(indptr, indices)), strict=True)
    assert sorted(found) == sorted({(u, v) for u, v in edges if u != v})


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
    np.testing.assert_array_equal(rows, order[np.argsort(part[order], kind="stable")])
    assert bounds.tolist() == [sum(part < each) for each in range(6)]


@pytest.mark.parametrize(
    ("said", "call"),
    [
        ("some edge has no reverse", lambda: metis(pattern_of(*csr_from_edges([0], [1], 9)[:2]), 2)),
        ("metis takes up to .* more by --memory, or use ldg$", lambda: check_memory("metis", 9, 3, 100)),
        ("ldg takes up to .* or use edges$", lambda: check_memory("ldg", 9, 3, 100)),
        (r"a.npy is float64 \[9\]; expected .* integers \[9\]", lambda: checked("a.npy", np.zeros(9), 9, 2)),
        (
            r"a.npy: row 4 has the part 2; expected 0 .. 1$",
            lambda: checked("a.npy", np.array([0, 1, 0, 1, 2, -1]), 6, 2),
        ),
    ],
)
def test_what_cannot_be_done_is_said(said, call):
    with pytest.raises(InputError, match=said):
        call()


def test_without_metis_what_to_install_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(InputError, match=r"needs pymetis; install it with `pip install mgg-hpc\[metis\]`$"):
        metis(pattern_of(*symmetric([0], [1], 9)), 2)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"first": wrong} for wrong in (1, -1)),
        *({"indptr": wrong} for wrong in ((0, 2), (0, 2, 1))),
        *({"indices": wrong} for wrong in ((1, 2), (-1, 0))),
        {"capacity": 0},
        {"load": ()},
        *({"part": wrong} for wrong in ((0, 2), (0, -2), (2, 0), (-2, 0))),
        {"first": 1, "part": (9, 0, 0)},
    ],
)
def test_the_native_module_refuses_what_is_no_csr(wrong):
    def call(first=0, indptr=(0, 1, 2), indices=(1, 0), weight=(1, 1), capacity=9, load=(1, 1), part=(0, 1)):
        arrays = np.array(indptr, np.int64), np.array(indices, np.int32), np.array(weight, np.int64)
        _graph.stream_rows(first, *arrays, capacity, np.array(load, np.int64), np.array(part, np.int32))

    call()
    call(part=(0, 1, 9))  # of a row that these have nothing to do with: it is not read for each slice
    with pytest.raises(ValueError, match="partition: "):
        call(**wrong)
