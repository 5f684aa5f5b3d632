"""The ranks of one node: symmetric rows live in MPI shared-memory windows, peers' rows are read by pointer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....plan.layout import RowFormat
from ... import mpi
from ..base import Options, Rows
from .kernels import HostBackend


class SharedBackend(HostBackend):
    """One rank of a communicator whose ranks share memory."""

    name = "shm"

    def __init__(self, comm: Any, options: Options) -> None:
        super().__init__(comm.rank, comm.size, options, comm)
        self._windows: list[tuple[int, mpi.SharedWindow]] = []
        self._transport = self._host.PointerTransport(self.rank)

    def _symmetric(self, counts: NDArray[np.int64], format: RowFormat) -> Rows:
        window = mpi.SharedWindow(self._comm, int(counts.max(initial=0)) * format.row_bytes)
        addresses = np.array([window.address(rank) for rank in range(self.size)], dtype=np.uint64)
        self._windows.append((int(addresses[self.rank]), window))
        self._transport.add(addresses, window.nbytes)
        return Rows(format, addresses, counts, window.buffer(self.rank), self.rank, True)

    @property
    def transport_address(self) -> int:
        """See HostBackend."""
        return int(self._transport.address)

    def publish(self, rows: Rows) -> None:
        """See Backend.publish."""
        address = int(rows.addresses[self.rank])
        for start, window in self._windows:
            if start == address:
                window.sync()
        mpi.barrier(self._comm)
        for start, window in self._windows:
            if start == address:
                window.sync()

    def release(self, rows: Rows) -> None:
        """See Backend.release."""
        address = int(rows.addresses[self.rank])
        [at] = [number for number, (start, _) in enumerate(self._windows) if start == address]
        super().release(rows)
        self._windows.pop(at)[1].free()

    def close(self) -> None:
        """See Backend.close. Arrays over the windows must not be used afterwards."""
        super().close()
        while self._windows:
            self._windows.pop()[1].free()
