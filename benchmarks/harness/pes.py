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

from mgg_hpc.data.graph import Graph
from mgg_hpc.plan import halo, halo_schedule, workload
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.plan.overlap import transfer_only
from mgg_hpc.plan.workload import Plan
from mgg_hpc.runtime.backends.arguments import Geometry, Options
from mgg_hpc.runtime.backends.cuda import module as cuda_module
from mgg_hpc.runtime.backends.cuda.device_arrays import DeviceArrays, TorchArrays, nothing_freed
from mgg_hpc.runtime.backends.cuda.kernels import DeviceBackend
from mgg_hpc.runtime.backends.cuda.launches import default_geometry
from mgg_hpc.runtime.backends.simulated import World
from mgg_hpc.runtime.turns import take_turns
from mgg_hpc.tools.bench.aggregate import drawn_rows

from . import sums

Call = Callable[[], None]

OWNER_SHARE = 0.125  # of the GPU's blocks, for the PE that only packs and pushes
BUSY_CYCLES = 2_000_000  # about a millisecond


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

    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    # The GPU waits while the call is made, so that what Python takes for it is not measured.
    torch.cuda._sleep(BUSY_CYCLES)
    first.record()
    call()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last))


class PinnedArrays(TorchArrays):
    """Tensors in page-locked memory of the host, which kernels read and write through the link between them."""

    def zeros(self, nbytes: int) -> Any:
        """See DeviceArrays."""
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
        return cls(module, TorchArrays(), PinnedArrays())


class Subject:
    """A graph with the last ``share`` of its rows on the second PE, which has no destinations.

    Raises InputError where there is no GPU.
    """

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
        summing, owner = (plan for plan, _ in halo.of_all_ranks(parts, 1))
        self.halos = [summing, transfer_only(owner, edges=False)]
        self.whole = workload.rectangular(
            0, graph.indptr[: own + 1], edges.astype(np.int32, copy=False), graph.nodes
        )
        self.x = drawn_rows(graph.nodes, width, "float32")
        self._uploaded = self.device.arrays.uploaded(self.x)
        self.out = self._backend(0, World(1)).memory.padded(own, self.format)

    def way(self, name: str) -> Call:
        """Return one aggregation: by a transfer, by "bulk" (all rows arrive, then sums), or a part of a halo.

        "sum" are the sums alone, over rows that all lie on the GPU, and "exchange" is a halo without sums.
        """
        if name == "sum":
            return self._near()
        if name == "exchange":
            return self._played([transfer_only(plan, edges=False) for plan in self.halos], self.geometry)
        if name == "bulk":
            moved, summed = self.way("exchange"), self._near()

            def bulk() -> None:
                moved()
                summed()

            return bulk
        return self.cut(name, self.geometry)

    def cut(self, transfer: str, geometry: Geometry) -> Call:
        """Return an aggregation by "direct", "get" or "halo" with these parameters. Raises InputError."""
        plans = (
            self.halos if transfer == "halo" else [replace(plan, transfer=transfer) for plan in self.plans]
        )
        return self._played(plans, geometry)

    def measure(
        self, ways: Mapping[str, Call], turns: int
    ) -> tuple[dict[str, list[float]], dict[str, dict[str, Any]]]:
        """Return each way's ms in each turn, and no further columns.

        Raises AssertionError where a way's sums differ from SciPy's by more than rounding. A way named "... alone" sums
        nothing.
        """
        own = int(self.counts[0])
        picked = sums.sample(self.graph.indptr[: own + 1])
        expected = sums.product(self.graph, self.x.astype(np.float64), picked=picked)
        limit = sums.allowed(self.graph, self.x, picked=picked)
        for name, call in ways.items():
            self.out[:] = float("nan")
            self.device.ms(call)
            found = self._sums()
            wrong = sums.differing(expected, found[picked], limit)
            if not name.endswith("alone") and (wrong or np.isnan(found).any()):
                raise AssertionError(f"{name}: {wrong or 'some rows were not summed'}")
        return take_turns({name: partial(self.device.ms, call) for name, call in ways.items()}, turns), {}

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

    def _sums(self) -> np.ndarray:
        out = self.out
        return out.copy() if isinstance(out, np.ndarray) else out.cpu().numpy()

    def _backend(
        self, rank: int, world: World, table: DeviceArrays | None = None, **of: Any
    ) -> DeviceBackend:
        options = Options(of.get("geometry", self.geometry))
        return DeviceBackend(rank, world, options, self.device.module, self.device.arrays, table)

    def _near(self) -> Call:
        backend = self._backend(0, World(1))
        rows = backend.rows(np.array([len(self.x)]), self.format, symmetric=False)
        rows.local[:] = self._uploaded
        return partial(backend.aggregate, self.whole, "copy", "sum", rows, self.out)

    def _played(self, plans: Sequence[Plan], geometry: Geometry) -> Call:
        """Return the call in which both PEs aggregate over their plans."""
        device, world = self.device, World(2)
        tables = (device.arrays, device.far)
        backends = [self._backend(rank, world, table, geometry=geometry) for rank, table in enumerate(tables)]
        if plans[0].lists is not None:
            backends[0].share, backends[1].share = 1 - OWNER_SHARE, OWNER_SHARE
        rows = [each.rows(self.counts, self.format, symmetric=True) for each in backends]
        for rank, part in enumerate((slice(0, self.counts[0]), slice(self.counts[0], None))):
            rows[rank].local[:] = self._uploaded[part]
        for backend, plan in zip(backends, plans, strict=True):
            backend.prepare(plan, self.format)
        for backend, plan, of in zip(backends, plans, rows, strict=True):
            backend.ready(plan, of)
        calls = [
            partial(backend.aggregate, plan, "copy", "sum", of, self.out[: plan.destinations])
            for backend, plan, of in zip(backends, plans, rows, strict=True)
        ]
        launched = calls if halo_schedule.crosses(plans[1]) else calls[:1]

        def call() -> None:
            device.together(world, launched)
            assert len(rows) == len(
                calls
            )  # the first PE reads rows of the second, which are kept as long as the call

        return call
