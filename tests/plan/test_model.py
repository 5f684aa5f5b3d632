"""The choice of transfer from counts and costs."""

from __future__ import annotations

import numpy as np
import pytest

from mgg_hpc.plan.cost_model import RowCost, choose, choose_each, cold_reads, seconds

NETWORK = {"get": RowCost(20e-6, 1e-9), "halo": RowCost(1e-7, 1e-9)}
MEMORY = {"direct": RowCost(2e-9, 1e-11), "get": RowCost(5e-8, 1e-10), "halo": RowCost(2e-8, 2e-10)}


def one(*arguments):
    """The seconds of one size of rows."""
    return {name: value for name, [value] in seconds(*arguments).items()}


def test_seconds_are_rows_times_their_cost():
    found = seconds(MEMORY, np.full(10, 100), cache_bytes=0, row_bytes=[64, 512])
    for layer, size in enumerate((64, 512)):
        assert found["direct"][layer] == pytest.approx(1000 * (2e-9 + size * 1e-11))
        assert found["get"][layer] == pytest.approx(1000 * (5e-8 + size * 1e-10))
        assert found["halo"][layer] == pytest.approx(10 * (2e-8 + size * 2e-10))


def test_many_edges_to_few_rows_take_a_halo():
    assert choose(one(MEMORY, np.full(10_000, 100), 0, [256])) == "halo"
    assert choose(one(MEMORY, np.full(9_000, 1), 0, [256])) == "direct"


def test_rows_that_a_cache_holds_are_read_once(rng):
    uses = rng.zipf(1.5, 1000).clip(max=10_000)
    falling = np.sort(uses)[::-1]
    for held in (0, 1, 17, 999, 1000, 5000):
        assert cold_reads(uses, held) == min(held, 1000) + falling[held:].sum()
    found = one(MEMORY, uses, 17 * 256, [256])
    assert found["direct"] == MEMORY["direct"].of(17 + falling[17:].sum(), 256)


def test_out_of_reach_a_halo_costs_less_than_a_get_an_edge():
    uses = np.full(20_000, 2)
    assert choose(one(NETWORK, uses, 1 << 24, [256])) == "halo"


def test_equals_take_what_needs_least():
    assert choose({"get": 1.0, "halo": 1.0, "direct": 1.0}) == "direct"
    assert choose({"get": 1.0, "halo": 1.0}) == "get"
    assert choose({"halo": 0.0}) == "halo"


def test_layers_differ_where_that_saves_more_than_a_tenth():
    assert choose_each({"direct": [1.0, 9.0], "halo": [4.0, 4.0]}) == ["direct", "halo"]  # 5 instead of 8
    assert choose_each({"direct": [1.0, 4.5], "halo": [1.9, 4.0]}) == ["direct"] * 2  # 5 instead of 5.5
    assert choose_each({"direct": [1.0, 4.7], "halo": [1.9, 4.0]}) == ["direct", "halo"]  # 5 instead of 5.7
    assert choose_each({"get": [2.0, 2.0, 2.0], "halo": [2.0, 2.0, 2.0]}) == ["get"] * 3


def test_wide_and_narrow_rows_may_take_different_ways():
    """Per row a halo costs more here, per byte less."""
    costs = {"direct": RowCost(1e-9, 1e-9), "halo": RowCost(4e-7, 1e-12)}
    assert choose_each(seconds(costs, np.full(100, 1), 0, [64, 4096])) == ["direct", "halo"]
