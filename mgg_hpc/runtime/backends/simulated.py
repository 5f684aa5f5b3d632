"""The ranks of a backend and their symmetric memory, and ranks that one process simulates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


def all_reachable(rank: int, peer: int) -> bool:
    """Return True: all ranks reach each other's memory."""
    return True


class Peers(ABC):
    """All ranks of a backend, and their symmetric memory.

    memory: allocator of symmetric memory, or None for the backend's own. gets: whether a transport fetches rows that no
    pointer reaches.
    """

    size: int
    memory: Any
    gets: bool

    @abstractmethod
    def allocate(self, number: int, rank: int, address: int, nbytes: int) -> NDArray[np.uint64]:
        """Record the address of this rank's ``number``-th symmetric allocation.

        Return the addresses of all ranks' allocations as this rank sees them, uint64 [P], 0 where out of reach.
        """

    @abstractmethod
    def barrier(self, stream: int) -> None:
        """Launch a barrier of all ranks on a stream."""


@dataclass
class Allocation:
    """Symmetric memory, ``nbytes`` on each rank. addresses: uint64 [P, P], row r: all ranks' as rank r sees them."""

    nbytes: int
    addresses: NDArray[np.uint64]


@dataclass
class World(Peers):
    """Ranks that one process simulates; their i-th symmetric allocations belong together.

    reaches(rank, peer): whether a pointer of ``rank`` reaches the memory of ``peer``.
    """

    size: int
    reaches: Callable[[int, int], bool] = all_reachable
    allocations: list[Allocation] = field(default_factory=list)
    memory: Any = None
    gets: bool = False

    def barrier(self, stream: int) -> None:
        """Ranks that take turns need no barrier."""

    def allocate(self, number: int, rank: int, address: int, nbytes: int) -> NDArray[np.uint64]:
        # Ranks allocate one after another: the result fills as the others do. Raises ValueError where sizes differ.
        while number >= len(self.allocations):
            nothing = np.zeros((self.size, self.size), dtype=np.uint64)
            self.allocations.append(Allocation(nbytes, nothing))
        made = self.allocations[number]
        if made.nbytes != nbytes:
            raise ValueError(f"rank {rank} allocates {nbytes} bytes, and others {made.nbytes}: not symmetric")
        for other in range(self.size):
            if other == rank or self.reaches(other, rank):
                made.addresses[other, rank] = address
        return made.addresses[rank]
