"""What a layer's author writes, and how it runs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from ..graph.view import GraphView
from .columns import ByColumn
from .fused import Propagation
from .stages import Linear, Staged
from .tracing import Edge, Traced, reads_vertex


class Stages(torch.nn.Module):
    """The stages of a layer as they are written; see `Layer`.

    rows: the rows that a stage of vertices is computed of, while it is: all of a rank's, or a block of them. Dropout
    takes it in place of a graph.
    """

    accumulator = "sum"
    in_degree: int | None = None
    kind = "edges"
    fuse = True
    rows: GraphView
    enters = False  # whether `enter` changes rows

    def apply_edge(self, edge: Edge) -> Tensor:
        """Return the messages of edges [E, F'], of values of their ends. [default: edge.src]"""
        return edge.src

    @contextmanager
    def on(self, rows: GraphView) -> Iterator[None]:
        """Make these the ``rows`` within."""
        self.rows = rows
        try:
            yield
        finally:
            del self.rows

    def enter(self, x: Tensor) -> Tensor:
        """Return what edges are given of rows x [n, F] of their ends, [n, F']. [default: x]"""
        return x

    def reads_vertex(self) -> bool:
        """Return whether `apply_vertex` reads the rows of vertices."""
        return reads_vertex(self)

    @abstractmethod
    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        """Return the new rows of vertices [n, F''], of their rows [n, F] and what they have gathered [n, F']."""


@dataclass(frozen=True)
class Program:
    """How a layer runs.

    reason: why its edges have tensors, or "". traced, staged: its operations, and those that moved; None where it
    cannot be traced. linear: the sum of rows that it is, or None. left: what is computed for each edge; None with
    tensors or as a linear sum. propagation: the same with its operands and tapes.
    """

    reason: str
    traced: Traced | None = None
    staged: Staged | None = None
    linear: Linear | None = None
    left: ByColumn | None = None
    propagation: Propagation | None = None
