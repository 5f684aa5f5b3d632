"""Scatter, ApplyEdge and Gather as they are written: with a row for each edge in memory. Right for any ApplyEdge."""

from __future__ import annotations

import torch
from torch import Tensor

from ..graph.dist_graph import DistGraph, extend
from ..graph.loading import weighted_edges
from ..graph.matrix import Adjacency
from ..graph.view import GraphView
from ..sampling.batches import Block
from .gathering import has_weights
from .tracing import Edge

AMOUNTS = {"sum": "sum", "mean": "mean", "max": "amax"}


def edges_of(
    x: Tensor, graph: GraphView, adjacency: Adjacency, names: tuple[str, ...]
) -> tuple[Edge, Tensor]:
    """Return the values of this rank's in-edges, and the destination of each, int64 [E]. Collective.

    names: of data of edges. Raises TypeError for a graph that does not list its edges.
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
    data = {name: graph.edge_data(name) for name in names}
    weight = _weights(graph, adjacency, source, target, x)
    return Edge(rows[source], x[: graph.destinations][target], data, weight), target


def gathered(
    messages: Tensor, target: Tensor, destinations: int, accumulator: str, in_degree: int | None = None
) -> Tensor:
    """Return messages [E, F] reduced over the edges of each destination, [n, F]; 0 without edges.

    accumulator: "sum", "mean", "max" or "concat", [n, in_degree F]: edges in the order of the graph. Raises ValueError
    where a destination has another number of edges than ``in_degree``.
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
    return start.scatter_reduce(0, wide, messages, AMOUNTS[accumulator], include_self=False)


def _weights(
    graph: DistGraph | Block, adjacency: Adjacency, source: Tensor, target: Tensor, like: Tensor
) -> Tensor:
    """Return `Edge.weight`, [E, 1] of the rows' type. Collective on a graph."""
    weight: Tensor | None = None
    if isinstance(graph, DistGraph):
        edges, first = graph.part.slice, int(graph.part.bounds[graph.rank])
        given = edges.weight
        if adjacency.kind == "gcn":
            given = weighted_edges("gcn", first, edges.indptr, edges.indices, edges.weight)[2]
        weight = None if given is None else torch.from_numpy(given).to(graph.device)
    elif has_weights(graph):
        weight = graph.edge_data("weight")
    column = like.new_ones(len(source), 1) if weight is None else weight[:, None].to(like.dtype)
    if adjacency.scale is not None and isinstance(graph, DistGraph):
        scale = adjacency.scale[:, None].to(like.dtype)
        column = column * extend(scale, graph, graph.adjacency("edges"))[source] * scale[target]
    return column
