"""Times that the cost model adds up equal sums written out by hand."""

from __future__ import annotations

import cases
import numpy as np
import pytest

from mgg_hpc.plan import counts
from mgg_hpc.plan.cost_model import NOTHING, Layer, RowCost, System, aggregation, dense, epoch, transfers

COSTS = {"direct": RowCost(1e-8, 0.0), "get": RowCost(2e-8, 0.0), "halo": RowCost(3e-8, 1e-10)}
FAR = {"get": RowCost(1e-6, 1e-9), "halo": RowCost(0.0, 1e-9)}


def made(**changed) -> System:
    fields = {
        "name": "made up",
        "ranks_a_node": 2,
        "edge": RowCost(3e-9, 1e-12),
        "miss": RowCost(5e-9, 7e-12),
        "segment": RowCost(2e-9, 3e-11),
        "operation": 1e-9,
        "byte": 1e-10,
        "layer": 1e-4,
        "within": COSTS,
        "between": FAR,
        "fixed": {"direct": 1e-5, "get": 2e-5, "halo": 3e-5},
        "message": 1e-6,
        "cache_bytes": 64 * 20,
    }
    return System(**fields | changed)


def missed(rows: np.ndarray, held: int) -> int:
    """The reads of rows that miss a cache of the ``held`` most used ones, which miss once."""
    used = np.sort(np.unique(rows, return_counts=True)[1])[::-1]
    return len(used[:held]) + int(used[held:].sum())


def test_an_aggregation_on_one_node(rng):
    case = cases.ordinary(rng, 2)
    traffic = counts.of_all_ranks(case.bounds, case.part)
    found = aggregation(made(), traffic, 64)

    def of(transfer: str, each: counts.RankCounts) -> tuple[float, float]:
        rows = case.part(each.rank)[1]
        remote = rows[(rows < case.bounds[each.rank]) | (rows >= case.bounds[each.rank + 1])]
        moved = {"direct": missed(remote, 20), "get": len(remote), "halo": len(np.unique(remote))}[transfer]
        reads = len(rows) * (3e-9 + 64e-12) + missed(rows, 20) * (5e-9 + 64 * 7e-12)
        return reads + each.segments[transfer] * (2e-9 + 192e-11), COSTS[transfer].of(moved, 64)

    hidden = aggregation(made(hides=True), traffic, 64)
    for name in COSTS:
        both = [of(name, each) for each in traffic.ranks]
        assert found[name] == pytest.approx(made().fixed[name] + max(map(sum, both)))
        assert hidden[name] == pytest.approx(made().fixed[name] + max(map(max, both)))
    assert aggregation(made(), traffic, 0) == dict.fromkeys(COSTS, 0.0)


def test_rows_of_other_nodes_take_the_network(rng):
    case = cases.ordinary(rng, 4)
    traffic = counts.of_all_ranks(case.bounds, case.part)
    assert transfers(made(), 2) == ["direct", "get", "halo"]
    assert transfers(made(), 4) == ["get", "halo"]
    edges, rows = (each.tolist() for each in traffic.between(2))
    found = aggregation(made(edge=NOTHING, miss=NOTHING, segment=NOTHING), traffic, 64)
    packets = traffic.messages("halo", 64)
    wanted = {
        "get": max(
            COSTS["get"].of(each.remote_edges - far, 64) + FAR["get"].of(far, 64)
            for each, far in zip(traffic.ranks, edges, strict=True)
        ),
        "halo": max(
            COSTS["halo"].of(each.halo_rows - far, 64)
            + FAR["halo"].of(far, 64)
            + 1e-6 * packets[each.rank] * far / each.halo_rows
            for each, far in zip(traffic.ranks, rows, strict=True)
        ),
    }
    for name, seconds in wanted.items():
        assert found[name] == pytest.approx(made().fixed[name] + seconds)
    assert min(rows) > 0


def test_an_epoch_is_its_layers_and_the_fixed_rest(rng):
    case = cases.ordinary(rng, 2)
    traffic = counts.of_all_ranks(case.bounds, case.part)
    layers = [Layer(64, 0, 100.0, streamed=50.0), Layer(64, 64)]
    found, once = epoch(made(), traffic, traffic, layers), aggregation(made(), traffic, 64)
    rows = max(each.rows for each in traffic.ranks)
    assert dense(made(), rows, layers[0]) == pytest.approx(rows * (100e-9 + 50e-10))
    for name in COSTS:
        assert found.epoch(name) == pytest.approx(3 * once[name] + rows * 105e-9 + 2e-4)
    assert found.epoch() == pytest.approx(min(found.epoch(name) for name in COSTS))


def test_more_ranks_on_a_machine_take_longer_for_the_same_work(rng):
    case = cases.ordinary(rng, 2)
    traffic, layers = counts.of_all_ranks(case.bounds, case.part), [Layer(64, 64, 100.0, 50.0)]
    given = made(within=dict.fromkeys(COSTS, NOTHING), fixed=dict.fromkeys(COSTS, 0.0))
    once, slow = (epoch(each, traffic, traffic, layers) for each in (given, given.slower(3.0)))
    assert slow.epoch("get") == pytest.approx(3 * once.epoch("get"))
    assert given.slower(3.0).within == given.within
