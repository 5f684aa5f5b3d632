"""Programs as text: as they are written, and as they run."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from .operators import name_of, typed_linear
from .program import Program, Stages
from .stages import Moved, Staged
from .tracing import attribute, is_data


def explained(layer: Stages, program: Program) -> str:
    """Return a layer's program as it is written and as it runs, a stage a line, and why it runs so."""
    lines = [f"{type(layer).__name__}, as it is written:", "  Scatter      rows of both ends to each edge"]
    if program.traced is None:
        lines += ["  ApplyEdge    (not seen)"]
    else:
        lines += _listed("ApplyEdge", [n for n in program.traced.graph.nodes if _is_work(n)], layer)
    lines += [
        f"  Gather       {layer.accumulator} over in-edges",
        "  ApplyVertex  as it is written",
        "as it runs:",
    ]
    if program.staged is not None and not program.reason:
        lines += _moved("sources", program.staged.src, program.staged, layer)
        lines += _moved("targets", program.staged.dst, program.staged, layer)
    lines += _edges(layer, program)
    return "\n".join([*lines, "  ApplyVertex  as it is written"])


def _edges(layer: Stages, program: Program) -> list[str]:
    """Return how the edges' part runs."""
    if program.reason:
        return [
            "  Scatter, ApplyEdge and Gather with a row for each edge in memory,",
            f"    because {program.reason}",
        ]
    assert program.staged is not None
    if program.linear is not None:
        weights = {None: "", "": ", times the weights of edges"}.get(
            program.linear.weight, f", times {program.linear.weight!r} of edges"
        )
        return [f"  Gather       {layer.accumulator} of sources' rows{weights}: the fused aggregation"]
    assert program.propagation is not None
    tape, _ = program.propagation.forward(())
    work = _listed("propagation", program.staged.left, layer)
    return [
        *work,
        f"               then {layer.accumulator} over in-edges: one pass, {len(tape.steps)} operators over "
        f"{tape.columns} columns, no tensor of edges",
    ]


def _moved(end: str, moved: Moved, stage: Staged, layer: torch.nn.Module) -> list[str]:
    """Return what is computed once for each vertex of one end."""
    work: dict[fx.Node, None] = {}
    open_nodes = list(moved.values)
    while open_nodes:
        node = open_nodes.pop()
        if node not in work:
            work[node] = None
            open_nodes += [n for n in node.all_input_nodes if n.meta["ends"]]
    nodes = [node for node in stage.traced.graph.nodes if node in work and _is_work(node)]
    return _listed(f"at {end}", nodes, layer) if nodes else []


def _listed(stage: str, nodes: list[fx.Node], layer: torch.nn.Module) -> list[str]:
    lines = [f"{node.name} = {_called(node, layer)}" for node in nodes if _is_work(node)] or ["edge.src"]
    return [f"  {stage if not i else '':12} {line}" for i, line in enumerate(lines)]


def _is_work(node: fx.Node) -> bool:
    """Return whether a node is an operation, and not an operand."""
    operand = any(attribute(node, name) for name in ("src", "dst", "data", "weight")) or is_data(node)
    return node.op in ("call_function", "call_method", "call_module") and not operand


def _called(node: fx.Node, layer: torch.nn.Module) -> str:
    name = str(node.target) if node.op == "call_module" else name_of(node, layer)
    if node.target is typed_linear:
        name = "typed_linear"
    args = [_argument(arg) for arg in node.args]
    args += [f"{key}={_argument(value)}" for key, value in node.kwargs.items()]
    return f"{name}({', '.join(args)})"


def _argument(arg: Any) -> str:
    if not isinstance(arg, fx.Node):
        return repr(arg)
    for name in ("src", "dst", "data", "weight"):
        if attribute(arg, name):
            return f"edge.{name}"
    if is_data(arg):
        return f"edge.data[{arg.args[1]!r}]"
    return str(arg.target) if arg.op == "get_attr" else arg.name
