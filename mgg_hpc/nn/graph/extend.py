"""Rows of a rank and of its halo in one tensor, for layers of other libraries.

Such a layer sees a bipartite graph: its sources are the extended rows [n + H], its destinations this rank's rows [n].
Extending is a sum in which each destination has one edge. Its adjoint, which returns the gradients of the halo to their
owners, is the sum over the transposed plan; so both run on any backend, by any transfer.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, autograd

from ...plan import workload
from ...plan.workload import Plan, prefix_sum
from ...runtime import exchange
from .. import spans
from ..spans import first_order, span
from .handle import GraphHandle
from .matrix import Adjacency, Unplanned
from .transfer import planned

# By plan: the adjacency from rows [n] to extended rows [n + H], and int64 [P], the extended rows of each rank.
_extensions: WeakKeyDictionary[Plan, tuple[Adjacency, NDArray[np.int64]]] = WeakKeyDictionary()


def halo_ids(plan: Plan, bounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the distinct remote rows that a plan sums, as global numbers, ascending: int64 [H]."""
    owner = np.repeat(np.arange(len(bounds) - 1), np.diff(plan.halo_bounds))
    return plan.halo + bounds[owner]


def _planned(graph: GraphHandle, plan: Plan) -> tuple[Adjacency, NDArray[np.int64]]:
    """Plan the extension of rows by a plan's halo. Collective."""
    comm, backend = graph.comm, graph.backend
    if comm is None:
        raise ValueError("extend: the graph's handle was made without the communicator of its ranks (comm=)")
    bounds, rank = prefix_sum(graph.counts), graph.rank
    source = np.append(np.arange(bounds[rank], bounds[rank + 1]), halo_ids(plan, bounds))
    indptr = np.arange(len(source) + 1)
    counts = np.array(comm.allgather(len(source)))
    extended = prefix_sum(counts)
    forward = workload.split(rank, bounds, indptr, source)
    indptr, copies, _ = exchange.transpose(comm, bounds, indptr, source, None, extended)
    both = Unplanned(forward, workload.split(rank, extended, indptr, copies), None, kind="extension")
    return planned(comm, both, [plan.transfer], backend.capabilities.halo_rounds)[0], counts


class _Extend(autograd.Function):
    """Copy rows; backward, sum the gradients of the copies: the own one first, then other ranks' in a fixed order."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, graph: GraphHandle, adjacency: Adjacency, counts: NDArray[np.int64]
    ) -> Tensor:
        ctx.call, ctx.layer = (graph, adjacency, counts), spans.current()
        with span("forward: extend"):
            rows, local = graph.exchange(x.shape[1])
            local.copy_(x)
            return graph.aggregate(adjacency, rows)

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        graph, adjacency, counts = ctx.call
        with span("backward: extend"):
            rows, local = graph.exchange(gradient.shape[1], counts=counts)
            local.copy_(gradient)
            return graph.aggregate(adjacency, rows, backward=True), None, None, None


def extend(x: Tensor, graph: GraphHandle, adjacency: Adjacency | None = None) -> Tensor:
    """Return this rank's rows x [n, F], followed by each remote row that its edges need, once: [n + H, F].

    Remote rows are in the order of their numbers in the graph file, as `DistGraph.edge_index` counts them. x has the
    graph's dtype. adjacency: its halo and transfer are used. [default: the graph's "edges"] Collective, and so is its
    backward.
    """
    plan = (adjacency or graph.adjacency("edges")).forward
    if plan not in _extensions:
        _extensions[plan] = _planned(graph, plan)
    extended: Tensor = _Extend.apply(x, graph, *_extensions[plan])
    return extended
