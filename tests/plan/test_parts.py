"""Plans of an aggregation's parts, summed by hand: an edge at a time, from where the plan says that its row lies."""

from __future__ import annotations

import cases
import numpy as np
import pytest
import reference
from world import plans_of

from mgg_hpc.plan import overlap
from mgg_hpc.plan.layout import OWNED

REMOTE = ["ordinary", "all_remote", "hub", "one_way", "rank_without_rows", "no_edges"]


def by_hand(plan, row_of):
    """Sums [destinations], row_of(chunk, row) being the value of a row of that chunk."""
    out = np.zeros(plan.destinations)
    for chunk in plan.chunks:
        first = int(chunk["first_segment"])
        for segment in plan.segments[first : first + int(chunk["segments"])]:
            edges = slice(int(segment["first_edge"]), int(segment["first_edge"]) + int(segment["count"]))
            out[segment["destination"]] += sum(row_of(chunk, int(row)) for row in plan.indices[edges])
    return out


@pytest.mark.parametrize("transfer", ["direct", "get", "halo"])
@pytest.mark.parametrize("case", REMOTE)
def test_rows_held_here_are_as_many_and_give_the_same_sums(rng, case, transfer):
    """The rows are the same for all owners, since they lie in one place."""
    made = cases.CASES[case](rng, 3)
    for rank, plan in enumerate(plans_of(made, transfer)):
        check_held_here(rng, plan, rank, int(np.diff(made.bounds)[rank]))


def check_held_here(rng, plan, rank, own):
    here, count = overlap.held_here(plan)
    assert (here.transfer, here.lists, here.destinations) == ("none", None, plan.destinations)
    assert {*here.chunks["kind"]} == {OWNED} and {*here.chunks["pe"]} == {rank}
    assert count == own + max([int(each["first_row"] + each["rows"]) for each in plan.chunks[1:]], default=0)
    values = rng.standard_normal(count)
    found = by_hand(here, lambda chunk, row: values[int(chunk["first_row"]) + row])

    def value(chunk, row):
        return values[row] if chunk["kind"] == OWNED else values[own + int(chunk["first_row"]) + row]

    np.testing.assert_allclose(found, by_hand(plan, value), atol=1e-12)


@pytest.mark.parametrize("case", REMOTE)
def test_what_moves_is_what_others_own(rng, case):
    made = cases.CASES[case](rng, 3)
    x = rng.standard_normal(made.nodes)
    owner = np.searchsorted(made.bounds, np.arange(made.nodes), side="right") - 1
    for rank, plan in enumerate(plans_of(made, "direct")):
        transfer_plan = overlap.transfer_only(plan, edges=True)
        assert (transfer_plan.local_edges, transfer_plan.remote_edges) == (0, plan.remote_edges)
        found = by_hand(transfer_plan, lambda chunk, row: x[int(made.bounds[chunk["pe"]]) + row])
        source, destination = reference.edge_list(*made.part(rank))
        far = owner[source] != rank
        wanted = np.zeros(plan.destinations)
        np.add.at(wanted, destination[far], x[source[far]])
        np.testing.assert_allclose(found, wanted[np.unique(destination[far])], atol=1e-12)


def test_a_halo_moves_without_any_edge(rng):
    for plan in plans_of(cases.ordinary(rng, 3), "halo", 1):
        transfer_plan = overlap.transfer_only(plan, edges=False)
        assert (transfer_plan.edges, transfer_plan.destinations, len(transfer_plan.segments)) == (0, 0, 0)
        assert transfer_plan.lists is plan.lists and len(transfer_plan.chunks) == len(plan.chunks)


@pytest.mark.parametrize(
    ("sums", "transfer", "both", "share"),
    [(4, 2, 6, 0), (4, 2, 4, 1), (2, 4, 4, 1), (2, 4, 5, 0.5), (4, 2, 7, -0.5), (4, 2, 3, 1.5)],
)
def test_a_share_is_0_one_after_the_other_and_1_where_the_shorter_costs_nothing(sums, transfer, both, share):
    assert overlap.hidden_share(sums, transfer, both) == share


def test_nothing_takes_no_share():
    assert np.isnan(overlap.hidden_share(1.0, 0.0, 1.0))


@pytest.mark.parametrize("transfer", ["direct", "halo"])
@pytest.mark.parametrize("case", REMOTE)
def test_local_and_remote_sums_add_up(rng, case, transfer):
    for plan in plans_of(cases.CASES[case](rng, 3), transfer):
        check_separated(rng, plan)


def check_separated(rng, plan):
    of = {tuple(chunk)[:3]: rng.standard_normal(int(chunk["rows"])) for chunk in plan.chunks}

    def value(chunk, row):
        return of[tuple(chunk)[:3]][row]

    local, remote, merged = overlap.separated(plan)
    assert (local.transfer, remote.transfer, merged.transfer) == ("none", plan.transfer, "none")
    assert (local.edges, remote.edges) == (plan.local_edges, plan.remote_edges)
    assert local.rank == merged.rank == plan.rank
    both = np.concatenate([by_hand(local, value), by_hand(remote, value)])
    assert len(both) == merged.chunks[0]["rows"]
    found = by_hand(merged, lambda _, row: both[row])
    np.testing.assert_allclose(found, by_hand(plan, value), atol=1e-12)
