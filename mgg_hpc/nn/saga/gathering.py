"""Edge data and weights that a program reads from a graph, and Gather: fused, or over one row per edge."""

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
    """Return a graph's edge data as a mapping by name, which reads an entry when it is accessed.

    edges: if not 0, return example values for so many edges instead, for tracing. The graph's own values are
    copied, so that programs may change them. kind: kind of adjacency. Accessing an entry raises ValueError for
    a kind whose edges are not in the graph's order (`check_order`).
    """

    @cache
    def read(name: str) -> Tensor:
        check_order(kind)
        held = data_of(graph, name)
        return example(edges, held.shape[1:], held) if edges else held.clone()

    return EdgeData(data_names(graph), read)


def data_names(graph: GraphView) -> Sequence[str]:
    """Return the names of a graph's edge data, among them "weight" if its edges have weights."""
    if isinstance(graph, DistGraph):
        return [*graph.part.edge_data, *["weight"] * (graph.part.slice.weight is not None)]
    return graph.edge_names if isinstance(graph, Block) else ()


def data_of(graph: GraphView, name: str) -> Tensor:
    """Return a graph's or block's edge data by name, [E, ...].

    Raises InputError (graph) or ValueError (block) for an unknown name, TypeError for any other kind of view.
    """
    if not isinstance(graph, (DistGraph, Block)):
        raise TypeError(f"a {type(graph).__name__} has no data of edges; open the graph with mgg.open")
    return graph.edge_data(name)


def data_shape(graph: GraphView, name: str) -> tuple[int, ...]:
    """Return the shape of the edge data ``name`` of one edge. Raises as `data_of` does."""
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
    """Return which factors an edge's weight has, for a kind of adjacency and a reduction ``accumulator``."""
    weighted = has_weights(graph)
    sampled = isinstance(graph, Block) and graph.adjacency(kind).forward_weight is not None
    if kind == "gcn":
        return WeightParts(scaled=True, by_edge=weighted or sampled, estimates=False)
    return WeightParts(scaled=False, by_edge=weighted, estimates=accumulator == "sum" and sampled)


def summed(x: Tensor, graph: GraphView, kind: str, how: Linear, accumulator: str) -> Tensor:
    """Return the sum, mean or maximum (``accumulator``) over in-edges of source row times weight, [n, F].

    Computed by the fused aggregation, without a row per edge. x: [rows, F]. how: which weights the sum has.
    """
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
    """Return a graph's adjacency with the edge data ``name`` as weights, for a reduction ``accumulator``."""
    ordered = graph.adjacency(kind, ordered=True)
    values = graph.edge_values(ordered, name)
    forward, backward = values.forward.reshape(-1), values.backward.reshape(-1)
    if accumulator == "sum" and ordered.forward_weight is not None:  # estimates of the sum over all edges
        assert ordered.backward_weight is not None
        forward, backward = forward * ordered.forward_weight, backward * ordered.backward_weight
    return replace(ordered, forward_weight=forward, backward_weight=backward)


def edge_columns(graph: GraphView, adjacency: Adjacency, program: ColumnProgram) -> EdgeValues | None:
    """Return all edge data and weights that a program reads, concatenated, [E, D]; None if it reads none.

    Collective if ``graph`` is a whole graph, not on a block. Raises InputError for edge types that the program
    has no weight matrix for.
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
    """Return columns, [E] or [E, d] each, concatenated to [E, D]."""
    wide = [column if column.dim() == 2 else column[:, None] for column in columns]
    return torch.cat(wide, 1).contiguous()


# ---- a row for each edge in memory, for any ApplyEdge


def edges_of(x: Tensor, graph: GraphView, adjacency: Adjacency) -> tuple[Edge, Tensor]:
    """Return the argument of ApplyEdge for all in-edges of this rank, and their destinations, int64 [E].

    Collective. x: [rows, F]. Raises TypeError for a view that cannot list its edges.
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

    target: int64 [E], destination of each message. destinations: n. accumulator: "sum", "mean", "max", or
    "concat", which returns [n, in_degree * F], in the order of the graph's edges. Raises ValueError for
    "concat" if a destination does not have exactly ``in_degree`` in-edges.
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
    """Return the weight of each edge in an adjacency (`Edge.weight`), [E, 1], with the dtype of ``like``.

    source, target: int64 [E], ends of the edges. Collective if ``graph`` is a whole graph, not on a block.
    """
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
