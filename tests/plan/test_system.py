"""Descriptions of clusters and hosts: what a file says is what the model takes, and what is wrong in one is named."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
import tomli_w

from mgg_hpc.errors import InputError
from mgg_hpc.plan import system


def described(rng, kind) -> dict:
    """Return a description of this kind with a number of its own for each key."""
    keys = [
        each.name for each in msgspec.structs.fields(kind) if each.name not in ("name", "kernels", "basis")
    ]
    found = {key: float(value) for key, value in zip(keys, rng.uniform(1, 1e3, len(keys)), strict=True)}
    found |= {"ranks_a_node": int(rng.integers(1, 9))}
    return found | ({"kernels": "this"} if kind is system.Hosts else {})


@pytest.mark.parametrize("kind", [system.Cluster, system.Hosts])
def test_a_file_describes_hosts_or_a_cluster(rng, tmp_path, kind):
    path = tmp_path / "ours.toml"
    given = described(rng, kind)
    path.write_text(tomli_w.dumps(given))
    found = system.named(str(path))
    assert type(found) is kind and found.name == "ours"
    assert {key: getattr(found, key) for key in given} == given
    path.write_text(tomli_w.dumps(given | {"network_gbs": 1.0}))
    with pytest.raises(InputError, match=r"ours\.toml: unknown key network_gbs; did you mean network_gb_s\?"):
        system.named(str(path))
    path.write_text(tomli_w.dumps(given | {"network_gb_s": 0.0}))
    with pytest.raises(InputError, match=r"ours\.toml: expected .*network_gb_s"):
        system.named(str(path))


@pytest.mark.parametrize(
    ("name", "said"), [("dgx-h10", "did you mean dgx-h100"), ("x.json", "dgx-a100, dgx-h100")]
)
def test_a_cluster_of_no_name_names_those_there_are(name, said):
    with pytest.raises(InputError, match=said):
        system.named(name)


def test_a_transfer_takes_what_the_links_of_its_ranks_take(rng):
    """Seconds of rows of so many bytes, from the description's own units."""
    given = system.Cluster(name="c", **described(rng, system.Cluster))
    found = system.of_cluster(given, given.ranks_a_node)
    far = system.of_cluster(given, given.ranks_a_node + 1)
    rows, size = 1000, 512
    memory, cache = (size / (1e9 * rate) for rate in (given.memory_gb_s, given.cache_gb_s))
    assert found.miss.of(1, size) + found.edge.of(1, size) == pytest.approx(memory * (1 + 4 / size))
    assert found.edge.of(1, size) == pytest.approx(cache + memory * 4 / size)
    link, network, packing = (
        rows * size / (1e9 * rate) for rate in (given.link_gb_s, given.network_gb_s, given.memory_gb_s / 2)
    )
    messages = rows / (1e6 * given.messages_million_s)

    def seconds(cost):
        return cost.row * rows + cost.byte * rows * size

    assert seconds(found.within["direct"]) == seconds(found.within["get"]) == pytest.approx(link, rel=1e-12)
    assert seconds(found.within["halo"]) == pytest.approx(link + packing, rel=1e-12)
    assert seconds(found.between["get"]) == pytest.approx(network + messages, rel=1e-12)
    assert seconds(found.between["halo"]) == pytest.approx(network + packing, rel=1e-12)
    for made, latency in ((found, given.link_us), (far, given.network_us)):
        wanted = 1e-6 * (latency + given.launch_us)
        assert made.hides and made.halo_rounds == 1
        assert made.fixed == pytest.approx(dict.fromkeys(("direct", "get", "halo"), wanted), rel=1e-12)


def test_hosts_take_what_this_one_takes_but_for_the_network(rng):
    this = system.of_cluster(system.named("dgx-a100"), 8)
    hosts = system.Hosts(name="h", **described(rng, system.Hosts))
    found = system.of_hosts(hosts, this)
    get = found.between["get"]
    assert (get.row, get.byte, get.together) == pytest.approx(
        (1e-6 * hosts.get_us, 1e-9 / hosts.network_gb_s, True)
    )
    assert found.fixed == pytest.approx(
        {name: cost + 1e-6 * hosts.network_us for name, cost in this.fixed.items()}
    )
    assert (found.name, found.ranks_a_node, found.hides) == ("h", hosts.ranks_a_node, True)
    same = {"name", "ranks_a_node", "between", "fixed", "hides"}
    assert replace(this, **{name: getattr(found, name) for name in same}) == found
