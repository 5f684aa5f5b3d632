"""Copies of host memory, timed: by one rank of a node, and by all of them at once."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

NBYTES = 64 << 20  # of a copy: more than caches hold
REPEATS = 3


def copy_bandwidth(comm: Any) -> tuple[float, float]:
    """Return the GB/s of a copy by one rank alone, and the sum of those of all ranks at once. Collective."""
    source, target = np.ones(NBYTES, np.uint8), np.zeros(NBYTES, np.uint8)

    def copied() -> float:
        fastest = float("inf")
        for _ in range(REPEATS):
            began = time.perf_counter()
            target[:] = source
            fastest = min(fastest, time.perf_counter() - began)
        return NBYTES / fastest / 1e9

    comm.Barrier()
    alone = comm.bcast(copied() if comm.rank == 0 else None)
    comm.Barrier()
    return alone, sum(comm.allgather(copied()))
