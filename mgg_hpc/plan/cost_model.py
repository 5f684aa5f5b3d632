"""Estimate times from counts and costs: of transfers, aggregations, layers and epochs; choose transfers.

This is the only model of times, and it is linear in its costs. A running job chooses its transfers by the time that
remote rows take beyond local ones (`transfer_seconds`, `choose_each`). `mgg model` adds sums, products and fixed costs
(`System`, `aggregation`, `epoch`), for this machine as it was measured or for a described one (`find_system`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, did_you_mean
from .counts import RankCounts, Traffic
from .layout import SEGMENT

TRANSFERS = ("direct", "get", "halo")
LEAST_GAIN = (
    0.1  # share of the time for remote rows that a transfer for each layer must save over one for all
)


@dataclass(frozen=True)
class RowCost:
    """Seconds of a row: ``row`` for each row, and ``byte`` for each of its bytes.

    together: whether both pass at the same time, as for rows that wait for each other's answers and for the link.
    """

    row: float
    byte: float
    together: bool = False

    def seconds(self, rows: int, row_bytes: int) -> float:
        """Return the seconds of ``rows`` rows of ``row_bytes`` bytes."""
        moved = self.byte * row_bytes
        return rows * (max(self.row, moved) if self.together else self.row + moved)

    def slower(self, times: float) -> RowCost:
        """Return ``times`` the cost."""
        return replace(self, row=times * self.row, byte=times * self.byte)


def cold_reads(uses: NDArray[np.integer], held: int, rows: NDArray[np.integer] | None = None) -> int:
    """Return the number of reads that miss a cache of the ``held`` most used rows, each of which misses once.

    uses: [H], number of edges that read each remote row. rows: [H], number of rows with each of these. [default: one]
    """
    falling = np.argsort(-uses)
    each = np.ones_like(uses) if rows is None else rows[falling]
    missed = np.clip(np.cumsum(each) - held, 0, each)
    present = int(each[uses[falling] > 0].sum())
    return min(held, present) + int((missed * uses[falling]).sum())


def transfer_seconds(
    costs: Mapping[str, RowCost],
    uses: NDArray[np.integer],
    cache_bytes: int,
    row_bytes: Sequence[int],
    rows: NDArray[np.integer] | None = None,
) -> dict[str, list[float]]:
    """Return the seconds that each transfer of ``costs`` takes for an aggregation's rows, for each size (0: none).

    "get" moves a row for each remote edge; so does "direct", but its costs are those of rows that no cache holds, and
    graphs have rows that many edges read. "halo" moves each distinct remote row once. uses, rows: as for `cold_reads`.
    """
    total = int((uses if rows is None else uses * rows).sum())
    distinct = len(uses) if rows is None else int(rows.sum())

    def moved(name: str, size: int) -> int:
        if name == "direct":
            return cold_reads(uses, cache_bytes // size, rows)
        return total if name == "get" else distinct

    return {
        name: [cost.seconds(moved(name, size), size) if size else 0.0 for size in row_bytes]
        for name, cost in costs.items()
    }


def choose(estimates: Mapping[str, float]) -> str:
    """Return the cheapest transfer; among equals the one that needs least: direct, then get."""
    return min(TRANSFERS, key=lambda name: estimates.get(name, float("inf")))


def choose_each(estimates: Mapping[str, Sequence[float]]) -> list[str]:
    """Return the transfer of each layer, from the seconds that each layer takes by each transfer.

    All layers have the same, unless a choice for each saves more than LEAST_GAIN: two transfers take two kinds of
    memory, and costs are measured in milliseconds.
    """
    whole = {name: sum(seconds) for name, seconds in estimates.items()}
    one = choose(whole)
    each = [
        choose({name: seconds[layer] for name, seconds in estimates.items()})
        for layer in range(len(estimates[one]))
    ]
    least = sum(estimates[name][layer] for layer, name in enumerate(each))
    return each if least < (1 - LEAST_GAIN) * whole[one] else [one] * len(each)


# ---- systems

NOTHING = RowCost(0.0, 0.0)


@dataclass(frozen=True)
class System:
    """Costs of the work of each rank of a job, and of moving rows between ranks.

    ranks_a_node: number of ranks that reach each other's rows through pointers. edge: cost of reading and adding a
    source row that a cache holds; miss: additional cost where no cache does. segment: cost of beginning and storing a
    segment. operation: seconds of a floating-point operation of products. byte: seconds of a byte that passes over rows
    move. layer: fixed seconds of a layer, forward and backward. within, between: cost of a remote row beyond a local
    one, by transfer, from ranks of the same node and of others. fixed: seconds of an aggregation that moves nothing,
    with its barrier, by transfer. message: seconds for each message to another node. cache_bytes: size of the cache for
    rows. hides: whether transfers overlap with the sums. halo_rounds: number of rounds of a halo, or None where its
    size decides.
    """

    name: str
    ranks_a_node: Annotated[int, msgspec.Meta(ge=1)]
    edge: RowCost = NOTHING
    miss: RowCost = NOTHING
    segment: RowCost = NOTHING
    operation: float = 0.0
    byte: float = 0.0
    layer: float = 0.0
    within: Mapping[str, RowCost] = field(default_factory=lambda: dict.fromkeys(TRANSFERS, NOTHING))
    between: Mapping[str, RowCost] = field(default_factory=dict)
    fixed: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(TRANSFERS, 0.0))
    message: float = 0.0
    cache_bytes: int = 0
    hides: bool = False
    halo_rounds: int | None = None

    def slower(self, times: float) -> System:
        """Return the system with ``times`` the cost of the ranks' work, and the same costs of moving rows."""
        rows = {name: getattr(self, name).slower(times) for name in ("edge", "miss", "segment")}
        rest = {name: times * getattr(self, name) for name in ("operation", "byte", "layer")}
        return replace(self, **rows, **rest)

    def transfers(self, ranks: int) -> list[str]:
        """Return the transfers that a job of so many ranks can use: pointers end at the node."""
        far = ranks > self.ranks_a_node
        return [name for name in TRANSFERS if name in self.within and (not far or name in self.between)]


Above = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Number = Annotated[int, msgspec.Meta(ge=1, le=2**20)]


class Cluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cluster with a rank on each GPU. Rates are of one GPU; GB are 10^9 bytes, MiB 2^20.

    Its fields are the keys of a description in TOML; those without a default are required. link: to GPUs of the same
    node, in each direction. network: this GPU's share of its node's adapters, in each direction.
    """

    name: str
    ranks_a_node: Number
    memory_gb_s: Above
    link_gb_s: Above
    network_gb_s: Above
    tflops: Above  # of products of float32
    cache_mib: Above = 40.0
    cache_gb_s: Above = 4000.0
    link_us: Above = 2.0  # from a store on one GPU until another GPU sees it
    network_us: Above = 5.0
    messages_million_s: Above = 200.0  # that a network adapter starts
    launch_us: Above = 3.0  # of a kernel
    basis: str = "as described"


class Hosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hosts like this one, on which kernels take the same time, joined by a network.

    Its fields are the keys of a description in TOML, in which kernels = "this". network: a rank's share of its host's
    network, in each direction. get_us: from a get of a row to its arrival, while one waits for another.
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
# and the rate of the L2 cache (2.3 times the A100's memory, after "NVIDIA A100 Tensor Core GPU architecture", 2020:
# 5,120 bytes a clock) are assumptions in their order of size.
DATA_SHEETS = {
    "dgx-a100": Cluster(
        "dgx-a100", 8, 1555, 300, 25, 19.5, cache_gb_s=3600, messages_million_s=215, basis="data sheets"
    ),
    "dgx-h100": Cluster("dgx-h100", 8, 3350, 450, 50, 67, cache_mib=50, cache_gb_s=5500, basis="data sheets"),
}


def find_system(name: str) -> Cluster | Hosts:
    """Return the system of a name or a TOML file. Raises InputError for neither, or a wrong key or value."""
    if name in DATA_SHEETS:
        return DATA_SHEETS[name]
    path = Path(name)
    if path.suffix != ".toml":
        ask = did_you_mean(name, [*DATA_SHEETS, "this"])
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
            ask = did_you_mean(key, known) or f"; known are {', '.join(known)}"
            raise InputError(f"{path}: unknown key {key}{ask}")
    try:
        return msgspec.convert({"name": path.stem} | tree, kind)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: {str(error)[0].lower()}{str(error)[1:]}") from error


def system_of_hosts(hosts: Hosts, this: System) -> System:
    """Return the costs on hosts with the ranks of ``this`` system, joined by a network.

    Transfers over the network overlap with the sums; rows of the same host are moved by the processors that sum.
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


def system_of_cluster(cluster: Cluster, ranks: int) -> System:
    """Return the costs of ``ranks`` ranks at the rates of a description, which no kernel exceeds.

    A row of the transfer halo is read and packed by its owner, and sent once; with direct and get it is sent for each
    edge. Transfers overlap with the sums.
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


# ---- aggregations and epochs


@dataclass(frozen=True)
class Layer:
    """Work of a layer in a training step.

    forward, backward: bytes of the rows that it exchanges, 0 for none. operations: floating-point operations of its
    products for each row, in both directions. streamed: bytes that its passes over rows move for each row.
    """

    forward: int
    backward: int
    operations: float = 0.0
    streamed: float = 0.0


def sums(system: System, each: RankCounts, row_bytes: int, transfer: str) -> float:
    """Return the seconds of a rank's sums over rows that it can read."""
    uses, rows = np.concatenate([each.local_uses, each.uses], axis=1)
    return (
        system.segment.seconds(each.segments[transfer], row_bytes)
        + system.edge.seconds(int(each.edges.sum()), row_bytes)
        + system.miss.seconds(cold_reads(uses, system.cache_bytes // row_bytes, rows), row_bytes)
    )


def aggregation(system: System, traffic: Traffic, row_bytes: int) -> dict[str, float]:
    """Return the seconds of an aggregation on the slowest rank, by transfer; 0 for rows of no bytes."""
    slowest = dict.fromkeys(system.transfers(len(traffic.ranks)), 0.0)
    if not row_bytes:
        return slowest
    far_edges, far_rows = (each.tolist() for each in traffic.between(system.ranks_a_node))
    messages = traffic.messages("halo", row_bytes).tolist()
    for rank, each in enumerate(traffic.ranks):
        near = transfer_seconds(system.within, each.uses[0], system.cache_bytes, [row_bytes], each.uses[1])
        for name in slowest:
            far, total = far_edges[rank], each.remote_edges
            if name == "halo":
                far, total = far_rows[rank], each.halo_rows
            share = far / max(1, total)
            moved = near[name][0] * (1 - share)
            if far:
                moved += system.between[name].seconds(far, row_bytes)
                moved += system.message * messages[rank] * share if name == "halo" else 0.0
            summed = sums(system, each, row_bytes, name)
            both = max(summed, moved) if system.hides else summed + moved
            slowest[name] = max(slowest[name], both)
    return {name: system.fixed[name] + both for name, both in slowest.items()}


@dataclass(frozen=True)
class Predicted:
    """Seconds of the parts of a training step.

    aggregations: of each layer, both directions, by transfer. dense: of each layer's products and passes over rows.
    fixed: of each layer. chosen: the transfer of each layer.
    """

    aggregations: Mapping[str, Sequence[float]]
    dense: Sequence[float]
    fixed: float
    chosen: Sequence[str]

    def epoch(self, transfer: str | None = None) -> float:
        """Return the seconds of a step by one transfer, or by the chosen ones."""
        each = [transfer or name for name in self.chosen]
        moved = sum(self.aggregations[name][layer] for layer, name in enumerate(each))
        return moved + sum(self.dense) + self.fixed * len(self.dense)


def epoch(system: System, forward: Traffic, backward: Traffic, layers: Sequence[Layer]) -> Predicted:
    """Estimate a training step of the slowest rank, and choose the transfer of each layer as a job would."""
    found: dict[str, list[float]] = {name: [] for name in system.transfers(len(forward.ranks))}
    for layer in layers:
        ahead = aggregation(system, forward, layer.forward)
        back = aggregation(system, backward, layer.backward)
        for name, each in found.items():
            each.append(ahead[name] + back[name])
    rows = max((each.rows for each in forward.ranks), default=0)
    work = [rows * (each.operations * system.operation + each.streamed * system.byte) for each in layers]
    return Predicted(found, work, system.layer, choose_each(found))
