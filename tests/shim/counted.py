"""What kernels read and how their workers wait for each other, counted from the edges of their tasks."""

from __future__ import annotations

import numpy as np

from mgg_hpc.plan.launch import LANES

SECTOR, LINE = 32, 128  # bytes of a transaction, and of a line of a cache
UNROLL = 4  # rows that a worker reads at once (cuda/gpu/row_worker.cuh)
ORDER_WINDOW = 1 << 14  # tasks, among which the longest comes first (cuda/gpu/schedule.h)


def tasks_of(indptr: np.ndarray, most: int) -> np.ndarray:
    """Edges of each task in the order of a GPU: of a destination, or of a part of one of more than ``most`` edges."""
    degree = np.diff(indptr).astype(np.int64)
    parts = np.maximum(1, -(-degree // most))
    made = np.full(int(parts.sum()), most, np.int64)
    ends = np.cumsum(parts) - 1
    made[ends] = degree - (parts - 1) * most
    for first in range(0, len(made), ORDER_WINDOW):
        window = made[first : first + ORDER_WINDOW]
        window[:] = np.sort(window)[::-1]
    return made


def warp_steps(tasks: np.ndarray, lanes: int) -> tuple[int, int]:
    """Rows that workers of so many lanes add, and those that they could have added while their warps work.

    The workers of a warp take tasks that follow each other, and wait for the longest.
    """
    workers = LANES // lanes
    steps = -(-tasks // UNROLL) * UNROLL
    padded = np.pad(steps, (0, -len(steps) % workers)).reshape(-1, workers)
    return int(tasks.sum()), int(padded.max(axis=1).sum()) * workers


def rows_units(indices: np.ndarray, row_bytes: int, size: int) -> int:
    """Units of ``size`` bytes that reads of these rows touch, 512 bytes at once, of a table that begins one."""
    first = np.asarray(indices, np.int64) * row_bytes
    units = 0
    for begin in range(0, row_bytes, 512):
        ends = first + min(begin + 512, row_bytes) - 1
        units += int((ends // size - (first + begin) // size + 1).sum())
    return units
