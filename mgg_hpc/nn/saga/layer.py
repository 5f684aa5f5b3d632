"""Layers that users write as programs on vertices and edges (NGra, section 2: SAGA-NN)."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ...plan.workload import Plan
from ..autograd.functional import as_rows
from ..calls import layer_call
from ..graph.matrix import EdgeValues
from ..graph.view import GraphView
from ..inputs.host import Input
from ..streaming.graph import BlockView, StreamedGraph
from ..streaming.rows import StreamedRows
from . import gathering, streamed
from .columns import ColumnProgram, WeightParts, by_column
from .effects import DependsError, without_draws
from .examples import exemplify, misfit
from .expression import TooLargeError
from .fused import Call, Propagate
from .operators import NotByColumnError
from .program import Program, Stages, explained
from .stages import Staged, at_vertices, linear, staged
from .tracing import DST, SRC, NotTraceableError, Traced, traced

ACCUMULATORS = ("sum", "mean", "max", "concat")
KINDS = ("edges", "gcn")
PROGRAMS = 8  # number of programs that a layer keeps


class Layer(Stages):
    """A layer in four stages: Scatter, `apply_edge`, Gather and `apply_vertex`, called as ``layer(x, graph)``.

    Subclasses write the second and the fourth in torch; Scatter, Gather and all gradients are provided, on any number
    of ranks. Operations of `apply_edge` that depend on one end of an edge only are computed once for each vertex. If
    the others work column by column, values of edges are never stored; else each edge has a row in memory. `explain`
    shows which. A layer is collective, as its backward pass is.

    accumulator: how Gather reduces the messages of a vertex's in-edges: "sum", "mean", "max" (0 without edges), or
    "concat" in the order of the graph's edges, of which each vertex has ``in_degree``.
    kind: of the adjacency: "edges", the graph's own, or "gcn", with self loops and normalised weights.
    fuse: False stores a row for each edge in any case, for comparison.

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

    streams = True

    def __init__(self) -> None:
        super().__init__()
        self._programs: dict[tuple[Any, ...], Program] = {}  # the last call's is the last
        self._kept: WeakKeyDictionary[Plan, dict[Any, EdgeValues | None]] = WeakKeyDictionary()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_programs", "_kept")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._programs, self._kept = {}, WeakKeyDictionary()

    @layer_call
    def forward(self, x: Input, graph: GraphView) -> Tensor:
        """Return the layer's output for this rank's rows x [n, F]. Collective.

        `apply_edge` runs once in each call, with the layer's attributes as they are. Raises ValueError for an unknown
        accumulator or kind, and if `apply_edge` draws random numbers; ValueError or InputError for unknown edge data.
        """
        if isinstance(x, StreamedRows):
            assert isinstance(graph, StreamedGraph)  # `layer_call` has compared them
            with self.on(BlockView(graph, 0, 0)):
                program, found = self._program(self.enter(x.example(graph.dtype)), graph)
            return streamed.applied(self, program, found.tensors if found else [], x, graph)
        rows = as_rows(x, graph)
        with self.on(graph):
            entered = self.enter(rows)
            accum = self._gathered(entered, graph, *self._program(entered, graph))
            out = self.apply_vertex(rows[: graph.destinations], accum)
            # The backward of a maximum reads it, and the caller may change what it gets in place.
            return out.clone() if self.accumulator == "max" and _shares(out, accum) else out

    def explain(self, x: Tensor | None = None, graph: GraphView | None = None) -> str:
        """Return the program as text: as it is written, as it runs, and why; of the last call, or for x and a graph."""
        if x is not None and graph is not None:
            return explained(self, self._program(as_rows(x, graph), graph)[0])
        if not self._programs:
            raise ValueError("explain: call the layer first, or give rows and a graph")
        return explained(self, list(self._programs.values())[-1])

    # ---- how it runs

    def _program(self, x: Tensor, graph: GraphView) -> tuple[Program, Traced | None]:
        """Trace `apply_edge`, and return the program that runs, with the trace.

        The trace is None if `apply_edge` cannot be traced, as when what it does depends on values of edges.
        """
        if self.accumulator not in ACCUMULATORS:
            raise ValueError(f"accumulator is {self.accumulator!r}; known are {', '.join(ACCUMULATORS)}")
        if self.kind not in KINDS:
            raise ValueError(f"kind is {self.kind!r}; known are {', '.join(KINDS)}")
        parts = gathering.weight_parts(graph, self.kind, self.accumulator)
        streams = isinstance(graph, StreamedGraph)
        key: tuple[Any, ...] = x.shape[1], x.dtype, parts, self.accumulator, self.kind, self.fuse, streams
        found: Traced | None = None
        program = self._programs.pop(key, None)  # one that cannot be traced
        if program is None:
            try:
                found = traced(self, x.device, gathering.data_names(graph))
                shapes = [gathering.data_shape(graph, name) for name in found.names]
                key = *key, found.signature, *shapes
                program = self._programs.pop(key, None) or self._planned(found, x, graph, parts)
            except NotTraceableError as error:
                program = Program(str(error))
        self._programs[key] = program
        if len(self._programs) > PROGRAMS:
            del self._programs[next(iter(self._programs))]
        return program, found

    def _planned(self, found: Traced, x: Tensor, graph: GraphView, parts: WeightParts) -> Program:
        if exemplify(found, self, x, lambda edges: gathering.edge_data(graph, edges)):
            if graph.ranks > 1:
                raise DependsError
            raise NotTraceableError("a message depends on other edges")
        stage = staged(found)
        # A maximum of rows has kernels of its own, but not on streamed graphs.
        streams = isinstance(graph, StreamedGraph)
        reduces = self.accumulator in (("sum", "mean") if streams else ("sum", "mean", "max"))
        sums = linear(stage, self.accumulator) if reduces else None
        if sums is not None and self.fuse:
            return Program("", stage, linear=sums)
        try:
            columns = self._columns(stage, x.dtype, parts)
            # Raises TooLargeError now, if at all.
            columns.propagation.gradients(SRC, tuple(range(len(stage.src.values))))
        except NotByColumnError as error:
            return Program(str(error), stage)
        except TooLargeError:
            return Program("more values are needed at once than a tape holds", stage)
        return Program("", stage, columns=columns)

    def _columns(self, stage: Staged, dtype: torch.dtype, parts: WeightParts) -> ColumnProgram:
        """Return the program, run column by column, of the operations that must be computed for each edge.

        Raises NotByColumnError if each edge needs a row in memory instead.
        """
        if not self.fuse:
            raise NotByColumnError("fuse is False")
        if self.accumulator == "concat":
            raise NotByColumnError("'concat' keeps the message of each edge")
        if self.accumulator == "max" and dtype.itemsize == 2:
            raise NotByColumnError("maxima of what is computed from half rows cannot be found again exactly")
        made = by_column(stage, parts, self.accumulator)
        if self.accumulator == "max" and not made.propagation.program.nodes[made.propagation.result].wide:
            raise NotByColumnError("a maximum of sums over columns is not compared by column")
        return made

    def _gathered(self, x: Tensor, graph: GraphView, program: Program, found: Traced | None) -> Tensor:
        """Return the reduced messages of destinations, [n, F']."""
        if program.reason:
            adjacency = graph.adjacency(self.kind)
            edge, target = gathering.edges_of(x, graph, adjacency)
            with without_draws(x.device, ranks=graph.ranks):
                messages = found.messages(edge) if found else self.apply_edge(edge)
            if wrong := misfit(messages, len(target)):
                raise ValueError(f"{type(self).__name__}: {wrong}")
            return gathering.gathered(messages, target, graph.destinations, self.accumulator, self.in_degree)
        assert program.staged is not None and found is not None
        src = at_vertices(program.staged, SRC, found.tensors, x)
        if program.linear is not None:
            return gathering.summed(src[0], graph, self.kind, program.linear, self.accumulator)
        assert program.columns is not None
        dst = at_vertices(program.staged, DST, found.tensors, x[: graph.destinations])
        columns = program.columns
        named = columns.data or (columns.weight.by_edge and self.kind == "edges")
        adjacency = graph.adjacency(self.kind, ordered=bool(named))
        if columns.weight.scaled:
            assert adjacency.scale is not None
            scale = adjacency.scale[:, None]
            src, dst = [*src, scale], [*dst, scale[: graph.destinations]]
        kept = self._kept.setdefault(adjacency.forward, {})  # edge data for the next call
        key = columns.data, columns.weight, columns.types
        if key not in kept:
            kept[key] = gathering.edge_columns(graph, adjacency, columns)
        call = Call(columns.propagation, graph, adjacency, kept[key], torch.is_grad_enabled())
        out: Tensor = Propagate.apply(call, *src, *dst, *columns.shared_values(found.tensors))
        return out


def _shares(out: Any, accum: Tensor) -> bool:
    """Return whether a value has the memory of ``accum``."""
    return isinstance(out, Tensor) and out.untyped_storage().data_ptr() == accum.untyped_storage().data_ptr()
