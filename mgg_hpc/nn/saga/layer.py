"""Layers of one's own as programs on vertices and edges (NGra, section 2: SAGA-NN)."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ...plan.workload import Plan
from ..autograd.functional import as_rows
from ..graph.matrix import Adjacency, EdgeValues
from ..graph.view import GraphView
from ..inputs.host import Input
from ..streaming.graph import StreamedGraph
from ..streaming.rows import StreamedRows
from . import edge_tensors, streamed
from .columns import ByColumn, WeightParts, by_column, of_parameters
from .compiling import TooLargeError
from .explaining import explained
from .fused import Call, propagate
from .gathering import Examples, data_shape, edge_columns, propagation, summed, weight_parts
from .operators import NotByColumnError
from .program import Program, Stages
from .stages import Staged, at_vertices, linear, staged
from .tracing import DST, SRC, NotTraceableError, data_names, traced

ACCUMULATORS = ("sum", "mean", "max", "concat")
KINDS = ("edges", "gcn")


class Layer(Stages):
    """A layer in four stages: Scatter, `apply_edge`, Gather and `apply_vertex`, called as ``layer(x, graph)``.

    Subclasses write the second and the fourth in torch; Scatter, Gather and all gradients are the system's, on any
    number of ranks. What of `apply_edge` depends on one end of an edge only is computed once for each vertex. If the
    rest is computed column by column, an edge's values never reach memory; if not, each edge has a row in memory.
    `explain` shows which. A layer is collective, as its backward pass is.

    accumulator: how Gather reduces the messages of a vertex's in-edges: "sum", "mean", "max" (0 without edges), or
    "concat" in the order of the graph, where each vertex has ``in_degree`` of them.
    kind: of the adjacency: "edges", the graph's own, or "gcn", with self loops and normalised weights.
    fuse: False has a row for each edge in memory in any case, for comparison.

    >>> class GatedGCN(mgg.nn.saga.Layer):
    ...     def __init__(self, channels):
    ...         super().__init__()
    ...         self.near, self.far = torch.nn.Linear(channels, channels), torch.nn.Linear(channels, channels)
    ...
    ...     def apply_edge(self, edge):
    ...         return torch.sigmoid(self.far(edge.src) + self.near(edge.dst)) * edge.src
    ...
    ...     def apply_vertex(self, vertex, accum):
    ...         return torch.relu(accum)
    """

    def __init__(self) -> None:
        super().__init__()
        self._programs: dict[tuple[Any, ...], Program] = {}  # the one of the last call is last
        self._names: dict[tuple[Any, ...], tuple[str, ...]] = {}  # of the data of edges that programs read
        self._kept: WeakKeyDictionary[Plan, dict[Any, EdgeValues]] = WeakKeyDictionary()

    def forward(self, x: Input, graph: GraphView) -> Tensor:
        """Return the layer's output for this rank's rows x [n, F]. Collective.

        Attributes that are no tensors are read when the layer first runs on rows of a width, in training or not.
        Raises ValueError for an accumulator that is none, and data of edges that the graph has not.
        """
        if isinstance(x, StreamedRows):
            if not isinstance(graph, StreamedGraph):
                raise TypeError("rows of a graph that is streamed, with another graph")
            with self.on(graph.block(0, 0)):
                program = self._program(self.enter(x.example(graph.dtype)), graph)
            return streamed.applied(self, program, x, graph)
        rows = as_rows(x, graph)
        with self.on(graph):
            entered = self.enter(rows)
            program = self._program(entered, graph)
            accum = self._gathered(entered, graph, program)
            return self.apply_vertex(rows[: graph.destinations], accum)

    def explain(self, x: Tensor | None = None, graph: GraphView | None = None) -> str:
        """Return the program as it is written and as it runs, and why; for the last call, or for x and a graph."""
        if x is not None and graph is not None:
            return explained(self, self._program(as_rows(x, graph), graph))
        if not self._programs:
            raise ValueError("explain: call the layer first, or give rows and a graph")
        return explained(self, list(self._programs.values())[-1])

    # ---- how it runs

    def _program(self, x: Tensor, graph: GraphView) -> Program:
        if self.accumulator not in ACCUMULATORS:
            raise ValueError(f"accumulator is {self.accumulator!r}; known are {', '.join(ACCUMULATORS)}")
        if self.kind not in KINDS:
            raise ValueError(f"kind is {self.kind!r}; known are {', '.join(KINDS)}")
        parts = weight_parts(graph, self.kind, self.accumulator)
        streams = isinstance(graph, StreamedGraph)
        key = x.shape[1], x.dtype, self.training, parts, self.accumulator, self.kind, self.fuse, streams
        program = self._programs.pop(self._with_shapes(key, graph), None)
        if program is None:
            program = self._planned(x, graph, parts)
            self._names[key] = program.traced.names if program.traced else ()
        self._programs[self._with_shapes(key, graph)] = program
        return program

    def _with_shapes(self, key: tuple[Any, ...], graph: GraphView) -> tuple[Any, ...]:
        """Return a key with the shapes of the data of edges that its programs read, which graphs may differ in."""
        return key, *(data_shape(graph, name) for name in self._names.get(key, ()))

    def _planned(self, x: Tensor, graph: GraphView, parts: WeightParts) -> Program:
        try:
            operations = traced(self, x, Examples(graph))
        except NotTraceableError as error:
            return Program(str(error))
        stage = staged(operations, self)
        # A maximum of rows has kernels of its own, which streaming does without.
        streams = isinstance(graph, StreamedGraph)
        reduces = self.accumulator in (("sum", "mean") if streams else ("sum", "mean", "max"))
        sums = linear(stage, self, self.accumulator) if reduces else None
        if sums is not None and self.fuse:
            return Program("", operations, stage, linear=sums)
        try:
            left = self._left(stage, x.dtype, parts)
            made = propagation(stage, left, self.accumulator)
            made.to_sources(tuple(range(len(stage.src.values))))  # raises TooLargeError now, if at all
        except NotByColumnError as error:
            return Program(str(error), operations, stage)
        except TooLargeError:
            return Program("more values are needed at once than a tape holds", operations, stage)
        return Program("", operations, stage, left=left, propagation=made)

    def _left(self, stage: Staged, dtype: torch.dtype, parts: WeightParts) -> ByColumn:
        """Return what is left on the edges. Raises NotByColumnError with the reason where it has tensors."""
        if not self.fuse:
            raise NotByColumnError("fuse is False")
        if self.accumulator == "concat":
            raise NotByColumnError("'concat' keeps the message of each edge")
        if self.accumulator == "max" and dtype.itemsize == 2:
            raise NotByColumnError("maxima of what is computed from half rows cannot be found again exactly")
        left = by_column(stage, self, parts)
        if self.accumulator == "max" and not left.program.nodes[left.result].wide:
            raise NotByColumnError("a maximum of sums over columns is not compared by column")
        return left

    def _gathered(self, x: Tensor, graph: GraphView, program: Program) -> Tensor:
        """Return what destinations gather, [n, F']."""
        if program.reason:
            names = data_names(self) if program.traced is None else program.traced.names
            edge, target = edge_tensors.edges_of(x, graph, graph.adjacency(self.kind), names)
            messages = self.apply_edge(edge)
            return edge_tensors.gathered(
                messages, target, graph.destinations, self.accumulator, self.in_degree
            )
        assert program.staged is not None
        src = at_vertices(program.staged, SRC, self, x)
        if program.linear is not None:
            return summed(src[0], graph, self.kind, program.linear, self.accumulator)
        assert program.left is not None and program.propagation is not None
        dst = at_vertices(program.staged, DST, self, x[: graph.destinations])
        named = program.left.data or (program.left.weight.by_edge and self.kind == "edges")
        adjacency = graph.adjacency(self.kind, ordered=bool(named))
        values = self._values(graph, adjacency, program.left)
        if program.left.weight.scaled:
            assert adjacency.scale is not None
            scale = adjacency.scale[:, None]
            src, dst = [*src, scale], [*dst, scale[: graph.destinations]]
        shared = [value.expand(program.left.columns) for value in of_parameters(program.left.shared, self)]
        call = Call(program.propagation, graph, adjacency, values, torch.is_grad_enabled())
        return propagate(call, src, dst, shared)

    def _values(self, graph: GraphView, adjacency: Adjacency, left: ByColumn) -> EdgeValues | None:
        """Return the data of edges that their messages read, [E, D], kept for the next call."""
        if not (left.data or left.weight.by_edge or left.weight.estimates):
            return None
        kept = self._kept.setdefault(adjacency.forward, {})
        key = tuple(left.data), left.weight
        if key not in kept:
            kept[key] = edge_columns(graph, adjacency, left)
        return kept[key]
