"""The operands of a program that come from a graph, and Gather by the fused aggregation or over rows of edges."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from ...runtime import mpi
from ..autograd.aggregation import aggregate, mean_scale, scaled_sum
from ..graph.dist_graph import DistGraph, extend
from ..graph.loading import edge_data_of
from ..graph.matrix import Adjacency, EdgeValues, check_order
from ..graph.view import GraphView
from ..sampling.batches import Block
from .columns import ColumnProgram, WeightParts
from .examples import example
from .stages import Linear
from .tracing import Edge, EdgeData


def edge_data(graph: GraphView, edges: int = 0, kind: str = "edges") -> EdgeData:
    """Return the edge data that a graph has.

    edges: number of edges of an example; 0 for the graph's own, whose values are copies, which programs may change.
    kind: of the adjacency whose edges they are; reading raises ValueError for one without their order (`check_order`).
    """

    @cache
    def read(name: str) -> Tensor:
        check_order(kind)
        held = data_of(graph, name)
        return example(edges, held.shape[1:], held) if edges else held.clone()

    return EdgeData(data_names(graph), read)


def data_names(graph: GraphView) -> Sequence[str]:
    """Return the names of a graph's edge data; "weight" are the weights."""
    if isinstance(graph, DistGraph):
        return [*graph.part.edge_data, *["weight"] * (graph.part.slice.weight is not None)]
    return graph.edge_names if isinstance(graph, Block) else ()


def data_of(graph: GraphView, name: str) -> Tensor:
    """Return edge data by name. Raises InputError or ValueError for an unknown name, TypeError for another view."""
    if not isinstance(graph, (DistGraph, Block)):
        raise TypeError(f"a {type(graph).__name__} has no data of edges; open the graph with mgg.open")
    return graph.edge_data(name)


def data_shape(graph: GraphView, name: str) -> tuple[int, ...]:
    """Return the shape of one edge's data by name. Raises as `data_of` does."""
    if isinstance(graph, DistGraph):
        return edge_data_of(graph.part, name).shape[1:]
    return graph.edge_shape(name) if isinstance(graph, Block) else tuple(data_of(graph, name).shape[1:])


def has_weights(graph: GraphView) -> bool:
    """Return whether a graph's edges have weights."""
    if isinstance(graph, DistGraph):
        return graph.part.slice.weight is not None
    try:
        data_of(graph, "weight")
    except (ValueError, TypeError):
        return False
    return True


def weight_parts(graph: GraphView, kind: str, accumulator: str) -> WeightParts:
    """Return the factors of the weights of edges in an adjacency of a kind."""
    weighted = has_weights(graph)
    sampled = isinstance(graph, Block) and graph.adjacency(kind).forward_weight is not None
    if kind == "gcn":
        return WeightParts(scaled=True, by_edge=weighted or sampled, estimates=False)
    return WeightParts(scaled=False, by_edge=weighted, estimates=accumulator == "sum" and sampled)


def summed(x: Tensor, graph: GraphView, kind: str, how: Linear, accumulator: str) -> Tensor:
    """Return the sum, mean or maximum of rows of sources times weights of edges, by the fused aggregation."""
    if how.weight is None:
        return aggregate(x, graph, graph.adjacency(kind), accumulator)
    adjacency, before = graph.adjacency(kind), None
    after = mean_scale(graph, adjacency) if accumulator == "mean" else None
    if how.weight == "" and kind == "gcn":
        if adjacency.scale is not None:
            before, own = adjacency.scale, adjacency.scale[: graph.destinations]
            after = own if after is None else after * own
    elif how.weight or has_weights(graph):
        adjacency = _with_weights(graph, kind, how.weight or "weight", accumulator)
    rows = x if before is None else x * before[:, None].to(x.dtype)
    return scaled_sum(rows, graph, adjacency, after)


def _with_weights(graph: GraphView, kind: str, name: str, accumulator: str) -> Adjacency:
    """Return the adjacency of a graph's edges with edge data as weights."""
    ordered = graph.adjacency(kind, ordered=True)
    values = graph.edge_values(ordered, name)
    forward, backward = values.forward.reshape(-1), values.backward.reshape(-1)
    if accumulator == "sum" and ordered.forward_weight is not None:  # estimates of the sum over all edges
        assert ordered.backward_weight is not None
        forward, backward = forward * ordered.forward_weight, backward * ordered.backward_weight
    return replace(ordered, forward_weight=forward, backward_weight=backward)


def edge_columns(graph: GraphView, adjacency: Adjacency, program: ColumnProgram) -> EdgeValues | None:
    """Return the concatenated edge data that a program reads, [E, D], or None. Collective on a graph.

    Raises InputError for types of edges that the program has no matrix for.
    """
    columns = [graph.edge_values(adjacency, name) for name, _ in program.data]
    forward, backward = adjacency.forward_weight, adjacency.backward_weight
    own = EdgeValues(forward, backward) if forward is not None and backward is not None else None
    if program.weight.by_edge:
        named = adjacency.kind == "edges"
        columns.append(graph.edge_values(adjacency, "weight") if named or own is None else own)
    if program.weight.estimates and own is not None:
        columns.append(own)
    if not columns:
        return None
    values = EdgeValues(_joined([c.forward for c in columns]), _joined([c.backward for c in columns]))
    with mpi.agree(graph.comm) if graph.comm is not None else nullcontext():
        program.check_types(values.forward)
    return values


def _joined(columns: list[Tensor]) -> Tensor:
    """Return [E, D] for values [E] and [E, d]."""
    wide = [column if column.dim() == 2 else column[:, None] for column in columns]
    return torch.cat(wide, 1).contiguous()


# ---- a row for each edge in memory, for any ApplyEdge


def edges_of(x: Tensor, graph: GraphView, adjacency: Adjacency) -> tuple[Edge, Tensor]:
    """Return the values of this rank's in-edges, and their destinations, int64 [E]. Collective.

    Raises TypeError for a view that cannot list its edges.
    """
    if isinstance(graph, DistGraph):
        index, rows = graph.edge_index(adjacency.kind), extend(x, graph, graph.adjacency("edges"))
    elif isinstance(graph, Block) and adjacency.kind == "edges":
        index, rows = graph.edge_index(), x
    else:
        raise TypeError(
            f"tensors of edges of kind {adjacency.kind!r} are not there for {type(graph).__name__}"
        )
    source, target = index
    weight = _weights(graph, adjacency, source, target, x)
    return Edge(
        rows[source], x[: graph.destinations][target], edge_data(graph, kind=adjacency.kind), weight
    ), target


def gathered(
    messages: Tensor, target: Tensor, destinations: int, accumulator: str, in_degree: int | None = None
) -> Tensor:
    """Return messages [E, F] reduced over the in-edges of each destination, [n, F]; 0 without edges.

    accumulator: "sum", "mean", "max", or "concat" in the order of the graph's edges, [n, in_degree F]. Raises
    ValueError for "concat" if a destination has another number of in-edges.
    """
    if accumulator == "concat":
        counts = torch.bincount(target, minlength=destinations)
        wrong = (counts - (in_degree or 0)).nonzero().reshape(-1)
        if len(wrong):
            row = int(wrong[0])
            raise ValueError(
                f"accumulator is 'concat' of {in_degree} in-edges, and row {row} of this rank has {int(counts[row])}"
            )
        order = torch.argsort(target, stable=True)
        return messages[order].reshape(destinations, (in_degree or 0) * messages.shape[1])
    start = messages.new_zeros(destinations, messages.shape[1])
    if accumulator == "sum":
        return start.index_add(0, target, messages)
    wide = target[:, None].expand_as(messages)
    return start.scatter_reduce(
        0, wide, messages, {"mean": "mean", "max": "amax"}[accumulator], include_self=False
    )


def _weights(
    graph: DistGraph | Block, adjacency: Adjacency, source: Tensor, target: Tensor, like: Tensor
) -> Tensor:
    """Return `Edge.weight`, [E, 1], of the type of rows ``like``. Collective on a graph."""
    weight: Tensor | None = None
    if isinstance(graph, DistGraph):
        weight = graph.edge_weight(adjacency.kind)
    elif has_weights(graph):
        weight = graph.edge_data("weight")
    column = like.new_ones(len(source), 1) if weight is None else weight[:, None].to(like.dtype)
    if adjacency.scale is not None and isinstance(graph, DistGraph):
        scale = adjacency.scale[:, None].to(like.dtype)
        column = column * extend(scale, graph, graph.adjacency("edges"))[source] * scale[target]
    return column.clone() if weight is not None else column
