"""Grids of chunks: plans of destination intervals against all edges, and what passes load."""

from __future__ import annotations

from functools import lru_cache

import cases
import numpy as np
import pytest
from chunks.gridded import Gridded, cut

from mgg_hpc.plan.layout import OWNED, STREAMED
from mgg_hpc.plan.streaming import grid


@pytest.mark.parametrize("name", cases.CASES)
def test_plans_have_all_edges_in_the_order_of_their_chunks(rng, name):
    case = cases.CASES[name](rng, 1)
    made = Gridded(case, cut(case.nodes, 11), cut(case.nodes, 26))
    for target, plan in enumerate(made.plans):
        indptr, indices = made.part(target)
        assert (plan.chunks["kind"] == [OWNED] + [STREAMED] * (len(plan.chunks) - 1)).all()
        chunks = grid.chunks_of(plan)
        assert (np.diff(chunks) > 0).all() if target % 2 == 0 else (np.diff(chunks) < 0).all()
        first = np.append(0, made.sources[chunks])
        rows = np.repeat(np.arange(plan.destinations), np.diff(indptr))
        wanted, found = np.stack([rows, indices]), []
        for segment in plan.segments:
            edges = slice(int(segment["first_edge"]), int(segment["first_edge"] + segment["count"]))
            source = plan.indices[edges] + first[segment["chunk"]]
            np.testing.assert_array_equal(indices[plan.edge[edges]], source)
            found += [(segment["destination"], each) for each in source]
            last = first[segment["chunk"]] + plan.chunks["rows"][segment["chunk"]]
            assert ((source >= first[segment["chunk"]]) & (source < last)).all()
        order = np.lexsort(wanted[::-1])
        assert sorted(found) == [tuple(each) for each in wanted.T[order]]
        assert set(plan.segments["destination"]) == set(range(plan.destinations))


def fewest(chunk, slots, *, keeps_last):
    """Loads of the best of all sequences of replacements, by trying each."""

    @lru_cache(None)
    def best(step, held, last):
        if step == len(chunk):
            return 0
        each = chunk[step]
        if each in held:
            return best(step + 1, held, each)
        if len(held) < slots:
            return 1 + best(step + 1, held | {each}, each)
        goes = [old for old in held if not (keeps_last and old == last)]
        return 1 + min(best(step + 1, (held - {old}) | {each}, each) for old in goes)

    return best(0, frozenset(), -1)


def test_replacement_is_the_best_of_all(rng):
    for _ in range(150):
        slots = int(rng.integers(2, 5))
        calls = [rng.permutation(6)[: rng.integers(0, 6)] for _ in range(rng.integers(1, 5))]
        chunk = tuple(np.concatenate(calls).astype(int).tolist())
        sources = np.arange(7) * 10
        order = grid.passed(sources, calls, slots)
        assert order.loads.sum() == fewest(chunk, slots, keeps_last=True)
        assert grid.fewest_loads(np.array(chunk, np.int64), slots) == fewest(chunk, slots, keeps_last=False)
        held = {}
        for step, each in enumerate(chunk):  # the slots hold what the steps say
            if order.loads[step]:
                assert each not in held.values()
                assert step == 0 or order.slot[step] != order.slot[step - 1]
            else:
                assert held[order.slot[step]] == each
            held[order.slot[step]] = each
        assert order.slot.max(initial=0) < slots


def test_the_turn_reuses_what_is_held():
    """Ten chunks through four slots: the first interval loads all, the others what is not held at the turn."""
    calls = [grid.turned(target, 10) for target in range(5)]
    there_and_back = grid.passed(np.arange(11) * 64, calls, 4)
    assert there_and_back.loads.sum() == 10 + 4 * 6
    with pytest.raises(ValueError, match="two slots"):
        grid.passed(np.arange(11), calls, 1)


@pytest.mark.parametrize("name", cases.CASES)
def test_plans_of_cells_have_the_edges_of_their_cells(rng, name):
    case = cases.CASES[name](rng, 1)
    made = Gridded(case, cut(case.nodes, 11), cut(case.nodes, 26))
    for target in range(len(made.plans)):
        indptr, indices = made.part(target)
        rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        for chunk, plan in enumerate(grid.cell_plans(made.sources, indptr, indices, keep_edges=True)):
            low, high = made.sources[chunk], made.sources[chunk + 1]
            edges = np.flatnonzero((indices >= low) & (indices < high))
            assert sorted(plan.edge) == edges.tolist()
            assert grid.chunks_of(plan).tolist() == [chunk] * bool(len(edges))
            np.testing.assert_array_equal(plan.indices, indices[plan.edge] - low)
            found = np.repeat(plan.segments["destination"], plan.segments["count"])
            np.testing.assert_array_equal(found, rows[plan.edge])
            assert set(plan.segments["destination"]) == set(range(plan.destinations))


def test_a_plan_over_held_rows_has_the_same_edges(rng):
    case = cases.CASES["ordinary"](rng, 1)
    made = Gridded(case, cut(case.nodes, 11), cut(case.nodes, 26))
    indptr, indices = made.part(1)
    for plan in grid.cell_plans(made.sources, indptr, indices):
        held = grid.over_held_rows(plan, 3)
        assert held.rank == 3 and held.local_edges == held.edges == plan.edges
        assert held.chunks["rows"].tolist() == [plan.chunks["rows"].sum()]
        assert (np.diff(held.segments["destination"]) > 0).all() and (held.segments["chunk"] == 0).all()
        by_row = np.argsort(plan.segments["destination"])
        for name in ("first_edge", "count"):
            np.testing.assert_array_equal(held.segments[name], plan.segments[name][by_row])


def test_sums_stay_while_an_interval_without_edges_ends():
    """There and back: 0 and 2 have edges in both chunks, 1 has none, and is complete at its last call."""
    swaps = grid.swaps([2, 0, 1, 1, 0, 2], [4, 5, 0, 0, 6, 7])
    assert swaps.adds.tolist() == [True, True, False, False, True, True]
    assert swaps.ends.tolist() == [False, False, False, True, True, True]
    assert swaps.writes.tolist() == [True, False, False, False, False, False]
    assert swaps.reads.tolist() == [False, False, False, False, False, True]


def test_intervals_end_at_the_same_call_where_ranks_wait_for_each_other():
    """Whatever edges a rank has in the last call of an interval."""
    edges = [[5, 0, 3, 0], [5, 4, 3, 1], [0, 0, 0, 0]]
    made = [grid.swaps([0, 1, 1, 0], each, together=True) for each in edges]
    assert [swaps.ends.tolist() for swaps in made] == [[False, False, True, True]] * 3
    assert made[0].reads.tolist() == [False, False, False, True]
    assert made[0].writes.tolist() == [True, False, False, False]


def test_a_rank_without_edges_swaps_nothing():
    swaps = grid.swaps([0, 1, 1, 0], [0, 0, 0, 0])
    assert swaps.ends.tolist() == [False, False, True, True]
    assert not swaps.adds.any() and not swaps.reads.any() and not swaps.writes.any()
