"""Memory of a rank: what a run took, and what it will take."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

from ..nn.features import SparseFeatures
from ..nn.workspace import row_format
from .job import Job

LARGE = 4 << 20  # bytes of an array that gets pages of its own
_M_MMAP_THRESHOLD = -3  # malloc.h of glibc


def return_freed_memory() -> None:
    """Have large arrays give their pages back to the system when they are freed.

    By itself glibc raises this threshold to 32 MiB as a program runs, and what is freed below it stays with the
    process in pieces, a few more every epoch. Large rows are reused (nn/workspace.py), so little pays for this.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGE)


def peak_bytes(own_window_bytes: int) -> int:
    """The most memory that this process held: anonymous and file pages, and its own part of shared windows.

    Linux's high-water mark counts the pages of peers' windows that this rank read, so the shared pages now mapped
    are taken away and the rank's own are added (where symmetric rows are private, they are not among the shared).
    """
    status = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("VmHWM", "RssShmem"):
            status[name] = int(value.split()[0]) * 1024
    return status["VmHWM"] - status["RssShmem"] + min(own_window_bytes, status["RssShmem"])


@dataclass(frozen=True)
class Estimate:
    """Bytes of one rank, by purpose."""

    graph: int  # the slice as read: edges, labels, masks
    features: int
    plan: int  # chunks, segments, indices, schedule
    heap: int  # symmetric rows, two buffers
    activations: int  # outputs and gradients of all layers

    @property
    def total(self) -> int:
        """All of it; the libraries come on top."""
        return self.graph + self.features + self.plan + self.heap + self.activations


def estimate(job: Job) -> Estimate:
    """What training will take on this rank, beside Python and its libraries."""
    part, rows = job.part.slice, len(job.part.slice.ids)
    arrays = (part.indptr, part.indices, part.weight, part.y, part.train, part.val, part.test, part.ids)
    plans = {id(plan): plan.nbytes for plan in (job.adjacency.forward, job.adjacency.backward)}
    widest = job.model.widest(isinstance(job.x, SparseFeatures))
    largest = int((job.part.bounds[1:] - job.part.bounds[:-1]).max())
    widths = [conv.out_channels for conv in job.model.convolutions]
    dropped = 0 if isinstance(job.x, SparseFeatures) else job.x.shape[1]
    # Forward: a layer's output and its dropped copy; backward: its gradient and the aggregated gradient.
    per_row = sum(4 * row_format(width, job.dtype).row_bytes for width in widths)
    return Estimate(
        graph=sum(array.nbytes for array in arrays if array is not None),
        features=job.x.nbytes,
        plan=2 * sum(plans.values()),
        heap=2 * largest * row_format(widest, job.dtype).row_bytes,
        activations=rows * (per_row + row_format(dropped, job.dtype).row_bytes),
    )
