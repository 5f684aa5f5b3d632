"""DeviceArrays, time and collectives of a GPU's backend whose ranks one process simulates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....plan.layout import RowFormat
from ..arguments import Rows
from ..base import Meter, Recording
from .context import DeviceContext
from .device_arrays import DeviceArrays


class DeviceStream:
    """The current stream of the GPU, see Stream."""

    def __init__(self, arrays: DeviceArrays) -> None:
        self._arrays = arrays
        self.meter = Meter()

    def finish(self) -> None:
        """See Stream.finish: what the current stream has."""
        self._arrays.finish()

    def stamp(self) -> Any:
        """See Stream.stamp."""
        return self._arrays.stamp()

    def since(self, stamp: Any) -> Callable[[], float]:
        """See Stream.since."""
        return self._arrays.since(stamp)

    def record(self, launch: Callable[[], None]) -> Recording:
        """See Stream.record."""
        return self._arrays.record(launch)


class DeviceMemory:
    """Memory of a GPU, allocated on demand; see base.Memory."""

    def __init__(self, context: DeviceContext) -> None:
        self._context = context

    def reserve(self, nbytes: int, largest: int = 0) -> None:
        """See Memory.reserve."""

    def beside(self, nbytes: int) -> int:
        """See Memory.beside."""
        return 0

    def reserved(self) -> int:
        """See Memory.reserved."""
        return 0

    def free(self) -> int:
        """See Memory.free."""
        return int(self._context.native.memory()[0])

    def lock(self, address: int, nbytes: int) -> Callable[[], None]:
        """See Memory.lock."""
        return self._context.arrays.lock(address, nbytes)

    def padded(self, count: int, format: RowFormat) -> Any:
        """See Memory.padded."""
        counts = np.zeros(self._context.size, dtype=np.int64)
        counts[self._context.rank] = count
        return self._context.rows(counts, format, symmetric=False).local

    def release(self, rows: Rows) -> None:
        """See Memory.release; `close` gives back all at once."""

    def close(self) -> None:
        """See Memory.close."""


class DeviceCollectives:
    """Ranks that one process simulates. comm: of all ranks, where they are processes."""

    comm: Any = None

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def sum(self, values: Any) -> None:
        """See Collectives.sum. Raises TypeError for several ranks, none of which could run it."""
        if self.size > 1:
            raise TypeError("Collectives.sum: ranks of one process")

    def least(self, mine: int) -> int:
        """Return the smallest of all ranks' integers. Collective."""
        return mine

    def sum_on_host(self, values: NDArray[np.float64]) -> None:
        """Replace values of the host's memory by their sums over all ranks, in rank order. Collective."""
