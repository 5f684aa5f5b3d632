"""One rank's GPU: stream, memory and collectives, and plans in device memory."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from ....plan import cuda_grid, grid, halo_messages
from ....plan.cuda_grid import Launch
from ....plan.layout import RowFormat
from ....plan.workload import Plan
from ..arguments import Geometry, Options, Rows
from ..base import Collectives, Memory, Meter, Recording, Stream
from ..simulated import Peers
from ..traversal import own_pages
from .device_arrays import DeviceArrays
from .module import limits_of

THREADS = 256  # per CUDA block, in kernels that do not use wpb


class DeviceStream(Stream):
    """The current stream of the GPU."""

    probe_rows = 1 << 18  # launches take longer than moving a few thousand rows

    def __init__(self, arrays: DeviceArrays) -> None:
        self._arrays = arrays
        self.meter = Meter()

    def finish(self) -> None:
        self._arrays.finish()

    def stamp(self) -> Any:
        return self._arrays.stamp()

    def since(self, stamp: Any) -> Callable[[], float]:
        return self._arrays.since(stamp)

    def beside(self) -> AbstractContextManager[None]:
        return self._arrays.beside()

    def wait(self, stamp: Any, *made: Any) -> None:
        self._arrays.wait(stamp, made)

    def record(self, launch: Callable[[], None]) -> Recording:
        return self._arrays.record(launch)


class DeviceContext:
    """Memory, plans on the device and launch sizes of one rank, which all of its kernels share.

    Attributes:
        has_gets: True if a transport fetches rows that no pointer reaches.
        share: fraction of the CUDA blocks resident on the GPU that this rank may use; less than 1 if other
            ranks run kernels on the same GPU.
        alone: True if no other rank's kernels run on this GPU. Under MPS it is False although ``share`` is 1.
        deferred_bytes: memory for partial sums that wait for later rows of a halo; with 0 workers wait instead.
        chunk_bytes: largest size of one push of a halo.
        table_memory: allocator of symmetric rows, or None for the transport's symmetric memory.
    """

    profiling: Any  # a Profiling, of the backend
    share = 1.0
    alone = True
    deferred_bytes = 256 << 20
    chunk_bytes = halo_messages.MESSAGE_BYTES
    table_memory: DeviceArrays | None = None
    # Of the process, as page locks are: ranks that one process simulates may lock the same arrays.
    _locked: ClassVar[WeakValueDictionary[tuple[int, int], NDArray[np.uint8]]] = WeakValueDictionary()

    def __init__(self, rank: int, world: Peers, options: Options, module: Any, arrays: DeviceArrays) -> None:
        self.rank, self.size, self.options = rank, world.size, options
        self.arrays, self.native, self._stream = arrays, module, DeviceStream(arrays)
        self._allocations = 0
        self.join(world)
        self.limits = limits_of(module)
        module.load_all()  # while nothing runs that loading a kernel could wait for
        self._plans: WeakKeyDictionary[Plan, dict[int, Any]] = WeakKeyDictionary()
        self._tuned: WeakKeyDictionary[Plan, dict[int, Geometry]] = WeakKeyDictionary()
        self._over_held_rows: WeakKeyDictionary[Plan, Plan] = WeakKeyDictionary()
        self._cut_by: Geometry | None = None
        self._partitions: WeakKeyDictionary[Plan, dict[int, tuple[int, int]]] = WeakKeyDictionary()

    @property
    def stream(self) -> Stream:
        """Stream of this rank's launches."""
        return self._stream

    @property
    def geometry(self) -> Geometry:
        """Geometry (ps, dist, wpb) of the call that is being launched."""
        return self._cut_by or self.options.geometry

    @property
    def largest(self) -> Geometry:
        """Geometry for which memory is reserved.

        If the job searches for a geometry, each knob has the largest value that the search may try.
        """
        begun = self.options.geometry
        if not self.options.searches:
            return begun
        values = {"ps": begun.ps, "dist": begun.dist, "wpb": begun.wpb, "far_ps": begun.far_ps or begun.ps}
        return Geometry(**{name: cuda_grid.tried(name, value)[-1] for name, value in values.items()})

    def cut_for(self, plan: Plan, format: RowFormat) -> AbstractContextManager[None]:
        """Return a context in which launches use the geometry that `Backend.retune` set for plan and format."""
        return self.cut_by(self._tuned.get(plan, {}).get(format.row_bytes))

    @contextmanager
    def cut_by(self, geometry: Geometry | None) -> Iterator[None]:
        """Use ``geometry`` for launches within ``with``; None for the default."""
        self._cut_by = geometry
        try:
            yield
        finally:
            self._cut_by = None

    def join(self, world: Peers) -> None:
        """Attach this rank to a group of ranks, from which its symmetric memory and gets come from now on."""
        self._world, self.has_gets = world, world.gets
        self._symmetric_memory = world.memory or self.arrays

    def rows(self, counts: NDArray[np.int64], format: RowFormat, symmetric: bool) -> Rows:
        memory = (self.table_memory or self._symmetric_memory) if symmetric else self.arrays
        return self._allocated(counts, format, symmetric, memory)

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
            addresses = self._world.allocate(self._allocations, self.rank, memory.address(buffer), size)
            self._allocations += 1
        else:
            addresses = np.zeros(self.size, dtype=np.uint64)
            addresses[self.rank] = memory.address(buffer)
        return Rows(format, addresses, counts, buffer, self.rank, symmetric)

    def upload_bytes(self, values: NDArray[Any]) -> Any:
        """Copy an array to the GPU's memory; return its bytes there, aligned to 256."""
        memory = self.arrays.zeros(max(values.nbytes, 1))
        if values.nbytes:
            memory[: values.nbytes] = self.arrays.uploaded(
                np.ascontiguousarray(values).view(np.uint8).reshape(-1)
            )
        return memory

    def locked_bytes(self, values: NDArray[Any]) -> NDArray[np.uint8]:
        """Return the bytes of an array in page-locked memory of the host, which stays locked until it is freed.

        An array that begins at a page boundary (`own_pages`) is locked in place, once for all calls; any other
        is copied.
        """
        flat = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
        begin = flat.ctypes.data, flat.nbytes
        if (held := self._locked.get(begin)) is not None:
            return held
        memory = flat.view()
        if flat.nbytes and begin[0] % mmap.PAGESIZE == 0:
            self._locked[begin] = memory
        else:
            memory = own_pages(max(flat.nbytes, 1))
            memory[: flat.nbytes] = flat
        weakref.finalize(memory, self.arrays.lock(memory.ctypes.data, memory.nbytes))
        return memory

    def native_plan(self, plan: Plan) -> Any:
        """Return the native copy of a plan in the GPU's memory. It is cached.

        A destination with many edges is divided into parts, whose size depends on the geometry; there is a copy
        for each size.
        """
        made = self._plans.setdefault(plan, {})
        part_edges = cuda_grid.part_edges(self.geometry.ps, self.geometry.dist)
        if part_edges not in made:
            arrays = (plan.chunks.view(np.uint8), plan.segments.view(np.uint8), plan.indices)
            made[part_edges] = self.native.Plan(*arrays, plan.destinations, part_edges, plan.rank)
        return made[part_edges]

    def over_held_rows(self, plan: Plan) -> Plan:
        """Return a plan over one chunk of a store, changed to read rows in this rank's own memory.

        It is cached.
        """
        if plan not in self._over_held_rows:
            self._over_held_rows[plan] = grid.over_held_rows(plan, self.rank)
        return self._over_held_rows[plan]

    def partitions(self, plan: Plan) -> tuple[int, int]:
        """Return a plan's numbers of local and remote neighbour partitions: parts of at most ps edges."""
        counted, ps = self._partitions.setdefault(plan, {}), self.geometry.ps
        if ps not in counted:
            counted[ps] = plan.partitions(ps)
        return counted[ps]

    def launch_shape(self, launch: Launch) -> Any:
        """Return ``launch`` as an object of the native module, on the current stream."""
        sizes = (launch.lanes, launch.packs, launch.blocks, launch.threads, launch.shared_bytes)
        return self.native.LaunchShape(*sizes, self.arrays.stream())

    def one_warp(self) -> Any:
        """Return a launch of one CUDA block of one warp, for the native module."""
        return self.native.LaunchShape(1, 1, 1, cuda_grid.LANES, 0, self.arrays.stream())

    def spread(self, lanes: int, workers: int, *, most: int = cuda_grid.MOST_BLOCKS) -> Any:
        """Return a launch of ``workers`` groups of ``lanes`` threads, for the native module.

        If this takes more than ``most`` CUDA blocks, ``most`` are launched, each of which does the work of
        several.
        """
        blocks = min(max(1, -(-workers * lanes // THREADS)), most)
        return self.native.LaunchShape(lanes, 1, blocks, THREADS, 0, self.arrays.stream())

    def check_reached(self, call: str, unreached: NDArray[np.bool_]) -> None:
        """Raise ValueError if neither a pointer nor a get reaches some rank's memory.

        call: name of the call, for the message. unreached: bool [P], True for ranks that no pointer reaches.
        """
        if unreached.any() and not self.has_gets:
            raise ValueError(
                f"{call}: memory of PE {np.flatnonzero(unreached)[0]} is not reachable by pointer from PE {self.rank}, "
                "and NVSHMEM does not run"
            )


class DeviceMemory(Memory):
    """Memory of a GPU, allocated on demand."""

    holds_stores = False

    def __init__(self, context: DeviceContext) -> None:
        self._context = context

    def free(self) -> int:
        return int(self._context.native.memory()[0])

    def lock(self, address: int, nbytes: int) -> Callable[[], None]:
        return self._context.arrays.lock(address, nbytes)

    def padded(self, count: int, format: RowFormat) -> Any:
        counts = np.zeros(self._context.size, dtype=np.int64)
        counts[self._context.rank] = count
        return self._context.rows(counts, format, symmetric=False).local


class DeviceCollectives(Collectives):
    """Collectives of ranks that one process simulates, and base class of those of ranks that are processes.

    comm: MPI communicator of all ranks; None if one process simulates them.
    """

    comm: Any = None

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def sum(self, values: Any) -> None:
        # Several simulated ranks cannot meet in a collective call, as their one process runs them in turn.
        if self.size > 1:
            raise TypeError("Collectives.sum: ranks of one process")

    def least(self, mine: int) -> int:
        """Return the smallest of all ranks' integers. Collective."""
        return mine

    def sum_on_host(self, values: NDArray[np.float64]) -> None:
        """Replace values in the host's memory by their sums over all ranks, added in rank order. Collective."""
