"""The stages that a layer's author writes, the program that they become, and its text."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from ..graph.view import GraphView
from .columns import ColumnProgram
from .operators import name_of
from .stages import Linear, Staged, computed
from .tracing import Edge, attribute, is_data, reads_vertex


class Stages(torch.nn.Module):
    """The stages of a layer as they are written; see `Layer`.

    rows: the view whose rows a stage of vertices is computing: all rows of a rank, or a block of them. Dropout takes it
    as its graph. enters: whether `enter` changes rows.
    """

    accumulator = "sum"
    in_degree: int | None = None
    kind = "edges"
    fuse = True
    rows: GraphView
    enters = False

    def apply_edge(self, edge: Edge) -> Tensor:
        """Return the messages of edges, [E, F']. [default: edge.src]"""
        return edge.src

    @contextmanager
    def on(self, rows: GraphView) -> Iterator[None]:
        """Set ``rows`` within a block."""
        self.rows = rows
        try:
            yield
        finally:
            del self.rows

    def enter(self, x: Tensor) -> Tensor:
        """Return the rows [n, F'] that edges read, for rows x [n, F]. [default: x]"""
        return x

    def reads_vertex(self) -> bool:
        """Return whether `apply_vertex` reads the rows of vertices."""
        return reads_vertex(self)

    @abstractmethod
    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        """Return the new rows of vertices [n, F''], for their rows [n, F] and their reduced messages [n, F']."""


@dataclass(frozen=True)
class Program:
    """How a layer runs.

    reason: why each edge has a row in memory, or "". staged: its operations, or None if it cannot be traced. linear:
    the sum of rows that it is, or None. columns: the computation of each edge, or None with rows of edges in memory
    and for sums of rows.
    """

    reason: str
    staged: Staged | None = None
    linear: Linear | None = None
    columns: ColumnProgram | None = None


def explained(layer: Stages, program: Program) -> str:
    """Return a layer's program as text, one stage a line, as it is written and as it runs, with the reason."""
    edge = ["  ApplyEdge    (not seen)"]
    if program.staged is not None:
        edge = _listed("ApplyEdge", list(program.staged.traced.graph.nodes))
    return "\n".join(
        [
            f"{type(layer).__name__}, as it is written:",
            "  Scatter      rows of both ends to each edge",
            *edge,
            f"  Gather       {layer.accumulator} over in-edges",
            "  ApplyVertex  as it is written",
            "as it runs:",
            *_running(layer.accumulator, program),
            "  ApplyVertex  as it is written",
        ]
    )


def _running(accumulator: str, program: Program) -> list[str]:
    """Return the lines of the stages before ApplyVertex, as they run."""
    if program.reason or program.staged is None:
        return [
            "  Scatter, ApplyEdge and Gather with a row for each edge in memory,",
            f"    because {program.reason}",
        ]
    lines = []
    for end, moved in (("sources", program.staged.src), ("targets", program.staged.dst)):
        nodes = computed(program.staged.traced, moved.values)
        if any(map(_is_operation, nodes)):
            lines += _listed(f"at {end}", nodes)
    if program.linear is not None:
        weights = {None: "", "": ", times the weights of edges"}.get(
            program.linear.weight, f", times {program.linear.weight!r} of edges"
        )
        return [
            *lines,
            f"  Gather       {accumulator} of sources' rows{weights}: the fused aggregation",
        ]
    assert program.columns is not None
    tape, _ = program.columns.propagation.forward((), trains=False)
    return [
        *lines,
        *_listed("propagation", program.staged.left),
        f"               then {accumulator} over in-edges: one pass, {len(tape.steps)} operators over "
        f"{tape.columns} columns, no tensor of edges",
    ]


def _listed(stage: str, nodes: list[fx.Node]) -> list[str]:
    lines = [f"{node.name} = {_called(node)}" for node in nodes if _is_operation(node)] or ["edge.src"]
    return [f"  {stage if not i else '':12} {line}" for i, line in enumerate(lines)]


def _is_operation(node: fx.Node) -> bool:
    """Return whether a node is an operation, not an operand."""
    return node.op in ("call_function", "call_method") and _operand(node) is None


def _operand(node: Any) -> str | None:
    """Return the text of an attribute of the edge; None for other nodes."""
    for name in ("src", "dst", "data", "weight"):
        if attribute(node, name):
            return f"edge.{name}"
    return f"edge.data[{node.args[1]!r}]" if is_data(node) else None


def _called(node: fx.Node) -> str:
    args = [_argument(arg) for arg in node.args]
    args += [f"{key}={_argument(value)}" for key, value in node.kwargs.items()]
    return f"{name_of(node)}({', '.join(args)})"


def _argument(arg: Any) -> str:
    if not isinstance(arg, fx.Node):
        return repr(arg)
    return _operand(arg) or (str(arg.meta["label"]) if arg.op == "get_attr" else arg.name)
