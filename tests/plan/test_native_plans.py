"""The native steps of planning against NumPy's, bit for bit, also for graphs of more nodes than 32 bits count."""

from __future__ import annotations

import dataclasses

import cases
import numpy as np
import numpy_plans
import pytest

from mgg_hpc.data import symmetry
from mgg_hpc.data.store import open_graph
from mgg_hpc.data.writer import write
from mgg_hpc.errors import InputError
from mgg_hpc.plan import adjacency, counts, halo, workload
from mgg_hpc.plan.ranges import owner_of


def same(found, wanted) -> None:
    """Check that two plans, or parts of them, have the same values and types."""
    assert type(found) is type(wanted)
    for field in dataclasses.fields(wanted):
        one, other = getattr(found, field.name), getattr(wanted, field.name)
        if isinstance(other, list):
            one = [np.concatenate(np.atleast_2d(each)) if isinstance(each, tuple) else each for each in one]
            other = [
                np.concatenate(np.atleast_2d(each)) if isinstance(each, tuple) else each for each in other
            ]
            assert len(one) == len(other)
            for a, b in zip(one, other, strict=True):
                np.testing.assert_array_equal(a, b, strict=True)
        elif isinstance(other, np.ndarray):
            np.testing.assert_array_equal(one, other, err_msg=field.name, strict=True)
        else:
            assert one == other


def agree(rank, bounds, indptr, indices, rounds: int) -> None:
    """Compare all steps of one rank."""
    wanted = numpy_plans.split(rank, bounds, indptr, indices, keep_edges=True)
    found = workload.split(rank, bounds, indptr, indices, keep_edges=True)
    same(found, wanted)
    assert workload.split(rank, bounds, indptr, indices).edge is None
    chunks = workload.direct(found).chunks.copy()
    np.testing.assert_array_equal(
        workload.direct(found).segments, numpy_plans.segments(chunks, wanted.runs, wanted.empty)
    )
    plan, order, used, requests = numpy_plans.in_rounds(wanted, rounds)
    np.testing.assert_array_equal(halo.uses(found), used)
    made, made_order, made_requests = halo.in_rounds(found, rounds)
    same(made, plan)
    same(made_requests, requests)
    np.testing.assert_array_equal(made_order, order)
    unordered = halo.in_rounds(dataclasses.replace(found, edge=None), rounds, ordered=False)
    assert unordered[1] is None
    np.testing.assert_array_equal(unordered[0].indices, plan.indices)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("name", cases.CASES)
def test_edges_are_split_and_ordered_by_rounds_as_numpy_does(rng, name, ranks, wide):
    case = cases.CASES[name](rng, ranks)
    for rank in range(ranks):
        indptr, indices = case.part(rank)
        agree(
            rank, case.bounds, indptr, indices.astype(np.int64) if wide else indices, int(rng.integers(1, 9))
        )


@pytest.mark.slow
def test_a_rank_of_many_edges_is_split_as_numpy_does(rng):
    """Several runs of rows for the threads, and halos that are found by marks and by sorting."""
    ranks, nodes, edges = 4, 60_000, 400_000
    for spread in (nodes, 50 * nodes):
        bounds = np.append(np.sort(rng.integers(spread, size=ranks)), spread)
        bounds[0] = 0
        rows = int(bounds[2] - bounds[1])
        degree = np.bincount(rng.integers(rows, size=edges) // 3, minlength=rows)
        indices = (spread * rng.random(edges) ** 3).astype(np.int64)
        agree(1, bounds, workload.prefix_sum(degree), indices, 8)


def test_self_loops_are_added_and_replaced_as_numpy_does(rng):
    for kind in (np.int32, np.int64):
        degree = rng.integers(0, 6, 300) * (rng.random(300) < 0.7)
        indptr = workload.prefix_sum(degree)
        first = (1 << 40) if kind is np.int64 else 1000
        indices = (first + rng.integers(0, 300, int(indptr[-1]))).astype(kind)
        some = rng.random(len(indices)) < 0.2
        indices[some] = (first + np.repeat(np.arange(300), degree)).astype(kind)[some]
        weight = rng.normal(size=len(indices)).astype(np.float32)
        wanted = numpy_plans.with_loops(first, indptr, indices, weight, replace=False)
        found = adjacency.with_self_loops(first, indptr, indices, weight)
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(a, b, strict=True)
        found = adjacency.with_one_self_loop(first, indptr, indices)
        wanted = numpy_plans.with_loops(first, indptr, indices, weight, replace=True)
        for a, b in zip(found, wanted[:2], strict=True):
            np.testing.assert_array_equal(a, b, strict=True)


@pytest.fixture
def far(rng):
    """A rank's part of a graph of more than 2^40 nodes: (rank, bounds, indptr, indices)."""
    ranks, rank = 600, 520
    rows = np.full(ranks, 2**31 - 1)
    rows[rank], rows[3], rows[7] = 200, 0, 5
    bounds = workload.prefix_sum(rows)
    assert bounds[rank] > 2**40
    degree = rng.integers(0, 8, 200)
    near = bounds[rank] + rng.integers(0, 200, int(degree.sum()))
    anywhere = rng.integers(0, bounds[-1], len(near))
    few = bounds[-1] - 1 - rng.integers(0, 40, len(near))
    return (
        rank,
        bounds,
        workload.prefix_sum(degree),
        np.choose(rng.integers(0, 3, len(near)), [near, anywhere, few]),
    )


def test_more_nodes_than_32_bits_count_pass_each_step(far):
    rank, bounds, indptr, indices = far
    agree(rank, bounds, indptr, indices, 3)
    looped = adjacency.with_self_loops(int(bounds[rank]), indptr, indices, None)
    agree(rank, bounds, looped[0], looped[1], 8)
    found = counts.of_rank(rank, bounds, indptr, indices, rounds=3)
    edges = workload.split(rank, bounds, indptr, indices)
    assert found.halo_rows == len(edges.halo) and found.local_edges == edges.local_edges
    np.testing.assert_array_equal(
        found.edges, np.bincount(owner_of(bounds, indices), minlength=len(bounds) - 1)
    )
    assert found.segments["direct"] == len(workload.direct(edges).segments)
    assert found.segments["halo"] == len(halo.in_rounds(edges, 3)[0].segments)


def test_the_check_of_reverses_takes_ids_of_40_bits(far):
    rank, bounds, indptr, indices = far
    rows = np.repeat(np.arange(bounds[rank], bounds[rank + 1]), np.diff(indptr))
    mine = symmetry.csr_imbalance(int(bounds[rank]), indptr, indices, None)
    back = symmetry.imbalance(symmetry.EdgeSlice(0, indices, rows, None))
    assert (mine + back) % 2**64 == 0 and mine != 0


def test_ranks_of_2_to_the_31_rows_are_refused(far):
    _, bounds, indptr, indices = far
    with pytest.raises(InputError, match="of at most 2\\^31 - 1; use more ranks"):
        workload.split(0, np.array([0, 2**31, *bounds[-1:] + 2**31]), indptr[:1], indices[:0])


def test_files_with_ids_of_64_bits_are_read_and_planned(rng, tmp_path):
    case = cases.ordinary(rng, 3)
    from jobs import blocks

    graph = dataclasses.replace(blocks(case.nodes), indptr=case.indptr, directed=True)
    write(tmp_path / "wide.h5", dataclasses.replace(graph, indices=case.indices.astype(np.int64)))
    with open_graph(tmp_path / "wide.h5") as opened:
        assert opened.index_dtype == np.int64
        for rank in range(3):
            part = opened.slice(int(case.bounds[rank]), int(case.bounds[rank + 1]))
            assert part.indices.dtype == np.int64
            agree(rank, case.bounds, part.indptr, part.indices, 2)
