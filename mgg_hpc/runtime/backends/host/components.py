"""Memory, time and collectives of the backends of CPUs."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....plan.layout import RowFormat
from ... import mpi
from ..arguments import Rows
from ..base import Collectives, Memory, Meter, Recording, Stream
from ..native import load


def aligned_zeros(size: int) -> NDArray[np.uint8]:
    """Return ``size`` zero bytes that start on a multiple of 64."""
    whole = np.zeros(size + 64, dtype=np.uint8)
    start = -whole.ctypes.data % 64
    return whole[start : start + size]


def padded(count: int, format: RowFormat) -> NDArray[Any]:
    """Return uninitialised private rows [count, dim] in the layout in which kernels store rows."""
    return (
        aligned_zeros(count * format.row_bytes)
        .view(format.dtype)
        .reshape(count, format.stride)[:, : format.dim]
    )


class HostMemory(Memory):
    """Memory for private rows; subclasses say where symmetric rows live.

    native: the module mgg_hpc._host. Publishing is here because it depends on where symmetric rows live.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.native: Any = load()
        self._ends: list[Callable[[], None]] = []

    @abstractmethod
    def symmetric(self, counts: NDArray[np.int64], format: RowFormat) -> Rows:
        """Allocate symmetric rows, see Backend.rows. Collective."""

    @abstractmethod
    def publish(self, rows: Rows) -> None:
        """Make written rows readable, as `Backend.publish` does."""

    @property
    @abstractmethod
    def transport_address(self) -> int:
        """Address of the mgg::Transport (cuda/runtime/transport_host.h) that moves symmetric rows."""

    def private(self, counts: NDArray[np.int64], format: RowFormat) -> Rows:
        """Allocate private rows, see Backend.rows."""
        buffer = aligned_zeros(int(counts[self.rank]) * format.row_bytes)
        addresses = np.zeros(self.size, dtype=np.uint64)
        addresses[self.rank] = buffer.ctypes.data
        own = np.zeros(self.size, dtype=np.int64)
        own[self.rank] = counts[self.rank]
        return Rows(format, addresses, own, buffer, self.rank, False)

    def lock(self, address: int, nbytes: int) -> Callable[[], None]:
        # Kernels read the host's memory.
        return lambda: None

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
    """Ranks of CPUs. comm: of all ranks, or None where one process simulates them."""

    def __init__(self, rank: int, size: int, comm: Any = None) -> None:
        self.rank, self.size, self._comm = rank, size, comm

    def sum(self, values: NDArray[Any]) -> None:
        # In rank order.
        if self._comm is not None:
            mpi.sum_in_rank_order(self._comm, values)

    def least(self, mine: int) -> int:
        """Return the smallest of all ranks' integers. Collective."""
        return mine if self._comm is None else mpi.least(self._comm, mine)
