"""What a training step allocates for each row and each edge, found by taking steps on small graphs.

Nothing is written down here of what a layer keeps: its tensors are counted as they come and go, whatever the model,
the type of rows or the layers that are recomputed. From graphs of different sizes follow the parts that grow with rows
and with edges, and the one that does not.
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
from ..nn.graph.loading import input_features, matrix_of, whole
from ..nn.graph.transfer import planned
from ..nn.inputs.host import HostFeatures
from ..nn.inputs.sparse import SparseFeatures
from ..plan.layout import RowFormat
from ..runtime.backends.arguments import Geometry, Options, Rows
from ..runtime.backends.host.serial import SerialBackend
from ..runtime.backends.simulated import World
from . import metrics
from .job import Job
from .trainer import Trainer

SIZES = ((512, 8), (1024, 8), (512, 24))  # rows, and edges that each has at least


@dataclass(frozen=True)
class Footprint:
    """Bytes of a step at its peak: for each row, for each edge, and beside them."""

    row: float
    edge: float
    fixed: float

    def of(self, rows: int, edges: int) -> int:
        """Bytes for as many."""
        return int(self.fixed + self.row * rows + self.edge * edges)


def measure(job: Job, *, trains: bool) -> Footprint:
    """Measure the activations of this job's model and input. trains: whether in training. Not collective."""
    sizes, found = [], []
    for rows, degree in SIZES:
        small, edges = _small(job, rows, degree)
        sizes.append((rows, edges, 1))
        found.append(_peak(small, trains=trains))
    row, edge, fixed = np.linalg.solve(np.array(sizes, float), np.array(found, float))
    return Footprint(max(row, 0.0), max(edge, 0.0), max(fixed, 0.0))


class _CountedBackend(SerialBackend):
    """Counts the private rows that it hands out, which are kept."""

    rows_bytes = 0

    def rows(self, counts: NDArray[np.int64], format: RowFormat, symmetric: bool) -> Rows:
        """See Backend.rows."""
        made = super().rows(counts, format, symmetric)
        self.rows_bytes += 0 if symmetric else len(made.buffer)
        return made


class _Allocated(TorchDispatchMode):
    """Counts the bytes of tensors that are allocated within: those that are there, and the most that were.

    An operation's results are new where they share no memory with what it was given.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: to be skipped torch would import its compiler first, which nobody here runs."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operation, and count."""
        given = {_storage(tensor) for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor)}
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and _storage(tensor) not in given:
                given.add(_storage(tensor))
                self._count(tensor.untyped_storage())
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        size = storage.nbytes()
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._freed, size).atexit = False

    def _freed(self, size: int) -> None:
        self.now -= size


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _peak(small: Job, *, trains: bool) -> int:
    """Bytes of the second of two steps and evaluations at their peak, the first of which allocates what is kept."""
    backend, graph = small.backend, small.graph()
    assert isinstance(backend, _CountedBackend)
    trainer = Trainer(small, graph)
    before = backend.rows_bytes
    with _Allocated() as allocated:
        for epoch in (1, 2):
            allocated.most = allocated.now
            begun = allocated.now
            if trains:
                trainer.step(epoch)
            trainer.evaluate()
    return allocated.most - begun + backend.rows_bytes - before


def _small(job: Job, rows: int, degree: int) -> tuple[Job, int]:
    """The same job on a ring of so many rows, and its edges."""
    from mpi4py import MPI

    part = whole(_ring(job, rows, degree))
    backend = _CountedBackend(0, World(1), Options(Geometry(256, 8, 16)))
    wide = next(job.model.parameters()).dtype
    [adjacency] = planned(MPI.COMM_SELF, matrix_of(MPI.COMM_SELF, part, job.model.kind, wide), ["direct"])
    model = deepcopy(job.model)
    x = input_features(part, backend, job.dtype, "none", on_host=isinstance(job.x, HostFeatures))
    if isinstance(
        x, HostFeatures
    ):  # blocks that do not grow with the rows; theirs are counted by device_nbytes
        x.blocks = [part for block in x.blocks for part in block.split(64)]
    if job.learned is not None and isinstance(x, Tensor):
        x = torch.nn.Parameter(x.to(wide))
    masks: dict[str, Any] = {"train": part.slice.train, "val": part.slice.val, "test": part.slice.test}
    assert part.slice.y is not None
    known = metrics.labels(MPI.COMM_SELF, part.slice.y, masks)
    changed: dict[str, Any] = {"comm": MPI.COMM_SELF, "part": part, "backend": backend, "layers": [adjacency]}
    return replace(job, **changed, model=model, x=x, labels=known), adjacency.forward.edges


def _ring(job: Job, rows: int, degree: int) -> Graph:
    """An undirected graph: each node and its next ones. Splits have the job's shares of rows."""
    step = np.arange(1, degree // 2 + 1)
    source = np.repeat(np.arange(rows), len(step))
    destination = (source.reshape(rows, -1) + step).reshape(-1) % rows
    indptr, indices, _ = csr_from_edges(source, destination, rows, symmetric=True)
    classes, split = job.part.classes, {}
    for name in metrics.SPLITS:
        share = job.labels.totals[name] / max(1, job.part.nodes)
        split[name] = np.arange(rows) < max(name == "train", round(share * rows))
    y: NDArray[Any] = (
        np.zeros((rows, classes), np.float32) if job.part.multilabel else np.zeros(rows, np.int64)
    )
    x = _features(job, rows)
    return Graph("ring", indptr, indices, x=x, y=y, directed=False, classes=classes, **split)


def _features(job: Job, rows: int) -> NDArray[np.float32] | SparseRows:
    """Zeros, or as many stored ones in a row as the job's input has."""
    shape = (rows, job.x.shape[1])
    if not isinstance(job.x, SparseFeatures):
        return np.zeros(shape, np.float32)
    each = len(job.x.values) // max(1, job.x.shape[0])
    indices = np.tile(np.arange(each, dtype=np.int32), rows)
    return SparseRows(np.arange(rows + 1) * each, indices, np.zeros(rows * each, np.float32), shape)
