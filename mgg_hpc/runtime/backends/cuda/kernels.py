"""Kernels of one GPU over rows that this process holds, reads through pointers, gets or is sent.

The native module works on addresses; what arrays those are of is a Memory's business, so that the same code runs over
a GPU's tensors and over the host memory of the tests' shim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ....errors import InputError
from ....plan import halo_schedule, launch
from ....plan.launch import Launch, Limits
from ....plan.layout import RowFormat
from ....plan.overlap import moving_only
from ....plan.workload import Plan
from ..base import Epilogue, Geometry, Options, Phases, Recording, RngKey, Rows, check_operation
from ..phases import separate
from ..simulated import Peers
from . import dropout
from .arrays import flat, name_of, padded_rows
from .context import DeviceContext
from .edges import DeviceEdges
from .gather import Gathers
from .halo import Halo
from .memory import Memory

# Not tuned on a GPU yet: workers of 128 edges, and blocks of 256 threads.
DEFAULT_GEOMETRY = Geometry(ps=16, dist=4, wpb=8)
DEFAULT_CHANNEL = 1  # NVSHMEMX_QP_DEFAULT


def default_geometry(widest: RowFormat, limits: Limits) -> Geometry:
    """MGG's knobs where nobody asks for others, for rows up to this wide."""
    default = DEFAULT_GEOMETRY
    ps = launch.fitting_ps(widest, most=default.ps, dist=default.dist, wpb=default.wpb, limits=limits)
    return replace(default, ps=ps)


class DeviceBackend(DeviceContext, DeviceEdges):
    """One rank on one GPU, among others on other GPUs, or on this one.

    See Backend and EdgeKernels for what calls do.

    Launches go to the memory's current stream and are not waited for; calls over one plan share scratch memory, and so
    belong on one stream.
    """

    name = "cuda"
    reaches_peers = True
    halo_rounds: int | None = 1  # which kernels cut into chunks
    cache_bytes = 0  # other GPUs' rows are not kept in this one's cache
    probe_rows = 1 << 18  # launches take longer than moving a few thousand rows
    records, reads_epoch, edge_gets = False, True, False
    timed = False  # whether the meter takes times: two events a call, which somebody has to settle

    def __init__(
        self,
        rank: int,
        world: Peers,
        options: Options,
        module: Any,
        memory: Memory,
        table_memory: Memory | None = None,
    ) -> None:
        """table_memory: where rows lie that peers read, if elsewhere than the peers' other memory."""
        super().__init__(rank, world, options.geometry, module, memory, table_memory)
        self.meter = options.meter
        self.channels = [DEFAULT_CHANNEL]  # the transport's, of gets
        self.gathers = Gathers(module)
        self._occupancy: dict[tuple[Any, ...], dict[str, int]] = {}
        self._halos: WeakKeyDictionary[Plan, Halo] = WeakKeyDictionary()
        self._moves: WeakKeyDictionary[Plan, Plan] = WeakKeyDictionary()
        self._stages: WeakKeyDictionary[Plan, Rows] = WeakKeyDictionary()
        self._channel_table: Any = None

    @property
    def device(self) -> str:
        """See Backend.device."""
        return str(getattr(self.memory.zeros(0), "device", "cpu"))

    def reserve(self, nbytes: int, largest: int = 0) -> None:
        """See Backend.reserve; memory is found as it is asked for."""

    def release(self, rows: Rows) -> None:
        """See Backend.release; `close` gives back all at once."""

    def free_bytes(self) -> int:
        """See Backend.free_bytes."""
        return int(self.native.memory()[0])

    def reserved_bytes(self) -> int:
        """See Backend.reserved_bytes."""
        return 0

    def stamp(self) -> Any:
        """See Backend.stamp."""
        return self.memory.stamp()

    def since(self, stamp: Any) -> Callable[[], float]:
        """See Backend.since."""
        return self.memory.since(stamp)

    def record(self, launch: Callable[[], None]) -> Recording:
        """See Backend.record."""
        return self.memory.record(launch)

    def sum_over_ranks(self, values: Any) -> None:
        """See Backend.sum_over_ranks; ranks that one process plays have nobody to run it."""
        if self.size > 1:
            raise TypeError("sum_over_ranks: ranks of one process")

    def finish(self) -> None:
        """See Backend.finish: what the current stream has."""
        self.memory.finish()

    def publish(self, rows: Rows) -> None:
        """See Backend.publish; on the current stream."""
        self._world.barrier(self.memory.stream())

    def prepare(self, plan: Plan, widest: RowFormat) -> None:
        """See Backend.prepare: stagings and signals of a halo, and the ring of gets that no pointer serves."""
        halo = self._halos.get(plan)
        if halo_schedule.extent(plan) and (halo is None or halo.widest < widest.row_bytes):
            self._halos[plan] = Halo(self, plan, widest)
        if plan.transfer == "get" and self.has_gets:
            # As large on every rank, whatever its plan is: as much as blocks of this kernel that fit at once need.
            made = self._fitting("get", "sum", self._asked("get", 0, 1, widest), widest)
            packs = self._at_once(made) * self._staged(made) // launch.PACK
            if plan not in self._stages or self._stages[plan].counts[0] < packs:
                self._stages[plan] = self.symmetric(packs, RowFormat(np.dtype(np.uint8), launch.PACK))
        self._world.barrier(self.memory.stream())  # no peer writes before this rank's memory is zeroed

    def ready(self, plan: Plan, src: Rows, reduce: str = "sum") -> None:
        """Allocate all that `aggregate` of these rows takes, or any of the same format over a halo.

        Where ranks share a GPU, each must be ready before the first is launched: allocating may wait for its kernel,
        which waits for the others.
        """
        kind, made = name_of(src.format), self.launch(plan, src.format, reduce)
        pushed, geometry = halo_schedule.crosses(plan), self.geometry_of(made)
        getattr(self.native_plan(plan), f"ready_{kind}")(self._rows(src), not pushed, geometry)
        if pushed:
            self.halo(plan).ready(self, plan, kind, src.format, made)
        elif plan.transfer == "get" and plan.remote_edges:
            self._get(plan, src)

    def _at_once(self, made: Launch) -> int:
        """Blocks that the GPU holds at once."""
        return max(1, int(made.resident * self.limits.multiprocessors * self.share))

    def _staged(self, made: Launch) -> int:
        """Bytes of a block's ring of rows that no pointer reaches."""
        return made.threads * made.packs * launch.PACK * self.geometry.dist * self.far_ps

    @property
    def far_ps(self) -> int:
        """Rows of a stage that is got by the transport."""
        return self.geometry.far_ps or self.geometry.ps

    def launch(self, plan: Plan, format: RowFormat, reduce: str = "sum") -> Launch:
        """How `aggregate` is launched for rows of this format.

        Raises InputError where the GPU cannot hold a block.
        """
        local = int(plan.chunks[0]["segments"])  # the owned rows come first
        remote = len(plan.segments) - local
        transfer = "none"
        if halo_schedule.crosses(plan):
            transfer = "halo"
        elif remote:
            transfer = plan.transfer
        made = self._fitting(transfer, reduce, self._asked(transfer, local, remote, format), format)
        if transfer == "halo" or plan in self._stages:  # who waits for others, or has a ring in memory
            blocks = self._at_once(made)
            if plan in self._stages:
                blocks = min(blocks, len(self._stages[plan].buffer) // self._staged(made))
            if blocks == 0:
                raise ValueError(f"get: rows of {format.row_bytes} bytes; prepared for narrower ones")
            pushes = self._halos[plan].pushes(self, plan, format.row_bytes) if plan in self._halos else 0
            blocks = min(made.blocks + pushes, blocks)
            made = replace(
                made, blocks=blocks, blocks_per_multiprocessor=blocks / self.limits.multiprocessors
            )
        return made

    def _asked(self, transfer: str, local: int, remote: int, format: RowFormat) -> Launch:
        knobs = {"ps": self.geometry.ps, "dist": self.geometry.dist, "wpb": self.geometry.wpb}
        make = {"get": launch.get, "halo": launch.halo}.get(transfer, launch.direct)
        return make(local, remote, format, **knobs, limits=self.limits)

    def _fitting(self, transfer: str, reduce: str, made: Launch, format: RowFormat) -> Launch:
        """The launch with as many resident blocks as registers and shared memory let be.

        Where NVSHMEM runs, of both kernels: with calls of it and without. Raises InputError for a block that is too
        large.
        """
        found = []
        for far in {False, self.has_gets}:
            kernel = (transfer, reduce == "max", far, made.lanes, made.packs, made.threads, made.shared_bytes)
            key = (name_of(format), *kernel)
            if key not in self._occupancy:
                self._occupancy[key] = getattr(self.native, f"occupancy_{key[0]}")(*kernel)
            found.append(self._occupancy[key])
        most = min(each["threads_per_block"] for each in found)
        if made.threads > most:
            raise InputError(
                f"plan.wpb = {self.geometry.wpb}: a block of {made.threads} threads, but {self.limits.name}'s "
                f"registers hold {most} of this kernel's; at most {most // launch.LANES}"
            )
        return replace(made, resident=min(each["blocks_per_multiprocessor"] for each in found))

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
        """See Backend.aggregate; ``edge`` and the epilogue's arrays are float32."""
        check_operation(op, reduce, edge)
        epilogue, kind = epilogue or Epilogue(), name_of(src.format)
        total = self.native.Sum(
            reduce,
            flat(self.memory, "edge", edge, plan.edges),
            padded_rows(self.memory, "out", out, plan.destinations, src.format),
            flat(self.memory, "scale", epilogue.scale, plan.destinations),
            flat(self.memory, "bias", epilogue.bias, src.format.dim),
            epilogue.relu,
        )
        native, made = self.native_plan(plan), self.launch(plan, src.format, reduce)
        began = self.stamp() if self.timed else None
        if halo_schedule.crosses(plan):
            self.halo(plan).aggregate(self, plan, kind, src, total, made)
        elif plan.transfer == "get" and plan.remote_edges:
            getattr(native, f"get_{kind}")(
                self._rows(src), total, self._get(plan, src), self.geometry_of(made)
            )
        else:
            getattr(native, f"aggregate_{kind}")(self._rows(src), total, self.geometry_of(made))
        if plan.transfer != "none":
            self._count(plan, src.format, began)

    def phases(self, plan: Plan, op: str, src: Rows, out: Any, *, edge: Any = None) -> Phases:
        """See Backend.phases."""
        moves = moving_only(plan, edges=plan.transfer != "halo")
        prepared: tuple[WeakKeyDictionary[Plan, Any], ...] = (self._halos, self._stages)
        for made in prepared:
            if plan in made:
                made[moves] = made[plan]
        return separate(self, plan, moves, op, src, out, edge, self.ready)

    def halo(self, plan: Plan) -> Halo:
        """The exchange of a prepared plan. Raises ValueError for any other."""
        if plan not in self._halos:
            raise ValueError("aggregate: a plan with a halo must be prepared first (Backend.prepare)")
        return self._halos[plan]

    def _count(self, plan: Plan, format: RowFormat, began: Any) -> None:
        """What a call took, and moves: `halo` each row that it sends, the others a row an edge."""
        rows = plan.remote_edges if plan.lists is None else len(plan.lists.send_rows)
        row_bytes = format.dim * format.dtype.itemsize
        self.meter.local_bytes += plan.local_edges * row_bytes
        self.meter.remote_bytes += rows * row_bytes
        self.meter.remote_rows += rows
        if began is not None:
            self.meter.later.append(self.since(began))

    def _get(self, plan: Plan, src: Rows) -> Any:
        unreached = np.flatnonzero((src.addresses == 0) & (src.counts > 0))
        if len(unreached) and not self.has_gets:
            raise ValueError(
                f"get: rows of PE {unreached[0]} are not reachable by pointer from PE {self.rank}, "
                "and NVSHMEM does not run"
            )
        if len(unreached) and plan not in self._stages:
            raise ValueError("aggregate: a plan with gets must be prepared first (Backend.prepare)")
        if self._channel_table is None:
            self._channel_table = self.memory.uploaded(np.array(self.channels, dtype=np.int32))
        stage = int(self._stages[plan].addresses[self.rank]) if plan in self._stages else 0
        return self.native.Get(
            self.geometry.ps,
            self.far_ps,
            self.geometry.dist,
            int(src.addresses[self.rank]),
            stage,
            self.memory.address(self._channel_table),
            len(self.channels),
        )

    def dropout(self, x: Any, out: Any, ids: Any, draw: RngKey) -> None:
        """See Backend.dropout."""
        dropout.rows(self, x, out, ids, draw)

    def dropout_csr(self, indptr: Any, indices: Any, values: Any, out: Any, ids: Any, draw: RngKey) -> None:
        """See Backend.dropout_csr; values are float32."""
        dropout.values(self, (indptr, indices, values, out, ids), draw)

    def _rows(self, rows: Rows) -> Any:
        return self.native.Rows(rows.addresses, rows.format.dim)
