"""Row ranges: as many edges each as one largest degree allows, whatever the degrees."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgg_hpc.plan.ranges import edge_balanced, edge_counts, owner_of

degrees_of_rows = st.lists(
    st.one_of(st.just(0), st.integers(0, 5), st.integers(0, 1000)), min_size=1, max_size=80
)
numbers_of_parts = st.integers(1, 40)


def offsets(degrees: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(np.array(degrees, dtype=np.int64))])


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(degrees_of_rows, numbers_of_parts)
def test_ranges_cover_all_rows_with_balanced_edges(degrees, parts):
    bounds = edge_balanced(offsets(degrees), parts)
    assert bounds.dtype == np.int64 and bounds.shape == (parts + 1,)
    assert bounds[0] == 0 and bounds[-1] == len(degrees) and (np.diff(bounds) >= 0).all()
    counts = [sum(degrees[lo:hi]) for lo, hi in itertools.pairwise(bounds)]
    for count in counts:  # |count - E / P| <= largest degree, in whole numbers
        assert abs(count * parts - sum(degrees)) <= max(degrees) * parts
    assert edge_counts(offsets(degrees), bounds).tolist() == counts


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(degrees_of_rows, numbers_of_parts)
def test_each_split_is_the_nearest_to_its_share(degrees, parts):
    indptr = offsets(degrees)
    bounds = edge_balanced(indptr, parts)
    for k in range(1, parts):
        misses = [abs(int(offset) * parts - k * int(indptr[-1])) for offset in indptr]
        assert abs(int(indptr[bounds[k]]) * parts - k * int(indptr[-1])) == min(misses)


@given(degrees_of_rows, numbers_of_parts)
def test_every_row_has_the_owner_whose_range_holds_it(degrees, parts):
    bounds = edge_balanced(offsets(degrees), parts)
    owners = owner_of(bounds, np.arange(len(degrees), dtype=np.int32))
    expected = [rank for rank in range(parts) for _ in range(bounds[rank], bounds[rank + 1])]
    assert owners.tolist() == expected


@pytest.mark.parametrize("rows, parts", [(10, 3), (4, 4), (2, 5), (1, 1), (1, 4), (1000, 7)])
def test_a_graph_without_edges_is_split_evenly(rows, parts):
    sizes = np.diff(edge_balanced(np.zeros(rows + 1, np.int64), parts))
    assert sizes.sum() == rows
    assert sizes.max() - sizes.min() <= 1


def test_rows_without_edges_are_shared_out():
    # Two rows of 10 edges at the ends, 98 empty ones between them: any split between has 10 edges a side.
    assert edge_balanced(offsets([10] + [0] * 98 + [10]), 2).tolist() == [0, 50, 100]


def test_offsets_beyond_32_bits():
    indptr = np.arange(5, dtype=np.int64) * 2**40
    assert edge_balanced(indptr, 2).tolist() == [0, 2, 4]


def test_fewer_than_one_part():
    with pytest.raises(ValueError, match="0 parts"):
        edge_balanced(np.zeros(2, np.int64), 0)
