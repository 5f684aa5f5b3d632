"""Rows of a rank and of its halo in one array: slower than sums that fetch as they go, and right for any layer.

A layer of another library sees a bipartite graph: sources are the extended rows [n + H], destinations the rank's own
[n]. Extending is a sum in which each destination has one edge; so its adjoint, which gives the halo's gradients back
to their owners, is the sum over the transposed plan, and both run on any backend, by any transfer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, autograd

from ...plan import workload
from ...plan.workload import Plan, prefix_sum
from ...runtime import exchange
from .. import spans
from ..first_order import first_order
from ..spans import span
from .handle import GraphHandle
from .matrix import Adjacency, Unplanned
from .transfer import planned


@dataclass(frozen=True)
class _Extension:
    """adjacency: from rows [n] to extended rows [n + H] and back. counts: int64 [P], extended rows of each rank."""

    adjacency: Adjacency
    counts: NDArray[np.int64]


_made: WeakKeyDictionary[Plan, _Extension] = WeakKeyDictionary()


def halo_ids(plan: Plan, bounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the distinct remote rows that a plan sums, as global numbers, ascending: int64 [H]."""
    owner = np.repeat(np.arange(len(bounds) - 1), np.diff(plan.halo_bounds))
    return plan.halo + bounds[owner]


def _extension(graph: GraphHandle, adjacency: Adjacency) -> _Extension:
    """Return the plans that extend rows by the halo of an adjacency. Collective at the first call."""
    of = adjacency.forward
    if of not in _made:
        _made[of] = _planned(graph, of)
    return _made[of]


def _planned(graph: GraphHandle, of: Plan) -> _Extension:
    comm, backend = graph.comm, graph.backend
    if comm is None:
        raise ValueError("extend: the graph's handle was made without the communicator of its ranks (comm=)")
    bounds, rank = prefix_sum(graph.counts), backend.collectives.rank
    source = np.append(np.arange(bounds[rank], bounds[rank + 1]), halo_ids(of, bounds))
    indptr = np.arange(len(source) + 1)
    counts = np.array(comm.allgather(len(source)))
    extended = prefix_sum(counts)
    forward = workload.split(rank, bounds, indptr, source)
    indptr, copies, _ = exchange.transpose(comm, bounds, indptr, source, extended)
    both = Unplanned(forward, workload.split(rank, extended, indptr, copies), None, kind="extension")
    return _Extension(planned(comm, both, [of.transfer], backend.capabilities.halo_rounds)[0], counts)


class _Extend(autograd.Function):
    """Copies, forward; sums of the copies' gradients, backward: the own one first, then those of the other ranks in a
    fixed order.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, graph: GraphHandle, extension: _Extension) -> Tensor:
        ctx.call, ctx.layer = (graph, extension), spans.current()
        with span("forward: extend"):
            rows, local = graph.exchange(x.shape[1])
            local.copy_(x)
            return graph.aggregate(extension.adjacency, rows)

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        graph, extension = ctx.call
        with spans.layer(ctx.layer), span("backward: extend"):
            rows, local = graph.exchange(gradient.shape[1], counts=extension.counts)
            local.copy_(gradient)
            return graph.aggregate(extension.adjacency, rows, backward=True), None, None


def extend(x: Tensor, graph: GraphHandle, adjacency: Adjacency | None = None) -> Tensor:
    """Return this rank's rows x [n, F], and below them each remote row that its edges need, once: [n + H, F].

    Remote rows come in the order of their numbers in the graph's file; `DistGraph.edge_index` counts them so. x is of
    the graph's dtype. adjacency: whose halo, and by whose transfer. [default: that of the graph's edges] Collective,
    and so is its backward.
    """
    chosen = adjacency or graph.adjacency("edges")
    extended: Tensor = _Extend.apply(x, graph, _extension(graph, chosen))
    return extended
