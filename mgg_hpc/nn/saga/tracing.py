"""ApplyEdge as a graph of operations (torch.fx), with the ends of edges that each of them depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, fx

EDGES = 7  # of the example by which shapes are found

SRC, DST, DATA = "src", "dst", "data"


@dataclass(frozen=True)
class Edge:
    """What `Layer.apply_edge` is given: values of edges, a row each.

    src, dst: rows of x of each edge's source and destination, [E, F]. data: data of edges by name, as the graph file
    holds them: [E] or [E, D]. weight: [E, 1], the weights of the layer's adjacency: with kind "gcn" those of the
    normalised matrix, with "edges" those of the graph, or ones.
    """

    src: Tensor
    dst: Tensor
    data: Mapping[str, Tensor]
    weight: Tensor


class NotTraceableError(Exception):
    """The reason why the operations of an ApplyEdge cannot be seen."""


@dataclass(frozen=True)
class Traced:
    """The operations of an ApplyEdge.

    Each node of ``graph`` has in ``meta``: "ends", a frozenset of SRC, DST and DATA that it depends on, and "shape",
    that of its value for EDGES edges, or None for what is no tensor. names: of the data of edges that are read.
    """

    graph: fx.Graph
    names: tuple[str, ...]

    @property
    def result(self) -> fx.Node:
        """The message of an edge."""
        (value,) = self.graph.output_node().args
        assert isinstance(value, fx.Node)
        return value


class _Tracer(fx.Tracer):
    traced_func_name = "apply_edge"


class _Example(fx.Interpreter):
    """Runs the operations on an example, and stores shapes."""

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        n.meta["shape"] = tuple(value.shape) if isinstance(value, Tensor) else None
        return value


def traced(layer: torch.nn.Module, x: Tensor, data: Mapping[str, Tensor]) -> Traced:
    """Return the operations of ``layer.apply_edge`` on edges between rows like x [n, F].

    data: an example of the data of edges that are known, by name. Raises NotTraceableError where it does what
    depends on values, or is no function of an edge.
    """
    try:
        graph = _Tracer().trace(layer)
    except Exception as error:  # what the layer's own code raises when it is given proxies
        raise NotTraceableError(f"apply_edge cannot be traced ({_first_line(error)})") from error
    names = dict.fromkeys(str(node.args[1]) for node in graph.nodes if is_data(node))
    for node in reversed(graph.nodes):
        if not node.users and node.op not in ("placeholder", "output"):
            graph.erase_node(node)
    if not isinstance(graph.output_node().args[0], fx.Node):
        raise NotTraceableError("apply_edge does not return a tensor")
    rows = x.new_zeros(EDGES, x.shape[1])
    edge = SimpleNamespace(src=rows, dst=rows.clone(), data=data, weight=x.new_ones(EDGES, 1))
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            _Example(layer, graph=graph).run(edge)
    except Exception as error:
        raise NotTraceableError(f"apply_edge fails on an example ({_first_line(error)})") from error
    for node in graph.nodes:
        node.meta["ends"] = _ends(node)
    shape = graph.output_node().args[0].meta["shape"]  # type: ignore[union-attr]
    if shape is None or len(shape) != 2 or shape[0] != EDGES:
        raise NotTraceableError(
            f"apply_edge returns {_of_edges(shape)}; expected a row for each edge, [E, F]"
        )
    return Traced(graph, tuple(names))


def data_names(layer: torch.nn.Module) -> tuple[str, ...]:
    """Return the names of the data of edges that an ApplyEdge reads; none where it cannot be traced."""
    try:
        graph = _Tracer().trace(layer)
    except Exception:  # what the layer's own code raises when it is given proxies
        return ()
    return tuple(dict.fromkeys(str(node.args[1]) for node in graph.nodes if is_data(node)))


class _VertexTracer(fx.Tracer):
    traced_func_name = "apply_vertex"


def reads_vertex(layer: torch.nn.Module) -> bool:
    """Return whether an ApplyVertex reads the rows of vertices, or cannot be traced."""
    try:
        graph = _VertexTracer().trace(layer)
    except Exception:  # what the layer's own code raises when it is given proxies
        return True
    vertex = next(node for node in graph.nodes if node.op == "placeholder")
    return bool(vertex.users)


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
    """Return whether a node is data of edges of some name."""
    return (
        isinstance(node, fx.Node)
        and node.op == "call_function"
        and getattr(node.target, "__name__", "") == "getitem"
        and attribute(node.args[0], "data")
        and isinstance(node.args[1], str)
    )


def _ends(node: fx.Node) -> frozenset[str]:
    if attribute(node, "src"):
        return frozenset([SRC])
    if attribute(node, "dst"):
        return frozenset([DST])
    if is_data(node) or attribute(node, "weight"):
        return frozenset([DATA])
    return frozenset().union(*(arg.meta["ends"] for arg in node.all_input_nodes))


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"


def _of_edges(shape: tuple[int, ...] | None) -> str:
    if shape is None:
        return "no tensor"
    return (
        "[" + ", ".join("E" if i == 0 and size == EDGES else str(size) for i, size in enumerate(shape)) + "]"
    )
