"""`GraphView`, the interface of graphs and blocks to layers: a rank's part of a graph, or a block of sampled edges.

A layer sums into the first rows of those that it is given: into all of them on a graph, into a block's destinations on
a block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ...plan.workload import Plan
from ...runtime.backends.arguments import Epilogue, Rows
from ...runtime.backends.base import Backend
from ...runtime.backends.edges import EdgeKernels
from ..inputs.host import HostFeatures, Input
from ..workspace import Workspace, as_array, row_format
from .edge_data import EdgeValues, LoopFill
from .matrix import Adjacency


class GraphView(ABC):
    """Interface of what layers aggregate over.

    backend: of the rows. dtype: of rows, a torch type. device: the backend's, as torch names it. ids: int64, original
    ids of the nodes of the rows that layers take, as the backend takes them. workspace: of rows that calls return.
    comm: of all ranks, or None. ranks: number of ranks that exchange rows. rank: this one's number.
    """

    backend: Backend
    dtype: Any
    device: str
    ids: Any
    workspace: Workspace
    comm: Any
    rank: int
    ranks: int

    @property
    @abstractmethod
    def rows(self) -> int:
        """Number of rows that layers take."""

    @property
    @abstractmethod
    def destinations(self) -> int:
        """Number of rows that layers return, which are the first of those that they take."""

    @property
    @abstractmethod
    def all_destinations(self) -> int:
        """Number of rows that layers return on all ranks. Collective where it is not known yet."""

    @property
    @abstractmethod
    def numbers(self) -> NDArray[np.int64]:
        """Numbers, in the whole graph, of the rows that layers take."""

    @abstractmethod
    def adjacency(self, kind: str, *, ordered: bool = False) -> Adjacency:
        """Return the adjacency of a kind. ordered: one by whose edges `edge_values` brings data into its order."""

    @abstractmethod
    def edge_values(self, adjacency: Adjacency, given: Tensor | str, fill: LoopFill = "mean") -> EdgeValues:
        """Return values of the edges of an adjacency, of the accumulator's type.

        given: [E, ...] in the order of the edges of these rows, or the name of data of edges. fill: of self loops that
        the adjacency has beside them.
        """

    def layer(self, number: int) -> Adjacency | None:
        """Return the adjacency of a layer of a model; None where it takes the one of its kind."""
        return None

    def view(self, number: int) -> GraphView:
        """Return what a layer of a model aggregates over."""
        return self

    @abstractmethod
    def exchange(self, dim: int, *, backward: bool = False) -> tuple[Rows, Tensor]:
        """Return rows of width ``dim`` to be summed, and a tensor over this rank's part of them.

        They are the rows that layers take, or with ``backward`` those that layers return.
        """

    @abstractmethod
    def publish(self, rows: Rows, plan: Plan) -> None:
        """Make rows of `exchange` ready to be read over a plan."""

    def offer(self, x: Tensor) -> Rows:
        """Return rows with the values of x [n, dim], to be summed at once: x itself where only this rank reads it."""
        rows = self.over(x)
        if rows is None:
            rows, local = self.exchange(x.shape[1], backward=len(x) != self.rows)
            local.copy_(x)
        return rows

    def over(self, x: Tensor) -> Rows | None:
        """Return rows over the memory of x [n, dim], which no other rank reads; None where its layout is another."""
        return rows_over(x, self.backend) if x.dtype == self.dtype else None

    @property
    def edge_kernels(self) -> EdgeKernels:
        """The backend's kernels of layers beyond weighted sums. Raises TypeError where it has none."""
        kernels = self.backend.edges
        if kernels is None:
            raise TypeError(f"the backend {self.backend.capabilities.name} has no kernels over edges")
        return kernels

    def aggregate(
        self,
        adjacency: Adjacency,
        rows: Rows,
        *,
        scale: Tensor | None = None,
        backward: bool = False,
        bias: Tensor | None = None,
        relu: bool = False,
    ) -> Tensor:
        """Return scale * (A' rows) + bias, after ReLU if asked for: fetch and sum in one kernel. Collective on a graph.

        scale: one for each sum. backward: sum over the transposed matrix.
        """
        plan = adjacency.backward if backward else adjacency.forward
        self.publish(rows, plan)
        weight = adjacency.backward_weight if backward else adjacency.forward_weight
        out = self.workspace.rows(plan.destinations, rows.format.dim, self.dtype)
        epilogue = Epilogue(scale=as_array(scale), bias=as_array(bias), relu=relu)
        op, edge = "copy" if weight is None else "mul", as_array(weight)
        self.backend.aggregate(plan, op, "sum", rows, as_array(out), edge=edge, epilogue=epilogue)
        return out


def rows_over(x: Tensor, backend: Backend) -> Rows | None:
    """Return rows over the memory of x [n, dim], which no other rank reads; None where its layout is another."""
    format = row_format(x.shape[1], x.dtype)
    laid_out = x.stride() == (format.stride, 1) and x.data_ptr() % 16 == 0
    end = (x.storage_offset() + len(x) * format.stride) * x.element_size()  # with the last row's padding
    if not laid_out or end > x.untyped_storage().nbytes():
        return None
    ranks, rank = backend.collectives.size, backend.collectives.rank
    addresses, counts = np.zeros(ranks, np.uint64), np.zeros(ranks, np.int64)
    addresses[rank], counts[rank] = x.data_ptr(), len(x)
    return Rows(format, addresses, counts, as_array(x), rank, False)


class Views(Protocol):
    """The graph views of a model's layers: one graph for all of them, or a block for each."""

    def view(self, number: int) -> GraphView:
        """Return what a layer aggregates over, from 0 on."""


def first_rows(x: Input, count: int) -> Input:
    """Return the first rows of features, or all of them as they are."""
    if x.shape[0] == count:
        return x
    if isinstance(x, HostFeatures):
        raise ValueError("features that stay on the host are of whole graphs, not of blocks")
    return x[:count] if isinstance(x, Tensor) else x.first(count)
