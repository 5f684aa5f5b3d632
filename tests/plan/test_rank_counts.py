"""What ranks would move, counted one rank at a time, equals what their edges and plans say."""

from __future__ import annotations

import cases
import numpy as np
import pytest
from harness.plans import halo_plans

from mgg_hpc.plan import counts, halo, halo_messages, workload
from mgg_hpc.plan.layout import RowFormat


@pytest.mark.parametrize("asked", [None, 3])
@pytest.mark.parametrize("ranks", [1, 3, 8])
@pytest.mark.parametrize("name", cases.CASES)
def test_counts_are_those_of_edges_and_plans(rng, name, ranks, asked):
    """And those of reversed edges are counted without any being sent."""
    case = cases.CASES[name](rng, ranks)
    traffic = counts.count_ranks(case.bounds, case.part, asked)
    split = [workload.split(rank, case.bounds, *case.part(rank)) for rank in range(ranks)]
    rounds = asked or halo.round_count(max(len(each.halo) for each in split))
    planned = halo_plans(split, rounds)
    assert traffic.rounds == rounds
    source, destination = case.edge_list
    owner = np.repeat(np.arange(ranks), np.diff(case.bounds))
    for rank, (edges, (plan, _)) in enumerate(zip(split, planned, strict=True)):
        found = traffic.ranks[rank]
        assert (found.local_edges, found.remote_edges) == (edges.local_edges, edges.remote_edges)
        np.testing.assert_array_equal(found.halo, plan.lists.receive_counts)
        mine = source[owner[destination] == rank]
        np.testing.assert_array_equal(found.edges, np.bincount(owner[mine], minlength=ranks))
        for used, part in ((found.local_uses, owner[mine] == rank), (found.uses, owner[mine] != rank)):
            assert sorted(np.repeat(*used)) == sorted(np.unique(mine[part], return_counts=True)[1])
        assert found.halo_rows == len(np.unique(mine[owner[mine] != rank]))
        assert found.segments["direct"] == len(workload.direct(edges).segments)
        assert found.segments["halo"] == len(plan.segments)
        assert traffic.rows("halo")[rank] == len(plan.lists.send_rows)
        size = RowFormat(np.dtype(np.float32), 513).row_bytes
        packets = -(-plan.lists.send_counts // (halo_messages.MESSAGE_BYTES // size))
        assert traffic.messages("halo", size)[rank] == packets.sum()
    back = cases.csr(destination, source, case.nodes, case.bounds)
    wanted = counts.count_ranks(case.bounds, back.part)
    for mine, exact in zip(
        counts.count_reversed(case.bounds, case.part, traffic).ranks, wanted.ranks, strict=True
    ):
        np.testing.assert_array_equal(mine.edges, exact.edges)
        np.testing.assert_array_equal(mine.halo.sum(axis=0), exact.halo.sum(axis=0))
        assert sorted(np.repeat(*mine.uses)) == sorted(np.repeat(*exact.uses))
        assert sorted(np.repeat(*mine.local_uses)) == sorted(np.repeat(*exact.local_uses))
        assert mine.segments["direct"] == exact.segments["direct"]


def test_rows_on_other_nodes(rng):
    case = cases.ordinary(rng, 4)
    edges, rows = counts.count_ranks(case.bounds, case.part).between(2)
    source, destination = case.edge_list
    rank = np.repeat(np.arange(4), np.diff(case.bounds))
    far = rank[source] // 2 != rank[destination] // 2
    assert edges.tolist() == np.bincount(rank[destination[far]], minlength=4).tolist()
    pairs = np.unique(np.stack([rank[destination], source])[:, far], axis=1)
    assert rows.tolist() == np.bincount(pairs[0], minlength=4).tolist()
