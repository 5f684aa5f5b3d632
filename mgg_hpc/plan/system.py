"""Descriptions of clusters of GPUs, from data sheets or a TOML file, as the cost model takes them."""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from ..errors import InputError
from .cost_model import TRANSFERS, RowCost, System
from .layout import SEGMENT

Above = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Number = Annotated[int, msgspec.Meta(ge=1, le=2**20)]


class Cluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cluster with a rank on each GPU. Rates are of one GPU; GB are 10^9 bytes, MiB 2^20.

    The keys of a description in TOML. Those without a default must be given. link: to GPUs of the same node, in each
    direction. network: this GPU's share of its node's adapters, in each direction.
    """

    name: str
    ranks_a_node: Number
    memory_gb_s: Above
    link_gb_s: Above
    network_gb_s: Above
    tflops: Above  # of products of float32
    cache_mib: Above = 40.0
    cache_gb_s: Above = 4000.0
    link_us: Above = 2.0  # from a store on one GPU to its sight on another
    network_us: Above = 5.0
    messages_million_s: Above = 200.0  # that a network adapter starts
    launch_us: Above = 3.0  # of a kernel
    basis: str = "as described"


class Hosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hosts like this one, whose kernels take what they take here, joined by a network.

    The keys of a description in TOML, in which kernels = "this". network: a rank's share of its host's network, in each
    direction. get_us: from a get of a row to its arrival, as long as one waits for another.
    """

    name: str
    kernels: Literal["this"]
    ranks_a_node: Number
    network_gb_s: Above
    network_us: Above = 30.0
    get_us: Above = 5.0


# NVIDIA, "DGX A100 datasheet" (2020) and "A100 Tensor Core GPU datasheet" (40 GB SXM: 1,555 GB/s, 19.5 teraflops of
# FP32, 40 MB of L2, NVLink 600 GB/s in both directions together); eight ConnectX-6 of 200 Gb/s a machine, each of which
# starts up to 215 million messages a second ("ConnectX-6 VPI card product brief").
# NVIDIA, "DGX H100 datasheet" (2022) and "H100 Tensor Core GPU datasheet" (SXM: 3.35 TB/s, 67 teraflops of FP32, 50 MB
# of L2, NVLink 900 GB/s in both directions together); eight ConnectX-7 of 400 Gb/s. Latencies, the launch of a kernel
# and the rate of the second cache (2.3 times the A100's memory, after "NVIDIA A100 Tensor Core GPU architecture", 2020:
# 5,120 bytes a clock) are assumptions in their order of size.
DATA_SHEETS = {
    "dgx-a100": Cluster(
        "dgx-a100", 8, 1555, 300, 25, 19.5, cache_gb_s=3600, messages_million_s=215, basis="data sheets"
    ),
    "dgx-h100": Cluster("dgx-h100", 8, 3350, 450, 50, 67, cache_mib=50, cache_gb_s=5500, basis="data sheets"),
}


def named(name: str) -> Cluster | Hosts:
    """Return a cluster by its name, or from a TOML file. Raises InputError for neither, or a wrong key or value."""
    if name in DATA_SHEETS:
        return DATA_SHEETS[name]
    path = Path(name)
    if path.suffix != ".toml":
        near = difflib.get_close_matches(name, [*DATA_SHEETS, "this"], 1)
        ask = f"; did you mean {near[0]}?" if near else ""
        raise InputError(
            f"--system {name}: expected {', '.join(DATA_SHEETS)}, this, or a file NAME.toml{ask}"
        )
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{path}: not TOML: {error}") from error
    kind: type[Hosts] | type[Cluster] = Hosts if "kernels" in tree else Cluster
    known = kind.__struct_fields__
    for key in tree:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            ask = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise InputError(f"{path}: unknown key {key}; {ask}")
    try:
        return msgspec.convert({"name": path.stem} | tree, kind)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: {str(error)[0].lower()}{str(error)[1:]}") from error


def of_hosts(hosts: Hosts, this: System) -> System:
    """Return what work and transfers take on hosts whose ranks are those of ``this`` system, joined by a network.

    Transfers over the network run under the sums; rows of the same host are moved by the processors that sum.
    """
    network = 1e9 * hosts.network_gb_s
    return replace(
        this,
        name=hosts.name,
        ranks_a_node=hosts.ranks_a_node,
        between={
            "get": RowCost(1e-6 * hosts.get_us, 1 / network, together=True),
            "halo": RowCost(0.0, 1 / network),
        },
        fixed={name: cost + 1e-6 * hosts.network_us for name, cost in this.fixed.items()},
        hides=True,
    )


def of_cluster(cluster: Cluster, ranks: int) -> System:
    """Return what work and transfers of ``ranks`` ranks take at the rates of a description, which no kernel exceeds.

    A row of the transfer halo is read and packed by its owner, and crosses once; one of direct or get crosses for each
    edge. Transfers run under the sums.
    """
    memory, cache = 1e-9 / cluster.memory_gb_s, 1e-9 / cluster.cache_gb_s
    link, network = 1e-9 / cluster.link_gb_s, 1e-9 / cluster.network_gb_s
    launch = 1e-6 * cluster.launch_us
    barrier = 1e-6 * (cluster.link_us if ranks <= cluster.ranks_a_node else cluster.network_us)
    packed = 2 * memory  # a row is read from its owner's memory, and again from the receiver's staging
    near, halo = RowCost(0.0, link), RowCost(0.0, link + packed)
    return System(
        name=cluster.name,
        ranks_a_node=cluster.ranks_a_node,
        edge=RowCost(4 * memory, cache),  # an index is read in order
        miss=RowCost(0.0, memory - cache),
        segment=RowCost(SEGMENT.itemsize * memory, memory),
        operation=1e-12 / cluster.tflops,
        byte=memory,
        layer=6 * launch,
        within={"direct": near, "get": near, "halo": halo},
        between={
            "get": RowCost(1e-6 / cluster.messages_million_s, network),
            "halo": RowCost(0.0, network + packed),
        },
        fixed=dict.fromkeys(TRANSFERS, launch + barrier),
        message=cluster.network_us * 1e-6 / 8,  # several are under way
        cache_bytes=int(cluster.cache_mib * 2**20),
        hides=True,
        halo_rounds=1,
    )
