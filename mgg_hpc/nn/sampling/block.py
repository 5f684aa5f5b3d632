"""A block: the sampled edges of one layer of one batch, over which layers aggregate as over a graph.

All of it is this rank's: the rows of a block that others own were gathered with the batch, so that no layer exchanges
anything, forward or backward.
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
from ...runtime.sampler import Hop
from ..graph.edge_data import EdgeValues, LoopFill, values_with_loops
from ..graph.matrix import Adjacency
from ..graph.view import GraphView
from ..workspace import accumulator, as_array, row_format
from .source import Source

LOOPS = {"gcn": "missing", "attention": "one", "edges": "none"}  # self loops of a kind of adjacency


class Block(GraphView):
    """Sampled in-edges of ``destinations`` rows, from ``rows`` sources of which the destinations are the first.

    Made by a `NeighborLoader`. A layer takes x [rows, F] and returns [destinations, F']. Where edges were left out,
    sums over the others are multiplied by one over the probability of being sampled, so that a sum is an unbiased
    estimate of the one over all edges (Horvitz and Thompson, JASA 1952; in GCNs the estimator that Chen, Zhu and Song,
    ICML 2018, call NS): in GCNConv, GINConv and SAGEConv with ``aggr="sum"``. Where edges are drawn by their weights,
    those of weight 0 count for nothing. A mean is that of the sampled edges; attention and maxima take these alone.
    GCNConv divides by the degrees of the whole graph.

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
        self._values: dict[tuple[str, str, LoopFill], EdgeValues] = {}

    @property
    def rows(self) -> int:
        """Number of sources."""
        return len(self._numbers)

    @property
    def destinations(self) -> int:
        """Number of destinations, the first of the sources."""
        return len(self._hop.indptr) - 1

    @cached_property
    def all_destinations(self) -> int:
        """Number of destinations on all ranks; a node that several ranks need counts on each. Collective at first."""
        total = np.array([self.destinations], np.float64)
        values = torch.from_numpy(total).to(self.device)
        self.backend.collectives.sum(as_array(values))
        return int(values[0])

    @property
    def edges(self) -> int:
        """Number of sampled edges."""
        return len(self._hop.indices)

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Numbers of the sources in the whole graph."""
        return self._numbers

    @cached_property
    def ids(self) -> Any:
        return as_array(self._source.there(torch.from_numpy(self._ids)))

    def edge_index(self) -> Tensor:
        """Return the sampled edges, int64 [2, E]: sources and destinations, as rows of this block."""
        target = np.repeat(np.arange(self.destinations), np.diff(self._hop.indptr))
        return self._source.there(torch.from_numpy(np.stack([self._hop.indices.astype(np.int64), target])))

    def plan(self, kind: str) -> BlockPlans:
        """Return the plans of an adjacency of a kind; not collective, and for any thread."""
        if kind not in LOOPS:
            raise ValueError(f"no such kind of adjacency: {kind!r}; known are {', '.join(LOOPS)}")
        if kind not in self._plans:
            own, edges = self._numbers[: self.destinations], self._source.edges
            with edges.used():
                self._plans[kind] = block_plans(
                    self.rank,
                    self._hop.indptr,
                    self._hop.indices,
                    self.rows,
                    loops=LOOPS[kind],
                    has_loop=edges.has_loop(own) if kind == "gcn" else None,
                    weights=None if kind == "attention" else self._weights(kind),
                )
        return self._plans[kind]

    def _weights(self, kind: str) -> BlockWeights:
        """Return the weights of edges by which sums over them are estimates."""
        return BlockWeights(
            self._hop.factor,
            by_edge=self._weighted,
            dtype=row_format(1, accumulator(self.dtype)).dtype,
            weight=self._source.edges.weight() if kind == "gcn" else None,
            edge=self._hop.edge,
        )

    def adjacency(self, kind: str, *, ordered: bool = False) -> Adjacency:
        """Return the adjacency of a kind over the sampled edges. Raises ValueError for an unknown kind."""
        if kind not in self._made:
            self._made[kind] = self._adjacency(kind, self.plan(kind))
            self._source.kinds.add(kind)
        return self._made[kind]

    def _adjacency(self, kind: str, plans: BlockPlans) -> Adjacency:
        wide = accumulator(self.dtype)
        forward, backward = plans.forward_weight, plans.backward_weight
        scale = inverse = None
        if kind == "gcn":
            scale = self._tensor(self._source.edges.gcn_scale(self._numbers), wide)
        if kind == "edges":
            inverse = self._tensor(1.0 / np.maximum(np.diff(self._hop.indptr), 1), wide)
        return Adjacency(
            forward=plans.forward,
            backward=plans.backward,
            scale=scale,
            forward_weight=None if forward is None else self._tensor(forward, wide),
            backward_weight=None if backward is None else self._tensor(backward, wide),
            kind=kind,
            inverse_degree=inverse,
            places=plans.order,
        )

    def _tensor(self, values: NDArray[Any], dtype: torch.dtype) -> Tensor:
        return self._source.there(torch.from_numpy(np.ascontiguousarray(values)).to(dtype))

    def edge_data(self, name: str) -> Tensor:
        """Return data of the sampled edges by name, [E, ...]. Raises ValueError for what the loader was not told of."""
        edge = np.zeros(0, np.int64) if self._hop.edge is None else self._hop.edge
        return self._source.there(torch.from_numpy(self._source.edges.edge_data(name, edge)))

    def edge_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one edge's data by name. Raises ValueError as `edge_data` does."""
        return self._source.edges.edge_data(name, np.zeros(0, np.int64)).shape[1:]

    def edge_values(self, adjacency: Adjacency, given: Tensor | str, fill: LoopFill = "mean") -> EdgeValues:
        """Return values of the edges of an adjacency, of the accumulator's type.

        given: [E, ...] in the order of `edge_index`, or the name of data of edges. fill: of self loops that the
        adjacency has beside them. Raises ValueError as `edge_data` does, and for values of another number of edges.
        """
        wide, plans = accumulator(self.dtype), self.plan(adjacency.kind)
        if isinstance(given, Tensor):
            return values_with_loops(given.to(self.device, wide), self.edges, plans.places, plans.order, fill)
        key = adjacency.kind, given, fill
        if key not in self._values:
            data = self.edge_data(given).to(wide)
            self._values[key] = values_with_loops(data, self.edges, plans.places, plans.order, fill)
        return self._values[key]

    def exchange(self, dim: int, *, backward: bool = False) -> tuple[Rows, Tensor]:
        """Return rows of the workspace of width ``dim``, and a tensor over them: of sources, or of destinations."""
        local = self.workspace.rows(self.destinations if backward else self.rows, dim, self.dtype)
        rows = self.over(local)
        assert rows is not None  # rows of the workspace are laid out as kernels' rows
        return rows, local

    def publish(self, rows: Rows, plan: Plan) -> None:
        """No other rank reads a block's rows."""
