"""A GPU, its memory and the ranks around it, as all kernels of a backend see them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ....plan import cuda_grid, grid, halo_messages
from ....plan.cuda_grid import Launch
from ....plan.halo_messages import HaloMessages
from ....plan.layout import RowFormat
from ....plan.workload import Plan
from ..arguments import Geometry, Options, Rows
from ..base import Stream
from ..simulated import Peers
from .device_arrays import DeviceArrays
from .module import limits_of

THREADS = 256  # of a block, of kernels that have no wpb


class DeviceContext:
    """Storage, plans in device memory and launch sizes of one rank.

    has_gets: whether a transport fetches what no pointer reaches. share: of the CUDA blocks that the GPU holds at
    once, less than 1 where other ranks run kernels on it. chunk_bytes: of a push. deferred_bytes: of partial sums that
    wait for more rows; with fewer, workers wait themselves. alone: whether no other rank's kernels run on this GPU;
    under MPS they do, though ``share`` is 1.
    """

    _stream: Stream
    share = 1.0
    alone = True
    deferred_bytes = 256 << 20

    def __init__(
        self,
        rank: int,
        world: Peers,
        options: Options,
        module: Any,
        arrays: DeviceArrays,
        table_memory: DeviceArrays | None = None,
    ) -> None:
        """table_memory: where rows lie that peers read, if elsewhere than the peers' other memory."""
        self.rank, self.size, self.options = rank, world.size, options
        self.arrays, self.native, self._made = arrays, module, 0
        self.join(world, table_memory)
        self.chunk_bytes = halo_messages.MESSAGE_BYTES
        self.limits = limits_of(module)
        module.load_all()  # while nothing runs that loading a kernel could wait for
        self._plans: WeakKeyDictionary[Plan, dict[int, Any]] = WeakKeyDictionary()
        self._tuned: WeakKeyDictionary[Plan, dict[int, Geometry]] = WeakKeyDictionary()
        self._over_held_rows: WeakKeyDictionary[Plan, Plan] = WeakKeyDictionary()
        self._cut_by: Geometry | None = None
        self._partitions: WeakKeyDictionary[Plan, dict[int, tuple[int, int]]] = WeakKeyDictionary()

    @property
    def stream(self) -> Stream:
        """Order, time and recording of this rank's launches."""
        return self._stream

    @property
    def geometry(self) -> Geometry:
        """How schedules cut the work of the call that is being launched."""
        return self._cut_by or self.options.geometry

    @property
    def largest(self) -> Geometry:
        """Geometry for which memory is reserved: with the largest value of each knob that may be tried."""
        begun = self.options.geometry
        if not self.options.searches:
            return begun
        values = {"ps": begun.ps, "dist": begun.dist, "wpb": begun.wpb, "far_ps": begun.far_ps or begun.ps}
        return Geometry(**{name: cuda_grid.tried(name, value)[-1] for name, value in values.items()})

    def cut_for(self, plan: Plan, format: RowFormat) -> AbstractContextManager[None]:
        """Launch by the geometry that `Backend.retune` has set for a plan and rows of this format."""
        return self.cut_by(self._tuned.get(plan, {}).get(format.row_bytes))

    @contextmanager
    def cut_by(self, geometry: Geometry | None) -> Iterator[None]:
        """Launch by this geometry within ``with``, or by the default."""
        self._cut_by = geometry
        try:
            yield
        finally:
            self._cut_by = None

    def join(self, world: Peers, table_memory: DeviceArrays | None = None) -> None:
        """Make this rank one of ``world`` from now on."""
        self._world, self.has_gets = world, world.gets
        self._symmetric_memory = world.memory or self.arrays
        self._table_memory = table_memory or self._symmetric_memory

    def rows(self, counts: NDArray[np.int64], format: RowFormat, symmetric: bool) -> Rows:
        return self._allocated(counts, format, symmetric, self._table_memory if symmetric else self.arrays)

    def symmetric(self, count: int, format: RowFormat) -> Rows:
        """Allocate ``count`` symmetric rows on every rank, for this backend's own use."""
        counts = np.full(self.size, count, dtype=np.int64)
        return self._allocated(counts, format, True, self._symmetric_memory)

    def _allocated(
        self, counts: NDArray[np.int64], format: RowFormat, symmetric: bool, memory: DeviceArrays
    ) -> Rows:
        size = int(counts.max(initial=0) if symmetric else counts[self.rank]) * format.row_bytes
        buffer = memory.zeros(size)
        if symmetric:
            addresses = self._world.allocate(self._made, self.rank, memory.address(buffer), size)
            self._made += 1
        else:
            addresses = np.zeros(self.size, dtype=np.uint64)
            addresses[self.rank] = memory.address(buffer)
        return Rows(format, addresses, counts, buffer, self.rank, symmetric)

    def native_plan(self, plan: Plan) -> Any:
        """Return the plan in the GPU's memory, made once for each size of a hub's parts."""
        made = self._plans.setdefault(plan, {})
        part_edges = cuda_grid.part_edges(self.geometry.ps, self.geometry.dist)
        if part_edges not in made:
            arrays = (plan.chunks.view(np.uint8), plan.segments.view(np.uint8), plan.indices)
            made[part_edges] = self.native.Plan(*arrays, plan.destinations, part_edges, plan.rank)
        return made[part_edges]

    def over_held_rows(self, plan: Plan) -> Plan:
        """Return a plan of one chunk of a store as a plan of rows that this rank holds; the same one each time."""
        if plan not in self._over_held_rows:
            self._over_held_rows[plan] = grid.over_held_rows(plan, self.rank)
        return self._over_held_rows[plan]

    def in_chunks(self, plan: Plan, rows: int, fewest: int) -> HaloMessages:
        """Return what crosses in a call of a halo; see `halo_messages.in_messages`."""
        return halo_messages.in_messages(plan, rows, fewest)

    def partitions(self, plan: Plan) -> tuple[int, int]:
        """Return the plan's numbers of local and remote neighbour partitions, counted once."""
        counted, ps = self._partitions.setdefault(plan, {}), self.geometry.ps
        if ps not in counted:
            counted[ps] = plan.partitions(ps)
        return counted[ps]

    def launch_shape(self, launch: Launch) -> Any:
        """Return a launch as the native module takes it."""
        sizes = (launch.lanes, launch.packs, launch.blocks, launch.threads, launch.shared_bytes)
        return self.native.LaunchShape(*sizes, self.arrays.stream())

    def one_warp(self) -> Any:
        """Return a launch of a single warp."""
        return self.native.LaunchShape(1, 1, 1, cuda_grid.LANES, 0, self.arrays.stream())

    def spread(self, lanes: int, workers: int) -> Any:
        """Return a launch of ``workers`` workers of ``lanes`` lanes."""
        blocks = min(max(1, -(-workers * lanes // THREADS)), cuda_grid.MOST_BLOCKS)
        return self.native.LaunchShape(lanes, 1, blocks, THREADS, 0, self.arrays.stream())
