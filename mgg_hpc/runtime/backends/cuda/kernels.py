"""Kernels of one GPU over rows that this process holds, reads through pointers, gets or is sent.

The native module works on addresses; ``arrays`` (device_arrays.py) knows what arrays those belong to, so that the
same code runs over a GPU's tensors and over the host memory of the tests' shim.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....plan import cuda_grid, halo_messages
from ....plan.grid import Pass
from ....plan.layout import RowFormat
from ....plan.overlap import transfer_only
from ....plan.workload import Plan
from ...streaming.buffer import ChunkBuffer
from ...streaming.store import Store
from ..arguments import ChunkRows, Epilogue, Geometry, RngKey, Rows, check_operation
from ..base import Backend, Capabilities, Phases
from ..phases import separate
from . import dropout
from .arrays import flat, name_of, padded_rows
from .components import DeviceCollectives, DeviceMemory
from .edges import DeviceEdges
from .launches import DeviceLaunches
from .transfers import streaming
from .transfers.gather import Gathers
from .traversal.crossing import Ranks
from .traversal.graph import DeviceTraversal


class DeviceBackend(DeviceLaunches, Backend):
    """One rank on one GPU, among others on other GPUs, or on this one.

    Launches go to the current stream and are not waited for; calls over one plan share scratch memory, and so belong
    on one stream. Components are made at their first use, so that no reference cycle keeps GPU memory.
    """

    records = False  # in a CUDA graph
    reaches_peers = True
    probe_rows = 1 << 18  # launches take longer than moving a few thousand rows

    @cached_property
    def gathers(self) -> Gathers:
        """Tables of gathers in device memory."""
        return Gathers(self.native)

    @cached_property
    def device(self) -> str:
        """torch's name of the device of the arrays."""
        return str(getattr(self.arrays.zeros(0), "device", "cpu"))

    @property
    def capabilities(self) -> Capabilities:
        # Other GPUs' rows are not kept in this one's cache.
        return Capabilities(
            "cuda",
            device=self.device,
            reaches_peers=self.reaches_peers,
            edge_gets=False,
            keeps_bits=False,
            records=self.records,
            reads_epoch=True,
            reads_host=False,
            halo_rounds=1,  # which kernels cut into chunks
            probe_rows=self.probe_rows,
        )

    @property
    def memory(self) -> DeviceMemory:
        return DeviceMemory(self)

    @property
    def collectives(self) -> DeviceCollectives:
        return DeviceCollectives(self.rank, self.size)

    @property
    def edges(self) -> DeviceEdges:
        return DeviceEdges(self)

    @property
    def traversal(self) -> DeviceTraversal:
        return DeviceTraversal(Ranks(self, self.memory, self.collectives, self.fetch))

    def publish(self, rows: Rows) -> None:
        # On the current stream.
        self._world.barrier(self.arrays.stream())

    def stream_rows(
        self, store: Store, order: Pass, buffer: ChunkBuffer | None, *, ahead: bool = True
    ) -> ChunkRows:
        return streaming.stream_rows(self, store, order, buffer, ahead=ahead)

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
        # ``edge`` and the epilogue's arrays are float32.
        check_operation(op, reduce, edge)
        if isinstance(src, ChunkRows):
            with src.stream.chunk(plan) as (held, rows):
                self.aggregate(held, op, reduce, rows, out, edge=edge, epilogue=epilogue)
            return
        with self.cut_for(plan, src.format):
            self._sum(plan, reduce, src, out, edge, epilogue or Epilogue())

    def _sum(self, plan: Plan, reduce: str, src: Rows, out: Any, edge: Any, epilogue: Epilogue) -> None:
        """Launch an aggregation by the present geometry."""
        kind = name_of(src.format)
        total = self.native.Sum(
            reduce,
            flat(self.arrays, "edge", edge, plan.edges),
            padded_rows(self.arrays, "out", out, plan.destinations, src.format),
            flat(self.arrays, "scale", epilogue.scale, plan.destinations),
            flat(self.arrays, "bias", epilogue.bias, src.format.dim),
            epilogue.relu,
        )
        native, made = self.native_plan(plan), self.launch(plan, src.format, reduce)
        began = self.began()
        if halo_messages.crosses(plan):
            self.halo(plan).aggregate(self, plan, kind, src, total, made)
        elif plan.transfer == "get" and plan.remote_edges:
            getattr(native, f"get_{kind}")(
                self.native_rows(src), total, self.get(plan, src), self.launch_shape(made)
            )
        else:
            getattr(native, f"aggregate_{kind}")(self.native_rows(src), total, self.launch_shape(made))
        self.count(plan, src.format, began)

    def retune(self, plan: Plan, format: RowFormat, geometry: Geometry) -> None:
        # Hubs are cut by ps and dist, so sums of other ones are equal to rounding only.
        tuned = self._tuned.setdefault(plan, {})
        former = tuned.get(format.row_bytes, self.options.geometry)
        self.check_fits(plan, format, geometry)
        tuned[format.row_bytes] = geometry
        if former == geometry:
            return
        cut, cut_before = (cuda_grid.part_edges(each.ps, each.dist) for each in (geometry, former))
        if cut != cut_before and plan in self._halos:
            self._halos[plan].forget(plan, format.row_bytes)
        used = {cuda_grid.part_edges(each.ps, each.dist) for each in (*tuned.values(), self.options.geometry)}
        made = self._plans.get(plan, {})
        for part_edges in made.keys() - used:
            del made[part_edges]
        self._make_room(plan, format)

    def _make_room(self, plan: Plan, format: RowFormat) -> None:
        """Allocate what calls keep, so that the first one takes no longer than others. Rows are not known yet."""
        with self.cut_for(plan, format):
            kind, made = name_of(format), self.launch(plan, format)
            shape = self.launch_shape(made)
            nowhere = self.native.Rows(np.zeros(self.size, np.uint64), format.dim)
            getattr(self.native_plan(plan), f"ready_{kind}")(nowhere, False, shape)
            if halo_messages.crosses(plan):
                self.halo(plan).ready(self, plan, kind, format, made)

    def phases(self, plan: Plan, op: str, src: Rows, out: Any, *, edge: Any = None) -> Phases:
        transfer_plan = transfer_only(plan, edges=plan.transfer != "halo")
        self.share_exchange(plan, transfer_plan)
        return separate(self, plan, transfer_plan, op, src, out, edge, self.ready)

    def gather(
        self, src: Rows, bounds: NDArray[np.int64], ids: Any, out: Any, *, own: int | None = None
    ) -> None:
        # On the current stream.
        self.gathers.anywhere(self, src, bounds, ids, out)
        if own is not None:
            self.stream.meter.count(own, len(ids) - own, src.format, 0)

    def fetch(self, src: Rows, bounds: NDArray[np.int64], ids: Any, out: Any) -> None:
        """Wait for all ranks' rows, and gather some; see `gather`. Collective."""
        self.publish(src)
        self.gathers.anywhere(self, src, bounds, ids, out)

    def dropout(self, x: Any, out: Any, ids: Any, key: RngKey, csr: tuple[Any, Any] | None = None) -> None:
        # Stored values of a CSR matrix are float32.
        if csr is None:
            dropout.rows(self, x, out, ids, key)
        else:
            dropout.values(self, csr, x, out, ids, key)
