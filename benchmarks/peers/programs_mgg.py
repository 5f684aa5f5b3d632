"""This package: programs as layers of `mgg.nn.saga`, fused and with tensors of edges."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

import mgg_hpc as mgg
import peers
from mgg_hpc.nn import saga

from .programs import Run, Task


class Program(saga.Layer):
    """A layer whose output is its accumulator. weights: its parameters by name."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        for name, value in weights.items():
            self.register_parameter(name, torch.nn.Parameter(value.detach()))

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return accum


class Gated(Program):
    """A vertex's neighbours, with a gate for each edge and column."""

    def apply_edge(self, edge: saga.Edge) -> Tensor:
        return torch.sigmoid(linear(edge.src, self.far) + linear(edge.dst, self.near)) * edge.src


class Typed(Program):
    """A vertex's neighbours, each times the matrix of its edge's type."""

    def apply_edge(self, edge: saga.Edge) -> Tensor:
        return saga.typed_linear(edge.src, self.matrix, edge.data["type"])


def propagate(**inputs: Any) -> dict[str, Run]:
    """Return the runs "mgg" and "mgg edge tensors" of a Task."""
    task = Task(**inputs)
    graph, runs = mgg.open(task.file, threads=peers.THREADS), {}
    for name, fuse in (("mgg", True), ("mgg edge tensors", False)):
        x, weights = task.leaves()
        layer = Typed(weights) if task.program == "typed" else Gated(weights)
        layer.fuse, layer.accumulator = fuse, "max" if task.program == "gated-max" else "sum"
        runs[name] = task.run(partial(layer, x, graph), [x, *layer.parameters()])
    return runs
