"""Measure the bytes that a training step allocates, by running steps on small graphs or on a job's first batches.

Tensors are counted as they are allocated and freed, so this holds for any model, type of rows and recomputed layers.
Small graphs of different sizes separate the parts that grow with rows, with edges, and with neither.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..data.graph import Graph, SparseRows, csr_from_edges
from ..nn.graph.dist_graph import DistGraph
from ..nn.graph.loading import Part, matrix_of, sliced
from ..nn.graph.transfer import planned, with_edge_values
from ..nn.inputs.features import input_features
from ..nn.inputs.host import HostFeatures
from ..nn.inputs.sparse import SparseFeatures
from ..nn.inputs.tiered import TieredFeatures
from ..nn.sampling.batches import Block
from ..nn.streaming.graph import StreamedGraph, Streaming
from ..nn.workspace import Workspace, accumulator
from ..plan.layout import RowFormat
from ..runtime import backends
from ..runtime.backends.arguments import Rows
from ..runtime.backends.base import Backend
from . import metrics
from .job import Job
from .trainer import Trainer

SIZES = ((512, 8), (1024, 8), (512, 24))  # rows, and edges of each row at least
BLOCK = 64  # rows that are computed at a time on a small streamed graph, so few that they hardly count
SOURCE, PLACE = 4, 8  # bytes of a sampled edge's source, and of a place or a number
MEASURED_BATCHES = 4
# Sizes of batches are sums over many rows, so they are distributed like normal draws. The range of 4 of these is 2.06
# standard deviations and their largest 1.03 above the mean, on average; the largest of 10,000 is 3.85 above it: 1.4
# ranges more.
MARGIN = 1.4
TABLES = 2  # a few more rows may double a sampler's table of rows, whose size is a power of 2


class _Peak:
    """Bytes of living objects, now and at most."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def count(self, owner: Any, nbytes: int) -> None:
        """Count the bytes of an object until it is freed."""
        self._add(nbytes)
        weakref.finalize(owner, self._add, -nbytes).atexit = False

    def _add(self, nbytes: int) -> None:
        self.now += nbytes
        self.most = max(self.most, self.now)


class _CountedBackend:
    """A backend that counts the bytes of private rows."""

    def __init__(self, backend: Backend) -> None:
        self._backend, self.peak = backend, _Peak()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def rows(self, counts: NDArray[np.int64], format: RowFormat, symmetric: bool) -> Rows:
        made = self._backend.rows(counts, format, symmetric)
        if not symmetric:
            self.peak.count(made.buffer, made.buffer.nbytes)
        return made


class _Allocated(TorchDispatchMode):
    """Counts the bytes of tensors allocated within ``with``: results that share no memory with their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = _Peak()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # with True torch would import its compiler, which is not used

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        known = {_storage(tensor) for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor)}
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and _storage(tensor) not in known:
                known.add(_storage(tensor))
                self.peak.count(tensor.untyped_storage(), tensor.untyped_storage().nbytes())
        return out


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


@dataclass(frozen=True)
class Footprint:
    """Peak bytes of a step: for each row, for each edge, and a constant part."""

    row: float
    edge: float
    fixed: float

    def of(self, rows: int, edges: int) -> int:
        """Return the bytes of a step over this many rows and edges."""
        return int(self.fixed + self.row * rows + self.edge * edges)


def measure(job: Job, *, trains: bool) -> Footprint:
    """Measure the activations of this job's model and input, in training or in evaluation only. Not collective.

    A model of the user's that does not run on small graphs counts as 0, and its ``unmeasured`` says why.
    """
    try:
        return _measured(job, trains)
    except Exception as error:
        if job.opened is None:
            raise
        job.model.unmeasured = " ".join(str(error).split()) or type(error).__name__
        return Footprint(0, 0, 0)


def _measured(job: Job, trains: bool) -> Footprint:
    sizes, found = [], []
    for rows, degree in SIZES:
        small, edges = _small(job, rows, degree)
        sizes.append((rows, edges, 1))
        found.append(_step_bytes(small, trains=trains))
        if job.opened is not None:
            job.model.columns = small.model.crossing
    row, edge, fixed = np.linalg.solve(np.array(sizes, float), np.array(found, float))
    return Footprint(max(row, 0.0), max(edge, 0.0), max(fixed, 0.0))


def _step_bytes(small: Job, *, trains: bool) -> int:
    """Return the peak bytes of the second of two epochs; the first one allocates what is kept."""
    backend, graph = small.backend, small.graph()
    assert isinstance(backend, _CountedBackend)
    stores = small.streamed.store_row_bytes if small.streamed is not None else 0
    trainer = Trainer(small, graph)
    before = backend.peak.now
    with _Allocated() as allocated:
        for epoch in (1, 2):
            allocated.peak.most = begun = allocated.peak.now
            if trains:
                trainer.step(epoch)
            trainer.evaluate()
    if small.streamed is not None:  # stores are kept for later layers and epochs
        stores = (small.streamed.store_row_bytes - stores) * small.streamed.rows
        small.close()
    if small.opened is not None:
        small.close()
    return allocated.peak.most - begun + backend.peak.most - before + stores


def _small(job: Job, rows: int, degree: int) -> tuple[Job, int]:
    """Return the same job on a ring of ``rows`` nodes on this process alone, and the number of edges.

    A graph is streamed within the host's memory, in one interval.
    """
    from mpi4py import MPI

    comm, part = MPI.COMM_SELF, sliced(_ring(job, rows, degree))
    serial = backends.Chosen("serial", "of a measurement")
    backend: Any = _CountedBackend(backends.make(serial, comm, ps=256, dist=8, wpb=16))
    wide, edge_dim = accumulator(job.dtype), job.model.edge_dim
    edges = len(part.slice.indices)
    if job.streamed is not None:
        streamed = StreamedGraph(comm, part, backend, job.dtype, Streaming(1 << 40))
        streamed.plan(job.model.kind, *job.model.streamed_columns(), widest=max(job.model.widths))
        streamed.block_rows = BLOCK
        return _with(job, part, backend, layers=[], x=streamed.x, streamed=streamed), edges
    if job.opened is not None:
        opened = DistGraph(comm, replace(part, features=0), backend, job.dtype, "direct", 0)
        rows_of: Any = torch.zeros(rows, job.x.shape[1], dtype=job.dtype)
        x = rows_of if job.learned is None else torch.nn.Parameter(rows_of)
        return _with(job, part, backend, layers=[opened.adjacency("edges")], x=x, opened=opened), edges
    layers = planned(comm, matrix_of(comm, part, job.model.kind, wide, ordered=edge_dim > 0), ["direct"])
    if edge_dim:
        values = torch.zeros(edges, edge_dim, dtype=wide)
        layers = with_edge_values(comm, layers, job.settings.model.edge_data, values)
    x = input_features(part, backend, job.dtype, "none", on_host=isinstance(job.x, HostFeatures))
    if isinstance(x, HostFeatures):  # device_nbytes counts the blocks: here they must not grow with the rows
        x.blocks = [part for block in x.blocks for part in block.split(64)]
    if job.learned is not None and isinstance(x, Tensor):
        x = torch.nn.Parameter(x.to(wide))
    return _with(job, part, backend, layers=layers, x=x, sampled=None), layers[0].forward.edges


def _with(job: Job, part: Part, backend: Any, **fields: Any) -> Job:
    """Return the same job on another part of a graph, on this process alone."""
    from mpi4py import MPI

    masks = {name: getattr(part.slice, name) for name in metrics.SPLITS}
    assert part.slice.y is not None
    labels = metrics.labels(MPI.COMM_SELF, part.slice.y, masks)
    made = {"comm": MPI.COMM_SELF, "part": part, "backend": backend, "labels": labels}
    return replace(job, model=deepcopy(job.model), **made, **fields)


def _ring(job: Job, rows: int, degree: int) -> Graph:
    """Return an undirected graph that joins each node to its successors, with the job's shares of labelled rows."""
    step = np.arange(1, degree // 2 + 1)
    source = np.repeat(np.arange(rows), len(step))
    destination = (source.reshape(rows, -1) + step).reshape(-1) % rows
    indptr, indices, _ = csr_from_edges(source, destination, rows, symmetric=True)
    classes, nodes = job.part.classes, max(1, job.part.nodes)
    split: dict[str, Any] = {
        name: np.arange(rows) < max(name == "train", round(total / nodes * rows))
        for name, total in job.labels.totals.items()
    }
    shape, kind = ((rows, classes), np.float32) if job.part.multilabel else (rows, np.int64)
    x: NDArray[np.float32] | SparseRows = np.zeros((rows, job.x.shape[1]), np.float32)
    if isinstance(job.x, SparseFeatures):  # as many stored entries a row as the job's input has
        each = len(job.x.values) // max(1, job.x.shape[0])
        columns = np.tile(np.arange(each, dtype=np.int32), rows)
        x = SparseRows(np.arange(rows + 1) * each, columns, np.zeros(rows * each, np.float32), x.shape)
    y = np.zeros(shape, kind)
    if job.opened is not None:  # with the data of edges that the model takes
        edge = job.opened.part.slice.edge.items()
        split["edge"] = {name: np.zeros((len(indices), *each.shape[1:]), each.dtype) for name, each in edge}
        split["weight"] = None if job.opened.edge_weight() is None else np.ones(len(indices), np.float32)
    return Graph("ring", indptr, indices, x=x, y=y, directed=False, classes=classes, **split)


def measure_batches(job: Job) -> tuple[int, tuple[int, int], int]:
    """Return the peak bytes of a step on a batch and of the batches that are held. Collective.

    Also `Estimate.held`, and the bytes of page-locked rows that hold these batches on the host, for a GPU.

    Steps on the first batches are run on a copy of the model. Counted are tensors, rows of the workspace, which keeps
    them for the next batches, blocks, as often as they are held at a time, with a margin for larger batches, and what a
    GPU's sampler takes in each thread.
    """
    sampled = job.sampled
    assert sampled is not None
    source, counted = sampled.source, cast(Any, _CountedBackend(job.backend))
    model = deepcopy(job.model).to(job.backend.capabilities.device).train()
    held, sizes, peaks, rows = (source.backend, source.workspace), [], [], 0
    source.backend, source.workspace = counted, Workspace(counted, varying=True)
    number, keeps_rows = sampled.held(job.settings.train, job.backend.options.threads)
    try:
        with contextlib.closing(sampled.batches.epoch(1)) as batches, _Allocated() as allocated:
            full = sampled.steps - (sampled.steps > 1)  # the last one may have fewer rows
            for batch in itertools.islice(batches, min(MEASURED_BATCHES, full)):
                allocated.peak.most = allocated.peak.now
                assert batch.x is not None and batch.y is not None  # a job has features and labels
                loss = metrics.loss_of_rows(model(batch.x, batch), batch.y) / batch.total
                loss.backward()
                model.zero_grad()
                sizes.append(sum(_block_bytes(block, model.kind) for block in batch.blocks))
                sizes[-1] += batch.x.nbytes if keeps_rows else 0
                rows = max(rows, batch.x.nbytes)
                peaks.append(allocated.peak.most)
    finally:
        source.backend, source.workspace = held
    job.backend.stream.meter.taken()  # the meter knows the plans of these blocks
    if isinstance(job.x, TieredFeatures):
        job.x.taken()
    one, ahead = (max(each) + MARGIN * (max(each) - min(each)) for each in (peaks, sizes))
    threads = min(number, job.backend.options.threads)
    drawing = threads * TABLES * sampled.batches.sampler.scratch_bytes
    on_host = keeps_rows and isinstance(job.x, TieredFeatures) and job.x.read_by_host
    return (
        int(one + counted.peak.most + number * ahead + drawing),
        (number, int(ahead)) if keeps_rows else (0, 0),
        number * rows if on_host else 0,
    )


def _block_bytes(block: Block, kind: str) -> int:
    """Return the bytes of a block's edges and rows, and of its plans with their schedules."""
    made = block.plan(kind)
    arrays = (made.order, made.places, made.forward_weight, made.backward_weight)
    plans = sum(plan.nbytes + plan.segments.nbytes for plan in (made.forward, made.backward))
    drawn = block.edges * (SOURCE + PLACE) + block.rows * 2 * PLACE + block.destinations * 2 * PLACE
    return drawn + plans + sum(array.nbytes for array in arrays if array is not None)
