"""Launches of a GPU's kernels: their sizes, what they keep from call to call, and how many blocks fit."""

from __future__ import annotations

import itertools
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ....errors import InputError
from ....plan import cuda_grid, halo_messages
from ....plan.cuda_grid import Launch, Limits
from ....plan.layout import RowFormat
from ....plan.overlap import transfer_only
from ....plan.workload import Plan
from ..arguments import Geometry, Options, Rows
from ..simulated import Peers
from .arrays import name_of
from .context import DeviceContext
from .device_arrays import DeviceArrays
from .halo import Halo
from .rows import unreached
from .tape_kernels import TapeKernels

# Not tuned on a GPU yet: workers of 128 edges, and blocks of 256 threads.
DEFAULT_GEOMETRY = Geometry(ps=16, dist=4, wpb=8)
DEFAULT_CHANNEL = 1  # NVSHMEMX_QP_DEFAULT


def default_geometry(widest: RowFormat, limits: Limits) -> Geometry:
    """Return the default of MGG's knobs for rows of up to this format."""
    default = DEFAULT_GEOMETRY
    ps = cuda_grid.fitting_ps(widest, most=default.ps, dist=default.dist, wpb=default.wpb, limits=limits)
    return replace(default, ps=ps)


class DeviceLaunches(DeviceContext):
    """Launches of one rank's kernels over prepared plans."""

    timed = False  # whether the meter takes times: two events a call, which a caller has to settle

    def __init__(self, rank: int, world: Peers, options: Options, module: Any, arrays: DeviceArrays) -> None:
        super().__init__(rank, world, options, module, arrays)
        self.channels = [DEFAULT_CHANNEL]  # the transport's, of gets
        self._occupancy: dict[tuple[Any, ...], tuple[int, int]] = {}
        self._halos: WeakKeyDictionary[Plan, Halo] = WeakKeyDictionary()
        self._transfer_plans: WeakKeyDictionary[Plan, Plan] = WeakKeyDictionary()
        self._rings: WeakKeyDictionary[Plan, Rows] = WeakKeyDictionary()
        self._channel_table: Any = None

    @cached_property
    def tape_kernels(self) -> TapeKernels:
        """Compiler of tapes. Raises InputError where there is none."""
        return self.arrays.tape_kernels(self.native)

    def prepare(self, plan: Plan, widest: RowFormat) -> None:
        # Allocates stagings and signals of a halo, and the ring of gets of rows that no pointer reaches.
        halo = self._halos.get(plan)
        if halo_messages.extent(plan) and (halo is None or halo.widest < widest.row_bytes):
            self._halos[plan] = Halo(self, plan, widest)
        if plan.transfer == "get" and self.has_gets:
            packs = self._largest_ring(widest) // cuda_grid.PACK
            if plan not in self._rings or self._rings[plan].counts[0] < packs:
                self._rings[plan] = self.symmetric(packs, RowFormat(np.dtype(np.uint8), cuda_grid.PACK))
        self._world.barrier(self.arrays.stream())  # no peer writes before this rank's memory is zeroed

    def ready(self, plan: Plan, src: Rows, reduce: str = "sum") -> None:
        """Allocate all memory that `aggregate` of these rows takes, or of any of their format over a halo.

        Where ranks share a GPU, each must be ready before the first launch: an allocation may wait for a kernel that
        waits for other ranks.
        """
        self.allocate(plan, src.format, src, reduce)

    def allocate(self, plan: Plan, format: RowFormat, src: Rows | None, reduce: str = "sum") -> None:
        """Allocate as `ready` does. src: None where rows are not known yet, which leaves out tables of addresses."""
        with self.cut_for(plan, format):
            kind, made = name_of(format), self.launch(plan, format, reduce)
            pushed = halo_messages.crosses(plan)
            addresses = np.zeros(self.size, np.uint64) if src is None else src.addresses
            rows, read = self.native.Rows(addresses, format.dim), src is not None and not pushed
            getattr(self.native_plan(plan), f"ready_{kind}")(rows, read, self.launch_shape(made))
            if pushed:
                self.halo(plan).ready(self, plan, kind, format, made)
            elif src is not None and plan.transfer == "get" and plan.remote_edges:
                self.get(plan, src)

    def blocks_at_once(self, made: Launch) -> int:
        """Return the number of CUDA blocks that the GPU holds at once."""
        return max(1, int(made.resident * self.limits.multiprocessors * self.share))

    def _largest_ring(self, widest: RowFormat) -> int:
        """Return the bytes of the rings of all CUDA blocks that fit at once, the same on all ranks.

        Where a search will try other geometries, the largest of theirs.
        """

        def ring(geometry: Geometry) -> int:
            with self.cut_by(geometry):
                made = self._fitting("get", "sum", 0, 1, widest)
                return self.blocks_at_once(made) * self._ring_bytes(made)

        largest = ring(self.geometry)
        if self.options.searches:
            knobs = [cuda_grid.tried(name, getattr(self.geometry, name)) for name in ("dist", "wpb")]
            for dist, wpb in itertools.product(*knobs):
                with suppress(InputError):  # a geometry that does not fit is never tried
                    largest = max(largest, ring(replace(self.largest, ps=1, dist=dist, wpb=wpb)))
        return largest

    def _ring_bytes(self, made: Launch) -> int:
        """Return the bytes of a CUDA block's ring of rows that no pointer reaches."""
        return made.threads * made.packs * cuda_grid.PACK * self.geometry.dist * self.far_ps

    @property
    def far_ps(self) -> int:
        """Number of rows in a stage that the transport gets."""
        return self.geometry.far_ps or self.geometry.ps

    def launch(self, plan: Plan, format: RowFormat, reduce: str = "sum") -> Launch:
        """Return the launch of `aggregate` for rows of this format.

        Raises InputError where the GPU cannot hold a block.
        """
        transfer, made = self._fitting_for(plan, format, reduce)
        if transfer == "halo" or plan in self._rings:  # blocks wait for others, or have a ring in memory
            blocks = self.blocks_at_once(made)
            if plan in self._rings:
                blocks = min(blocks, len(self._rings[plan].buffer) // self._ring_bytes(made))
            if blocks == 0:
                raise ValueError(f"get: rows of {format.row_bytes} bytes; prepared for narrower ones")
            pushes = self._halos[plan].pushes(self, plan, format.row_bytes) if plan in self._halos else 0
            blocks = min(made.blocks + pushes, blocks)
            made = replace(
                made, blocks=blocks, blocks_per_multiprocessor=blocks / self.limits.multiprocessors
            )
        return made

    def _fitting_for(self, plan: Plan, format: RowFormat, reduce: str) -> tuple[str, Launch]:
        """Return the transfer of a plan's remote rows, and the launch of as many CUDA blocks as there is work for."""
        local, remote = self.partitions(plan)
        transfer = "halo" if halo_messages.crosses(plan) else plan.transfer if remote else "none"
        return transfer, self._fitting(transfer, reduce, local, remote, format)

    def check_fits(self, plan: Plan, format: RowFormat, geometry: Geometry) -> None:
        """Raise InputError for a geometry whose CUDA blocks the GPU cannot hold, or whose ring of rows in flight is
        larger than the one that was allocated for the plan.
        """
        with self.cut_by(geometry):
            _, made = self._fitting_for(plan, format, "sum")
            room = len(self._rings[plan].buffer) if plan in self._rings else 0
            if room and self.blocks_at_once(made) * self._ring_bytes(made) > room:
                raise InputError(
                    f"plan.ps = {geometry.ps}, plan.dist = {geometry.dist}: larger than the ring of get"
                )

    def _fitting(self, transfer: str, reduce: str, local: int, remote: int, format: RowFormat) -> Launch:
        """Return the launch by the paper's equations for these numbers of neighbour partitions.

        Its number of resident CUDA blocks is what registers and shared memory allow; with NVSHMEM the minimum of the
        kernels with and without its calls. Raises InputError for a CUDA block that is too large.
        """
        knobs = {"ps": self.geometry.ps, "dist": self.geometry.dist, "wpb": self.geometry.wpb}
        made = cuda_grid.launch(transfer, local, remote, format, **knobs, limits=self.limits)
        found = []
        for far in {False, self.has_gets}:
            kernel = (transfer, reduce == "max", far, made.lanes, made.packs, made.threads, made.shared_bytes)
            key = (name_of(format), *kernel)
            if key not in self._occupancy:
                self._occupancy[key] = getattr(self.native, f"occupancy_{key[0]}")(*kernel)
            found.append(self._occupancy[key])
        most, resident = (min(each) for each in zip(*found, strict=True))
        if made.threads > most:
            raise InputError(
                f"plan.wpb = {self.geometry.wpb}: a block of {made.threads} threads, but {self.limits.name}'s "
                f"registers hold {most} of this kernel's; at most {most // cuda_grid.LANES}"
            )
        return replace(made, resident=resident)

    def halo(self, plan: Plan) -> Halo:
        """Return the exchange of a prepared plan. Raises ValueError for any other."""
        if plan not in self._halos:
            raise ValueError("aggregate: a plan with a halo must be prepared first (Backend.prepare)")
        return self._halos[plan]

    def share_exchange(self, plan: Plan, transfer_plan: Plan) -> None:
        """Let ``transfer_plan``, which moves the rows of a prepared plan, use the exchange of that plan."""
        prepared: tuple[WeakKeyDictionary[Plan, Any], ...] = (self._halos, self._rings)
        for made in prepared:
            if plan in made:
                made[transfer_plan] = made[plan]

    def transfer_plan(self, plan: Plan) -> Plan:
        """Return the plan that moves the rows of a plan with a halo, and sums nothing."""
        if plan not in self._transfer_plans:
            self._transfer_plans[plan] = transfer_only(plan, edges=False)
        self.share_exchange(plan, self._transfer_plans[plan])
        return self._transfer_plans[plan]

    def began(self) -> Any:
        """Return a time stamp for `count`, or None where calls are not timed."""
        return self.stream.stamp() if self.timed else None

    def count(self, plan: Plan, format: RowFormat, began: Any) -> None:
        """Meter a call: `halo` moves each row that it sends, in chunks, other transfers a row for each remote edge.

        Calls over private rows (`Plan.transfer` "none") are not metered.
        """
        if plan.transfer == "none":
            return
        if plan.lists is None:
            rows, messages = plan.remote_edges, plan.remote_edges if plan.transfer == "get" else 0
        else:
            rows = len(plan.lists.send_rows)
            messages = int(
                (-(-plan.lists.send_counts // halo_messages.rows_a_message(format.row_bytes))).sum()
            )
        self.stream.meter.count(plan.local_edges, rows, format, messages)
        if began is not None:
            self.stream.meter.later.append((plan, format, self.stream.since(began)))

    def get(self, plan: Plan, src: Rows) -> Any:
        """Return the arguments of a call with gets. Raises ValueError for rows that it cannot reach."""
        far = unreached(src)
        self.check_reached("get", far)
        if far.any() and plan not in self._rings:
            raise ValueError("aggregate: a plan with gets must be prepared first (Backend.prepare)")
        if self._channel_table is None:
            self._channel_table = self.arrays.uploaded(np.array(self.channels, dtype=np.int32))
        stage = int(self._rings[plan].addresses[self.rank]) if plan in self._rings else 0
        return self.native.Get(
            self.geometry.ps,
            self.far_ps,
            self.geometry.dist,
            int(src.addresses[self.rank]),
            stage,
            self.arrays.address(self._channel_table),
            len(self.channels),
        )
