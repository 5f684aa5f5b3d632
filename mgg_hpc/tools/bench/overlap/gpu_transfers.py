"""The ways of fetching and summing that `mgg bench overlap --device cuda` times, whole and in parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ....data.graph import Graph
from ....errors import InputError
from ....plan import halo, halo_schedule, workload
from ....plan.layout import RowFormat
from ....plan.overlap import separated, transfer_only
from ....plan.workload import Plan, SplitEdges
from ....runtime.backends.arguments import Geometry, Options, Rows
from ....runtime.backends.cuda import module
from ....runtime.backends.cuda.device_arrays import DeviceArrays
from ....runtime.backends.cuda.kernels import DeviceBackend
from ....runtime.backends.cuda.launches import default_geometry
from ....runtime.backends.simulated import World
from ..harness import sums
from ..harness.gpu import Device, drawn_rows
from . import ring, studies
from .studies import Ablation, AblationBackend, ManagedArrays

# MGG's schedules, and those that it is compared with.
ABLATIONS = {
    "halo": Ablation(),
    "get": Ablation(),
    "bulk": Ablation(bulk=True),
    "direct": Ablation(),
    "managed": Ablation(),
    "ring": Ablation(ring=True),
    "get-whole": Ablation(partition=False),
    "get-late": Ablation(interleave=False),
    "get-thread": Ablation(level="thread"),
    "get-block": Ablation(level="block"),
    "get-separate": Ablation(),
    "get-plain": Ablation(partition=False, interleave=False),  # and a row at a time
}
OWNER_SHARE = 0.125  # of the GPU's blocks, for the PE that only packs and pushes


def cut(graph: Graph, share: float) -> list[SplitEdges]:
    """Return both PEs' edges: the first has all destinations and its own rows; the second the last ``share``."""
    own = graph.nodes - min(graph.nodes - 1, round(share * graph.nodes))
    bounds = np.array([0, own, graph.nodes], dtype=np.int64)
    edges = graph.indices[: graph.indptr[own]]
    nothing = np.zeros(graph.nodes - own + 1, dtype=np.int64)
    return [
        workload.split(0, bounds, graph.indptr[: own + 1], edges),
        workload.split(1, bounds, nothing, edges[:0]),
    ]


@dataclass
class Way:
    """Two PEs that sum in one way, or do a part of it."""

    name: str
    device: Device
    plans: Sequence[Plan]
    rows: list[Rows]
    backends: list[DeviceBackend]
    out: Any
    world: World
    between: Callable[[], None] = lambda: None  # turns

    def call(self) -> None:
        """Launch the way once, without waiting for the GPU."""

        def of(rank: int) -> Callable[[], None]:
            out = self.out[: self.plans[rank].destinations]
            return lambda: self.backends[rank].aggregate(
                self.plans[rank], "copy", "sum", self.rows[rank], out
            )

        active = [rank for rank, plan in enumerate(self.plans) if rank == 0 or halo_schedule.crosses(plan)]
        self.device.together(self.world, [of(rank) for rank in active])


@dataclass
class SeparateWay(Way):
    """A way whose kernel sums the remote rows alone, while the warps of another sum the local ones (MGG, figure 10b).

    sums: what is launched beside it, and then what adds both up. there: where the remote sums go.
    """

    sums: tuple[Callable[[], None], Callable[[], None]] = (lambda: None, lambda: None)
    there: Any = None

    def call(self) -> None:
        """See Way."""
        beside, after = self.sums
        plan, rows, backend = self.plans[0], self.rows[0], self.backends[0]
        self.device.together(
            self.world, [lambda: backend.aggregate(plan, "copy", "sum", rows, self.there), beside]
        )
        after()


class Subject:
    """A graph with a share of its rows far away."""

    def __init__(self, device: Device, graph: Graph, share: float, format: RowFormat) -> None:
        self.device, self.graph, self.format = device, graph, format
        self.geometry = default_geometry(format, module.limits_of(device.module))
        edges = cut(graph, share)
        self.plans = [workload.direct(each) for each in edges]
        summing, owner = (plan for plan, _ in halo.of_all_ranks(edges, 1))
        self.halos = [summing, transfer_only(owner, edges=False)]
        bounds = np.array([0, self.plans[0].destinations, graph.nodes])
        summing, owner = (ring.ring(plan, bounds) for plan in self.plans)
        self.rings = [summing, transfer_only(owner, edges=False)]
        self.counts = np.array([self.plans[0].destinations, graph.nodes - self.plans[0].destinations])
        self.whole = workload.rectangular(
            0,
            graph.indptr[: self.plans[0].destinations + 1],
            graph.indices[: self.plans[0].edges].astype(np.int32, copy=False),
            graph.nodes,
        )
        self.x = drawn_rows(graph, format)
        self.uploaded = device.arrays.uploaded(self.x)
        backend = DeviceBackend(0, World(1), Options(self.geometry), device.module, device.arrays)
        self.out = backend.memory.padded(self.plans[0].destinations, format)

    def geometry_of(self, name: str) -> Geometry:
        """Return the geometry of a way."""
        return replace(self.geometry, ps=1, dist=1) if name == "get-plain" else self.geometry

    def _backend(
        self, rank: int, world: World, name: str, ablation: Ablation, table: DeviceArrays | None = None
    ) -> DeviceBackend:
        options, device = Options(self.geometry_of(name)), self.device
        if ablation == Ablation():
            return DeviceBackend(rank, world, options, device.module, device.arrays, table)
        return AblationBackend(rank, world, options, device.module, device.arrays, ablation, table)

    def _far_memory(self, name: str) -> DeviceArrays:
        """Return the memory of the second PE's rows."""
        slow = self.device.slow
        if name == "managed" and self.x.nbytes > self.device.free_bytes():
            free = self.device.free_bytes()
            raise InputError(
                f"--ways managed: {self.x.nbytes:,} bytes of rows, where {free:,} are free on the GPU"
            )
        if name == "managed" and name not in slow:
            slow[name] = ManagedArrays(studies.native(self.device.module))
        return slow[name if name == "managed" else "pinned"]

    def sums(self, name: str = "direct") -> Way:
        """Return the sums alone, over rows that all lie on the GPU, with the same bits as a way of this name."""
        world = World(1)
        backend = self._backend(0, world, name, Ablation(partition=ABLATIONS[name].partition))
        rows = backend.rows(np.array([len(self.x)]), self.format, symmetric=False)
        rows.local[:] = self.uploaded
        return Way(name, self.device, [self.whole], [rows], [backend], self.out, world)

    def way(self, name: str, plans: Sequence[Plan] | None = None, *, near: bool = False) -> Way:
        """Return one of ABLATIONS, whole or over a part of its plan. near: all rows lie on the GPU."""
        if name == "get-separate":
            return self.separate(name, near=near)
        device, world = self.device, World(2)
        memory = device.arrays if near else self._far_memory(name)
        backends = [
            self._backend(rank, world, name, ABLATIONS[name], table)
            for rank, table in enumerate((device.arrays, memory))
        ]
        pushed = name in ("halo", "bulk", "ring")
        if pushed:
            backends[0].share, backends[1].share = 1 - OWNER_SHARE, OWNER_SHARE
        rows = [each.rows(self.counts, self.format, symmetric=True) for each in backends]
        for rank, part in enumerate((slice(0, self.counts[0]), slice(self.counts[0], None))):
            rows[rank].local[:] = self.uploaded[part]
        if plans is None and name == "ring":
            plans = self.rings
        elif plans is None:
            transfer = "get" if name.startswith("get") else "direct"
            plans = self.halos if pushed else [replace(plan, transfer=transfer) for plan in self.plans]
        between: Callable[[], None] = lambda: None  # noqa: E731
        if isinstance(memory, ManagedArrays):
            moving, far = memory, rows[1].buffer

            def between() -> None:
                moving.to_host(far)

        for backend, plan in zip(backends, plans, strict=True):
            backend.prepare(plan, self.format)
        for backend, plan, of in zip(backends, plans, rows, strict=True):
            backend.ready(plan, of)
        return Way(name, device, plans, rows, backends, self.out, world, between)

    def separate(self, name: str, *, near: bool = False) -> Way:
        """Return a way of gets whose local and remote rows are summed by separate warps, those of two kernels."""
        mine, others, merged = separated(replace(self.plans[0], transfer="get"))
        way = self.way("get", [others, replace(self.plans[1], transfer="get")], near=near)
        backend = self._backend(0, World(1), name, Ablation())
        own = backend.rows(self.counts[:1], self.format, symmetric=False)
        own.local[:] = self.uploaded[: self.counts[0]]
        both = backend.rows(np.array([merged.chunks[0]["rows"]]), self.format, symmetric=False)
        here, there = both.local[: mine.destinations], both.local[mine.destinations :]
        for plan, rows in ((mine, own), (merged, both)):
            backend.ready(plan, rows)
        kernels = (
            partial(backend.aggregate, mine, "copy", "sum", own, here),
            partial(backend.aggregate, merged, "copy", "sum", both, self.out),
        )
        return SeparateWay(
            name,
            way.device,
            way.plans,
            way.rows,
            way.backends,
            self.out,
            way.world,
            sums=kernels,
            there=there,
        )

    def transfer_only(self, name: str) -> Way:
        """Return the transfer alone, which sums nothing, or for `get` remote rows only."""
        if name == "get":
            return self.way(name, [replace(transfer_only(p, edges=True), transfer="get") for p in self.plans])
        return self.way(name, [transfer_only(plan, edges=False) for plan in self.halos])

    def wrong(self, way: Way) -> int:
        """Return the number of its sums that differ in any bit from those of rows on the GPU.

        Separate kernels group them in another way: then those that are beyond their error bound, in a sample of rows.
        """
        self.out[:] = float("nan")
        way.between()
        way.call()
        found = way.device.tensor(self.out).clone()
        self.sums(way.name).call()
        wanted = way.device.tensor(self.out)
        if not isinstance(way, SeparateWay):
            return int((found != wanted).sum())
        picked = sums.sample(self.graph.indptr[: self.plans[0].destinations + 1])
        limit = sums.allowed(self.graph, self.x, picked=picked)
        apart = np.abs(sums.rows_of(found, picked) - sums.rows_of(wanted, picked))
        return int((~(apart <= limit)).sum()) + int(found.isnan().sum())
