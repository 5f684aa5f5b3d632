"""Halos in rounds: the same edges, each distinct remote row once, the most needed first."""

from __future__ import annotations

import itertools

import cases
import numpy as np
import pytest
from world import plans_of

from mgg_hpc.plan import halo, workload
from mgg_hpc.plan.layout import HALO, OWNED


def source_of(plan, lists, edge, chunk):
    """(PE, row of that PE) that an edge reads: looked up on the sending side."""
    index = int(plan.indices[edge])
    if plan.chunks[chunk]["kind"] == OWNED:
        return plan.rank, index
    place = int(plan.chunks[chunk]["first_row"]) + index
    for (number, pe), first in np.ndenumerate(lists.places):
        count = int(lists.counts[number, pe])
        if first <= place < first + count:
            skipped = int(lists.counts[:number, pe].sum())
            return pe, int(lists.rows[pe][skipped + place - first])
    raise AssertionError(f"place {place} belongs to nobody")


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("name", cases.CASES)
def test_every_edge_reads_the_row_it_read_before(rng, name, count):
    case = cases.CASES[name](rng, 4)
    for rank in range(4):
        plan = workload.split(rank, case.bounds, *case.part(rank), keep_edges=True)
        made, order, requests = halo.in_rounds(plan, count)
        np.testing.assert_array_equal(np.sort(order), np.arange(len(plan.indices)))
        np.testing.assert_array_equal(made.edge, plan.edge[order])
        low = case.bounds[rank]
        wanted = case.indices[case.indptr[low] :][made.edge] if made.edges else []
        destinations = np.repeat(np.arange(plan.destinations), np.diff(case.part(rank)[0]))
        seen = 0
        for segment in made.segments:
            for edge in range(segment["first_edge"], segment["first_edge"] + segment["count"]):
                pe, row = source_of(made, requests, edge, segment["chunk"])
                assert case.bounds[pe] + row == wanted[edge]
                assert destinations[made.edge[edge]] == segment["destination"]
                seen += 1
        assert seen == made.edges
        assert {int(kind) for kind in made.chunks["kind"][1:]} <= {HALO}
        asked = [(pe, int(row)) for pe, rows in enumerate(requests.rows) for row in rows]
        assert len(set(asked)) == len(asked) == len(plan.halo)


def test_the_rows_that_most_edges_need_come_first(rng):
    case = cases.hub(rng, 2)
    plan = workload.split(0, case.bounds, *case.part(0))
    made, _, _ = halo.in_rounds(plan, 4)
    edges = []
    for chunk in made.chunks[1:]:
        mine = made.segments[chunk["first_segment"] : chunk["first_segment"] + chunk["segments"]]
        uses = np.bincount(
            np.concatenate([made.indices[s["first_edge"] : s["first_edge"] + s["count"]] for s in mine]),
            minlength=chunk["rows"],
        )
        edges.append((int(uses.max()), int(uses.min())))
    assert all(least >= most for (_, least), (most, _) in itertools.pairwise(edges))  # from round to round
    assert sum(chunk["rows"] for chunk in made.chunks[1:]) == len(plan.halo)


def test_what_is_sent_is_what_was_asked_for(rng):
    case = cases.ordinary(rng, 4)
    plans = plans_of(case, "halo")
    for receiver, plan in enumerate(plans):
        for sender, other in enumerate(plans):
            received, sent = plan.lists.receive_counts[:, sender], other.lists.send_counts[:, receiver]
            np.testing.assert_array_equal(received, sent)
    places = np.concatenate([[0], np.cumsum(plans[1].lists.receive_counts.reshape(-1))])[:-1].reshape(-1, 4)
    for sender in range(4):
        np.testing.assert_array_equal(plans[sender].lists.send_places[:, 1], places[:, sender])
    assert {plan.lists.capacity for plan in plans} == {max(len(plan.halo) for plan in plans)}


def test_small_halos_come_in_one_round_and_large_ones_in_a_few():
    assert halo.round_count(0) == halo.round_count(halo.ROWS_PER_ROUND) == 1
    assert halo.round_count(3 * halo.ROWS_PER_ROUND) == 3
    assert halo.round_count(10**9) == halo.MOST_ROUNDS
