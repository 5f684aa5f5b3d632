"""`GraphView`, what layers aggregate over: a rank's part of a graph, or a block of sampled edges."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...plan.workload import Plan
from ...runtime.backends.arguments import Epilogue, Rows
from ...runtime.backends.base import Backend
from ...runtime.backends.edges import EdgeKernels
from ..inputs.host import HostFeatures, Input
from ..workspace import Workspace, accumulator, as_array, row_format
from .matrix import Adjacency, EdgeValues, LoopFill


class GraphView(ABC):
    """Rows and edges that layers aggregate over.

    A layer takes ``rows`` input rows and returns ``destinations`` output rows, which belong to the first of the input
    rows: to all of them on a graph, to the block's destinations on a block.

    backend: stores and sums the rows. dtype: torch type of the rows. device: torch's name of the backend's device.
    ids: int64 [rows], original ids of the nodes, as an array of the backend. workspace: memory of the rows that calls
    return. comm: communicator of all ranks, or None. rank: this rank's number. ranks: number of ranks that exchange
    rows; 1 if none do. streams: whether rows are in stores (`StreamedGraph`).
    """

    backend: Backend
    dtype: Any
    device: str
    ids: Any
    workspace: Workspace
    comm: Any
    rank: int
    ranks: int
    streams = False

    @property
    @abstractmethod
    def rows(self) -> int:
        """Number of input rows of a layer."""

    @property
    @abstractmethod
    def destinations(self) -> int:
        """Number of output rows of a layer; they belong to the first input rows."""

    @property
    @abstractmethod
    def all_destinations(self) -> int:
        """Number of output rows on all ranks; a row that several ranks compute counts on each. May be collective."""

    @property
    @abstractmethod
    def numbers(self) -> NDArray[np.int64]:
        """Numbers of the input rows in the whole graph, int64 [rows]."""

    @abstractmethod
    def adjacency(self, kind: str, *, ordered: bool = False) -> Adjacency:
        """Return the adjacency of a kind (`Matrix`), planned at the first call. Collective on a graph.

        ordered: plan it with the order of its edges, which `edge_values` needs. Raises ValueError for a kind that is
        unknown or cannot be planned.
        """

    def edge_data(self, name: str) -> Tensor:
        """Return data of the edges by name, [E, ...] in the order of `edge_index`; "weight" are the weights.

        Raises ValueError for a name that the graph or block does not have.
        """
        raise ValueError(f"the graph's handle was made without the data of edges {name!r}")

    def edge_values(self, adjacency: Adjacency, data: Tensor | str, fill: LoopFill = "mean") -> EdgeValues:
        """Return values of the edges in the order of an adjacency, in the accumulator's type. Collective on a graph.

        data: [E, ...] in the order of the graph's or block's edges, or a name for `edge_data`, whose result is kept.
        fill: value of self loops that the adjacency adds (`matrix.ordered`). Raises ValueError as `edge_data` and
        `matrix.ordered` do.
        """
        wide = accumulator(self.dtype)
        if isinstance(data, Tensor):
            return self._in_order(adjacency, data.to(self.device, wide), fill)
        if (data, fill) not in adjacency.values:
            with torch.inference_mode(False):  # what is kept can be saved for a backward
                named = self.edge_data(data).to(self.device, wide)
                adjacency.values[data, fill] = self._in_order(adjacency, named, fill)
        return adjacency.values[data, fill]

    def _in_order(self, adjacency: Adjacency, values: Tensor, fill: LoopFill) -> EdgeValues:
        raise ValueError(
            f"{type(self).__name__} has no values of edges outside of programs (mgg_hpc.nn.saga)"
        )

    def layer(self, number: int) -> Adjacency | None:
        """Return the adjacency of a layer of a model, counted from 0; None to use the adjacency of its kind."""
        return None

    def view(self, number: int) -> GraphView:
        """Return the view for a layer of a model, counted from 0."""
        return self

    @abstractmethod
    def exchange(self, dim: int, *, backward: bool = False) -> tuple[Rows, Tensor]:
        """Return rows of width ``dim`` for `aggregate`, and a tensor over this rank's part of them to write to.

        They have the shape of a layer's input rows; with ``backward`` of its output rows. On a graph this is
        collective: all ranks request the same widths in the same order, and the rows of earlier calls are reused.
        """

    @abstractmethod
    def publish(self, rows: Rows, plan: Plan) -> None:
        """Make rows of `exchange` readable by all ranks, before they are summed by a plan. Collective on a graph."""

    def offer(self, x: Tensor) -> Rows:
        """Return rows for `aggregate` with the values of x [n, dim]; x itself if no other rank reads it."""
        rows = self.wrap(x)
        if rows is None:
            rows, local = self.exchange(x.shape[1], backward=len(x) != self.rows)
            local.copy_(x)
        return rows

    def wrap(self, x: Tensor) -> Rows | None:
        """Return rows over the memory of x [n, dim], or None if it must be copied (`wrap_rows`)."""
        return wrap_rows(x, self.backend) if x.dtype == self.dtype else None

    @property
    def edge_kernels(self) -> EdgeKernels:
        """The backend's kernels for layers other than weighted sums. Raises TypeError if it has none."""
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
        """Return scale * (A' rows) + bias in one kernel that also fetches remote rows. Collective on a graph.

        scale: one factor for each output row. bias: [dim]. backward: use the transposed matrix. relu: apply ReLU.
        """
        plan = adjacency.backward if backward else adjacency.forward
        self.publish(rows, plan)
        weight = adjacency.backward_weight if backward else adjacency.forward_weight
        out = self.workspace.rows(plan.destinations, rows.format.dim, self.dtype)
        epilogue = Epilogue(scale=as_array(scale), bias=as_array(bias), relu=relu)
        self.backend.aggregate(plan, "sum", rows, as_array(out), edge=as_array(weight), epilogue=epilogue)
        return out


def wrap_rows(x: Tensor, backend: Backend) -> Rows | None:
    """Return private rows over the memory of x [n, dim]; None if its layout is not that of kernels' rows."""
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
    """The views of a model's layers: the same graph for each, or a block for each."""

    def view(self, number: int) -> GraphView:
        """Return the view for a layer, counted from 0."""


def first_rows(x: Input, count: int) -> Input:
    """Return the first ``count`` rows of features. Raises ValueError for HostFeatures, unless these are all rows."""
    if x.shape[0] == count:
        return x
    if isinstance(x, HostFeatures):
        raise ValueError("features that stay on the host are of whole graphs, not of blocks")
    return x[:count] if isinstance(x, Tensor) else x.head(count)
