"""What a graph gives to a program: weights and data of edges, sums of rows, operands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from ...runtime import mpi
from ..autograd.aggregation import aggregate, mean_scale, scaled_sum
from ..graph.dist_graph import DistGraph
from ..graph.loading import edge_data_of
from ..graph.matrix import Adjacency, EdgeValues
from ..graph.view import GraphView
from ..sampling.batches import Block
from .columns import ESTIMATE, WEIGHT, ByColumn, WeightParts, check_types
from .expression import Node
from .fused import Operands, Propagation
from .stages import Linear, Moved, Staged
from .tracing import EDGES


class Examples(Mapping[str, Tensor]):
    """An example of data of edges for each name that a graph has."""

    def __init__(self, graph: GraphView) -> None:
        self._graph = graph

    def __getitem__(self, name: str) -> Tensor:
        held = data_of(self._graph, name)
        return torch.zeros(EDGES, *held.shape[1:], dtype=held.dtype, device=self._graph.device)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def data_of(graph: GraphView, name: str) -> Tensor:
    """Return data of a graph's edges by name. Raises InputError or ValueError for a name that it has not."""
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
    """Return the factors of the weights of the edges of an adjacency's kind."""
    weighted = has_weights(graph)
    sampled = isinstance(graph, Block) and graph.adjacency(kind).forward_weight is not None
    if kind == "gcn":
        return WeightParts(scaled=True, by_edge=weighted or sampled, estimates=False)
    return WeightParts(scaled=False, by_edge=weighted, estimates=accumulator == "sum" and sampled)


def summed(x: Tensor, graph: GraphView, kind: str, how: Linear, accumulator: str) -> Tensor:
    """Return the sum, mean or maximum of sources' rows times weights of edges, by the fused aggregation."""
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
    """Return an adjacency of a graph's edges whose weights are data of theirs."""
    ordered = graph.adjacency(kind, ordered=True)
    values = graph.edge_values(ordered, name)
    forward, backward = values.forward.reshape(-1), values.backward.reshape(-1)
    if accumulator == "sum" and ordered.forward_weight is not None:  # sampled edges stand for others
        assert ordered.backward_weight is not None
        forward, backward = forward * ordered.forward_weight, backward * ordered.backward_weight
    return replace(ordered, forward_weight=forward, backward_weight=backward)


def edge_columns(graph: GraphView, adjacency: Adjacency, left: ByColumn) -> EdgeValues:
    """Return the data of edges that a program reads beside each other, [E, D]. Collective on a graph.

    Raises InputError for types of edges that are no types of the program.
    """
    columns = [graph.edge_values(adjacency, name) for name, _ in left.data]
    forward, backward = adjacency.forward_weight, adjacency.backward_weight
    own = EdgeValues(forward, backward) if forward is not None and backward is not None else None
    if left.weight.by_edge:
        named = adjacency.kind == "edges"
        columns.append(graph.edge_values(adjacency, "weight") if named or own is None else own)
    if left.weight.estimates and own is not None:
        columns.append(own)
    values = EdgeValues(_beside([c.forward for c in columns]), _beside([c.backward for c in columns]))
    with mpi.agree(graph.comm) if graph.comm is not None else nullcontext():
        check_types(left, values.forward)
    return values


def _beside(columns: list[Tensor]) -> Tensor:
    """Return [E, D] of values [E] and [E, d]."""
    wide = [column if column.dim() == 2 else column[:, None] for column in columns]
    return torch.cat(wide, 1).contiguous()


def propagation(stage: Staged, left: ByColumn, accumulator: str) -> Propagation:
    """Return a column program with its operands."""
    columns = left.columns
    scale = [Node("", index=WEIGHT, wide=columns == 1)] if left.weight.scaled else []
    at, edge = 0, {}
    for _, width in left.data:
        edge[Node("edge", index=at, wide=width == columns)] = at
        at += width
    for number, read in ((WEIGHT, left.weight.by_edge), (ESTIMATE, left.weight.estimates)):
        if read:
            edge[Node("edge", index=number, wide=columns == 1)] = at
            at += 1
    return Propagation(
        program=left.program,
        result=left.result,
        columns=columns,
        src=_operands("src", stage.src, left, scale),
        dst=_operands("dst", stage.dst, left, scale),
        shared=len(left.shared),
        edge=edge,
        reduce=accumulator,
    )


def _operands(op: str, moved: Moved, left: ByColumn, behind: list[Node]) -> Operands:
    """Return the operands of one end, as the program has them, and those behind them."""
    known = {node.index: node for node in left.program.nodes if node.op == op}
    nodes = [known[i] for i in range(len(moved.values))] + [replace(node, op=op) for node in behind]
    return Operands(tuple(nodes), (*moved.widths, *[1] * len(behind)))
