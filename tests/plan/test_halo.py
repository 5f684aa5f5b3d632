"""Halos in rounds: the same edges, each distinct remote row once, the most needed first."""

from __future__ import annotations

import itertools

import cases
import numpy as np
import pytest
from world import plans_of

from mgg_hpc.plan import halo, halo_schedule, workload
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


@pytest.mark.parametrize("rows", [1, 3, 1000])
@pytest.mark.parametrize("name", cases.CASES)
def test_chunks_fill_the_receivers_staging_once_each_with_a_signal_of_its_own(rng, name, rows):
    case = cases.CASES[name](rng, 3)
    plans = plans_of(case, "halo", 1)
    made = [halo_schedule.in_chunks(plan, rows, min(rows, 2)) for plan in plans]
    for rank, (plan, schedule) in enumerate(zip(plans, made, strict=True)):
        staged, signals = np.full(len(plan.halo), -1), []
        for sender, other in enumerate(made):
            for push in other.pushes[other.pushes["pe"] == rank]:
                assert 0 < push["rows"] <= rows and push["box"] == push["first"]
                sent = other.send_rows[push["first"] :][: push["rows"]]
                part = slice(int(push["place"]), int(push["place"] + push["rows"]))
                assert (staged[part] < 0).all() and len(staged[part]) == len(sent)
                staged[part] = case.bounds[sender] + sent
                signals.append((int(push["signal"]), part.start, int(push["rows"]), sender))
        lists = plan.lists.receive_counts[0]
        owner = np.repeat(np.arange(3), lists)
        np.testing.assert_array_equal(staged, case.bounds[owner] + plan.halo if len(owner) else [])
        found = [(int(a["signal"]), int(a["first"]), int(a["rows"])) for a in schedule.arrivals]
        assert sorted(found) == sorted(each[:3] for each in signals)
        assert len({signal for signal, *_ in found}) == len(found)
        assert dict(zip((a[0] for a in found), schedule.origins.tolist(), strict=True)) == {
            s: pe for s, *_, pe in signals
        }
        assert all(signal < schedule.credits for signal, *_ in found)
        assert schedule.signals == schedule.credits + 3 and schedule.signals == made[0].signals
        assert schedule.owners.tolist() == np.flatnonzero(lists).tolist()
        assert halo_schedule.crosses(plan) == bool(len(schedule.pushes) or found)
        assert halo_schedule.extent(plan) == (plan.lists.capacity, plan.lists.most_sent)


def test_chunks_are_of_halos_in_one_round(rng):
    case = cases.ordinary(rng, 2)
    for plan in (plans_of(case, "halo", 2)[0], plans_of(case, "direct")[0]):
        with pytest.raises(ValueError, match="GPUs take a plan of one round"):
            halo_schedule.in_chunks(plan, 4, 4)
    assert halo_schedule.extent(plan) is None and not halo_schedule.crosses(plan)
    assert [halo_schedule.rows_a_chunk(size, 1000) for size in (16, 1000, 1001)] == [62, 1, 1]
