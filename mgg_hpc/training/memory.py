"""Predict and measure the memory of a rank."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError
from ..nn.graph.handle import plans_of, read_by_peers, symmetric_bytes
from ..nn.inputs.host import HostFeatures
from ..nn.streaming.graph import StreamedGraph
from ..nn.streaming.rows import StreamedRows
from ..nn.workspace import row_format
from ..runtime import cores, mpi
from ..runtime.streaming.buffer import slot_bytes
from . import footprint
from .job import Job

# Arrays as large as the weights: gradients, two moments, the weights before a step, and the chosen ones; and the copies
# for a checkpoint, on the host: weights, two moments, and the chosen ones.
TRAINED, COPIED = 5, 4
LOGITS = (
    4  # arrays of all rows' classes on a streamed graph: logits, labelled ones, and the gradients of both
)
FILE_BLOCK = 4096  # rows of the largest block of files, whose pages are kept
FILES = 32 << 20  # of threads that read and write files
PROFILE = 80 << 20  # of torch's profiler and the trace of a few epochs: 75 to 81 MiB with 2 to 12 layers
BLOCKS = 16  # blocks of rows alive at a time on a streamed graph: read, computed, kept, and written


class Peak:
    """Measures the peak memory of this process: anonymous and file pages, and its own part of shared windows.

    Linux's high-water mark also counts the pages of peers' windows that this rank has read. So this is constructed
    before the windows; later the mapped shared pages are subtracted, and the rank's own are added.
    """

    def __init__(self) -> None:
        self._before = _status("VmHWM")
        self._other_shared = _status("RssShmem")  # shared pages of MPI itself

    def read(self, own_window_bytes: int) -> int:
        """Return the peak in bytes. The mark includes symmetric rows that are private."""
        now, shared = _status("VmHWM"), _status("RssShmem") - self._other_shared
        if now == self._before:
            return now
        return max(self._before, now - shared + min(own_window_bytes, shared))


def _status(name: str) -> int:
    """Return an entry of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


@dataclass(frozen=True)
class Estimate:
    """Bytes of one rank, by purpose."""

    in_use: int  # held before training: on CPUs the whole process, on a GPU the features
    plan: int  # schedules, which are made at their first use; on a GPU all of the plans
    heap: int  # symmetric memory
    activations: int  # tensors of forward and backward: outputs and gradients of all layers
    model: int  # arrays as large as the weights (TRAINED, COPIED)
    before: int = 0  # peak of the process until now, which may exceed the peak of training
    on_host: int = 0  # page-locked rows and activations in the host's memory, for a GPU
    profile: int = 0  # of torch's profiler, its events and the trace
    bound: bool = False  # the peak is at most this
    held: tuple[int, int] = (0, 0)  # number of batches that wait (train.buffer), and bytes of one

    @property
    def to_allocate(self) -> int:
        """Bytes that are not allocated yet."""
        return self.plan + self.heap + self.activations + self.model + self.profile

    @property
    def peak(self) -> int:
        """Expected peak."""
        return max(self.before, self.in_use + self.to_allocate)


def estimate(
    job: Job, *, trains: bool = True, step: footprint.Footprint | None = None, batches: int = 0
) -> Estimate:
    """Estimate the memory of this rank in training, or in evaluation only. Not collective.

    step: memory of a step. [default: measured] batches: bytes of the batches that are trained on, in addition to the
    evaluation of the whole graph.
    """
    on_gpu = job.backend.capabilities.device != "cpu"
    parameters = sum(parameter.nbytes for parameter in job.weights().values())
    copies = (TRAINED + (0 if on_gpu else COPIED)) * parameters if trains else 0
    if job.streamed is not None:
        if not on_gpu:
            in_use = _status("VmRSS")  # without what measuring a step leaves behind
            plan, activations = _streamed(job, job.streamed, trains)
            return Estimate(
                in_use=in_use,
                plan=plan,
                heap=0,
                activations=activations,
                model=copies,
                before=_status("VmHWM"),
                bound=job.streamed.streaming.folder is not None,
            )
        activations, stores = _streamed_bound(job, job.streamed, trains)
        return Estimate(
            in_use=0,
            plan=job.streamed.streaming.memory,
            heap=0,
            activations=activations,
            model=copies,
            on_host=stores,
            bound=True,
        )
    step = step or footprint.measure(job, trains=trains and not batches)
    plans, format = plans_of(job.layers), row_format(job.model.widest(job.sparse), job.dtype)
    counts = job.part.bounds[1:] - job.part.bounds[:-1]
    symmetric = symmetric_bytes(job.layers, counts, format, job.comm.size)
    rows, edges = len(job.part.slice.ids), max((plan.edges for plan in plans), default=0)
    return Estimate(
        in_use=_on_gpu(job) if on_gpu else _status("VmRSS"),
        plan=_plan_bytes(job) if on_gpu else sum(plan.segments.nbytes for plan in plans),
        heap=symmetric + job.backend.memory.overhead(symmetric),
        activations=step.of(rows, edges) + _exchanged(job, rows) + batches,
        model=copies,
        before=0 if on_gpu else _status("VmHWM"),
    )


def _exchanged(job: Job, rows: int) -> int:
    """Return the bytes of a step that a step of one rank in float32 does not allocate: for exchanges, halves, GPUs."""
    plans, format = plans_of(job.layers), row_format(job.model.widest(job.sparse), job.dtype)
    halo, half = any(plan.transfer == "halo" for plan in plans), format.dtype.itemsize == 2
    on_gpu, found = job.backend.capabilities.device != "cpu", 0
    # Rows that are pushed in rounds are written to private rows first, and half rows are summed in float32.
    if not read_by_peers(job.layers):
        found += rows * format.row_bytes
    if halo and half:
        found += rows * format.stride * 4
    if halo and not on_gpu:
        state = max(conv.state for conv in job.model.convolutions)
        found += rows * state * max(4, format.dtype.itemsize)
    # Some processors take products of half rows from copies in another order; for others this is a bound.
    if half and not on_gpu:
        widths = [0 if job.sparse else job.x.shape[1], *job.model.widths]
        found += rows * 2 * max(a + b for a, b in itertools.pairwise(widths))
    # Rows are packed before they go over a network.
    if not job.backend.capabilities.reaches_peers:
        found += sum(len(plan.lists.send_rows) for plan in plans if plan.lists is not None) * format.row_bytes
    if isinstance(job.x, HostFeatures):
        found += job.x.device_nbytes
    # A recorded step keeps its memory, and evaluation has its own: each layer's output, and the rows it aggregates.
    if job.records:
        found += rows * sum(2 * row_format(width, job.dtype).row_bytes for width in job.model.widths)
    return found


def _on_gpu(job: Job) -> int:
    """Return the bytes of the part, the features, edges' data in the order of plans, and edges that are drawn from."""
    assert not isinstance(job.x, StreamedRows)
    held = {id(values): values.nbytes for each in job.layers for values in each.values.values()}
    edges = 0 if job.sampled is None else job.sampled.batches.sampler.device_bytes
    return job.part.nbytes + job.x.nbytes + sum(held.values()) + edges


def _streamed(job: Job, graph: StreamedGraph, trains: bool) -> tuple[int, int]:
    """Return the bytes of chunks and, with files, sums of an interval on a streamed graph, and of all else in a step.

    The plans are made already.
    """
    blocks, _ = _streamed_bound(job, graph, trains)
    (grid,) = graph.grids.all()
    directions = (grid.forward, grid.backward)
    chunks = 0
    if not graph.in_place:
        format = row_format(max(job.model.streamed_columns()[0], 1), job.dtype)
        chunks = max(each.order.slots * slot_bytes(each.order.capacity, format) for each in directions)
    rows, summed = graph.rows, max(each.largest for each in directions)
    if graph.streaming.folder is not None:
        blocks += BLOCKS * (FILE_BLOCK - graph.block_rows) * _widest(job, graph)
        return min(graph.streaming.memory, chunks + summed * grid.need.target_bytes), blocks + FILES
    step = footprint.measure(job, trains=trains).of(rows, sum(plan.edges for plan in grid.forward.plans))
    # Sums of one interval at a time; of small graphs, which have one, all were measured.
    step -= min(step, grid.need.target_bytes * (rows - summed))
    return chunks, step + BLOCKS * min(graph.block_rows, rows) * _widest(job, graph)


def _widest(job: Job, graph: StreamedGraph) -> int:
    """Return the bytes of a streamed graph's widest rows."""
    widths = [each.shape[1] for each in (graph.x,) if each is not None] + job.model.widths
    return max(row_format(width, job.dtype).row_bytes for width in widths)


def _streamed_bound(job: Job, graph: StreamedGraph, trains: bool) -> tuple[int, int]:
    """Return the bytes of blocks and logits on a streamed graph, and of the stores in memory, at most."""
    widths = [each.shape[1] for each in (graph.x,) if each is not None] + job.model.widths
    row_bytes = [row_format(width, job.dtype).row_bytes for width in widths]
    logits = graph.rows * row_bytes[-1] * (LOGITS if trains else 2)
    # Outputs of layers and rows kept for their backward; the gradients between two of them.
    kept = (2 * sum(row_bytes[1:]) if trains else 0) + 3 * max(row_bytes)
    stores = graph.rows * kept if graph.streaming.folder is None else 0
    return BLOCKS * graph.block_rows * _widest(job, graph) + logits, stores


def _plan_bytes(job: Job) -> int:
    """Return the bytes of all plans on a GPU. A search has another copy of a plan for each format of its rows."""
    sizes = {id(plan): plan.segments.nbytes + plan.nbytes for plan in plans_of(job.layers)}
    searched = job.backend.options.searches and not job.model.by_edge
    copies = {(id(each.plan), each.format.row_bytes) for each in job.exchanges()} if searched else set()
    return sum(sizes.values()) + sum(sizes[plan] for plan, _ in copies)


def fullest(job: Job, need: Estimate) -> tuple[int, int]:
    """Return the expected peak and the free bytes, without this job, of the machine that is fullest then. Collective.

    On CPUs of all ranks of a machine together; else of a rank's GPU.
    """
    free = job.backend.memory.free()
    if free is None:
        here = mpi.node(job.comm)
        mine = here.allreduce(need.peak), cores.memory_available() + here.allreduce(need.in_use)
    else:
        mine = need.peak, free + need.in_use + min(need.heap, job.backend.memory.reserved())
    found: tuple[int, int] = max(job.comm.allgather(mine), key=lambda each: each[0] / max(1, each[1]))
    return found


def check(job: Job, need: Estimate, *, trains: bool = True) -> None:
    """Raise InputError on all ranks if the memory of a node, or of a GPU, is too small. Collective."""
    free, what = job.backend.memory.free(), "training" if trains else "predicting"
    if free is None:
        here = mpi.node(job.comm)
        still, where = int(here.allreduce(need.to_allocate)), f"for all ranks of this node ({here.size})"
        advice = 'use more nodes, fewer or narrower layers (model.hidden), or train.dtype = "bfloat16"'
    else:
        still = need.to_allocate - min(need.heap, job.backend.memory.reserved())
        where = f"on the GPU of rank {job.comm.rank}"
        advice = (
            "use more GPUs, fewer or narrower layers (model.hidden), "
            'train.dtype = "bfloat16", or run.features = "host"'
        )
    if need.held[0]:
        each = f"{need.held[0]} batches of {need.held[1] / 2**20:.1f} MiB"
        advice = f"lower train.buffer ({each} may be held at once), or {advice}"
    if job.streamed is not None:
        advice = "lower plan.memory, name a plan.scratch, or use narrower layers (model.hidden)"
    with mpi.agree(job.comm):
        left = cores.memory_available() if free is None else free
        if still > left:
            raise InputError(
                f"{what} needs {still / 2**30:.1f} GiB more {where}, "
                f"and {left / 2**30:.1f} GiB are {'available' if free is None else 'free'}; {advice}"
            )
    on_host = int(mpi.node(job.comm).allreduce(need.on_host))
    advice = (
        "name a plan.scratch, or use narrower layers (model.hidden)" if job.streamed else "lower train.buffer"
    )
    with mpi.agree(job.comm):
        if on_host > (left := cores.memory_available()):
            raise InputError(
                f"{what} needs {on_host / 2**30:.1f} GiB of the host's memory for rows of all ranks of this node, and "
                f"{left / 2**30:.1f} GiB are available; {advice}"
            )
