"""Memory of a rank: what a run took, and what it will take."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError
from ..nn.features import SparseFeatures
from ..nn.graph import plans_of, read_by_peers, symmetric_bytes
from ..nn.workspace import row_format
from ..runtime import cores, mpi
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


class Peak:
    """The most memory that this process held: anonymous and file pages, and its own part of shared windows.

    Linux's high-water mark counts the pages of peers' windows that this rank read. So make this before there are
    windows; from then on the shared pages that are mapped are taken away and the rank's own are added.
    """

    def __init__(self) -> None:
        self._before = _status("VmHWM")
        self._other_shared = _status("RssShmem")  # MPI's own

    def read(self, own_window_bytes: int) -> int:
        """Bytes until now. Symmetric rows that are private are in the mark already, and not among the shared."""
        now, shared = _status("VmHWM"), _status("RssShmem") - self._other_shared
        if now == self._before:
            return now
        return max(self._before, now - shared + min(own_window_bytes, shared))


def _status(name: str) -> int:
    """A figure of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


@dataclass(frozen=True)
class Estimate:
    """Bytes of one rank, by purpose."""

    input: int  # the slice as read: edges, labels, masks, features
    plan: int  # chunks, segments, indices, schedule
    heap: int  # symmetric memory
    activations: int  # outputs and gradients of all layers
    model: int  # parameters, gradients, Adam's moments, the weights that are kept

    @property
    def total(self) -> int:
        """All of it; the libraries come on top."""
        return self.input + self.plan + self.heap + self.activations + self.model


def estimate(job: Job) -> Estimate:
    """What training will take on this rank, beside Python and its libraries."""
    rows, widths = len(job.part.slice.ids), [conv.out_channels for conv in job.model.convolutions]
    plans = plans_of(job.layers)
    widest = job.model.widest(isinstance(job.x, SparseFeatures))
    counts = job.part.bounds[1:] - job.part.bounds[:-1]
    dropped = 0 if isinstance(job.x, SparseFeatures) else job.x.shape[1]
    # Forward: a layer's output and its dropped copy; backward: its gradient and the aggregated gradient.
    per_row = sum(4 * row_format(width, job.dtype).row_bytes for width in widths)
    # What is pushed in waves is written to private rows first.
    private = 0 if read_by_peers(job.layers) else 2 * row_format(widest, job.dtype).row_bytes
    # What goes over a network is packed first.
    packed = 0
    if not job.backend.reaches_peers:
        sent = sum(len(plan.lists.send_rows) for plan in plans if plan.lists is not None)
        packed = sent * row_format(widest, job.dtype).row_bytes
    parameters = sum(parameter.nbytes for parameter in job.model.parameters())
    return Estimate(
        input=job.part.nbytes + job.x.nbytes,
        # The schedule has segments of its own.
        plan=sum(plan.nbytes + plan.segments.nbytes for plan in plans),
        heap=symmetric_bytes(job.layers, counts, row_format(widest, job.dtype), job.comm.size),
        activations=rows * (per_row + private + row_format(dropped, job.dtype).row_bytes) + packed,
        model=6 * parameters,
    )


def check(job: Job) -> None:
    """Refuse on all ranks what the memory of a node cannot hold. Collective."""
    need, here = estimate(job), mpi.node(job.comm)
    still = need.heap + need.activations + need.model  # the rest is there already
    total = int(here.allreduce(still))
    with mpi.agree(job.comm):
        available = cores.memory_available()
        if total > available:
            raise InputError(
                f"training needs {total / 2**30:.1f} GiB more for all ranks of this node ({here.size}), "
                f"and {available / 2**30:.1f} GiB are available; use more nodes, fewer or narrower layers "
                '(model.hidden), or train.dtype = "float32"'
            )
