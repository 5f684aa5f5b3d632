"""Two PEs that one process plays on one GPU: a graph with a share of its rows far away, ready to be summed.

The first PE sums. The second owns the last rows, which lie in page-locked memory of the host: the link to the host
plays a slow one between GPUs. It packs and pushes by kernels of its own, on a stream of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import peers

from harness.graphs import drawn_rows
from mgg_hpc.data.graph import Graph
from mgg_hpc.plan import halo_messages, workload
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.plan.overlap import transfer_only
from mgg_hpc.plan.workload import Plan
from mgg_hpc.runtime.backends.arguments import Geometry, Options, Rows
from mgg_hpc.runtime.backends.cuda import module as cuda_module
from mgg_hpc.runtime.backends.cuda.device_arrays import DeviceArrays, nothing_freed
from mgg_hpc.runtime.backends.cuda.kernels import DeviceBackend
from mgg_hpc.runtime.backends.cuda.launches import default_geometry
from mgg_hpc.runtime.backends.simulated import World
from mgg_hpc.runtime.timing import interleaved

from .plans import halo_plans
from .ranks import Variant
from .sums import Reference

Call = Callable[[], None]

OWNER_SHARE = 0.125  # of the GPU's blocks, for the PE that only packs and pushes


def on_streams(world: World, calls: Sequence[Call]) -> None:
    """Launch a call of each PE on a stream of its own, ordered after the current stream's work and before its next."""
    import torch

    current = torch.cuda.current_stream()
    streams = [torch.cuda.Stream() for _ in calls]
    with nothing_freed():
        for stream, call in zip(streams, calls, strict=True):
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                call()
    for stream in streams:
        current.wait_stream(stream)


def event_ms(call: Call) -> float:
    """Return the milliseconds of a call by events of the current stream."""
    import torch

    return 1e3 * peers.timed(call, torch.cuda)[0]


class PinnedArrays(DeviceArrays):
    """Tensors in page-locked memory of the host, which kernels read and write through the link between them."""

    def zeros(self, nbytes: int) -> Any:
        """Return zeroed page-locked memory, uint8 [nbytes]."""
        import torch

        return torch.zeros(nbytes, dtype=torch.uint8, pin_memory=True)


@dataclass
class Device:
    """The GPU that plays: its native module, its memory, the far memory, and how calls are launched and timed."""

    module: Any
    arrays: DeviceArrays
    far: DeviceArrays
    ms: Callable[[Call], float] = event_ms
    together: Callable[[World, Sequence[Call]], None] = on_streams

    @classmethod
    def current(cls) -> Device:
        """Return the current GPU. Raises InputError where there is none, or the module is not built."""
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # PEs of one process wait for each other
        module = cuda_module.load()
        cuda_module.need_device(module)
        return cls(module, DeviceArrays(), PinnedArrays())


class Subject:
    """A graph with the last ``share`` of its rows on the second PE, which has no destinations.

    Raises InputError where there is no GPU.
    """

    reaches_peers = True

    def __init__(self, graph: Graph, width: int, share: float, device: Device | None = None) -> None:
        self.device = device or Device.current()
        self.format, self.share = RowFormat(np.dtype(np.float32), width), share
        self.geometry = default_geometry(self.format, cuda_module.limits_of(self.device.module))
        own = graph.nodes - min(graph.nodes - 1, round(share * graph.nodes))
        bounds = np.array([0, own, graph.nodes], dtype=np.int64)
        edges = graph.indices[: graph.indptr[own]]
        nothing = np.zeros(graph.nodes - own + 1, dtype=np.int64)
        parts = [
            workload.split(0, bounds, graph.indptr[: own + 1], edges),
            workload.split(1, bounds, nothing, edges[:0]),
        ]
        self.graph, self.counts = graph, np.diff(bounds)
        self.plans = [workload.direct(part) for part in parts]
        summing, owner = (plan for plan, _ in halo_plans(parts, 1))
        self.halos = [summing, transfer_only(owner, edges=False)]
        self.whole = workload.rectangular(
            0, graph.indptr[: own + 1], edges.astype(np.int32, copy=False), graph.nodes
        )
        self.x = drawn_rows(graph.nodes, width, "float32")
        self._uploaded = self.device.arrays.uploaded(self.x)
        self.out = self._backend(0, World(1)).memory.padded(own, self.format)

    def variant(self, name: str) -> Variant:
        """Return one aggregation: by a transfer, by "bulk" (all rows arrive, then sums), or a part of a halo.

        "sum" are the sums alone, over rows that all lie on the GPU, and "exchange" is a halo without sums.
        """
        if name == "sum":
            return Variant(self._near(), 0)
        if name == "exchange":
            plans = [transfer_only(plan, edges=False) for plan in self.halos]
            return Variant(self._played(plans, self.geometry), self._crossing("halo"), sums=False)
        if name == "bulk":
            return Variant(self._played(self.halos, self.geometry, holds=True), self._crossing("halo"))
        return self.cut(name, self.geometry)

    def cut(self, transfer: str, geometry: Geometry) -> Variant:
        """Return an aggregation by "direct", "get" or "halo" with these parameters. Raises InputError."""
        plans = (
            self.halos if transfer == "halo" else [replace(plan, transfer=transfer) for plan in self.plans]
        )
        return Variant(self._played(plans, geometry), self._crossing(transfer))

    def _crossing(self, transfer: str) -> int:
        plan = self.plans[0]
        return len(plan.halo) if transfer == "halo" else int(plan.remote_edges)

    def measure(
        self, variants: Mapping[str, Variant], turns: int
    ) -> tuple[dict[str, list[float]], dict[str, dict[str, Any]]]:
        """Return each variant's ms in each turn, and further columns.

        Raises AssertionError where a variant's sums differ from SciPy's by more than rounding.
        """
        reference = Reference(self.graph, self.x, high=int(self.counts[0]))
        for name, each in variants.items():
            self.out[:] = float("nan")
            self.device.ms(each.call)
            if each.sums:
                reference.check(
                    name, np.array(self.out if isinstance(self.out, np.ndarray) else self.out.cpu())
                )
        ms = interleaved({name: partial(self.device.ms, each.call) for name, each in variants.items()}, turns)
        row = self.format.dim * self.format.dtype.itemsize
        return ms, {name: {"crossing_bytes": each.crossing * row} for name, each in variants.items()}

    def columns(self) -> dict[str, Any]:
        """Return the columns that all rows have."""
        plan = self.plans[0]
        return {
            "device": self.device.module.limits()["name"],
            "remote_share": self.share,
            "local_edges": plan.local_edges,
            "remote_edges": plan.remote_edges,
            "halo_rows": len(plan.halo),
        }

    def close(self) -> None:
        """Free nothing: torch's memory goes with the last reference."""

    def _backend(
        self, rank: int, world: World, table: DeviceArrays | None = None, geometry: Geometry | None = None
    ) -> DeviceBackend:
        options = Options(geometry or self.geometry)
        made = DeviceBackend(rank, world, options, self.device.module, self.device.arrays)
        made.table_memory = table
        return made

    def _near(self) -> Call:
        backend = self._backend(0, World(1))
        rows = backend.rows(np.array([len(self.x)]), self.format, symmetric=False)
        rows.local[:] = self._uploaded
        return partial(backend.aggregate, self.whole, "sum", rows, self.out)

    def _played(self, plans: Sequence[Plan], geometry: Geometry, *, holds: bool = False) -> Call:
        """Return the call in which both PEs aggregate over their plans. holds: sum nothing before all has arrived."""
        device, world = self.device, World(2)
        tables = (device.arrays, device.far)
        backends = [self._backend(rank, world, table, geometry) for rank, table in enumerate(tables)]
        if plans[0].lists is not None:
            backends[0].share, backends[1].share = 1 - OWNER_SHARE, OWNER_SHARE
        rows = [each.rows(self.counts, self.format, symmetric=True) for each in backends]
        for rank, part in enumerate((slice(0, self.counts[0]), slice(self.counts[0], None))):
            rows[rank].local[:] = self._uploaded[part]
        for backend, plan in zip(backends, plans, strict=True):
            backend.prepare(plan, self.format)
        for backend, plan, of in zip(backends, plans, rows, strict=True):
            backend.ready(plan, of)
        calls: list[Call] = [
            partial(backend.aggregate, plan, "sum", of, self.out[: plan.destinations])
            for backend, plan, of in zip(backends, plans, rows, strict=True)
        ]
        if holds and halo_messages.crosses(plans[0]):
            calls[0] = partial(self._held, backends[0], plans[0], rows[0])
        launched = calls if halo_messages.crosses(plans[1]) else calls[:1]
        return partial(self._launch, world, launched, rows)

    def _launch(self, world: World, calls: Sequence[Call], rows: Sequence[Rows]) -> None:
        """Launch calls of PEs together. rows: of both, which the first PE reads."""
        self.device.together(world, calls)

    def _held(self, backend: DeviceBackend, plan: Plan, rows: Rows) -> None:
        """Aggregate by a halo whose rows have all arrived before the first is summed."""
        native, halo = backend.native, backend.halo(plan)
        total = native.Sum("sum", 0, backend.arrays.address(self.out), 0, 0, False)
        halo.aggregate(
            backend, plan, self.format.dtype.name, rows, total, backend.launch(plan, self.format), holds=True
        )
        _, schedule = halo.schedule(backend, plan, self.format.row_bytes)
        halo.exchange(backend).let_go(schedule, backend.one_warp())
