"""The cost model: what it chooses, times against sums written out by hand, and clusters and hosts as described."""

from __future__ import annotations

from dataclasses import replace

import cases
import msgspec
import numpy as np
import pytest
import tomli_w

from mgg_hpc.errors import InputError
from mgg_hpc.plan import counts
from mgg_hpc.plan.cost_model import (
    NOTHING,
    Cluster,
    Hosts,
    Layer,
    RowCost,
    System,
    aggregation,
    choose,
    choose_each,
    cold_reads,
    epoch,
    find_system,
    system_of_cluster,
    system_of_hosts,
    transfer_seconds,
)

NETWORK = {"get": RowCost(20e-6, 1e-9), "halo": RowCost(1e-7, 1e-9)}
MEMORY = {"direct": RowCost(2e-9, 1e-11), "get": RowCost(5e-8, 1e-10), "halo": RowCost(2e-8, 2e-10)}


def one(*arguments):
    """The seconds of one size of rows."""
    return {name: value for name, [value] in transfer_seconds(*arguments).items()}


def test_rows_that_a_cache_holds_are_read_once(rng):
    uses = rng.zipf(1.5, 1000).clip(max=10_000)
    falling = np.sort(uses)[::-1]
    for held in (0, 1, 17, 999, 1000, 5000):
        assert cold_reads(uses, held) == min(held, 1000) + falling[held:].sum()
    found = transfer_seconds(MEMORY, uses, 17 * 256, [256, 17])
    for name, rows in (("direct", 17 + falling[17:].sum()), ("get", uses.sum()), ("halo", 1000)):
        assert found[name][0] == pytest.approx(rows * (MEMORY[name].row + 256 * MEMORY[name].byte))


@pytest.mark.parametrize(
    ("times", "best"),
    [
        (one(MEMORY, np.full(10_000, 100), 0, [256]), "halo"),  # many edges to few rows
        (one(MEMORY, np.full(9_000, 1), 0, [256]), "direct"),
        (one(NETWORK, np.full(20_000, 2), 1 << 24, [256]), "halo"),  # out of reach, less than a get an edge
        ({"get": 1.0, "halo": 1.0, "direct": 1.0}, "direct"),  # equals take what needs least
        ({"get": 1.0, "halo": 1.0}, "get"),
        ({"halo": 0.0}, "halo"),
    ],
)
def test_the_best_transfer_is_chosen(times, best):
    assert choose(times) == best


# Per row a halo costs more here, per byte less.
WIDE = {"direct": RowCost(1e-9, 1e-9), "halo": RowCost(4e-7, 1e-12)}


@pytest.mark.parametrize(
    ("times", "best"),
    [
        ({"direct": [1.0, 9.0], "halo": [4.0, 4.0]}, ["direct", "halo"]),  # 5 instead of 8
        ({"direct": [1.0, 4.5], "halo": [1.9, 4.0]}, ["direct"] * 2),  # 5 instead of 5.5
        ({"direct": [1.0, 4.7], "halo": [1.9, 4.0]}, ["direct", "halo"]),  # 5 instead of 5.7
        ({"get": [2.0, 2.0, 2.0], "halo": [2.0, 2.0, 2.0]}, ["get"] * 3),
        (transfer_seconds(WIDE, np.full(100, 1), 0, [64, 4096]), ["direct", "halo"]),
    ],
)
def test_layers_differ_where_that_saves_more_than_a_tenth(times, best):
    assert choose_each(times) == best


# ---- predictions

COSTS = {"direct": RowCost(1e-8, 0.0), "get": RowCost(2e-8, 0.0), "halo": RowCost(3e-8, 1e-10)}
FAR = {"get": RowCost(1e-6, 1e-9), "halo": RowCost(0.0, 1e-9)}
MADE = System(
    name="made up",
    ranks_a_node=2,
    edge=RowCost(3e-9, 1e-12),
    miss=RowCost(5e-9, 7e-12),
    segment=RowCost(2e-9, 3e-11),
    operation=1e-9,
    byte=1e-10,
    layer=1e-4,
    within=COSTS,
    between=FAR,
    fixed={"direct": 1e-5, "get": 2e-5, "halo": 3e-5},
    message=1e-6,
    cache_bytes=64 * 20,
)


def test_an_aggregation_on_one_node(rng):
    case = cases.ordinary(rng, 2)
    traffic = counts.count_ranks(case.bounds, case.part)

    def missed(rows):
        """The reads of rows that miss a cache of the 20 most used ones, which miss once."""
        used = np.sort(np.unique(rows, return_counts=True)[1])[::-1]
        return len(used[:20]) + int(used[20:].sum())

    def of(transfer: str, each: counts.RankCounts) -> tuple[float, float]:
        rows = case.part(each.rank)[1]
        remote = rows[(rows < case.bounds[each.rank]) | (rows >= case.bounds[each.rank + 1])]
        moved = {"direct": missed(remote), "get": len(remote), "halo": len(np.unique(remote))}[transfer]
        reads = len(rows) * (3e-9 + 64e-12) + missed(rows) * (5e-9 + 64 * 7e-12)
        return reads + each.segments[transfer] * (2e-9 + 192e-11), COSTS[transfer].seconds(moved, 64)

    for hides, together in ((False, sum), (True, max)):
        found = aggregation(replace(MADE, hides=hides), traffic, 64)
        for name in COSTS:
            taken = max(together(of(name, each)) for each in traffic.ranks)
            assert found[name] == pytest.approx(MADE.fixed[name] + taken)
    assert aggregation(MADE, traffic, 0) == dict.fromkeys(COSTS, 0.0)


def test_rows_of_other_nodes_take_the_network(rng):
    case = cases.ordinary(rng, 4)
    traffic = counts.count_ranks(case.bounds, case.part)
    assert MADE.transfers(2) == ["direct", "get", "halo"]
    assert MADE.transfers(4) == ["get", "halo"]
    edges, rows = (each.tolist() for each in traffic.between(2))
    found = aggregation(replace(MADE, edge=NOTHING, miss=NOTHING, segment=NOTHING), traffic, 64)
    packets = traffic.messages("halo", 64)
    get = max(
        COSTS["get"].seconds(each.remote_edges - far, 64) + FAR["get"].seconds(far, 64)
        for each, far in zip(traffic.ranks, edges, strict=True)
    )
    halo = max(
        COSTS["halo"].seconds(each.halo_rows - far, 64)
        + FAR["halo"].seconds(far, 64)
        + 1e-6 * packets[each.rank] * far / each.halo_rows
        for each, far in zip(traffic.ranks, rows, strict=True)
    )
    assert (found["get"], found["halo"]) == pytest.approx(
        (MADE.fixed["get"] + get, MADE.fixed["halo"] + halo)
    )
    assert min(rows) > 0


def test_an_epoch_is_its_layers_and_the_fixed_rest(rng):
    """More ranks on a machine take longer for the same work."""
    case = cases.ordinary(rng, 2)
    traffic = counts.count_ranks(case.bounds, case.part)
    layers = [Layer(64, 0, 100.0, streamed=50.0), Layer(64, 64)]
    found, once = epoch(MADE, traffic, traffic, layers), aggregation(MADE, traffic, 64)
    rows = max(each.rows for each in traffic.ranks)
    assert found.dense[0] == pytest.approx(rows * (100e-9 + 50e-10))
    for name in COSTS:
        assert found.epoch(name) == pytest.approx(3 * once[name] + rows * 105e-9 + 2e-4)
    assert found.epoch() == pytest.approx(min(found.epoch(name) for name in COSTS))
    alone = replace(MADE, within=dict.fromkeys(COSTS, NOTHING), fixed=dict.fromkeys(COSTS, 0.0))
    once, slow = (epoch(each, traffic, traffic, layers) for each in (alone, alone.slower(3.0)))
    assert slow.epoch("get") == pytest.approx(3 * once.epoch("get"))
    assert alone.slower(3.0).within == alone.within


# ---- descriptions


def described(rng, kind) -> dict:
    """Return a description of this kind with a number of its own for each key."""
    names = [each.name for each in msgspec.structs.fields(kind)]
    found = {key: float(rng.uniform(1, 1e3)) for key in names if key not in ("name", "kernels", "basis")}
    found |= {"ranks_a_node": int(rng.integers(1, 9))}
    return found | ({"kernels": "this"} if kind is Hosts else {})


@pytest.mark.parametrize("kind", [Cluster, Hosts])
def test_a_file_describes_hosts_or_a_cluster(rng, tmp_path, kind):
    path, given = tmp_path / "ours.toml", described(rng, kind)
    path.write_text(tomli_w.dumps(given))
    found = find_system(str(path))
    assert type(found) is kind and found.name == "ours"
    assert {key: getattr(found, key) for key in given} == given
    for wrong, said in (
        ({"network_gbs": 1.0}, r"ours\.toml: unknown key network_gbs; did you mean 'network_gb_s'\?"),
        ({"network_gb_s": 0.0}, r"ours\.toml: expected .*network_gb_s"),
    ):
        path.write_text(tomli_w.dumps(given | wrong))
        with pytest.raises(InputError, match=said):
            find_system(str(path))


@pytest.mark.parametrize(
    ("name", "said"), [("dgx-h10", "did you mean 'dgx-h100'"), ("x.json", "dgx-a100, dgx-h100")]
)
def test_a_cluster_of_no_name_names_those_there_are(name, said):
    assert find_system("dgx-h100").ranks_a_node == 8
    with pytest.raises(InputError, match=said):
        find_system(name)


def test_costs_follow_from_the_rates_of_a_description(rng):
    """Seconds of rows of so many bytes, from the description's own units."""
    given, size = Cluster(name="c", **described(rng, Cluster)), 512
    found, far = (system_of_cluster(given, given.ranks_a_node + more) for more in (0, 1))
    memory, cache, link, network = (
        size / (1e9 * rate)
        for rate in (given.memory_gb_s, given.cache_gb_s, given.link_gb_s, given.network_gb_s)
    )
    message, index, packing = 1e-6 / given.messages_million_s, memory * 4 / size, 2 * memory
    for cost, wanted in (
        (found.edge, cache + index),
        (found.miss, memory - cache),
        *((found.within[name], link) for name in ("direct", "get")),
        (found.within["halo"], link + packing),
        (found.between["get"], network + message),
        (found.between["halo"], network + packing),
    ):
        assert cost.seconds(1000, size) == pytest.approx(1000 * wanted, rel=1e-12)
    for made, latency in ((found, given.link_us), (far, given.network_us)):
        assert made.hides and made.halo_rounds == 1
        assert [*made.fixed.values()] == pytest.approx([1e-6 * (latency + given.launch_us)] * 3, rel=1e-12)
    # Hosts have the costs of this one but for the network.
    hosts = Hosts(name="h", **described(rng, Hosts))
    theirs, get = system_of_hosts(hosts, found), RowCost(1e-6 * hosts.get_us, 1e-9 / hosts.network_gb_s, True)
    for name in ("row", "byte", "together"):
        assert getattr(theirs.between["get"], name) == pytest.approx(getattr(get, name))
    for name, cost in found.fixed.items():
        assert theirs.fixed[name] == pytest.approx(cost + 1e-6 * hosts.network_us)
    same = {name: getattr(theirs, name) for name in ("name", "ranks_a_node", "between", "fixed", "hides")}
    assert replace(found, **same) == theirs and (theirs.name, theirs.ranks_a_node) == (
        "h",
        hosts.ranks_a_node,
    )
