"""Plans against what they must say of each edge, in NumPy by sorting; also for more nodes than 32 bits count."""

from __future__ import annotations

import dataclasses

import cases
import numpy as np
import pytest
from jobs import blocks

from mgg_hpc.data import symmetry
from mgg_hpc.data.store import open_graph
from mgg_hpc.data.writer import write
from mgg_hpc.errors import InputError
from mgg_hpc.plan import adjacency, counts, halo, workload
from mgg_hpc.plan.layout import DIRECT, HALO, OWNED


def places(plan, degree):
    """The chunk and the destination of each edge, in the plan's order, which is by both."""
    chunk, destination, count = (plan.segments[name] for name in ("chunk", "destination", "count"))
    np.testing.assert_array_equal(np.lexsort((destination, chunk)), np.arange(len(count)))
    assert len(np.unique(plan.segments[["chunk", "destination"]])) == len(count)
    filled = plan.segments[count > 0]
    np.testing.assert_array_equal(filled["first_edge"], workload.prefix_sum(filled["count"])[:-1])
    np.testing.assert_array_equal(destination[count == 0], np.flatnonzero(degree == 0))
    assert (chunk[count == 0] == 0).all()
    np.testing.assert_array_equal(np.bincount(chunk, minlength=len(plan.chunks)), plan.chunks["segments"])
    np.testing.assert_array_equal(
        workload.prefix_sum(plan.chunks["segments"])[:-1], plan.chunks["first_segment"]
    )
    return np.repeat(chunk, count), np.repeat(destination, count)


def check(rank, bounds, indptr, indices, rounds):
    """Compare all steps of one rank with its edges."""
    ranks, degree = len(bounds) - 1, np.diff(indptr)
    rows = np.repeat(np.arange(len(degree)), degree)
    owner = np.searchsorted(bounds, indices, side="right") - 1
    needed, uses = np.unique(indices[owner != rank], return_counts=True)
    edges = workload.split(rank, bounds, indptr, indices, keep_edges=True)
    assert workload.split(rank, bounds, indptr, indices).edge is None
    np.testing.assert_array_equal(edges.halo_bounds, np.searchsorted(needed, bounds))
    pe_of = np.repeat(np.arange(ranks), np.diff(edges.halo_bounds))
    np.testing.assert_array_equal(bounds[pe_of] + edges.halo, needed)
    assert edges.halo.dtype == edges.indices.dtype == np.int32

    plan, steps = workload.direct(edges), (rank - owner) % ranks  # from rank to rank, backwards
    assert edges.plan_nbytes == 2 * plan.segments.nbytes + plan.indices.nbytes + plan.halo.nbytes
    assert (plan.local_edges, plan.remote_edges) == ((owner == rank).sum(), (owner != rank).sum())
    assert plan.chunks["kind"].tolist() == [OWNED] + [DIRECT] * (len(plan.chunks) - 1)
    pe = plan.chunks["pe"].astype(int)
    assert ((rank - pe) % ranks).tolist() == np.unique([0, *steps]).tolist()
    np.testing.assert_array_equal(plan.chunks["rows"], np.diff(bounds)[pe])
    chunk, destination = places(plan, degree)
    np.testing.assert_array_equal(plan.edge, np.argsort(steps, kind="stable"))
    np.testing.assert_array_equal(destination, rows[plan.edge])
    np.testing.assert_array_equal(bounds[pe[chunk]] + plan.indices, indices[plan.edge])

    np.testing.assert_array_equal(halo.uses(edges), uses)
    made, order, requests = halo.in_rounds(edges, rounds)
    round_of = np.empty(len(needed), int)  # the rows that most edges need come first
    round_of[np.lexsort((needed, -uses))] = np.arange(len(needed)) * rounds // max(1, len(needed))
    staged, taken = np.full(len(needed), -1), np.zeros(ranks, int)
    for (number, other), count in np.ndenumerate(requests.counts):
        first = requests.places[number, other]
        asked = requests.rows[other][taken[other] : taken[other] + count]
        staged[first : first + count] = bounds[other] + asked
        taken[other] += count
    np.testing.assert_array_equal(staged, needed[np.lexsort((needed, round_of))])
    assert made.chunks["kind"].tolist() == [OWNED] + [HALO] * rounds
    assert (made.chunks["pe"] == rank).all() and made.chunks["rows"][0] == len(degree)
    np.testing.assert_array_equal(made.chunks["rows"][1:], np.bincount(round_of, minlength=rounds))
    np.testing.assert_array_equal(
        made.chunks["first_row"][1:], workload.prefix_sum(made.chunks["rows"][1:])[:-1]
    )
    chunk, destination = places(made, degree)
    np.testing.assert_array_equal(np.sort(order), np.arange(len(indices)))
    np.testing.assert_array_equal(made.edge, edges.edge[order])
    np.testing.assert_array_equal(destination, rows[made.edge])
    local = chunk == 0
    source = np.append(
        bounds[rank] + made.indices[local],
        staged[made.chunks["first_row"][chunk[~local]] + made.indices[~local]],
    )
    np.testing.assert_array_equal(source, indices[made.edge])
    again = (np.diff(chunk) == 0) & (np.diff(destination) == 0)
    assert (np.diff(order)[again] > 0).all()
    unordered = halo.in_rounds(dataclasses.replace(edges, edge=None), rounds, ordered=False)
    assert unordered[1] is None
    np.testing.assert_array_equal(unordered[0].indices, made.indices)


@pytest.mark.parametrize("pieces", [1, 3, 32])
@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("name", cases.CASES)
def test_plans_hold_each_edge_once_and_ask_for_each_row_once(rng, monkeypatch, name, ranks, pieces):
    monkeypatch.setattr(workload, "PIECES", pieces)
    case, kind = cases.CASES[name](rng, ranks), np.int64 if rng.integers(2) else np.int32
    for rank in range(ranks):
        indptr, indices = case.part(rank)
        check(rank, case.bounds, indptr, indices.astype(kind), int(rng.integers(1, 9)))


@pytest.mark.slow
@pytest.mark.parametrize("spread", [15_000, 750_000])
def test_a_rank_of_many_edges(rng, spread):
    """Several runs of rows for the threads, and halos that are found by marks and by sorting."""
    ranks, edges = 4, 100_000
    bounds = np.append(np.sort(rng.integers(spread, size=ranks)), spread)
    bounds[0] = 0
    rows = int(bounds[2] - bounds[1])
    degree = np.bincount(rng.integers(rows, size=edges) // 3, minlength=rows)
    indices = (spread * rng.random(edges) ** 3).astype(np.int64)
    check(1, bounds, workload.prefix_sum(degree), indices, 8)


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
    indices = np.choose(rng.integers(0, 3, len(near)), [near, anywhere, few])
    return rank, bounds, workload.prefix_sum(degree), indices


def test_more_nodes_than_32_bits_count_pass_each_step(far):
    rank, bounds, indptr, indices = far
    check(rank, bounds, indptr, indices, 3)
    looped = adjacency.with_self_loops(int(bounds[rank]), indptr, indices, None)
    check(rank, bounds, looped[0], looped[1], 8)
    found = counts.count_rank(rank, bounds, indptr, indices, rounds=3)
    edges = workload.split(rank, bounds, indptr, indices)
    assert found.halo_rows == len(edges.halo) and found.local_edges == edges.local_edges
    owner = np.searchsorted(bounds, indices, side="right") - 1
    np.testing.assert_array_equal(found.edges, np.bincount(owner, minlength=len(bounds) - 1))
    assert found.segments["direct"] == len(workload.direct(edges).segments)
    assert found.segments["halo"] == len(halo.in_rounds(edges, 3)[0].segments)
    rows = np.repeat(np.arange(bounds[rank], bounds[rank + 1]), np.diff(indptr))
    mine = symmetry.csr_imbalance(int(bounds[rank]), indptr, indices, None)
    back = symmetry.imbalance(symmetry.EdgeSlice(indices, rows, None))
    assert (mine + back) % 2**64 == 0 and mine != 0


def test_ranks_of_2_to_the_31_rows_are_refused(far):
    _, bounds, indptr, indices = far
    with pytest.raises(InputError, match="of at most 2\\^31 - 1; use more ranks"):
        workload.split(0, np.array([0, 2**31, *bounds[-1:] + 2**31]), indptr[:1], indices[:0])


def test_files_with_ids_of_64_bits_are_read_and_planned(rng, tmp_path):
    case = cases.ordinary(rng, 3)
    graph = dataclasses.replace(blocks(case.nodes), indptr=case.indptr, directed=True)
    write(tmp_path / "wide.h5", dataclasses.replace(graph, indices=case.indices.astype(np.int64)))
    with open_graph(tmp_path / "wide.h5") as opened:
        assert opened.index_dtype == np.int64
        for rank in range(3):
            part = opened.slice(int(case.bounds[rank]), int(case.bounds[rank + 1]))
            assert part.indices.dtype == np.int64
            check(rank, case.bounds, part.indptr, part.indices, 2)


@pytest.mark.parametrize("ps", [1, 3, 256])
@pytest.mark.parametrize("name", cases.CASES)
def test_partitions_of_a_size_are_counted_by_destination_and_owner(rng, name, ps):
    case = cases.CASES[name](rng, 3)
    for rank in range(3):
        indptr, indices = case.part(rank)
        owner = np.searchsorted(case.bounds, indices, side="right") - 1
        edges = np.zeros((len(indptr) - 1, 3), int)
        np.add.at(edges, (np.repeat(np.arange(len(edges)), np.diff(indptr)), owner), 1)
        parts = (-(-edges // ps)).sum(axis=0)
        without = np.count_nonzero(np.diff(indptr) == 0)
        plan = workload.direct(workload.split(rank, case.bounds, indptr, indices))
        assert plan.partitions(ps) == (parts[rank] + without, parts.sum() - parts[rank])


@pytest.mark.parametrize("rank", [0, 3])
def test_a_plan_of_a_matrix_has_its_entries_in_one_chunk_of_its_own(rng, rank):
    case = cases.CASES["empty_rows"](rng, 1)
    plan = workload.rectangular(rank, case.indptr, case.indices, 100)
    _, destination = places(plan, np.diff(case.indptr))
    np.testing.assert_array_equal(destination, case.edge_list[1])
    np.testing.assert_array_equal(plan.indices, case.indices)
    assert plan.chunks[["pe", "rows"]].tolist() == [(rank, 100)] and plan.transfer == "none"
    assert plan.halo_bounds.tolist() == [0] * (rank + 2) and not len(plan.halo)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_self_loops_are_added_and_replaced(rng, kind, replace):
    """Behind the others of a row, unless there are some, of which the last stays; its degree is a sum of weights."""
    degree = rng.integers(0, 6, 300) * (rng.random(300) < 0.7)
    indptr, first = workload.prefix_sum(degree), (1 << 40) if kind is np.int64 else 1000
    indices = (first + rng.integers(0, 300, int(indptr[-1]))).astype(kind)
    some = rng.random(len(indices)) < 0.2
    indices[some] = (first + np.repeat(np.arange(300), degree)).astype(kind)[some]
    weight = rng.normal(size=len(indices)).astype(np.float32)
    wanted = []
    for v, own in enumerate(range(first, first + 300)):
        part = slice(indptr[v], indptr[v + 1])
        row = list(zip(indices[part].tolist(), weight[part].tolist(), strict=True))
        last = max((at for at, (u, _) in enumerate(row) if u == own and not replace), default=-1)
        row = [each for at, each in enumerate(row) if each[0] != own or at == last]
        wanted.append(row if any(u == own for u, _ in row) else [*row, (own, 1.0)])
    ends, values = zip(*(each for row in wanted for each in row), strict=True)
    arrays = workload.prefix_sum(np.array([*map(len, wanted)])), np.array(ends, kind), np.float32(values)
    if replace:
        found, arrays = adjacency.with_one_self_loop(first, indptr, indices), arrays[:2]
    else:
        found = adjacency.with_self_loops(first, indptr, indices, weight)
        sums = [sum(value for _, value in row) for row in wanted]
        np.testing.assert_allclose(adjacency.in_degree(found[0], found[2]), sums, atol=1e-5)
    for a, b in zip(found, arrays, strict=True):
        np.testing.assert_array_equal(a, b, strict=True)


def test_roots_of_what_is_not_above_0_are_0():
    assert adjacency.inverse_square_root(np.array([4.0, 0.0, -1.0])).tolist() == [0.5, 0.0, 0.0]
