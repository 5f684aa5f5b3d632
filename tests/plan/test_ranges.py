"""Row ranges: as many edges each as one largest degree allows, whatever the degrees."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgg_hpc.plan.row_ranges import edge_balanced, edge_counts, owner_of

degrees_of_rows = st.lists(
    st.one_of(st.just(0), st.integers(0, 5), st.integers(0, 1000)), min_size=1, max_size=80
)


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(degrees_of_rows, st.integers(1, 40))
def test_ranges_cover_all_rows_with_balanced_edges(degrees, parts):
    """Each split is the nearest to its share, and the owner of a row is who has it."""
    indptr = np.append(0, np.cumsum(np.array(degrees, np.int64)))
    bounds = edge_balanced(indptr, parts)
    assert bounds.dtype == np.int64 and bounds.shape == (parts + 1,)
    assert bounds[0] == 0 and bounds[-1] == len(degrees) and (np.diff(bounds) >= 0).all()
    counts = [sum(degrees[lo:hi]) for lo, hi in itertools.pairwise(bounds)]
    for count in counts:  # |count - E / P| <= largest degree, in whole numbers
        assert abs(count * parts - sum(degrees)) <= max(degrees) * parts
    assert edge_counts(indptr, bounds).tolist() == counts
    for k in range(1, parts):
        misses = [abs(int(offset) * parts - k * int(indptr[-1])) for offset in indptr]
        assert misses[bounds[k]] == min(misses)
    owners = owner_of(bounds, np.arange(len(degrees), dtype=np.int32))
    assert owners.tolist() == np.repeat(np.arange(parts), np.diff(bounds)).tolist()


@pytest.mark.parametrize("rows, parts", [(10, 3), (4, 4), (2, 5), (1, 1), (1, 4), (1000, 7)])
def test_a_graph_without_edges_is_split_evenly(rows, parts):
    sizes = np.diff(edge_balanced(np.zeros(rows + 1, np.int64), parts))
    assert sizes.sum() == rows
    assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize(
    ("indptr", "bounds"),
    [
        ([0, *[10] * 99, 20], [0, 50, 100]),  # rows without edges between two are shared out
        (np.arange(5, dtype=np.int64) * 2**40, [0, 2, 4]),  # offsets beyond 32 bits
    ],
)
def test_halves(indptr, bounds):
    assert edge_balanced(np.array(indptr), 2).tolist() == bounds


def test_fewer_than_one_part():
    with pytest.raises(ValueError, match="0 parts"):
        edge_balanced(np.zeros(2, np.int64), 0)
