"""The transfer `halo` between the kernels of several GPUs: stagings, signals and schedules."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ....plan import halo_messages
from ....plan.cuda_grid import LANES, Launch
from ....plan.halo_messages import HaloMessages
from ....plan.layout import RowFormat
from ....plan.workload import Plan
from ..arguments import Rows
from ..profiling import KernelStamps
from .context import DeviceContext

PUSHING = 4  # one in so many CUDA blocks pushes before it sums
# A worker claims work at least CLAIMS times, at most MOST_CLAIMED tasks at once. Of the work of CUDA blocks that do not
# push, the fraction SHARED_OUT is assigned in advance; claims of the rest even out CUDA blocks that take longer.
CLAIMS, MOST_CLAIMED, SHARED_OUT = 16, 16, 0.75
EVENTS, BEGAN, ENDED = 4, 0, 3  # of a CUDA block's stamps (cuda/gpu/arguments.h, HaloStamps)
NO_STAMPS = (0, 0, 0)  # addresses: a call that keeps no times
NOT_SEEN = -1  # the largest uint64, which the first worker that sees a chunk lowers


class _Stamps:
    """Device memory for the times of one call.

    addresses: addresses of the stamps of CUDA blocks, pushes and arrivals, as in `HaloStamps` of cuda/gpu/arguments.h.
    """

    def __init__(self, backend: DeviceContext, schedule: HaloMessages, launch: Launch) -> None:
        self._arrays, self._schedule = backend.arrays, schedule
        empty = (
            np.zeros((launch.blocks, EVENTS), np.int64),
            np.zeros((len(schedule.pushes), 2), np.int64),
            np.full(len(schedule.arrivals), NOT_SEEN, np.int64),
        )
        self._taken = [self._arrays.uploaded(each) for each in empty]
        self.addresses = tuple(self._arrays.address(each) for each in self._taken)

    def read(self) -> KernelStamps:
        """Return the times, once the call has ended."""
        blocks, pushed, seen = (self._arrays.downloaded(each) for each in self._taken)
        return KernelStamps(
            began=int(blocks[:, BEGAN].min()),
            ended=int(blocks[:, ENDED].max()),
            to=self._schedule.pushes["pe"],
            pushed=pushed,
            owners=self._schedule.origins,
            seen=seen,
        )


class Halo:
    """The exchange of one plan, and of others that move the same rows. Construction and all calls are collective.

    widest: largest size of a row in bytes.
    """

    def __init__(self, backend: DeviceContext, plan: Plan, widest: RowFormat) -> None:
        extent = halo_messages.extent(plan)
        if extent is None:
            raise ValueError("halo: a plan whose remote rows are pushed")
        capacity, most_sent = extent
        self.widest = widest.row_bytes
        self._fewest = halo_messages.rows_a_message(self.widest, backend.chunk_bytes)
        self._made: WeakKeyDictionary[Plan, dict[int, tuple[HaloMessages, Any]]] = WeakKeyDictionary()
        words = self.schedule(backend, plan, self.widest)[0].signals
        # Two stagings, for odd and even calls; an outbox only where no pointer reaches some peer.
        self._staging = backend.symmetric(2 * capacity, widest)
        self._outbox = backend.symmetric(most_sent if backend.has_gets else 0, widest)
        self._signals = backend.symmetric(-(-words // 2), RowFormat(np.dtype(np.uint64), 2))
        self._staging_bytes = capacity * self.widest
        self._exchange: Any = None

    def schedule(self, backend: DeviceContext, plan: Plan, row_bytes: int) -> tuple[HaloMessages, Any]:
        """Return the schedule for rows of this size, on the host and the GPU. Raises ValueError for too wide rows."""
        if row_bytes > self.widest:
            raise ValueError(f"halo: rows of {row_bytes} bytes; prepared for up to {self.widest}")
        made = self._made.setdefault(plan, {})
        if row_bytes not in made:
            rows = halo_messages.rows_a_message(row_bytes, backend.chunk_bytes)
            found = halo_messages.in_messages(plan, rows, self._fewest)
            native = backend.native.HaloSchedule(
                backend.native_plan(plan),
                plan.indices,
                found.pushes.view(np.uint8),
                found.arrivals.view(np.uint8),
                found.send_rows,
                found.owners,
                found.credits,
            )
            made[row_bytes] = (found, native)
        return made[row_bytes]

    def forget(self, plan: Plan, row_bytes: int) -> None:
        """Drop the schedule for rows of this size: hubs are cut another way. Local."""
        self._made.get(plan, {}).pop(row_bytes, None)

    def exchange(self, backend: DeviceContext) -> Any:
        """Return the native exchange, made at the first call, when all ranks have allocated."""
        if self._exchange is None:
            rank = backend.rank
            backend.check_reached("halo", self._signals.addresses == 0)
            self._exchange = backend.native.Exchange(
                rank,
                self._staging.addresses.tolist(),
                self._signals.addresses.tolist(),
                int(self._staging.addresses[rank]),
                self._staging_bytes,
                int(self._signals.addresses[rank]),
                int(self._outbox.addresses[rank]),
            )
        return self._exchange

    def pushes(self, backend: DeviceContext, plan: Plan, row_bytes: int) -> int:
        """Return the number of chunks that this rank sends in a call."""
        return len(self.schedule(backend, plan, row_bytes)[0].pushes)

    def ready(self, backend: DeviceContext, plan: Plan, kind: str, format: RowFormat, launch: Launch) -> None:
        """Allocate what a call takes."""
        self.schedule(backend, plan, format.row_bytes)
        halo = self._halo(backend, plan, format, launch)
        getattr(self.exchange(backend), f"ready_{kind}")(halo, backend.launch_shape(launch))

    def aggregate(
        self,
        backend: DeviceContext,
        plan: Plan,
        kind: str,
        src: Rows,
        total: Any,
        launch: Launch,
        *,
        holds: bool = False,
    ) -> None:
        """Push rows, and sum; see Backend.aggregate.

        total: a native Sum. holds: arrived rows stay in the staging memory until the caller returns the credits, which
        allow their owners to push the next rows.
        """
        found, native = self.schedule(backend, plan, src.format.row_bytes)
        run = getattr(backend.native_plan(plan), f"halo_{kind}")
        halo = self._halo(backend, plan, src.format, launch, holds, self._kept(backend, found, launch))
        address = int(src.addresses[backend.rank])
        exchange = self.exchange(backend)
        run(address, src.format.dim, total, exchange, native, halo, backend.launch_shape(launch))

    def _kept(self, backend: DeviceContext, schedule: HaloMessages, launch: Launch) -> tuple[int, ...]:
        """Return the addresses of a call's stamps; none if no profile is being taken."""
        kernels = backend.profiling.kernels
        if kernels is None:
            return NO_STAMPS
        stamps = _Stamps(backend, schedule, launch)
        kernels.append(stamps.read)
        return stamps.addresses

    def _halo(
        self,
        backend: DeviceContext,
        plan: Plan,
        format: RowFormat,
        launch: Launch,
        holds: bool = False,
        stamps: tuple[int, ...] = NO_STAMPS,
    ) -> Any:
        workers = launch.blocks * launch.threads // launch.lanes
        # A task's columns in both sums (cuda/gpu/sums/halo.cuh), of float32, and what is known of it.
        each = 2 * launch.lanes * launch.packs * 16 // format.dtype.itemsize * 4 + 32
        passes = -(-format.row_bytes // (16 * launch.lanes * launch.packs))
        work = backend.native_plan(plan).tasks * passes
        slots = int(np.clip(backend.deferred_bytes // (workers * each), 1, max(1, work)))
        # Blocks that sums do not need push first.
        idle = launch.blocks - -(-launch.warps * LANES // launch.threads)
        pushers = min(self.pushes(backend, plan, format.row_bytes), max(1, launch.blocks // PUSHING, idle))
        alone = backend.share == 1 and backend.alone  # launched cooperatively: nothing else may hold blocks
        claim = LANES // launch.lanes * int(np.clip(work // (CLAIMS * workers), 1, MOST_CLAIMED))
        fixed = int(SHARED_OUT * work * (launch.blocks - pushers) / launch.blocks)
        return backend.native.Halo(pushers, claim, fixed, slots, alone, *stamps, holds)

    def rows_pushed(self) -> int:
        """Return the number of rows that this rank has pushed in all calls. Waits for its kernels."""
        return int(self._exchange.rows_pushed()) if self._exchange is not None else 0
