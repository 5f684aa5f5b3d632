"""ApplyEdge as a graph of operations (torch.fx), and the ends of an edge that each operation depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, fx

EDGES = 7  # number of edges of the example by which shapes are found

SRC, DST, DATA = "src", "dst", "data"


@dataclass(frozen=True)
class Edge:
    """Argument of `Layer.apply_edge`: values of edges, one row per edge.

    src, dst: rows of x at the sources and destinations of the edges, [E, F]. data: edge data by name, as in the graph
    file: [E] or [E, D]. weight: [E, 1], the weights of the layer's adjacency: with kind "gcn" of the normalised
    matrix, with "edges" the graph's own, or ones.
    """

    src: Tensor
    dst: Tensor
    data: Mapping[str, Tensor]
    weight: Tensor


class NotTraceableError(Exception):
    """An ApplyEdge that is no graph of operations; its text is the reason. names: of the edge data known to be read."""

    def __init__(self, reason: str, names: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.names = names


@dataclass(frozen=True)
class Traced:
    """The operations of an ApplyEdge.

    Each node of ``graph`` has in ``meta``: "ends", the frozenset of SRC, DST and DATA that it depends on, and "shape",
    the shape of its value for EDGES edges, or None if it is no tensor. names: names of the edge data that are read.
    """

    graph: fx.Graph
    names: tuple[str, ...]

    @property
    def result(self) -> fx.Node:
        """The message of an edge."""
        (value,) = self.graph.output_node().args
        assert isinstance(value, fx.Node)
        return value


class _Example(fx.Interpreter):
    """Runs the operations on an example, and stores the shapes of their values."""

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        n.meta["shape"] = tuple(value.shape) if isinstance(value, Tensor) else None
        return value


def traced(layer: torch.nn.Module, x: Tensor, data: Mapping[str, Tensor]) -> Traced:
    """Return the operations of ``layer.apply_edge`` on edges between rows such as x [n, F].

    data: an example of the graph's edge data by name. Raises NotTraceableError if the operations depend on values, or
    do not return one row per edge.
    """
    try:
        graph = _graph_of(layer, "apply_edge")
    except Exception as error:  # raised by the layer's own code, which gets proxies of tensors
        raise NotTraceableError(f"apply_edge cannot be traced ({_first_line(error)})") from error
    names = tuple(dict.fromkeys(str(node.args[1]) for node in graph.nodes if is_data(node)))
    for node in reversed(graph.nodes):
        if not node.users and node.op not in ("placeholder", "output"):
            graph.erase_node(node)
    result = graph.output_node().args[0]
    if not isinstance(result, fx.Node):
        raise NotTraceableError("apply_edge does not return a tensor", names)
    rows = x.new_zeros(EDGES, x.shape[1])
    edge = SimpleNamespace(src=rows, dst=rows.clone(), data=data, weight=x.new_ones(EDGES, 1))
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            _Example(layer, graph=graph).run(edge)
    except Exception as error:
        raise NotTraceableError(f"apply_edge fails on an example ({_first_line(error)})", names) from error
    for node in graph.nodes:
        node.meta["ends"] = _ends(node)
    shape = result.meta["shape"]
    if shape is None or len(shape) != 2 or shape[0] != EDGES:
        sizes = ["E" if not i and size == EDGES else str(size) for i, size in enumerate(shape or ())]
        what = "no tensor" if shape is None else f"[{', '.join(sizes)}]"
        raise NotTraceableError(f"apply_edge returns {what}; expected a row for each edge, [E, F]", names)
    return Traced(graph, names)


def reads_vertex(layer: torch.nn.Module) -> bool:
    """Return whether an ApplyVertex reads the rows of vertices, or cannot be traced."""
    try:
        graph = _graph_of(layer, "apply_vertex")
    except Exception:  # raised by the layer's own code, which gets proxies of tensors
        return True
    vertex = next(node for node in graph.nodes if node.op == "placeholder")
    return bool(vertex.users)


def _graph_of(layer: torch.nn.Module, method: str) -> fx.Graph:
    tracer = fx.Tracer()
    tracer.traced_func_name = method
    return tracer.trace(layer)


def attribute(node: Any, name: str) -> bool:
    """Return whether a node is the attribute of this name of the edge."""
    return (
        isinstance(node, fx.Node)
        and node.op == "call_function"
        and node.target is getattr
        and isinstance(node.args[0], fx.Node)
        and node.args[0].op == "placeholder"
        and node.args[1] == name
    )


def is_data(node: Any) -> bool:
    """Return whether a node is edge data of some name."""
    return (
        isinstance(node, fx.Node)
        and node.op == "call_function"
        and getattr(node.target, "__name__", "") == "getitem"
        and attribute(node.args[0], "data")
        and isinstance(node.args[1], str)
    )


def width_of(node: fx.Node) -> int:
    """Return the number of columns of a node's value."""
    shape = node.meta["shape"]
    return int(shape[1]) if len(shape) == 2 else 1


def _ends(node: fx.Node) -> frozenset[str]:
    for name in (SRC, DST):
        if attribute(node, name):
            return frozenset([name])
    if is_data(node) or attribute(node, "weight"):
        return frozenset([DATA])
    return frozenset().union(*(arg.meta["ends"] for arg in node.all_input_nodes))


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
