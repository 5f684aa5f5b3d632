"""Reductions over a streamed graph's edges, an interval at a time: of rows, or of what a tape computes."""

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
from .columns import ColumnProgram
from .fused import run_tape
from .program import Stages
from .stages import Linear, Staged
from .tracing import SRC, attribute


class Sums(ABC):
    """The sum, mean or maximum of one layer's messages over a streamed graph's edges, forward and backward.

    grid: the graph's intervals and plans. width: columns of the reduced messages. source_widths: columns of
    each value that edges read at their sources. target_width: columns of the rows that destinations write in
    the backward, for edges to read. reads_rows: True if edges read the layer's input itself at sources.
    has_sources: True if edges read any values at sources. reads_sources: True if `to_sources` needs these
    values. keeps_sums: True if `backward` needs the reduced messages.
    """

    grid: Grid
    width: int
    source_widths: list[int]
    target_width: int
    reads_rows: bool
    has_sources = True
    reads_sources = True
    keeps_sums = False

    def __init__(self, layer: Stages, graph: StreamedGraph) -> None:
        self.layer, self.graph, self.accumulator = layer, graph, layer.accumulator

    @abstractmethod
    def scaled(self, end: str, values: list[Tensor], low: int, high: int) -> list[Tensor]:
        """Return what edges read at rows low .. high - 1 of their sources or destinations (``end``).

        values: what apply_edge computes for these rows. A normalised matrix's factors are multiplied in, or
        follow.
        """

    def shared(self) -> list[Tensor]:
        """Return the values that are the same for all edges."""
        return []

    @abstractmethod
    def forward(self, call: int, rows: Rows, near: list[Tensor], *, trains: bool) -> list[Tensor]:
        """Return the reduced messages of the edges of a call, [n, width], and further sums for `backward`.

        call: index of a plan of ``grid.forward``. rows: streamed operands of sources. near: operands of the call's
        interval of destinations. trains: whether a backward follows.
        """

    def joined(self, call: int, held: list[Tensor] | None, results: list[Tensor], ends: bool) -> list[Tensor]:
        """Return the results of `forward` for an interval's edges up to and including a call.

        held: for the edges before the call, or None. results: of the call. ends: it is the interval's last.
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
        """Return maxima, and sums over the edges that attain them. Rows without edges so far have -inf."""
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
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return the rows that destinations low .. high - 1 write for `to_sources`, and gradients of values.

        gradient: [n, width], of the reduced messages. kept: results of `forward`, the first only with
        keeps_sums. The gradients are of the values that edges read at destinations, [n, width] each, then of
        `shared`.
        """

    @abstractmethod
    def to_sources(self, call: int, rows: Rows, near: list[Tensor]) -> list[Tensor]:
        """Return the gradients of an interval's values of sources from the edges of a call.

        call: index of a plan of ``grid.backward``. rows: streamed rows of destinations. near: the interval's operands.
        """


class LinearSums(Sums):
    """Sums or means of rows of sources with a weight for each edge."""

    reads_sources = False

    def __init__(self, layer: Stages, stage: Staged, how: Linear, graph: StreamedGraph) -> None:
        super().__init__(layer, graph)
        self.width = self.target_width = stage.src.widths[0]
        self.source_widths = [self.width]
        own = how.weight == "" and layer.kind == "edges" and graph.part.slice.weight is not None
        names = ("weight",) if own else (how.weight,) if how.weight else ()
        self.grid = graph.grids.get(layer.kind, self.width, self.width, names)
        self._normalised = how.weight == "" and self.grid.scale is not None
        self.reads_rows = attribute(stage.src.values[0], SRC) and not self._normalised
        self._weights = self.grid.edge_values(names, weights=how.weight == "")

    def _times_scale(self, rows: Tensor, low: int, high: int, out: Tensor | None = None) -> Tensor:
        """Return rows low .. high - 1 times the factors of a normalised matrix, or the rows for other matrices."""
        if not self._normalised:
            return rows
        assert self.grid.scale is not None
        return torch.mul(rows, self.grid.scale[low:high, None].to(rows.dtype), out=out)

    def scaled(self, end: str, values: list[Tensor], low: int, high: int) -> list[Tensor]:
        return [self._times_scale(value, low, high) for value in values] if end == SRC else values

    def forward(self, call: int, rows: Rows, near: list[Tensor], *, trains: bool) -> list[Tensor]:
        low, high = self.grid.forward.calls[call]
        out = self._summed(self.grid.forward, self._weights[0], call, rows, self.accumulator)
        return [self._times_scale(out, low, high, out)]

    def _summed(
        self, direction: Direction, weights: list[Tensor] | None, call: int, rows: Rows, reduce: str
    ) -> Tensor:
        plan, backend = direction.plans[call], self.graph.backend
        # One buffer size for all intervals, of which the workspace keeps one.
        room = self.graph.workspace.rows(direction.largest, rows.format.dim, self.graph.dtype)
        out = room[: plan.destinations]
        edge = None if weights is None else as_array(weights[call].reshape(-1))
        backend.aggregate(plan, reduce, rows, as_array(out), edge=edge)
        return out

    def backward(
        self, low: int, high: int, gradient: Tensor, kept: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        gradient = self._times_scale(gradient, low, high)
        if self.accumulator == "mean":
            gradient = gradient * self.grid.inverse_degree[low:high, None].to(gradient.dtype)
        return [gradient], []

    def to_sources(self, call: int, rows: Rows, near: list[Tensor]) -> list[Tensor]:
        return [self._summed(self.grid.backward, self._weights[1], call, rows, "sum")]


class TapeSums(Sums):
    """Reductions of messages computed column by column. Raises InputError for those that cannot be streamed."""

    def __init__(
        self,
        layer: Stages,
        stage: Staged,
        columns: ColumnProgram,
        tensors: Sequence[Tensor],
        graph: StreamedGraph,
    ) -> None:
        super().__init__(layer, graph)
        self._tensors = tensors
        of = self.of = columns.propagation
        self.columns, self.keeps_sums, self.width = columns, of.reduce == "max", of.width
        targets = len(stage.dst.values)
        self._wrt = (*range(targets), *range(len(of.dst.nodes), len(of.dst.nodes) + of.shared))
        self._targets = targets
        if not of.by_target(self._wrt):
            raise InputError(
                f"{type(layer).__name__}: on a graph that is streamed, messages are computed column by column, without "
                "sums over columns and products of edge.dst by types, and a value of edge.dst needs as many columns as "
                "the message; widen it with expand(-1, columns), or open the graph without streaming"
            )
        maxima = of.reduce == "max"
        self.source_widths = list(of.src.widths)
        self.target_width = of.dst.places[-1] + of.width * (1 + maxima)
        self.has_sources = bool(stage.src.values)
        self.reads_rows = len(of.src.nodes) == 1 and self.has_sources and attribute(stage.src.values[0], SRC)
        kept = of.dst.places[-1] + of.width * (1 + len(self._wrt) + 2 * maxima)
        widest = max(of.src.places[-1], self.target_width, 1)
        by_edge = columns.weight.by_edge
        names = (*(name for name, _ in columns.data), *["weight"] * (by_edge and layer.kind == "edges"))
        self.grid = graph.grids.get(layer.kind, widest, max(kept, 2 * of.src.places[-1]), names)
        self._edges = self.grid.edge_values(names, weights=by_edge)
        if names and (names, columns.types) not in self.grid.checked:
            with mpi.agree(graph.comm):
                for values in self.grid.forward.data[names]:
                    columns.check_types(values)
            self.grid.checked.add((names, columns.types))

    def scaled(self, end: str, values: list[Tensor], low: int, high: int) -> list[Tensor]:
        if not self.columns.weight.scaled:
            return values
        assert self.grid.scale is not None
        return [*values, self.grid.scale[low:high, None].to(self.graph.dtype)]

    def shared(self) -> list[Tensor]:
        return self.columns.shared_values(self._tensors)

    def forward(self, call: int, rows: Rows, near: list[Tensor], *, trains: bool) -> list[Tensor]:
        made = self.of.forward(self._wrt if trains else (), trains=trains)
        return self._run(self.grid.forward, self._edges[0], call, made, rows, near)

    def _run(
        self,
        direction: Direction,
        edges: list[Tensor] | None,
        call: int,
        made: tuple[Tape, list[float]],
        rows: Rows,
        near: list[Tensor],
    ) -> list[Tensor]:
        edge = None if edges is None else (edges[call] if edges[call].dim() == 2 else edges[call][:, None])
        graph, plan = self.graph, direction.plans[call]
        return run_tape(graph.backend, graph.dtype, plan, made, rows, near, self.shared(), edge)

    def backward(
        self, low: int, high: int, gradient: Tensor, kept: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        inverse = self.grid.inverse_degree[low:high] if self.accumulator == "mean" else None
        published, products = self.of.backward(gradient, kept, inverse)
        shared = [each.sum(0) for each in products[self._targets :]]
        return published, products[: self._targets] + shared

    def to_sources(self, call: int, rows: Rows, near: list[Tensor]) -> list[Tensor]:
        made = self.of.gradients(SRC, tuple(range(len(near) - self.columns.weight.scaled)))
        return self._run(self.grid.backward, self._edges[1], call, made, rows, near)
