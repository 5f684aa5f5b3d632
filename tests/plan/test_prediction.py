"""Times that the cost model adds up, beside sums written out by hand."""

from __future__ import annotations

import cases
import numpy as np
import pytest

from mgg_hpc.plan import counts
from mgg_hpc.plan.cost_model import Gather, Layer, RowCost, System, aggregation, dense, epoch, transfers

FLAT = Gather((), (64,), ((3e-9,),))  # of a row of 64 bytes, wherever it was
COSTS = {"direct": RowCost(1e-8, 0.0), "get": RowCost(2e-8, 0.0), "halo": RowCost(3e-8, 1e-10)}
FAR = {"get": RowCost(1e-6, 1e-9), "halo": RowCost(0.0, 1e-9)}


def made(**changed) -> System:
    fields = {
        "name": "made up",
        "ranks_a_node": 2,
        "gather": FLAT,
        "destination": RowCost(1e-9, 1e-11),
        "segment": RowCost(2e-9, 3e-11),
        "dense": ((8, 1e9), (64, 4e9)),
        "stream": RowCost(1e-8, 1e-10),
        "draw": 1e-9,
        "layer": 1e-4,
        "step": 1e-3,
        "within": COSTS,
        "between": FAR,
        "fixed": {"direct": 1e-5, "get": 2e-5, "halo": 3e-5},
        "message": 1e-6,
    }
    return System(**fields | changed)


def test_an_aggregation_on_one_node(rng):
    case = cases.ordinary(rng, 2)
    traffic = counts.of_all_ranks(case.bounds, case.part)
    found = aggregation(made(), traffic, 64)

    def of(transfer: str, each: counts.RankCounts) -> float:
        segments = each.segments[transfer]
        stored = segments if transfer == "halo" else each.rows
        moved = each.halo_rows if transfer == "halo" else each.remote_edges
        summed = stored * (1e-9 + 64e-11) + segments * (2e-9 + 192e-11) + int(each.edges.sum()) * 3e-9
        return summed + COSTS[transfer].of(moved, 64)

    for name in COSTS:
        slowest = max(of(name, each) for each in traffic.ranks)
        assert found[name] == pytest.approx(made().fixed[name] + slowest)
    hidden = aggregation(made(hides=True), traffic, 64)
    assert all(hidden[name] < found[name] for name in COSTS)


def test_rows_of_other_nodes_take_the_network(rng):
    case = cases.ordinary(rng, 4)
    traffic = counts.of_all_ranks(case.bounds, case.part)
    assert transfers(made(), 2) == ["direct", "get", "halo"]
    assert transfers(made(), 4) == ["get", "halo"]
    edges, rows = traffic.between(2)
    free = {"gather": Gather((), (64,), ((0.0,),)), "destination": RowCost(0, 0), "segment": RowCost(0, 0)}
    found = aggregation(made(**free), traffic, 64)
    wanted = max(
        COSTS["get"].of(each.remote_edges - far, 64) + FAR["get"].of(far, 64)
        for each, far in zip(traffic.ranks, edges.tolist(), strict=True)
    )
    assert found["get"] == pytest.approx(2e-5 + wanted)
    assert rows.sum() > 0


def test_an_edge_costs_more_the_more_edges_are_remote(rng):
    """The mixed cost holds where (P - 1) / P of the edges are remote, as when P ranks draw from all rows alike."""
    case = cases.ordinary(rng, 2)
    traffic = counts.of_all_ranks(case.bounds, case.part)
    slower = made(
        mixed={"direct": Gather((), (64,), ((11e-9,),))}, within=dict.fromkeys(COSTS, RowCost(0, 0))
    )
    wanted = max(
        each.rows * (1e-9 + 64e-11)
        + each.segments["direct"] * (2e-9 + 192e-11)
        + int(each.edges.sum()) * (3e-9 + 8e-9 * min(1, 2 * each.remote_edges / int(each.edges.sum())))
        for each in traffic.ranks
    )
    assert aggregation(slower, traffic, 64)["direct"] == pytest.approx(1e-5 + wanted)


def test_rows_that_a_cache_holds_take_less(rng):
    table = Gather((64.0 * 500,), (64, 256), ((1e-9, 1e-8), (4e-9, 4e-8)))
    reuse = counts.reuse_of(rng.integers(0, 1000, 100_000), 1000)
    assert table.of(reuse, 64) == pytest.approx(0.5e-9 + 0.5e-8, rel=0.15)
    few = counts.reuse_of(rng.integers(0, 400, 100_000), 400)
    assert table.of(few, 64) == pytest.approx(1e-9)
    assert table.of(few, 160) == pytest.approx(table.of(few, 64) / 2 + table.of(few, 256) / 2, rel=0.5)


def test_an_epoch_is_its_layers_and_the_fixed_rest(rng):
    case = cases.ordinary(rng, 2)
    traffic = counts.of_all_ranks(case.bounds, case.part)
    layers = [Layer(64, 0, ((8, 100.0),), streamed=50.0, draws=3.0), Layer(64, 64)]
    found, once = epoch(made(), traffic, traffic, layers), aggregation(made(), traffic, 64)
    rows = max(each.rows for each in traffic.ranks)
    assert dense(made(), rows, layers[0]) == pytest.approx(rows * (100 / 1e9 + 1e-8 + 50e-10 + 3e-9))
    for name in COSTS:
        work = sum(dense(made(), rows, layer) for layer in layers)
        whole = 3 * once[name] + work + 2e-4 + 1e-3
        assert found.epoch(name) == pytest.approx(whole)
    cold = epoch(
        made(cold=1e-9), traffic, traffic, layers
    )  # rows and indices come from memory, in 3 aggregations
    read = max(
        len(np.unique(case.part(each.rank)[1])) * 64 + 4 * int(each.edges.sum()) for each in traffic.ranks
    )
    assert cold.epoch("get") == pytest.approx(found.epoch("get") + 3e-9 * read)
    assert found.epoch() == pytest.approx(min(found.epoch(name) for name in COSTS))
    assert made().flops(8) == 1e9 and made().flops(1000) == 4e9
    assert made().flops(22) == pytest.approx(np.interp(np.log(22), np.log([8, 64]), [1e9, 4e9]))
