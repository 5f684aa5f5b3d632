"""Measure the bytes that a training step allocates for each row and each edge, by steps on small graphs.

Tensors are counted as they are allocated and freed, so this holds for any model, type of rows and recomputed layers.
Graphs of different sizes give the parts that grow with rows, with edges, and with neither.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..data.graph import Graph, SparseRows, csr_from_edges
from ..nn.graph.loading import matrix_of, sliced
from ..nn.graph.transfer import planned, with_edge_values
from ..nn.inputs.features import input_features
from ..nn.inputs.host import HostFeatures
from ..nn.inputs.sparse import SparseFeatures
from ..plan.layout import RowFormat
from ..runtime import backends
from ..runtime.backends.arguments import Rows
from ..runtime.backends.base import Backend
from . import metrics
from .job import Job
from .trainer import Trainer

SIZES = ((512, 8), (1024, 8), (512, 24))  # rows, and least number of edges of each row


@dataclass(frozen=True)
class Footprint:
    """Bytes of a step at its peak: for each row, for each edge, and the constant part."""

    row: float
    edge: float
    fixed: float

    def of(self, rows: int, edges: int) -> int:
        """Return the bytes of a step with this many rows and edges."""
        return int(self.fixed + self.row * rows + self.edge * edges)


def measure(job: Job, *, trains: bool) -> Footprint:
    """Measure the activations of this job's model and input, in training or in evaluation alone. Not collective."""
    sizes, found = [], []
    for rows, degree in SIZES:
        small, edges = _small(job, rows, degree)
        sizes.append((rows, edges, 1))
        found.append(_peak(small, trains=trains))
    row, edge, fixed = np.linalg.solve(np.array(sizes, float), np.array(found, float))
    return Footprint(max(row, 0.0), max(edge, 0.0), max(fixed, 0.0))


class CountedBackend:
    """A backend that counts the bytes of private rows: rows_now of those that there are, rows_most at the peak."""

    def __init__(self, backend: Backend) -> None:
        self._backend, self.rows_now, self.rows_most = backend, 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def rows(self, counts: NDArray[np.int64], format: RowFormat, symmetric: bool) -> Rows:
        made = self._backend.rows(counts, format, symmetric)
        if not symmetric:
            self._add(made.buffer.nbytes)
            weakref.finalize(made.buffer, self._add, -made.buffer.nbytes).atexit = False
        return made

    def _add(self, size: int) -> None:
        self.rows_now += size
        self.rows_most = max(self.rows_most, self.rows_now)


class Allocated(TorchDispatchMode):
    """Counts the bytes of tensors that are allocated within ``with``: now, and at the peak.

    An operation's results are new if they share no memory with its arguments.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: with True torch would import its compiler, which is not used."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation and count its results."""
        given = {_storage(tensor) for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor)}
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and _storage(tensor) not in given:
                given.add(_storage(tensor))
                self._count(tensor.untyped_storage())
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        self._add(storage.nbytes())
        weakref.finalize(storage, self._add, -storage.nbytes()).atexit = False

    def _add(self, size: int) -> None:
        self.now += size
        self.most = max(self.most, self.now)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _peak(small: Job, *, trains: bool) -> int:
    """Return the bytes of the second of two epochs at its peak; the first one allocates what is kept."""
    backend, graph = small.backend, small.graph()
    assert isinstance(backend, CountedBackend)
    trainer = Trainer(small, graph)
    before = backend.rows_now
    with Allocated() as allocated:
        for epoch in (1, 2):
            allocated.most = allocated.now
            begun = allocated.now
            if trains:
                trainer.step(epoch)
            trainer.evaluate()
    return allocated.most - begun + backend.rows_most - before


def _small(job: Job, rows: int, degree: int) -> tuple[Job, int]:
    """Return the same job on a ring of ``rows`` nodes, and its number of edges."""
    from mpi4py import MPI

    part = sliced(_ring(job, rows, degree))
    alone = backends.make(
        backends.Chosen("serial", "of a measurement"), MPI.COMM_SELF, ps=256, dist=8, wpb=16
    )
    backend: Any = CountedBackend(alone)
    wide = next(job.model.parameters()).dtype
    edge_dim, edges = job.model.edge_dim, len(part.slice.indices)
    matrix = matrix_of(MPI.COMM_SELF, part, job.model.kind, wide, ordered=edge_dim > 0)
    layers = planned(MPI.COMM_SELF, matrix, ["direct"])
    if edge_dim:
        values = torch.zeros(edges, edge_dim, dtype=wide)
        layers = with_edge_values(MPI.COMM_SELF, layers, job.settings.model.edge_data, values)
    [adjacency] = layers
    model = deepcopy(job.model)
    x = input_features(part, backend, job.dtype, "none", on_host=isinstance(job.x, HostFeatures))
    if isinstance(x, HostFeatures):  # device_nbytes counts the blocks: here they must not grow with the rows
        x.blocks = [part for block in x.blocks for part in block.split(64)]
    if job.learned is not None and isinstance(x, Tensor):
        x = torch.nn.Parameter(x.to(wide))
    masks = {name: getattr(part.slice, name) for name in metrics.SPLITS}
    assert part.slice.y is not None
    known = metrics.labels(MPI.COMM_SELF, part.slice.y, masks)
    comm = MPI.COMM_SELF
    small = replace(
        job,
        comm=comm,
        part=part,
        backend=backend,
        layers=[adjacency],
        model=model,
        x=x,
        labels=known,
        sampled=None,
    )
    return small, adjacency.forward.edges


def _ring(job: Job, rows: int, degree: int) -> Graph:
    """Return an undirected graph that joins each node to its next ones; splits have the job's shares of rows."""
    step = np.arange(1, degree // 2 + 1)
    source = np.repeat(np.arange(rows), len(step))
    destination = (source.reshape(rows, -1) + step).reshape(-1) % rows
    indptr, indices, _ = csr_from_edges(source, destination, rows, symmetric=True)
    classes, nodes = job.part.classes, max(1, job.part.nodes)
    shares = {name: total / nodes for name, total in job.labels.totals.items()}
    split: dict[str, Any] = {
        name: np.arange(rows) < max(name == "train", round(share * rows)) for name, share in shares.items()
    }
    shape, kind = ((rows, classes), np.float32) if job.part.multilabel else (rows, np.int64)
    x, y = _features(job, rows), np.zeros(shape, kind)
    return Graph("ring", indptr, indices, x=x, y=y, directed=False, classes=classes, **split)


def _features(job: Job, rows: int) -> NDArray[np.float32] | SparseRows:
    """Return features of zeros: dense, or sparse with as many stored entries a row as the job's input."""
    shape = (rows, job.x.shape[1])
    if not isinstance(job.x, SparseFeatures):
        return np.zeros(shape, np.float32)
    each = len(job.x.values) // max(1, job.x.shape[0])
    indices = np.tile(np.arange(each, dtype=np.int32), rows)
    return SparseRows(np.arange(rows + 1) * each, indices, np.zeros(rows * each, np.float32), shape)
