"""The matrices that layers aggregate with, and data of their edges in the order in which kernels read them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, autograd

from ...plan.workload import Plan, SplitEdges
from ...runtime.exchange import Crossing
from ..spans import first_order

FILLS = ("mean", "add", "min", "max", "mul")  # or a number
LoopFill = float | str

_Edges = TypeVar("_Edges", Plan, SplitEdges)


@dataclass(frozen=True, eq=False)
class EdgeOrder:
    """How to reorder edge data from the order of the graph file to the orders of an adjacency's two plans.

    edges: number of this rank's in-edges in the file, E. positions: int64 [E'], for each in-edge of the
    adjacency its position in the file's order, or E + i for the self loop of row i; None if the adjacency has
    the file's edges in the file's order. crossing: exchange that sends values of these E' in-edges to the ranks
    that own their sources, which need them in the backward. This is needed on undirected graphs too, where one
    plan serves both directions, as an edge and its reverse may have different data.
    """

    edges: int
    positions: NDArray[np.int64] | None
    crossing: Crossing


@dataclass(frozen=True, eq=False)
class EdgeValues:
    """Values of an adjacency's edges, once in the order of the forward plan, once in that of the backward plan.

    forward: [E', D], for this rank's in-edges; detached. backward: [E', D], for its out-edges; the only one of
    the two with an autograd graph, as layers compute gradients of edge values in the pass over out-edges.
    """

    forward: Tensor
    backward: Tensor

    @property
    def nbytes(self) -> int:
        return self.forward.nbytes + self.backward.nbytes


@dataclass(frozen=True)
class Matrix(Generic[_Edges]):
    """A sparse matrix: out = scale * (A' (scale * x)), where A' has these edges and weights.

    forward, backward: this rank's in-edges and out-edges; the same object if the graph is undirected.
    scale: [n] or None, on the backend's device like all tensors here.
    forward_weight, backward_weight: [E'] in the order of each direction's edges; None if all are 1.
    kind: "gcn" (normalised, weighted, with self loops), "edges" (the graph's own, for GIN and SAGE) or "attention"
    (exactly one self loop at each node).
    inverse_degree: [n], turns a sum over "edges" into a mean; None for the other kinds.
    order: order of the edges, if data of edges will be requested.
    values: data of edges in this matrix's order, by (name, data of self loops), filled by `GraphView.edge_values`.
    positions: int64 [E'], position of each backward edge among the forward edges, if one rank has both; else None.
    """

    forward: _Edges
    backward: _Edges
    scale: Tensor | None
    forward_weight: Tensor | None = None
    backward_weight: Tensor | None = None
    kind: str = "gcn"
    inverse_degree: Tensor | None = None
    order: EdgeOrder | None = None
    values: dict[tuple[str, LoopFill], EdgeValues] = field(default_factory=dict)
    positions: NDArray[np.int64] | None = None

    def on(self, device: str) -> Matrix[_Edges]:
        """Return the same matrix with its tensors on a device."""
        names = ("scale", "forward_weight", "backward_weight", "inverse_degree")
        tensors = {name: getattr(self, name) for name in names}
        return replace(self, **{name: each.to(device) for name, each in tensors.items() if each is not None})

    @property
    def directions(self) -> list[_Edges]:
        """The edges of both directions; one entry if they are the same object."""
        return [self.forward] if self.backward is self.forward else [self.forward, self.backward]


Adjacency = Matrix[Plan]
Unplanned = Matrix[SplitEdges]  # before the transfer of remote rows is chosen


def check_fill(fill: LoopFill) -> LoopFill:
    """Return ``fill``. Raises ValueError for anything but a number or one of FILLS."""
    if (isinstance(fill, str) and fill not in FILLS) or not isinstance(fill, str | int | float):
        raise ValueError(f"fill_value is {fill!r}; known are {', '.join(map(repr, FILLS))} and numbers")
    return fill


def check_order(kind: str) -> None:
    """Raise ValueError for kind "gcn": its edges do not correspond to the graph's edges one by one."""
    if kind == "gcn":
        raise ValueError("data of edges have no order in an adjacency of kind 'gcn'")


def ordered(comm: Any, adjacency: Adjacency, values: Tensor, fill: LoopFill) -> EdgeValues:
    """Reorder values of this rank's in-edges from the graph file's order to an adjacency's. Collective.

    values: [E, ...]. fill: value of the self loops that the adjacency adds or replaces: a number, or "mean",
    "add", "min", "max" or "mul" over the row's other edges (as in PyG's add_self_loops; without other edges it
    is 0, or 1 for "mul"). Raises ValueError for an adjacency that was planned without the order of its edges
    (ordered=True), and for a wrong number of values.
    """
    order, ahead, back = adjacency.order, adjacency.forward.edge, adjacency.backward.edge
    if order is None or ahead is None or back is None:
        raise ValueError("this adjacency was planned without the order of its edges (ordered=True)")
    values = with_loops(values, order.edges, order.positions, fill, "this rank's rows have")
    crossed: Tensor = _Crossed.apply(values, order.crossing, comm)
    return EdgeValues(values.detach()[index(ahead, values)], crossed[index(back, values)])


def with_loops(
    values: Tensor, edges: int, positions: NDArray[np.int64] | None, fill: LoopFill, owner: str
) -> Tensor:
    """Return values [E', D] of an adjacency's edges, with its self loops, from values [E, ...] of the graph's edges.

    edges: E. positions: as in `EdgeOrder`. fill: as in `ordered`. owner: names the owner of the edges in the
    message of the ValueError that a wrong number of values raises, for example "the block has".
    """
    if values.dim() < 1 or len(values) != edges:
        raise ValueError(f"data of edges are {list(values.shape)}, and {owner} {edges} edges")
    values = values.reshape(edges, math.prod(values.shape[1:]))
    if positions is None:
        return values
    return torch.cat([values, _loop_values(values, positions, fill)])[index(positions, values)]


def _loop_values(values: Tensor, positions: NDArray[np.int64], fill: LoopFill) -> Tensor:
    """Return the values [n, D] of all rows' self loops, from the values [E, D] of the other edges."""
    loop = positions >= len(values)
    row: NDArray[np.int64] = (np.cumsum(loop) - loop)[~loop]  # each row's loop comes last
    shape = int(loop.sum()), values.shape[1]
    if not isinstance(fill, str):
        return values.new_full(shape, float(fill))
    others, rows = values[index(positions[~loop], values)], index(row, values)
    if fill in ("mean", "add"):
        total = values.new_zeros(shape).index_add(0, rows, others)
        if fill == "add":
            return total
        count = np.maximum(np.bincount(row, minlength=shape[0]), 1)
        return total / torch.from_numpy(count).to(values.device, values.dtype)[:, None]
    start = values.new_ones(shape) if fill == "mul" else values.new_zeros(shape)
    reduce = {"min": "amin", "max": "amax", "mul": "prod"}[fill]
    return start.scatter_reduce(
        0, rows[:, None].expand_as(others), others, reduce, include_self=fill == "mul"
    )


def index(positions: NDArray[np.int64], values: Tensor) -> Tensor:
    """Return ``positions`` as an index tensor on the device of ``values``."""
    return torch.from_numpy(positions).to(values.device)


class _Crossed(autograd.Function):
    """Send values of in-edges to the ranks that own their sources. The backward sends the gradients back."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, crossing: Crossing, comm: Any) -> Tensor:
        ctx.call = crossing, comm
        return torch.from_numpy(crossing.carry(comm, values.detach().cpu().numpy())).to(values.device)

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        crossing, comm = ctx.call
        carried = crossing.carry_back(comm, gradient.cpu().numpy())
        return torch.from_numpy(carried).to(gradient.device), None, None
