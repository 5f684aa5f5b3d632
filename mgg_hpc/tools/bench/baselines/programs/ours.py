"""This package: programs as layers of `mgg.nn.saga`, fused and with tensors of edges; and a product with weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

import mgg_hpc as mgg
from mgg_hpc.nn import saga
from mgg_hpc.runtime.backends import native

from .. import ours
from .task import Run, Task

set_threads = ours.set_threads
about = ours.about


class Gated(saga.Layer):
    """The sum, or the maximum, of a vertex's gated neighbours."""

    def __init__(self, far: Tensor, near: Tensor, accumulator: str) -> None:
        super().__init__()
        self.far, self.near, self.accumulator = torch.nn.Parameter(far), torch.nn.Parameter(near), accumulator

    def apply_edge(self, edge: saga.Edge) -> Tensor:
        return torch.sigmoid(linear(edge.src, self.far) + linear(edge.dst, self.near)) * edge.src

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return accum


class Typed(saga.Layer):
    """The sum of a vertex's neighbours, each times the matrix of its edge's type."""

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        self.matrix = torch.nn.Parameter(matrix)

    def apply_edge(self, edge: saga.Edge) -> Tensor:
        return saga.typed_linear(edge.src, self.matrix, edge.data["type"])

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return accum


class Weighted(saga.Layer):
    """The sum of a vertex's neighbours times the weights of its edges."""

    def apply_edge(self, edge: saga.Edge) -> Tensor:
        return edge.src * edge.data["w"][:, None]

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return accum


def _layer(task: Task, weights: dict[str, Tensor]) -> saga.Layer:
    if task.program == "typed":
        return Typed(weights["matrix"].detach())
    accumulator = "max" if task.program == "gated-max" else "sum"
    return Gated(weights["far"].detach(), weights["near"].detach(), accumulator)


def propagate(file: str, indptr: str, indices: str, **inputs: Any) -> dict[str, Run]:
    """Return the runs "mgg" and "mgg edge tensors". file: of the graph, whose edges have types."""
    task, graph = Task(**inputs), mgg.open(file, threads=ours.threads())
    runs = {}
    for name, fuse in (("mgg", True), ("mgg edge tensors", False)):
        x, weights = task.leaves()
        layer = _layer(task, weights)
        layer.fuse = fuse
        parameters = [value for _, value in sorted(layer.named_parameters())]
        runs[name] = task.run(partial(layer, x, graph), [x, *parameters])
    return runs


def product(file: str, x: str) -> dict[str, Callable[[], Any]]:
    """Return the run "mgg", the rows x times a graph's adjacency with the weights w of its edges."""
    layer, graph, rows = Weighted(), mgg.open(file, threads=ours.threads()), torch.from_numpy(np.load(x))

    def mgg_product() -> Tensor:
        with torch.no_grad():
            return layer(rows, graph)

    for _call in range(native.load().Schedule.SETTLED):  # as MKL inspects the matrix before the clock starts
        mgg_product()
    return {"mgg": mgg_product}
