"""Memory of a rank: what a run took, and what it will take."""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError
from ..nn.graph.handle import plans_of, read_by_peers, symmetric_bytes
from ..nn.inputs.host import HostFeatures
from ..nn.workspace import row_format
from ..runtime import cores, mpi
from . import footprint
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

    there: int  # what it holds before it trains: on CPUs all of it, on a GPU the features
    plan: int  # schedules, which are made as they are used; on a GPU all of the plans
    heap: int  # symmetric memory
    activations: int  # what passes keep and need for a while: outputs and gradients of all layers
    model: int  # gradients, Adam's moments, the weights before a step, those that are kept
    before: int = 0  # the most that the process held until now, which may be more than it will

    @property
    def still(self) -> int:
        """What is not there yet."""
        return self.plan + self.heap + self.activations + self.model

    @property
    def total(self) -> int:
        """The most that the rank will hold."""
        return max(self.before, self.there + self.still)


def estimate(job: Job, *, trains: bool = True) -> Estimate:
    """What this rank holds, and what training, or evaluation alone, will take. Not collective."""
    rows, format = len(job.part.slice.ids), row_format(job.model.widest(job.sparse), job.dtype)
    plans, on_gpu = plans_of(job.layers), job.backend.capabilities.device != "cpu"
    counts = job.part.bounds[1:] - job.part.bounds[:-1]
    edges = max((plan.edges for plan in plans), default=0)
    activations = footprint.measure(job, trains=trains).of(rows, edges)
    # What is pushed in rounds is written to private rows first, and half rows are summed beside their place.
    if not read_by_peers(job.layers):
        activations += rows * format.row_bytes
    if any(plan.transfer == "halo" for plan in plans) and format.dtype.itemsize == 2:
        activations += rows * format.stride * 4
    if any(plan.transfer == "halo" for plan in plans) and not on_gpu:
        activations += (
            rows * max(conv.state for conv in job.model.convolutions) * max(4, format.dtype.itemsize)
        )
    # Products of half rows are taken from copies in another order.
    if not on_gpu and format.dtype.itemsize == 2:
        widths = [0 if job.sparse else job.x.shape[1], *job.model.widths]
        activations += rows * 2 * max(a + b for a, b in itertools.pairwise(widths))
    # What goes over a network is packed first.
    if not job.backend.capabilities.reaches_peers:
        sent = sum(len(plan.lists.send_rows) for plan in plans if plan.lists is not None)
        activations += sent * format.row_bytes
    if isinstance(job.x, HostFeatures):
        activations += job.x.device_nbytes
    # A recorded step keeps its memory, and evaluation finds its own: each layer's output, and what it aggregates.
    if job.records:
        activations += rows * sum(2 * row_format(width, job.dtype).row_bytes for width in job.model.widths)
    parameters = sum(parameter.nbytes for parameter in job.weights().values())
    return Estimate(
        there=(job.part.nbytes + job.x.nbytes) if on_gpu else _status("VmRSS"),
        plan=sum(plan.segments.nbytes + (plan.nbytes if on_gpu else 0) for plan in plans),
        heap=symmetric_bytes(job.layers, counts, format, job.comm.size),
        activations=activations,
        model=(5 if trains else 0) * parameters,
        before=0 if on_gpu else _status("VmHWM"),
    )


def check(job: Job, need: Estimate, *, trains: bool = True) -> None:
    """Refuse on all ranks what the memory of a node, or of a GPU, cannot hold. Collective."""
    free, what = job.backend.memory.free(), "training" if trains else "predicting"
    if free is None:
        _check_node(job, need.still, what)
    else:
        _check_gpus(job, need.still - min(need.heap, job.backend.memory.reserved()), free, what)


def _check_node(job: Job, still: int, what: str) -> None:
    here = mpi.node(job.comm)
    total = int(here.allreduce(still))
    with mpi.agree(job.comm):
        available = cores.memory_available()
        if total > available:
            raise InputError(
                f"{what} needs {total / 2**30:.1f} GiB more for all ranks of this node ({here.size}), "
                f"and {available / 2**30:.1f} GiB are available; use more nodes, fewer or narrower layers "
                '(model.hidden), or train.dtype = "bfloat16"'
            )


def _check_gpus(job: Job, still: int, free: int, what: str) -> None:
    with mpi.agree(job.comm):
        if still > free:
            raise InputError(
                f"{what} needs {still / 2**30:.1f} GiB more on the GPU of rank {job.comm.rank}, "
                f"and {free / 2**30:.1f} GiB are free; use more GPUs, fewer or narrower layers (model.hidden), "
                'train.dtype = "bfloat16", or run.features = "host"'
            )
