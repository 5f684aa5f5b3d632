"""Plans against what they must say, edge by edge, by a route of their own: sets and loops."""

from __future__ import annotations

import time
from bisect import bisect
from collections import Counter

import cases
import numpy as np
import pytest

from mgg_hpc.plan import adjacency, workload
from mgg_hpc.plan.layout import DIRECT, OWNED, RowFormat
from mgg_hpc.plan.ranges import edge_balanced


def listed_edges(case, rank):
    """(destination, source) of a rank's edges, in the order of the CSR, with global ids."""
    indptr, indices = case.part(rank)
    low = int(case.bounds[rank])
    return [(low + v, int(u)) for v in range(len(indptr) - 1) for u in indices[indptr[v] : indptr[v + 1]]]


def planned_edges(plan, bounds, rank):
    """The same from a plan's segments, in the plan's order."""
    found = []
    for segment in plan.segments:
        chunk = plan.chunks[segment["chunk"]]
        first = int(bounds[chunk["pe"]] + chunk["first_row"])
        for edge in range(segment["first_edge"], segment["first_edge"] + segment["count"]):
            found.append((int(bounds[rank] + segment["destination"]), first + int(plan.indices[edge])))
    return found


@pytest.mark.parametrize("block", [1, 3, 32])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("name", cases.CASES)
def test_a_plan_holds_each_edge_once_in_segments_of_its_owner(rng, monkeypatch, name, ranks, block):
    monkeypatch.setattr(workload, "CHUNKS", block)  # several runs of rows, or one
    case = cases.CASES[name](rng, ranks)
    for rank in range(ranks):
        plan = workload.build(rank, case.bounds, *case.part(rank), keep_edges=True)
        wanted, found = listed_edges(case, rank), planned_edges(plan, case.bounds, rank)
        assert Counter(found) == Counter(wanted)
        assert [wanted[e] for e in plan.edge] == found
        ends = plan.segments[["chunk", "destination"]]
        assert len(np.unique(ends)) == len(ends)
        assert set(plan.segments["destination"]) == set(range(plan.destinations))
        assert (plan.segments["count"] > 0).sum() + np.isin(
            np.arange(plan.destinations), [v - case.bounds[rank] for v, _ in wanted], invert=True
        ).sum() == len(plan.segments)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("name", cases.CASES)
def test_chunks_split_local_from_remote_and_name_the_halo(rng, name, ranks):
    case = cases.CASES[name](rng, ranks)
    for rank in range(ranks):
        plan = workload.build(rank, case.bounds, *case.part(rank))
        assert plan.chunks[0]["kind"] == OWNED and plan.chunks[0]["pe"] == rank
        assert (plan.chunks["kind"][1:] == DIRECT).all()
        steps = (rank - plan.chunks["pe"].astype(int)) % ranks  # from rank to rank, backwards
        assert (np.diff(steps) > 0).all()
        owner = [
            int(np.flatnonzero((case.bounds[:-1] <= u) & (u < case.bounds[1:]))[0])
            for _, u in listed_edges(case, rank)
        ]
        assert plan.local_edges == owner.count(rank)
        assert plan.remote_edges == len(owner) - owner.count(rank)
        for peer in range(ranks):
            needed = sorted(
                {
                    u - case.bounds[peer]
                    for (_, u), o in zip(listed_edges(case, rank), owner, strict=True)
                    if o == peer != rank
                }
            )
            part = plan.halo[plan.halo_bounds[peer] : plan.halo_bounds[peer + 1]]
            assert part.tolist() == needed


@pytest.mark.parametrize("ps", [1, 3, 256])
@pytest.mark.parametrize("name", cases.CASES)
def test_partitions_of_a_size_are_counted_by_destination_and_owner(rng, name, ps):
    case = cases.CASES[name](rng, 3)
    for rank in range(3):
        low, high = case.bounds[rank], case.bounds[rank + 1]
        edges = Counter((v, bisect(case.bounds[1:].tolist(), u)) for v, u in listed_edges(case, rank))
        local = sum(-(-count // ps) for (_, owner), count in edges.items() if owner == rank)
        remote = sum(-(-count // ps) for (_, owner), count in edges.items() if owner != rank)
        without = len(set(range(low, high)) - {v for v, _ in edges})
        plan = workload.build(rank, case.bounds, *case.part(rank))
        assert plan.partitions(ps) == (local + without, remote)


def test_chunk_csr_is_the_local_and_remote_csr_of_the_paper(rng):
    case = cases.ordinary(rng, 4)
    plan = workload.build(2, case.bounds, *case.part(2))
    low = int(case.bounds[2])
    found = []
    for number, chunk in enumerate(plan.chunks):
        indptr, rows = plan.csr(number)
        first = case.bounds[chunk["pe"]]
        found += [
            (low + v, int(first + u))
            for v in range(plan.destinations)
            for u in rows[indptr[v] : indptr[v + 1]]
        ]
    assert Counter(found) == Counter(listed_edges(case, 2))


@pytest.mark.parametrize("rank", [0, 3])
def test_a_plan_of_a_matrix_has_its_entries_in_one_chunk_of_its_own(rng, rank):
    case = cases.CASES["empty_rows"](rng, 1)
    plan = workload.rectangular(rank, case.indptr, case.indices, 100)
    assert planned_edges(plan, np.zeros(rank + 1, np.int64), rank) == listed_edges(case, 0)
    assert plan.chunks[["pe", "rows"]].tolist() == [(rank, 100)] and plan.transfer == "none"
    assert set(plan.segments["destination"]) == set(range(len(case.indptr) - 1))
    assert plan.halo_bounds.tolist() == [0] * (rank + 2) and not len(plan.halo)


def test_self_loops_are_added_where_missing_and_kept_where_present():
    indptr, indices = np.array([0, 2, 2, 4]), np.array([5, 0, 6, 5], np.int32)
    weight = np.array([0.5, 2.0, 3.0, 4.0], np.float32)
    new_indptr, new_indices, new_weight = adjacency.with_self_loops(4, indptr, indices, weight)
    assert new_indptr.tolist() == [0, 3, 4, 6]  # rows 4, 5 and 6: only 6 has its loop
    assert new_indices.tolist() == [5, 0, 4, 5, 6, 5]
    assert new_weight.tolist() == [0.5, 2.0, 1.0, 1.0, 3.0, 4.0]
    assert adjacency.in_degree(new_indptr, new_weight).tolist() == [3.5, 1.0, 7.0]
    roots = adjacency.inverse_square_root(np.array([4.0, 0.0, -1.0]))
    assert roots.tolist() == [0.5, 0.0, 0.0]


@pytest.mark.parametrize("name", cases.CASES)
def test_bytes_of_a_plan_are_known_before_it_is_made(rng, name):
    case = cases.CASES[name](rng, 3)
    for rank in range(3):
        split = workload.split(rank, case.bounds, *case.part(rank))
        plan = workload.direct(split)
        made = 2 * plan.segments.nbytes + plan.indices.nbytes + plan.halo.nbytes
        assert split.plan_nbytes == made


def test_rows_are_padded_to_16_bytes():
    for width in cases.WIDTHS:
        for kind in (np.float32, np.float64):
            row = RowFormat(np.dtype(kind), width)
            assert row.row_bytes % 16 == 0 and 0 <= row.row_bytes - width * np.dtype(kind).itemsize < 16


@pytest.mark.data
def test_building_plans_of_cnr_2000_takes_under_two_seconds(data_folder):
    arrays = np.load(data_folder / "cnr_2000" / "cnr_2000.npz", allow_pickle=False)
    indptr, indices = arrays["indptr"], arrays["indices"]
    began = time.process_time()  # of one core: nothing here runs in parallel
    bounds = edge_balanced(indptr, 4)
    for rank in range(4):
        low, high = bounds[rank], bounds[rank + 1]
        workload.build(
            rank, bounds, indptr[low : high + 1] - indptr[low], indices[indptr[low] : indptr[high]]
        )
    assert time.process_time() - began < 2
