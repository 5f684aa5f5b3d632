"""One process that simulates every rank: all rows are private memory. The backend of tests, and of a lone rank.

Ranks may take turns as long as rows are read on their owners; with a halo, each runs in its own thread.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ....plan.layout import RowFormat
from ..arguments import Options, Rows
from ..base import Capabilities
from ..simulated import World
from .components import HostCollectives, HostMemory, aligned_zeros
from .kernels import HostBackend


class SerialMemory(HostMemory):
    """Memory of one rank of a World. Publishing needs nothing: the caller has every rank write before any reads."""

    def __init__(self, rank: int, world: World) -> None:
        super().__init__(rank, world.size)
        self._world, self._made = world, 0
        self._transport = self.native.PointerTransport(rank)

    @property
    def transport_address(self) -> int:
        return int(self._transport.address)

    def symmetric(self, counts: NDArray[np.int64], format: RowFormat) -> Rows:
        buffer = aligned_zeros(int(counts.max(initial=0)) * format.row_bytes)
        addresses = self._world.allocate(self._made, self.rank, buffer.ctypes.data, len(buffer))
        self._made += 1
        self._transport.add(addresses, len(buffer))
        return Rows(format, addresses, counts, buffer, self.rank, True)

    def publish(self, rows: Rows) -> None:
        pass

    def close(self) -> None:
        super().close()
        self._transport = None


class SerialBackend(HostBackend):
    """One rank of a World."""

    def __init__(self, rank: int, world: World, options: Options) -> None:
        memory, collectives = SerialMemory(rank, world), HostCollectives(rank, world.size)
        super().__init__(memory, collectives, options, Capabilities("serial"))
