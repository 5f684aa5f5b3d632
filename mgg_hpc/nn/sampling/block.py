"""A block: the sampled edges of one layer of one batch, over which layers aggregate as over a graph.

A block belongs to one rank alone: the input rows that other ranks own were gathered with the batch, so no layer
exchanges anything, forward or backward.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...plan.blocks import BlockPlans, BlockWeights, block_plans
from ...plan.workload import Plan
from ...runtime.backends.arguments import Rows
from ...runtime.sampling.sampler import Hop
from ..graph.matrix import Adjacency, EdgeValues, LoopFill, index, with_loops
from ..graph.view import GraphView
from ..workspace import accumulator, as_array, row_format
from .source import LOOP, SCALE, Source

LOOPS = {"gcn": "missing", "attention": "one", "edges": "none"}  # self loops of each kind of adjacency


class Block(GraphView):
    """Sampled in-edges of ``destinations`` rows, from ``rows`` sources of which the destinations are the first.

    Made by a `NeighborLoader`. A layer takes x [rows, F] and returns [destinations, F']. If edges were left out,
    GCNConv, GINConv and SAGEConv with ``aggr="sum"`` multiply each sampled edge by one over its probability of being
    drawn, so that a sum is an unbiased estimate of the sum over all edges (Horvitz and Thompson, JASA 1952; for GCNs
    the estimator NS of Chen, Zhu and Song, ICML 2018). If edges are drawn by their weights, those of weight 0 are left
    out. A mean is that of the sampled edges; attention and maxima use these alone. GCNConv divides by the degrees of
    the whole graph.

    numbers: int64 [rows], of the rows in the whole graph. ids: int64 [rows], of the user's nodes.
    """

    ranks = 1

    def __init__(
        self,
        source: Source,
        hop: Hop,
        numbers: NDArray[np.int64],
        ids: NDArray[np.int64],
        *,
        weighted: bool,
    ) -> None:
        self._source, self._hop, self._numbers, self._weighted = source, hop, numbers, weighted
        self.backend, self.dtype, self.device = source.backend, source.dtype, source.device
        self.workspace, self.comm, self.rank = source.workspace, source.comm, source.backend.collectives.rank
        self._ids = ids
        self._plans: dict[str, BlockPlans] = {}
        self._made: dict[str, Adjacency] = {}

    @property
    def rows(self) -> int:
        return len(self._numbers)

    @property
    def destinations(self) -> int:
        return len(self._hop.indptr) - 1

    @cached_property
    def all_destinations(self) -> int:
        total = torch.tensor([self.destinations], dtype=torch.float64, device=self.device)
        self.backend.collectives.sum(as_array(total))
        return int(total[0])

    @property
    def edges(self) -> int:
        """Number of sampled edges."""
        return len(self._hop.indices)

    @property
    def numbers(self) -> NDArray[np.int64]:
        return self._numbers

    @cached_property
    def ids(self) -> Any:
        return as_array(self._source.there(torch.from_numpy(self._ids)))

    def edge_index(self) -> Tensor:
        """Return the sampled edges, int64 [2, E]: sources and destinations, as rows of this block."""
        target = np.repeat(np.arange(self.destinations), np.diff(self._hop.indptr))
        return self._source.there(torch.from_numpy(np.stack([self._hop.indices.astype(np.int64), target])))

    def plan(self, kind: str) -> BlockPlans:
        """Return the plans of an adjacency of a kind. For any thread. Raises ValueError for an unknown kind."""
        if kind not in LOOPS:
            raise ValueError(f"no such kind of adjacency: {kind!r}; known are {', '.join(LOOPS)}")
        if kind not in self._plans:
            own, edges = self._numbers[: self.destinations], self._source.edges
            with edges.used():
                weights = BlockWeights(
                    self._hop.factor,
                    by_edge=self._weighted,
                    dtype=row_format(1, accumulator(self.dtype)).dtype,
                    weight=edges.weight() if kind == "gcn" else None,
                    edge=self._hop.edge,
                )
                self._plans[kind] = block_plans(
                    self.rank,
                    self._hop.indptr,
                    self._hop.indices,
                    self.rows,
                    loops=LOOPS[kind],
                    has_loop=edges.node_values(LOOP, own) if kind == "gcn" else None,
                    weights=None if kind == "attention" else weights,
                )
        return self._plans[kind]

    def adjacency(self, kind: str, *, ordered: bool = False) -> Adjacency:
        if kind not in self._made:
            plans, wide = self.plan(kind), accumulator(self.dtype)

            def there(values: NDArray[Any] | None) -> Tensor | None:
                if values is None:
                    return None
                return self._source.there(torch.from_numpy(np.ascontiguousarray(values)).to(wide))

            degree = np.diff(self._hop.indptr)
            self._made[kind] = Adjacency(
                forward=plans.forward,
                backward=plans.backward,
                scale=there(self._source.edges.node_values(SCALE, self._numbers) if kind == "gcn" else None),
                forward_weight=there(plans.forward_weight),
                backward_weight=there(plans.backward_weight),
                kind=kind,
                inverse_degree=there(1.0 / np.maximum(degree, 1) if kind == "edges" else None),
                places=plans.order,
            )
            self._source.kinds.add(kind)
        return self._made[kind]

    def edge_data(self, name: str) -> Tensor:
        edge = np.zeros(0, np.int64) if self._hop.edge is None else self._hop.edge
        return self._source.there(torch.from_numpy(self._source.edges.edge_data(name, edge)))

    def edge_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the data of one edge by name. Raises ValueError as `edge_data` does."""
        return self._source.edges.edge_data(name, np.zeros(0, np.int64)).shape[1:]

    def _in_order(self, adjacency: Adjacency, values: Tensor, fill: LoopFill) -> EdgeValues:
        plans = self.plan(adjacency.kind)
        values = with_loops(values, self.edges, plans.places, fill, "the block has")
        return EdgeValues(values.detach(), values[index(plans.order, values)])

    def exchange(self, dim: int, *, backward: bool = False) -> tuple[Rows, Tensor]:
        local = self.workspace.rows(self.destinations if backward else self.rows, dim, self.dtype)
        rows = self.wrap(local)
        assert rows is not None  # rows of the workspace are laid out as kernels' rows
        return rows, local

    def publish(self, rows: Rows, plan: Plan) -> None:
        pass  # no other rank reads a block's rows
