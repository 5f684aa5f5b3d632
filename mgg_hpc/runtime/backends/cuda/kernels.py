"""The backend of one GPU.

The native module works on addresses, which ``arrays`` (device_arrays.py) takes of arrays: the same code runs over
a GPU's tensors and over the NumPy arrays of the tests' shim.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from ....plan import cuda_grid, halo_messages
from ....plan.grid import Pass
from ....plan.layout import RowFormat
from ....plan.workload import Plan
from ...streaming.buffer import ChunkBuffer
from ...streaming.store import Store
from ..arguments import ChunkRows, Epilogue, Geometry, RngKey, Rows, TieredRows
from ..base import Backend, Capabilities
from ..profiling import Profiling
from .arrays import flat, name_of, padded_rows
from .context import DeviceCollectives, DeviceMemory
from .crossing import Ranks
from .edges import DeviceEdges
from .launches import DeviceLaunches
from .rows import Gathers, drop_rows, drop_values
from .sampling import DeviceSampling
from .streaming import ChunkCopies
from .traversal import DeviceTraversal


class DeviceProfiling(Profiling):
    """Profiles of one rank's kernels."""

    def _prepare(self, plan: Plan, transfer_plan: Plan, src: Rows, here: Plan, rows: Rows) -> None:
        self._backend.share_exchange(plan, transfer_plan)
        self._backend.ready(transfer_plan, src)
        self._backend.ready(here, rows)


class DeviceBackend(DeviceLaunches, Backend):
    """One rank on one GPU, which it may share with other ranks.

    Launches go to the current stream, and no call waits for them. Calls over one plan share scratch memory, and so
    belong on one stream. Components are made when they are used, so that no reference cycle keeps GPU memory.
    """

    reaches_peers = True

    @cached_property
    def gathers(self) -> Gathers:
        """Gathers of this rank."""
        return Gathers()

    @cached_property
    def profiling(self) -> DeviceProfiling:
        return DeviceProfiling(self)

    @cached_property
    def device(self) -> str:
        """torch's name of the device of the arrays."""
        return str(getattr(self.arrays.zeros(0), "device", "cpu"))

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            "cuda",
            device=self.device,
            reaches_peers=self.reaches_peers,
            keeps_bits=False,
            halo_rounds=1,  # which kernels cut into chunks
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

    @property
    def sampling(self) -> DeviceSampling:
        return DeviceSampling(self, self.memory)

    def publish(self, rows: Rows) -> None:
        self._world.barrier(self.arrays.stream())

    def stream_rows(
        self, store: Store, order: Pass, buffer: ChunkBuffer | None, *, ahead: bool = True
    ) -> ChunkRows:
        if buffer is None:
            raise ValueError("rows of the host's memory are copied to a GPU: give a buffer")
        none, counts = np.zeros(self.size, np.uint64), np.zeros(self.size, np.int64)  # this rank's own rows
        copies = ChunkCopies(self, store, order, buffer, ahead=ahead)
        kept = store, buffer
        return ChunkRows(store.format, none, counts, np.zeros(0, np.uint8), self.rank, False, copies, kept)

    def _aggregate(self, plan: Plan, reduce: str, src: Rows, out: Any, edge: Any, epilogue: Epilogue) -> None:
        # ``edge`` and the epilogue's arrays are float32.
        if isinstance(src, ChunkRows):
            with src.stream.chunk(plan) as (held, rows):
                self._aggregate(held, reduce, rows, out, edge, epilogue)
            return
        with self.cut_for(plan, src.format):
            self._sum(plan, reduce, src, out, edge, epilogue)

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
        rows, shape = self.native.Rows(src.addresses, src.format.dim), self.launch_shape(made)
        began = self.began()
        if halo_messages.crosses(plan):
            self.halo(plan).aggregate(self, plan, kind, src, total, made)
        elif plan.transfer == "get" and plan.remote_edges:
            getattr(native, f"get_{kind}")(rows, total, self.get(plan, src), shape)
        else:
            getattr(native, f"aggregate_{kind}")(rows, total, shape)
        self.count(plan, src.format, began)

    def retune(self, plan: Plan, format: RowFormat, geometry: Geometry) -> None:
        # Hubs are cut by ps and dist, so sums by other ones are equal only up to rounding.
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
        self.allocate(plan, format, None)  # so that the first call takes no longer than others

    def gather(self, src: TieredRows, ids: Any, out: Any) -> None:
        if isinstance(ids, np.ndarray):
            self.gathers.by_number(self, src, ids, out)
        else:
            self.gathers.anywhere(self, src, ids, out)

    def fetch(self, src: TieredRows, ids: Any, out: Any) -> None:
        """Wait for all ranks' rows, and gather some. ids: int64 [n], on the device. Collective."""
        self._world.barrier(self.arrays.stream())
        self.gathers.anywhere(self, src, ids, out)

    def dropout(self, x: Any, out: Any, ids: Any, key: RngKey, csr: tuple[Any, Any] | None = None) -> None:
        # Stored values of a CSR matrix are float32.
        if csr is None:
            drop_rows(self, x, out, ids, key)
        else:
            drop_values(self, csr, x, out, ids, key)
