"""Sums over typed edges, with a matrix for each type (R-GCN: Schlichtkrull et al., ESWC 2018).

A tape adds the mean of each relation to columns of its own, [rows, R F], which one product multiplies with all R
matrices. That is done for some rows at a time: neither messages nor means are ever there for all of them. The backward
does the same over out-edges and keeps nothing of the forward but the rows.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, autograd

from ...errors import InputError
from ...plan.workload import Plan, prefix_sum, rectangular
from ...runtime import mpi
from ...runtime.backends.edges import TapeArrays
from ...runtime.backends.tape import Tape
from ..graph.dist_graph import DistGraph, extend
from ..graph.loading import edge_data_of
from ..graph.view import wrap_rows
from ..saga.expression import Expressions, Node, Result, compiled
from ..spans import first_order, span
from ..workspace import accumulator, as_array

# Rows at a time x relations: with 64 columns 4 MiB, of which a core's second cache holds a part.
CELLS = 1 << 14


class Piece(NamedTuple):
    """Rows low .. high - 1, the plan of the edges that they sum, and type and weight of each edge, [E, 2]."""

    low: int
    high: int
    plan: Plan
    edge: Tensor


class Relations:
    """The edges of a graph by type, between this rank's rows and their sources (`extend`).

    forward: pieces of the rows, over the sources. backward: pieces of the sources, over the rows. The weight of an edge
    is 1 / (number of its destination's edges of its type).
    """

    def __init__(self, graph: DistGraph, name: str, count: int) -> None:
        """name: of data of edges, integers from 0 to count - 1. Collective. Raises InputError for others."""
        given = edge_data_of(graph.part, name)
        types = given.reshape(-1)
        with mpi.agree(graph.comm):
            wrong = (
                given.ndim > 1
                or types.dtype.kind not in "iu"
                or not 0 <= types.min(initial=0) <= types.max(initial=0) < count
            )
            if wrong:
                largest = f"{list(given.shape)} {types.dtype}, the largest {types.max(initial=0)}"
                raise InputError(
                    f"model's RGCNConv: edge data {name} is {largest}; expected [E] integers from 0 to {count - 1}"
                )
        index, indptr = graph.edge_index().cpu().numpy(), graph.part.slice.indptr
        source, target = index[0].astype(np.int32), index[1].astype(np.int32)
        sources = len(source) and int(source.max()) + 1
        self.count, self.step = count, max(1, CELLS // count)
        self.sources = max(graph.rows, sources)
        values = np.empty((len(types), 2), str(accumulator(graph.dtype))[6:])
        values[:, 0] = types
        for low in range(0, graph.rows, self.step):
            edges = slice(*indptr[[low, min(low + self.step, graph.rows)]])
            cell = (target[edges] - low) * count + types[edges].astype(np.int64)
            values[edges, 1] = 1 / np.bincount(cell)[cell]
        self.forward = list(self._pieces(graph, indptr, source, values, self.sources))
        order = np.argsort(source, kind="stable")
        indptr = prefix_sum(np.bincount(source, minlength=self.sources))
        self.backward = list(self._pieces(graph, indptr, target[order], values[order], graph.rows))

    def _pieces(
        self,
        graph: DistGraph,
        indptr: NDArray[np.int64],
        indices: NDArray[np.int32],
        values: NDArray[Any],
        columns: int,
    ) -> Iterator[Piece]:
        given = torch.from_numpy(values).to(graph.device)
        for low in range(0, len(indptr) - 1, self.step):
            high = min(low + self.step, len(indptr) - 1)
            first, last = int(indptr[low]), int(indptr[high])
            plan = rectangular(graph.rank, indptr[low : high + 1] - first, indices[first:last], columns)
            yield Piece(low, high, plan, given[first:last])

    def sums(self, graph: DistGraph, x: Tensor, pieces: list[Piece]) -> Iterator[tuple[slice, Tensor]]:
        """Yield pieces of rows, and their sums of x by relation, [rows, R F], each in the memory of the last."""
        if not pieces:
            return
        rows = wrap_rows(x, graph.backend)
        rows = rows or wrap_rows(graph.workspace.rows(len(x), x.shape[1], x.dtype).copy_(x), graph.backend)
        assert rows is not None
        out = pieces[0].edge.new_empty(min(self.step, pieces[-1].high), self.count * x.shape[1])
        tape, none = _tape(x.shape[1], self.count), as_array(out.new_empty(0))
        for low, high, plan, edge in pieces:
            sums = out[: high - low]
            arrays = TapeArrays([], none, [as_array(sums)], as_array(edge))
            graph.edge_kernels.propagate(plan, tape, rows, arrays)
            yield slice(low, high), sums


@functools.cache
def _tape(columns: int, count: int) -> Tape:
    """Return the program of an edge: the source's row times the weight, added to the columns of the type."""
    of, far, weight = Expressions(), Node("src"), Node("edge", index=1, wide=False)
    product = of.binary("mul", of.add(far), of.add(weight))
    places = {far: ("far", 0), weight: ("edge", 1)}
    results = [Result(product, columns * count, type=0)]
    return compiled(of, results, places, columns=columns, far_columns=columns)[0]


class _Product(autograd.Function):
    """out[v] = sum over relations of (mean of x over v's edges of it) W[relation]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, graph: DistGraph, relations: Relations) -> Tensor:
        ctx.call = graph, relations
        ctx.save_for_backward(x, weight)
        wide = weight.flatten(0, 1).to(accumulator(x.dtype))
        out = torch.empty(graph.rows, weight.shape[2], dtype=wide.dtype, device=x.device)
        with span("forward: propagate"):
            for rows, sums in relations.sums(graph, x, relations.forward):
                torch.mm(sums, wide, out=out[rows])
        return out.to(x.dtype)

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        (graph, relations), (x, weight) = ctx.call, ctx.saved_tensors
        wants_x, wants_weight = ctx.needs_input_grad[:2]
        wide = weight.transpose(1, 2).flatten(0, 1).to(accumulator(x.dtype))
        of_x = torch.empty(x.shape, dtype=wide.dtype, device=x.device) if wants_x else None
        of_weight = wide.new_zeros(x.shape[1], len(wide))
        with span("backward: propagate"):
            for rows, sums in relations.sums(graph, gradient, relations.backward):
                if of_x is not None:
                    torch.mm(sums, wide, out=of_x[rows])
                if wants_weight:
                    of_weight.addmm_(x[rows].t().to(wide.dtype), sums)
        by_relation = of_weight.view(x.shape[1], *weight.shape[::2]).transpose(0, 1).contiguous()
        return of_x if of_x is None else of_x.to(x.dtype), by_relation.to(weight.dtype), None, None


_made: WeakKeyDictionary[DistGraph, dict[tuple[str, int], Relations]] = WeakKeyDictionary()


def relational(x: Tensor, weight: Tensor, graph: DistGraph, name: str) -> Tensor:
    """Return the sums over relations of means, each times its matrix: [n, out], for x [n, in]. Collective.

    weight: [R, in, out]. name: of data of edges, their relations. Raises InputError for others than 0 to R - 1.
    """
    made = _made.setdefault(graph, {})
    if (name, len(weight)) not in made:
        with torch.inference_mode(False):
            made[name, len(weight)] = Relations(graph, name, len(weight))
    far = x if graph.ranks == 1 else extend(x, graph)
    out: Tensor = _Product.apply(far, weight, graph, made[name, len(weight)])
    return out
