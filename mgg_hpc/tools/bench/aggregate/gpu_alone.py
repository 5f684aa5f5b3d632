"""The kernels of `get` and `halo` on a GPU that owns all rows: what their pipelines cost where nothing is remote.

A backend runs the direct kernel there, whatever the transfer is: these figures say what that saves.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ....plan import halo, workload
from ....plan.launch import Launch
from ....plan.layout import RowFormat
from ....plan.workload import Plan, SplitEdges
from ....runtime.backends.arguments import Epilogue, Geometry, Options, Rows
from ....runtime.backends.cuda.kernels import DeviceBackend
from ....runtime.backends.cuda.launches import DEFAULT_GEOMETRY, default_geometry
from ....runtime.backends.cuda.module import limits_of
from ....runtime.backends.simulated import World
from ..harness.gpu import Device


class AloneBackend(DeviceBackend):
    """A rank without peers, whose sums run in the kernel of the plan's transfer all the same."""

    def launch(self, plan: Plan, format: RowFormat, reduce: str = "sum") -> Launch:
        """See DeviceBackend.launch."""
        asked = self.sized(plan.transfer, *self.partitions(plan), format)
        made = self.fitting(plan.transfer, reduce, asked, format)
        blocks = min(made.blocks, self.blocks_at_once(made)) if plan.transfer == "halo" else made.blocks
        return replace(made, blocks=blocks, blocks_per_multiprocessor=blocks / self.limits.multiprocessors)

    def aggregate(
        self,
        plan: Plan,
        op: str,
        reduce: str,
        src: Rows,
        out: Any,
        *,
        edge: Any = None,
        epilogue: Epilogue | None = None,
    ) -> None:
        """See Backend.aggregate; without an epilogue."""
        kind, made, address = (
            src.format.dtype.name,
            self.launch(plan, src.format, reduce),
            self.arrays.address,
        )
        total = self.native.Sum(reduce, 0 if edge is None else address(edge), address(out), 0, 0, False)
        if plan.transfer == "halo":
            self.halo(plan).aggregate(self, plan, kind, src, total, made)
        else:
            run = getattr(self.native_plan(plan), f"get_{kind}")
            run(self.native_rows(src), total, self.get(plan, src), self.launch_shape(made))


def geometry_of(device: Device, transfer: str, format: RowFormat) -> Geometry:
    """Return the default geometry of a transfer: `get` has smaller partitions where rows are wide."""
    return default_geometry(format, limits_of(device.module)) if transfer == "get" else DEFAULT_GEOMETRY


def plan_of(edges: SplitEdges, transfer: str) -> Plan:
    """Return the plan of a rank without peers for a transfer: "direct", "get" or "halo"."""
    return halo.of_all_ranks([edges], 1)[0][0] if transfer == "halo" else workload.direct(edges, transfer)


def backend_of(device: Device, transfer: str, geometry: Geometry) -> DeviceBackend:
    """Return a backend that runs the kernel of a transfer over plans of `plan_of`."""
    if transfer == "direct":
        return device.backend(geometry)
    return AloneBackend(0, World(1), Options(geometry), device.module, device.arrays)
