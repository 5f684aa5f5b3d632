"""The choice of transfer from counts and costs."""

from __future__ import annotations

from mgg_hpc.plan.model import RowCost, choose, seconds

NETWORK = {"get": RowCost(20e-6, 1e-9), "halo": RowCost(1e-7, 1e-9)}
MEMORY = {"direct": RowCost(2e-9, 1e-11), "get": RowCost(5e-8, 1e-10), "halo": RowCost(2e-8, 2e-10)}


def test_seconds_are_rows_times_their_cost():
    found = seconds(MEMORY, remote_edges=1000, halo_rows=10, row_bytes=[64, 512])
    assert abs(found["direct"] - 1000 * (2 * 2e-9 + (64 + 512) * 1e-11)) < 1e-15
    assert abs(found["halo"] - 10 * (2 * 2e-8 + (64 + 512) * 2e-10)) < 1e-15


def test_many_edges_to_few_rows_take_a_halo():
    assert choose(seconds(MEMORY, 1_000_000, 10_000, [256])) == "halo"
    assert choose(seconds(MEMORY, 10_000, 9_000, [256])) == "direct"


def test_out_of_reach_a_halo_costs_less_than_a_get_an_edge():
    assert choose(seconds(NETWORK, 50_000, 20_000, [256])) == "halo"


def test_equals_take_what_needs_least():
    assert choose({"get": 1.0, "halo": 1.0, "direct": 1.0}) == "direct"
    assert choose({"get": 1.0, "halo": 1.0}) == "get"
    assert choose({"halo": 0.0}) == "halo"
