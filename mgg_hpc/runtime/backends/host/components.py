"""Memory, time and collectives of the backends of CPUs."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....plan.layout import RowFormat
from ....plan.workload import HaloLists
from ... import cores, mpi
from ..arguments import Rows
from ..base import Collectives, Memory, Meter, Recording, Stream
from ..native import load
from ..simulated import World


def aligned_zeros(size: int) -> NDArray[np.uint8]:
    """Return ``size`` zero bytes that start on a multiple of 64."""
    whole = np.zeros(size + 64, dtype=np.uint8)
    start = -whole.ctypes.data % 64
    return whole[start : start + size]


def padded(count: int, format: RowFormat) -> NDArray[Any]:
    """Return uninitialised private rows [count, dim] in the layout in which kernels store rows."""
    flat = aligned_zeros(count * format.row_bytes).view(format.dtype)
    return flat.reshape(count, format.stride)[:, : format.dim]


@dataclass(frozen=True)
class Exchange:
    """A native halo exchange, and the symmetric memory that it uses."""

    native: Any
    staging: Rows
    signals: Rows


class HostMemory(Memory):
    """Memory for private rows; subclasses allocate symmetric rows.

    native: the module mgg_hpc._host. Publishing is here because it depends on where symmetric rows lie.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.native: Any = load()
        # A cache holds a rank's own rows, as many of its peers, and indices and sums.
        self.cache_bytes = cores.cache_bytes() // 4
        self._ends: list[Callable[[], None]] = []

    @abstractmethod
    def symmetric(self, counts: NDArray[np.int64], format: RowFormat) -> Rows:
        """Allocate symmetric rows, as `Backend.rows` does. Collective."""

    @abstractmethod
    def publish(self, rows: Rows) -> None:
        """Make written rows readable, as `Backend.publish` does."""

    @property
    @abstractmethod
    def transport_address(self) -> int:
        """Address of the mgg::Transport (cuda/runtime/transport_host.h) that moves symmetric rows."""

    def private(self, counts: NDArray[np.int64], format: RowFormat) -> Rows:
        """Allocate private rows, as `Backend.rows` does."""
        buffer = aligned_zeros(int(counts[self.rank]) * format.row_bytes)
        addresses, own = np.zeros(self.size, dtype=np.uint64), np.zeros(self.size, dtype=np.int64)
        addresses[self.rank], own[self.rank] = buffer.ctypes.data, counts[self.rank]
        return Rows(format, addresses, own, buffer, self.rank, False)

    def _signal_rows(self, lists: HaloLists) -> int:
        """Return the number of rows of 16 bytes that hold an exchange's signals."""
        return -(-int(self.native.signal_count(lists.rounds, self.size)) // 2)

    def exchange_bytes(self, lists: HaloLists, widest: RowFormat) -> int:
        """Return the bytes of symmetric memory that `exchange` allocates."""
        return 2 * lists.capacity * widest.row_bytes + 16 * self._signal_rows(lists)

    def exchange(self, lists: HaloLists, widest: RowFormat) -> Exchange:
        """Return a halo exchange of rows up to this format. Collective."""
        # Two stagings, used in turn.
        staging = self.symmetric(np.full(self.size, 2 * lists.capacity, dtype=np.int64), widest)
        words = RowFormat(np.dtype(np.uint64), 2)
        signals = self.symmetric(np.full(self.size, self._signal_rows(lists)), words)
        native = self.native.HaloExchange(
            self.rank,
            self.size,
            lists.rounds,
            lists.send_rows,
            lists.send_counts.reshape(-1),
            lists.send_places.reshape(-1),
            lists.receive_counts.reshape(-1),
            int(staging.addresses[self.rank]),
            lists.capacity * widest.row_bytes,
            int(signals.addresses[self.rank]),
            self.transport_address,
        )
        return Exchange(native, staging, signals)

    def lock(self, address: int, nbytes: int) -> Callable[[], None]:
        return lambda: None  # kernels read the host's memory

    def padded(self, count: int, format: RowFormat) -> NDArray[Any]:
        return padded(count, format)

    def release(self, rows: Rows) -> None:
        # Subclasses free the memory.
        rows.addresses[:] = 0  # transports look rows up there

    def on_close(self, end: Callable[[], None]) -> None:
        """Have ``end`` called by `close`."""
        self._ends.append(end)

    def close(self) -> None:
        # Subclasses free the memory. Arrays over symmetric rows must not be used afterwards.
        while self._ends:
            self._ends.pop()()
        self.native = None


class PointerMemory(HostMemory):
    """Symmetric rows that every rank reads and writes through pointers."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._transport = self.native.PointerTransport(rank)

    @property
    def transport_address(self) -> int:
        return int(self._transport.address)

    def close(self) -> None:
        super().close()
        self._transport = None


class SerialMemory(PointerMemory):
    """Memory of one rank of a World. Publishing needs nothing: the caller has every rank write before any reads."""

    def __init__(self, rank: int, world: World) -> None:
        super().__init__(rank, world.size)
        self._world, self._made = world, 0

    def symmetric(self, counts: NDArray[np.int64], format: RowFormat) -> Rows:
        buffer = aligned_zeros(int(counts.max(initial=0)) * format.row_bytes)
        addresses = self._world.allocate(self._made, self.rank, buffer.ctypes.data, len(buffer))
        self._made += 1
        self._transport.add(addresses, len(buffer))
        return Rows(format, addresses, counts, buffer, self.rank, True)

    def publish(self, rows: Rows) -> None:
        pass


class SharedMemory(PointerMemory):
    """Memory of one rank of a communicator whose ranks share memory."""

    def __init__(self, comm: Any) -> None:
        super().__init__(comm.rank, comm.size)
        self._comm = comm
        self._windows: dict[int, mpi.SharedWindow] = {}  # by the address of this rank's rows

    def symmetric(self, counts: NDArray[np.int64], format: RowFormat) -> Rows:
        window = mpi.SharedWindow(self._comm, int(counts.max(initial=0)) * format.row_bytes)
        addresses = np.array([window.address(rank) for rank in range(self.size)], dtype=np.uint64)
        self._windows[int(addresses[self.rank])] = window
        self._transport.add(addresses, window.nbytes)
        return Rows(format, addresses, counts, window.buffer(self.rank), self.rank, True)

    def publish(self, rows: Rows) -> None:
        window = self._windows.get(int(rows.addresses[self.rank]))
        if window is not None:
            window.sync()
        mpi.barrier(self._comm)
        if window is not None:
            window.sync()

    def release(self, rows: Rows) -> None:
        window = self._windows.pop(int(rows.addresses[self.rank]))
        super().release(rows)
        window.free()

    def close(self) -> None:
        super().close()
        while self._windows:
            self._windows.popitem()[1].free()


class HostStream(Stream):
    """Calls return when they are done."""

    def __init__(self) -> None:
        self.meter = Meter()

    def finish(self) -> None:
        pass

    def stamp(self) -> float:
        return time.perf_counter()

    def since(self, stamp: float) -> Callable[[], float]:
        taken = time.perf_counter() - stamp
        return lambda: taken

    def record(self, launch: Callable[[], None]) -> Recording:
        raise RuntimeError("CPUs record nothing")


class HostCollectives(Collectives):
    """Ranks of CPUs. comm: communicator of all ranks, or None where one process simulates them."""

    def __init__(self, rank: int, size: int, comm: Any = None) -> None:
        self.rank, self.size, self._comm = rank, size, comm

    def sum(self, values: NDArray[Any]) -> None:
        # In rank order.
        if self._comm is not None:
            mpi.sum_in_rank_order(self._comm, values)

    def least(self, mine: int) -> int:
        """Return the smallest of all ranks' integers. Collective."""
        return mine if self._comm is None else mpi.least(self._comm, mine)
