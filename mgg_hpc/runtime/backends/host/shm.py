"""The ranks of one node: symmetric rows live in MPI shared-memory windows, peers' rows are read by pointer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....plan.layout import RowFormat
from ... import mpi
from ..arguments import Options, Rows
from ..base import Capabilities
from .components import HostCollectives, HostMemory
from .kernels import HostBackend


class SharedMemory(HostMemory):
    """Memory of one rank of a communicator whose ranks share memory."""

    def __init__(self, comm: Any) -> None:
        super().__init__(comm.rank, comm.size)
        self._comm = comm
        self._windows: dict[int, mpi.SharedWindow] = {}  # by the address of this rank's rows
        self._transport = self.native.PointerTransport(self.rank)

    @property
    def transport_address(self) -> int:
        return int(self._transport.address)

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
        self._transport = None
        while self._windows:
            self._windows.popitem()[1].free()


class SharedBackend(HostBackend):
    """One rank of a communicator whose ranks share memory."""

    def __init__(self, comm: Any, options: Options) -> None:
        collectives = HostCollectives(comm.rank, comm.size, comm)
        super().__init__(SharedMemory(comm), collectives, options, Capabilities("shm"))
