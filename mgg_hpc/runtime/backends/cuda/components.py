"""DeviceArrays, time and collectives of a GPU's backend whose ranks one process simulates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....plan.layout import RowFormat
from ..base import Collectives, Memory, Meter, Recording, Stream
from .context import DeviceContext
from .device_arrays import DeviceArrays


class DeviceStream(Stream):
    """The current stream of the GPU."""

    probe_rows = 1 << 18  # launches take longer than moving a few thousand rows

    def __init__(self, arrays: DeviceArrays) -> None:
        self._arrays = arrays
        self.meter = Meter()

    def finish(self) -> None:
        # What the current stream has.
        self._arrays.finish()

    def stamp(self) -> Any:
        return self._arrays.stamp()

    def since(self, stamp: Any) -> Callable[[], float]:
        return self._arrays.since(stamp)

    def record(self, launch: Callable[[], None]) -> Recording:
        return self._arrays.record(launch)


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
    """Ranks that one process simulates. comm: of all ranks, where they are processes."""

    comm: Any = None

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def sum(self, values: Any) -> None:
        # Raises TypeError for several ranks, none of which could run it.
        if self.size > 1:
            raise TypeError("Collectives.sum: ranks of one process")

    def least(self, mine: int) -> int:
        """Return the smallest of all ranks' integers. Collective."""
        return mine

    def sum_on_host(self, values: NDArray[np.float64]) -> None:
        """Replace values of the host's memory by their sums over all ranks, in rank order. Collective."""
