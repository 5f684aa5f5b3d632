"""Data of edges in the orders of plans: of in-edges, which a forward sums over, and of out-edges, for its backward.

An edge and its reverse may differ in their data, also where the graph is undirected and one plan serves both ways. So
the data of out-edges always come from the owners of the edges' destinations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, autograd

from ...plan.workload import Plan
from ...runtime.exchange import Crossing
from ..first_order import first_order

FILLS = ("mean", "add", "min", "max", "mul")  # or a number
LoopFill = float | str


@dataclass(frozen=True, eq=False)
class EdgeOrder:
    """Where data of this rank's edges go, from the order of its rows in the file to those of an adjacency's plans.

    edges: number of the rows' edges, E. places: int64 [E'], of each edge that the adjacency has its place among these,
    and E + i for the self loop of row i; None where they are the same edges. crossing: from these E' in-edges to the
    out-edges.
    """

    edges: int
    places: NDArray[np.int64] | None
    crossing: Crossing


@dataclass(frozen=True, eq=False)
class EdgeValues:
    """Values of the edges of an adjacency: [E', D] in the order of its forward plan, and of its backward plan.

    Gradients belong to those of the backward plan.
    """

    forward: Tensor
    backward: Tensor

    @property
    def nbytes(self) -> int:
        return self.forward.nbytes + self.backward.nbytes


def check_fill(fill: LoopFill) -> LoopFill:
    """Return what self loops get. Raises ValueError for anything but a number or one of FILLS."""
    if (isinstance(fill, str) and fill not in FILLS) or not isinstance(fill, str | int | float):
        raise ValueError(f"fill_value is {fill!r}; known are {', '.join(map(repr, FILLS))} and numbers")
    return fill


def ordered(
    comm: Any, order: EdgeOrder | None, forward: Plan, backward: Plan, values: Tensor, fill: LoopFill
) -> EdgeValues:
    """Return the values of an adjacency's edges, from values [E, ...] of the edges of this rank's rows. Collective.

    fill: of self loops that the adjacency adds or replaces: a number, or "mean", "add", "min", "max" or "mul" of the
    row's other edges (as PyG's add_self_loops: 0 where there are none, 1 with "mul"). Raises ValueError for an
    adjacency that was planned without the order of its edges, and for values of another number of edges.
    """
    if order is None or forward.edge is None or backward.edge is None:
        raise ValueError("this adjacency was planned without the order of its edges (ordered=True)")
    if values.dim() < 1 or len(values) != order.edges:
        raise ValueError(
            f"data of edges are {list(values.shape)}, and this rank's rows have {order.edges} edges"
        )
    values = values.reshape(len(values), math.prod(values.shape[1:]))
    if order.places is not None:
        values = torch.cat([values, _of_loops(values, order.places, fill)])
        values = values[_on(values, order.places)]
    crossed: Tensor = _Crossed.apply(values, order.crossing, comm)
    return EdgeValues(values.detach()[_on(values, forward.edge)], crossed[_on(values, backward.edge)])


def values_with_loops(
    values: Tensor,
    edges: int,
    places: NDArray[np.int64] | None,
    order: NDArray[np.int64],
    fill: LoopFill,
) -> EdgeValues:
    """Return the values of the edges of a block's adjacency, from values [E, ...] of its sampled edges.

    edges: E. places, order: of `plan.blocks.BlockPlans`. fill: as in `ordered`. Raises ValueError for values of another
    number of edges.
    """
    if values.dim() < 1 or len(values) != edges:
        raise ValueError(f"data of edges are {list(values.shape)}, and the block has {edges} edges")
    values = values.reshape(edges, math.prod(values.shape[1:]))
    if places is not None:
        values = torch.cat([values, _of_loops(values, places, fill)])[_on(values, places)]
    return EdgeValues(values.detach(), values[_on(values, order)])


def _of_loops(values: Tensor, places: NDArray[np.int64], fill: LoopFill) -> Tensor:
    """Return [n, D] for the self loops of all rows, from the values [E, D] of the rows' other edges."""
    loop = places >= len(values)
    row: NDArray[np.int64] = (np.cumsum(loop) - loop)[~loop]  # each row's loop comes last
    shape = int(loop.sum()), values.shape[1]
    if not isinstance(fill, str):
        return values.new_full(shape, float(fill))
    others, index = values[_on(values, places[~loop])], _on(values, row)
    if fill in ("mean", "add"):
        total = values.new_zeros(shape).index_add(0, index, others)
        if fill == "add":
            return total
        return total / _counts(row, shape[0], values)
    start = values.new_ones(shape) if fill == "mul" else values.new_zeros(shape)
    reduce = {"min": "amin", "max": "amax", "mul": "prod"}[fill]
    wide = index[:, None].expand_as(others)
    return start.scatter_reduce(0, wide, others, reduce, include_self=fill == "mul")


def _counts(row: NDArray[np.int64], rows: int, like: Tensor) -> Tensor:
    """Return [n, 1]: the number of edges of each row, 1 where there are none."""
    count = np.maximum(np.bincount(row, minlength=rows), 1)
    return torch.from_numpy(count).to(like.device, like.dtype)[:, None]


def _on(values: Tensor, places: NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(places).to(values.device)


class _Crossed(autograd.Function):
    """Values of in-edges as the owners of the sources need them; backward, their gradients go the other way."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, crossing: Crossing, comm: Any) -> Tensor:
        ctx.call = crossing, comm
        return _through(values, lambda held: crossing.carry(comm, held))

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        crossing, comm = ctx.call
        return _through(gradient, lambda held: crossing.carry_back(comm, held)), None, None


def _through(values: Tensor, carry: Any) -> Tensor:
    """Return what ``carry`` makes of values in the host's memory, on their device."""
    return torch.from_numpy(carry(values.detach().cpu().numpy())).to(values.device)
