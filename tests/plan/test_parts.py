"""Plans of an aggregation's parts, summed by hand: an edge at a time, from where the plan says that its row lies."""

from __future__ import annotations

import cases
import numpy as np
import pytest
import reference
from harness.plans import separated
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
def test_parts_give_the_same_sums(rng, case, transfer):
    """Rows held here, which are the same for all owners since they lie in one place; and local and remote sums."""
    made = cases.CASES[case](rng, 3)
    for rank, plan in enumerate(plans_of(made, transfer)):
        own, count = overlap.held_here(plan)
        assert (own.transfer, own.lists, own.destinations) == ("none", None, plan.destinations)
        assert {*own.chunks["kind"]} == {OWNED} and {*own.chunks["pe"]} == {rank}
        rows = int(np.diff(made.bounds)[rank])
        far = [int(each["first_row"] + each["rows"]) for each in plan.chunks[1:]]
        assert count == rows + max(far, default=0)
        values = rng.standard_normal(count)

        def value(chunk, row, values=values, rows=rows):
            return values[row if chunk["kind"] == OWNED else rows + int(chunk["first_row"]) + row]

        found = by_hand(own, lambda chunk, row, values=values: values[int(chunk["first_row"]) + row])
        np.testing.assert_allclose(found, by_hand(plan, value), atol=1e-12)
        if transfer == "get":
            continue
        local, remote, merged = separated(plan)
        assert (local.transfer, remote.transfer, merged.transfer) == ("none", plan.transfer, "none")
        assert (local.edges, remote.edges) == (plan.local_edges, plan.remote_edges)
        assert local.rank == merged.rank == plan.rank
        both = np.concatenate([by_hand(local, value), by_hand(remote, value)])
        assert len(both) == merged.chunks[0]["rows"]
        found = by_hand(merged, lambda _, row, both=both: both[row])
        np.testing.assert_allclose(found, by_hand(plan, value), atol=1e-12)


@pytest.mark.parametrize("case", REMOTE)
def test_what_moves_is_what_others_own(rng, case):
    """A halo moves without any edge."""
    made = cases.CASES[case](rng, 3)
    x = rng.standard_normal(made.nodes)
    owner = np.searchsorted(made.bounds, np.arange(made.nodes), side="right") - 1
    for rank, plan in enumerate(plans_of(made, "direct")):
        moved = overlap.transfer_only(plan, edges=True)
        assert (moved.local_edges, moved.remote_edges) == (0, plan.remote_edges)
        found = by_hand(moved, lambda chunk, row: x[int(made.bounds[chunk["pe"]]) + row])
        source, destination = reference.edge_list(*made.part(rank))
        far = owner[source] != rank
        wanted = np.bincount(destination[far], x[source[far]], minlength=plan.destinations)
        np.testing.assert_allclose(found, wanted[np.unique(destination[far])], atol=1e-12)
    for plan in plans_of(made, "halo", 1):
        moved = overlap.transfer_only(plan, edges=False)
        assert (moved.edges, moved.destinations, len(moved.segments)) == (0, 0, 0)
        assert moved.lists is plan.lists and len(moved.chunks) == len(plan.chunks)


@pytest.mark.parametrize(
    ("sums", "transfer", "both", "share"),
    [
        *((4, 2, both, share) for both, share in ((6, 0), (4, 1), (7, -0.5), (3, 1.5))),
        *((2, 4, both, share) for both, share in ((4, 1), (5, 0.5))),
        (1, 0, 1, np.nan),  # nothing takes no share
    ],
)
def test_a_share_is_0_one_after_the_other_and_1_where_the_shorter_costs_nothing(sums, transfer, both, share):
    np.testing.assert_equal(overlap.hidden_share(sums, transfer, both), share)
