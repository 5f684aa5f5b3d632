"""The choice of transfer from counts and costs."""

from __future__ import annotations

import numpy as np

from mgg_hpc.plan.model import RowCost, choose, cold_reads, seconds

NETWORK = {"get": RowCost(20e-6, 1e-9), "halo": RowCost(1e-7, 1e-9)}
MEMORY = {"direct": RowCost(2e-9, 1e-11), "get": RowCost(5e-8, 1e-10), "halo": RowCost(2e-8, 2e-10)}


def test_seconds_are_rows_times_their_cost():
    found = seconds(MEMORY, np.full(10, 100), cache_bytes=0, row_bytes=[64, 512])
    assert abs(found["direct"] - 1000 * (2 * 2e-9 + (64 + 512) * 1e-11)) < 1e-15
    assert abs(found["get"] - 1000 * (2 * 5e-8 + (64 + 512) * 1e-10)) < 1e-15
    assert abs(found["halo"] - 10 * (2 * 2e-8 + (64 + 512) * 2e-10)) < 1e-15


def test_many_edges_to_few_rows_take_a_halo():
    assert choose(seconds(MEMORY, np.full(10_000, 100), 0, [256])) == "halo"
    assert choose(seconds(MEMORY, np.full(9_000, 1), 0, [256])) == "direct"


def test_rows_that_a_cache_holds_are_read_once(rng):
    uses = rng.zipf(1.5, 1000).clip(max=10_000)
    falling = np.sort(uses)[::-1]
    for held in (0, 1, 17, 999, 1000, 5000):
        assert cold_reads(uses, held) == min(held, 1000) + falling[held:].sum()
    found = seconds(MEMORY, uses, cache_bytes=17 * 256, row_bytes=[256])
    assert found["direct"] == MEMORY["direct"].of(17 + falling[17:].sum(), 256)


def test_out_of_reach_a_halo_costs_less_than_a_get_an_edge():
    uses = np.full(20_000, 2)
    assert choose(seconds(NETWORK, uses, 1 << 24, [256])) == "halo"


def test_equals_take_what_needs_least():
    assert choose({"get": 1.0, "halo": 1.0, "direct": 1.0}) == "direct"
    assert choose({"get": 1.0, "halo": 1.0}) == "get"
    assert choose({"halo": 0.0}) == "halo"
