"""Sums over the edges of a graph that is streamed, an interval at a time: of rows, or by a tape (fused.py)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from ...errors import InputError
from ...runtime import mpi
from ...runtime.backends.arguments import Rows
from ...runtime.backends.tape import Tape
from ..streaming.graph import StreamedGraph
from ..streaming.planning import Direction, Grid
from ..streaming.sweep import added
from ..workspace import as_array
from .columns import ByColumn, check_types, of_parameters
from .fused import Propagation, per_edge, run_tape
from .program import Program, Stages
from .stages import Linear, Staged
from .tracing import SRC, attribute


class Sums(ABC):
    """Sums over the edges of one layer.

    grid: of the graph. width: of what is summed. source_widths: of the values that destinations read of sources, which
    lie beside each other. target_width: of the rows that sources read of destinations backward. reads_rows: whether the
    values of sources are the layer's input. has_sources: whether any are read. reads_sources: whether `to_sources`
    reads them. keeps_sums: whether `backward` needs the sums themselves.
    """

    grid: Grid
    width: int
    source_widths: list[int]
    target_width: int
    reads_rows: bool
    has_sources = True
    reads_sources = True
    keeps_sums = False

    def __init__(self, graph: StreamedGraph, accumulator: str) -> None:
        self.graph, self.accumulator = graph, accumulator

    @abstractmethod
    def scaled(self, end: str, values: list[Tensor], low: int, high: int) -> list[Tensor]:
        """Return what is read of rows low .. high - 1 of one end, of the values that moved there."""

    def shared(self, layer: Stages) -> list[Tensor]:
        """Return values that all edges share."""
        return []

    @abstractmethod
    def forward(
        self, call: int, rows: Rows, near: list[Tensor], shared: list[Tensor], trains: bool
    ) -> list[Tensor]:
        """Return the sums of a call [n, width], and what `backward` needs beside them.

        near: what is read of the destinations of the call's interval.
        """

    def joined(self, call: int, held: list[Tensor] | None, results: list[Tensor], ends: bool) -> list[Tensor]:
        """Return what `forward` gives of an interval's edges so far, of those before a call, and of its own.

        held: of those before, or None. ends: there are no further ones.
        """
        if self.accumulator == "max":
            return self._highest(call, held, results, ends)
        if self.accumulator == "mean":
            low, high = self.grid.forward.calls[call]
            degrees = self.grid.forward.degrees(call).to(self.graph.device)
            share = degrees[:, None] * self.grid.inverse_degree[low:high, None]
            results = [each * share.to(each.dtype) for each in results]
        return added(call, held, results, ends)

    def _highest(
        self, call: int, held: list[Tensor] | None, results: list[Tensor], ends: bool
    ) -> list[Tensor]:
        """Return maxima, and what is summed of the edges that reach them. Rows without edges so far have -inf."""
        forward = self.grid.forward
        none = forward.degrees(call).to(self.graph.device)[:, None] == 0
        highest, sums = results[0].masked_fill(none, -torch.inf), results[1:]
        if held is not None:
            before, own = held[0], highest
            highest = torch.maximum(before, own)
            sums = [
                one * (before == highest) + other * (own == highest)
                for one, other in zip(held[1:], sums, strict=True)
            ]
        if ends:  # rows without any edges have 0, and others may have -inf
            every = [other for other, of in enumerate(forward.of) if of == forward.of[call]]
            edges = sum((forward.degrees(each) for each in every[1:]), forward.degrees(every[0]))
            highest = highest.masked_fill(edges.to(self.graph.device)[:, None] == 0, 0)
        return [highest, *sums]

    @abstractmethod
    def backward(
        self, low: int, high: int, gradient: Tensor, kept: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Return the gradients that edges take of rows low .. high - 1, those of their operands, and of shared ones."""

    @abstractmethod
    def to_sources(self, call: int, rows: Rows, near: list[Tensor], shared: list[Tensor]) -> list[Tensor]:
        """Return the gradients that a call gives to its interval's values of sources, from rows of destinations."""


def sums_of(layer: Stages, program: Program, graph: StreamedGraph) -> Sums:
    """Return what runs over the edges of a layer. Collective at first. Raises InputError for what is not streamed."""
    assert program.staged is not None
    if program.linear is not None:
        return _Linear(layer, program.staged, program.linear, graph)
    assert program.left is not None and program.propagation is not None
    return _Tape(layer, program.staged, program.left, program.propagation, graph)


class _Linear(Sums):
    """Sums or means of sources' rows, with a weight for each edge."""

    reads_sources = False

    def __init__(self, layer: Stages, stage: Staged, how: Linear, graph: StreamedGraph) -> None:
        super().__init__(graph, layer.accumulator)
        self.width = self.target_width = stage.src.widths[0]
        self.source_widths = [self.width]
        own = how.weight == "" and layer.kind == "edges" and graph.part.slice.weight is not None
        names = ("weight",) if own else (how.weight,) if how.weight else ()
        self.grid = graph.grid(layer.kind, self.width, self.width, names)
        self._normalised = how.weight == "" and self.grid.scale is not None
        self.reads_rows = attribute(stage.src.values[0], SRC) and not self._normalised
        self._weights: tuple[list[Tensor] | None, list[Tensor] | None] = None, None
        if names:
            self._weights = self.grid.forward.data[names], self.grid.backward.data[names]
        elif how.weight == "":
            self._weights = self.grid.forward.weights, self.grid.backward.weights

    def scaled(self, end: str, values: list[Tensor], low: int, high: int) -> list[Tensor]:
        if self._normalised and end == SRC:
            assert self.grid.scale is not None
            return [value * self.grid.scale[low:high, None].to(value.dtype) for value in values]
        return values

    def forward(
        self, call: int, rows: Rows, near: list[Tensor], shared: list[Tensor], trains: bool
    ) -> list[Tensor]:
        low, high = self.grid.forward.calls[call]
        out = self._summed(self.grid.forward, self._weights[0], call, rows, self.accumulator)
        if self._normalised:
            assert self.grid.scale is not None
            out.mul_(self.grid.scale[low:high, None].to(out.dtype))
        return [out]

    def _summed(
        self, direction: Direction, weights: list[Tensor] | None, call: int, rows: Rows, reduce: str
    ) -> Tensor:
        plan, backend = direction.plans[call], self.graph.backend
        # One buffer for all intervals: those of another number of rows would be kept beside it.
        room = self.graph.workspace.rows(direction.largest, rows.format.dim, self.graph.dtype)
        out = room[: plan.destinations]
        edge = None if weights is None else as_array(weights[call].reshape(-1))
        op = "copy" if edge is None else "mul"
        backend.aggregate(plan, op, reduce, rows, as_array(out), edge=edge)
        return out

    def backward(
        self, low: int, high: int, gradient: Tensor, kept: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        if self._normalised:
            assert self.grid.scale is not None
            gradient = gradient * self.grid.scale[low:high, None].to(gradient.dtype)
        if self.accumulator == "mean":
            gradient = gradient * self.grid.inverse_degree[low:high, None].to(gradient.dtype)
        return [gradient], [], []

    def to_sources(self, call: int, rows: Rows, near: list[Tensor], shared: list[Tensor]) -> list[Tensor]:
        return [self._summed(self.grid.backward, self._weights[1], call, rows, "sum")]


class _Tape(Sums):
    """Messages that are computed column by column."""

    def __init__(
        self, layer: Stages, stage: Staged, left: ByColumn, of: Propagation, graph: StreamedGraph
    ) -> None:
        super().__init__(graph, layer.accumulator)
        self.of, self.left, self.keeps_sums = of, left, of.reduce == "max"
        self.width = of.width
        self._wrt = tuple(range(len(stage.dst.values))) + tuple(
            len(of.dst.nodes) + i for i in range(of.shared)
        )
        if not of.by_target(self._wrt):
            raise InputError(
                f"{type(layer).__name__}: on a graph that is streamed, messages are computed column by column, without "
                "sums over columns and products of edge.dst by types, and a value of edge.dst needs as many columns as "
                "the message; widen it with expand(-1, columns), or open the graph without streaming"
            )
        self.source_widths, self.target_width = list(of.src.widths), of.dst.places[-1] + of.width
        if of.reduce == "max":
            self.target_width += of.width
        self.has_sources = bool(stage.src.values)
        self.reads_rows = (
            len(of.src.nodes) == 1 and bool(stage.src.values) and attribute(stage.src.values[0], SRC)
        )
        kept = of.dst.places[-1] + of.width * (1 + len(self._wrt) + 2 * (of.reduce == "max"))
        of_sources = of.src.places[-1]
        widest = max(of_sources, self.target_width, 1)
        named = left.weight.by_edge and layer.kind == "edges"
        names = (*(name for name, _ in left.data), *(["weight"] if named else []))
        self.grid = graph.grid(layer.kind, widest, max(kept, 2 * of_sources), names)
        self._edges: tuple[list[Tensor] | None, list[Tensor] | None] = None, None
        if names:
            self._edges = self.grid.forward.data[names], self.grid.backward.data[names]
            self._check_types(names)
        elif left.weight.by_edge:
            self._edges = self.grid.forward.weights, self.grid.backward.weights

    def scaled(self, end: str, values: list[Tensor], low: int, high: int) -> list[Tensor]:
        if not self.left.weight.scaled:
            return values
        assert self.grid.scale is not None
        return [*values, self.grid.scale[low:high, None].to(self.graph.dtype)]

    def _check_types(self, names: tuple[str, ...]) -> None:
        """Raise InputError, the same on all ranks, where types of edges are none; they are looked at once."""
        if (names, self.left.types) not in self.grid.checked:
            with mpi.agree(self.graph.comm):
                for values in self.grid.forward.data[names]:
                    check_types(self.left, values)
            self.grid.checked.add((names, self.left.types))

    def shared(self, layer: Stages) -> list[Tensor]:
        return [value.expand(self.left.columns) for value in of_parameters(self.left.shared, layer)]

    def forward(
        self, call: int, rows: Rows, near: list[Tensor], shared: list[Tensor], trains: bool
    ) -> list[Tensor]:
        wrt = self._wrt if trains else ()
        made = self.of.maximum() if self.of.reduce == "max" and trains and not wrt else self.of.forward(wrt)
        return self._run(self.grid.forward, self._edges[0], call, made, rows, near, shared)

    def _run(
        self,
        direction: Direction,
        edges: list[Tensor] | None,
        call: int,
        made: tuple[Tape, list[float]],
        rows: Rows,
        near: list[Tensor],
        shared: list[Tensor],
    ) -> list[Tensor]:
        edge = None if edges is None else (edges[call] if edges[call].dim() == 2 else edges[call][:, None])
        graph = self.graph
        plan = direction.plans[call]
        return run_tape(graph.backend, graph.dtype, plan, made, rows, near, shared, edge)

    def backward(
        self, low: int, high: int, gradient: Tensor, kept: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        inverse = self.grid.inverse_degree[low:high] if self.accumulator == "mean" else None
        edges = per_edge(self.of, gradient, kept, inverse)
        derivatives = kept[2:] if self.of.reduce == "max" else kept
        seed = gradient if self.accumulator == "mean" else edges[0]
        products = [seed * each for each in derivatives]
        targets = sum(1 for i in self._wrt if i < len(self.of.dst.nodes))
        return edges, products[:targets], [each.sum(0) for each in products[targets:]]

    def to_sources(self, call: int, rows: Rows, near: list[Tensor], shared: list[Tensor]) -> list[Tensor]:
        wrt = tuple(range(len(near) - bool(self.left.weight.scaled)))
        return self._run(
            self.grid.backward, self._edges[1], call, self.of.to_sources(wrt), rows, near, shared
        )
