"""Ranks that one process plays."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass
class World:
    """The ranks that one process plays; their i-th symmetric allocations belong together."""

    size: int
    allocations: list[NDArray[np.uint64]] = field(default_factory=list)

    def allocation(self, number: int) -> NDArray[np.uint64]:
        """The addresses of every rank's ``number``-th allocation, which each fills in as it allocates."""
        while number >= len(self.allocations):
            self.allocations.append(np.zeros(self.size, dtype=np.uint64))
        return self.allocations[number]
