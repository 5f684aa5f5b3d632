"""What ranks would move, counted without plans, equals what their plans say."""

from __future__ import annotations

import cases
import numpy as np
import pytest

from mgg_hpc.plan import counts, halo, workload
from mgg_hpc.plan.layout import RowFormat


def transposed(case):
    """The case with its edges reversed."""
    source, destination = case.edge_list
    return cases.csr(destination, source, case.nodes, case.bounds)


@pytest.mark.parametrize("asked", [None, 3])
@pytest.mark.parametrize("ranks", [1, 3, 8])
@pytest.mark.parametrize("name", cases.CASES)
def test_counts_are_those_of_plans(rng, monkeypatch, name, ranks, asked):
    """Marks are used for all graphs, or for none."""
    monkeypatch.setattr(counts, "MARKED", int(rng.choice([0, 1 << 20])))
    case = cases.CASES[name](rng, ranks)
    traffic = counts.of_all_ranks(case.bounds, case.part, asked)
    split = [workload.split(rank, case.bounds, *case.part(rank)) for rank in range(ranks)]
    rounds = asked or halo.round_count(max(len(each.halo) for each in split))
    planned = halo.of_all_ranks(split, rounds)
    assert traffic.rounds == rounds
    for rank, (edges, (plan, _)) in enumerate(zip(split, planned, strict=True)):
        found = traffic.ranks[rank]
        assert (found.local_edges, found.remote_edges) == (edges.local_edges, edges.remote_edges)
        np.testing.assert_array_equal(found.halo, plan.lists.receive_counts)
        used = np.repeat(found.uses[0], found.uses[1])
        np.testing.assert_array_equal(used, np.sort(halo.uses(edges)))
        assert found.segments["direct"] == len(workload.direct(edges).segments)
        assert found.segments["halo"] == len(plan.segments)
        assert traffic.rows("halo")[rank] == len(plan.lists.send_rows)
        size = RowFormat(np.dtype(np.float32), 513).row_bytes
        packets = sum(-(-int(n) // (counts.PACKET_BYTES // size)) for n in plan.lists.send_counts.reshape(-1))
        assert traffic.messages("halo", size)[rank] == packets


@pytest.mark.parametrize("name", cases.CASES)
def test_reversed_edges_are_counted_without_being_sent(rng, name):
    case = cases.CASES[name](rng, 3)
    forward = counts.of_all_ranks(case.bounds, case.part)
    found = counts.of_transposed(case.bounds, case.part, forward)
    wanted = counts.of_all_ranks(case.bounds, transposed(case).part)
    for mine, exact in zip(found.ranks, wanted.ranks, strict=True):
        np.testing.assert_array_equal(mine.edges, exact.edges)
        np.testing.assert_array_equal(mine.halo.sum(axis=0), exact.halo.sum(axis=0))
        assert sorted(np.repeat(*mine.uses)) == sorted(np.repeat(*exact.uses))
        assert mine.segments["direct"] == exact.segments["direct"]


def test_rows_on_other_nodes(rng):
    case = cases.ordinary(rng, 4)
    edges, rows = counts.of_all_ranks(case.bounds, case.part).between(2)
    source, destination = case.edge_list
    node = np.repeat(np.arange(4), np.diff(case.bounds)) // 2
    rank = np.repeat(np.arange(4), np.diff(case.bounds))
    far = node[source] != node[destination]
    assert edges.tolist() == np.bincount(rank[destination[far]], minlength=4).tolist()
    pairs = {(int(r), int(u)) for r, u in zip(rank[destination[far]], source[far], strict=True)}
    assert rows.tolist() == [sum(r == mine for r, _ in pairs) for mine in range(4)]


def test_reuse_is_that_of_a_cache(rng):
    """Uniform draws from n rows: a cache of k of them misses 1 - k / n."""
    rows = 1000
    reuse = counts.reuse_of(rng.integers(0, rows, 200_000), rows)
    for held in (100, 300, 500, 800):
        assert abs(reuse.beyond(held) - (1 - held / rows)) < 0.12
    assert reuse.beyond(rows) == 0
    scan = counts.reuse_of(np.arange(100_000), 100_000)
    assert scan.beyond(10) == scan.beyond(50_000) == 1.0
    assert counts.reuse_of(np.zeros(0, np.int32), 0).beyond(5) == 0


def test_reuse_is_measured_in_the_middle(rng, monkeypatch):
    """Counted run by run, of more edges than are looked at."""
    monkeypatch.setattr(counts, "SAMPLED", 3000)
    sources = rng.integers(0, 400, 10_001)
    sources[:3500], sources[6500:] = 1, 2
    found, middle = counts.reuse_of(sources, 402), sources[3500:6500]
    assert found.lengths.tolist() == [256, 512, 1024, 2048, 3000, 10_001]
    for length, distinct in zip(found.lengths[:4].astype(int), found.distinct, strict=False):
        runs = [
            len(np.unique(run)) for run in np.split(middle, range(length, 3000, length)) if len(run) == length
        ]
        assert distinct == np.mean(runs)
    assert found.distinct[4:].tolist() == [max(len(np.unique(middle)), *found.distinct[:4]), 402]
