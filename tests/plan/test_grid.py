"""Grids of chunks: plans of destination intervals against all edges, and what passes load."""

from __future__ import annotations

from functools import lru_cache

import cases
import numpy as np
import pytest
from chunks.gridded import Gridded, cut

from mgg_hpc.plan import grid
from mgg_hpc.plan.layout import OWNED, STREAMED


@pytest.mark.parametrize("name", cases.CASES)
def test_plans_have_all_edges_in_the_order_of_their_chunks(rng, name):
    """Of an interval in all chunks, in one, and over rows that are held."""
    case = cases.CASES[name](rng, 1)
    made = Gridded(case, cut(case.nodes, 11), cut(case.nodes, 26))
    for target, plan in enumerate(made.plans):
        indptr, indices = made.part(target)
        rows = np.repeat(np.arange(plan.destinations), np.diff(indptr))
        chunk = np.searchsorted(made.sources, indices, side="right") - 1
        assert (plan.chunks["kind"] == [OWNED] + [STREAMED] * (len(plan.chunks) - 1)).all()
        chunks = grid.chunks_of(plan)
        assert sorted(chunks) == np.unique(chunk).tolist()
        assert (np.diff(chunks) > 0).all() if target % 2 == 0 else (np.diff(chunks) < 0).all()
        np.testing.assert_array_equal(plan.chunks["rows"][1:], np.diff(made.sources)[chunks])
        segments = plan.segments[plan.segments["count"] > 0]
        np.testing.assert_array_equal(
            segments["first_edge"], np.cumsum(segments["count"]) - segments["count"]
        )
        place, destination = (np.repeat(segments[key], segments["count"]) for key in ("chunk", "destination"))
        at = np.append(0, chunks)[place]
        assert sorted(plan.edge) == list(range(len(indices)))
        np.testing.assert_array_equal(destination, rows[plan.edge])
        np.testing.assert_array_equal(at, chunk[plan.edge])
        np.testing.assert_array_equal(made.sources[at] + plan.indices, indices[plan.edge])
        assert set(plan.segments["destination"]) == set(range(plan.destinations))
        for number, cell in enumerate(grid.cell_plans(made.sources, indptr, indices, keep_edges=True)):
            np.testing.assert_array_equal(np.sort(cell.edge), np.flatnonzero(chunk == number))
            assert grid.chunks_of(cell).tolist() == [number] * bool(cell.edges)
            np.testing.assert_array_equal(cell.indices, indices[cell.edge] - made.sources[number])
            found = np.repeat(cell.segments["destination"], cell.segments["count"])
            np.testing.assert_array_equal(found, rows[cell.edge])
            assert set(cell.segments["destination"]) == set(range(cell.destinations))
            held = grid.over_held_rows(cell, 3)
            assert held.rank == 3 and held.local_edges == held.edges == cell.edges
            assert held.chunks["rows"].tolist() == [cell.chunks["rows"].sum()]
            by_row = np.sort(cell.segments, order="destination")
            assert (np.diff(held.segments["destination"]) > 0).all() and (held.segments["chunk"] == 0).all()
            for key in ("first_edge", "count"):
                np.testing.assert_array_equal(held.segments[key], by_row[key])


def fewest(chunk, slots):
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
        goes = [old for old in held if old != last]
        return 1 + min(best(step + 1, (held - {old}) | {each}, each) for old in goes)

    return best(0, frozenset(), -1)


def test_replacement_is_the_best_of_all(rng):
    for _ in range(150):
        slots = int(rng.integers(2, 5))
        calls = [rng.permutation(6)[: rng.integers(0, 6)] for _ in range(rng.integers(1, 5))]
        chunk = tuple(np.concatenate(calls).astype(int).tolist())
        sources = np.arange(7) * 10
        order = grid.replacement(sources, calls, slots)
        assert order.loads.sum() == fewest(chunk, slots)
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
    calls = [grid.reading_order(target, 10) for target in range(5)]
    there_and_back = grid.replacement(np.arange(11) * 64, calls, 4)
    assert there_and_back.loads.sum() == 10 + 4 * 6
    with pytest.raises(ValueError, match="two slots"):
        grid.replacement(np.arange(11), calls, 1)


@pytest.mark.parametrize(
    ("calls", "edges", "together", "adds", "ends", "writes", "reads"),
    [  # there and back: 0 and 2 have edges in both chunks, 1 has none, and is complete at its last call
        ([2, 0, 1, 1, 0, 2], [4, 5, 0, 0, 6, 7], False, "110011", "000111", "100000", "000001"),
        # Where ranks wait for each other, whatever edges a rank has in the last call of an interval.
        ([0, 1, 1, 0], [5, 0, 3, 0], True, "1011", "0011", "1000", "0001"),
        ([0, 1, 1, 0], [5, 4, 3, 1], True, "1111", "0011", "1000", "0001"),
        ([0, 1, 1, 0], [0, 0, 0, 0], True, "0011", "0011", "0000", "0000"),
        ([0, 1, 1, 0], [0, 0, 0, 0], False, "0000", "0011", "0000", "0000"),
    ],
)
def test_sums_are_swapped_while_others_are_made(calls, edges, together, adds, ends, writes, reads):
    swaps = grid.swaps(calls, edges, together=together)
    for found, wanted in (
        (swaps.adds, adds),
        (swaps.ends, ends),
        (swaps.writes, writes),
        (swaps.reads, reads),
    ):
        assert "".join("01"[each] for each in found.astype(int)) == wanted
