"""One process that plays every rank: all rows are private memory. The tests' backend, and that of a lone rank.

Ranks may be played one after another as long as rows are read on their owners; with a halo, each in its own thread.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ....plan.layout import RowFormat
from ..base import Options, Rows
from ..simulated import World
from .kernels import HostBackend, aligned_zeros


class SerialBackend(HostBackend):
    """One rank of a World. Publishing needs nothing: the caller has every rank write before any reads."""

    name = "serial"

    def __init__(self, rank: int, world: World, options: Options) -> None:
        super().__init__(rank, world.size, options)
        self._world = world
        self._made = 0
        self._transport = self._host.PointerTransport(rank)

    def _symmetric(self, counts: NDArray[np.int64], format: RowFormat) -> Rows:
        buffer = aligned_zeros(int(counts.max(initial=0)) * format.row_bytes)
        addresses = self._world.allocate(self._made, self.rank, buffer.ctypes.data, len(buffer))
        self._made += 1
        self._transport.add(addresses, len(buffer))
        return Rows(format, addresses, counts, buffer, self.rank, True)

    @property
    def transport_address(self) -> int:
        """See HostBackend."""
        return int(self._transport.address)

    def publish(self, rows: Rows) -> None:
        """See Backend.publish."""
