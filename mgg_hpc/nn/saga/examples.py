"""Examples of values of edges, by which a program's shapes, and what each of its operations depends on, are found."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from .effects import is_in_place, version, without_draws
from .operators import BY_COLUMN, BY_ROW, name_of
from .tracing import DATA, DST, SRC, Edge, NotTraceableError, Run, Traced, attribute, first_line, is_data

EDGES, MORE = 7, 11  # numbers of edges of the examples
NEW = (BY_COLUMN.keys() | BY_ROW) - {"identity", "contiguous"}  # operators whose results share no memory


def exemplify(
    found: Traced, layer: torch.nn.Module, x: Tensor, data: Callable[[int], Mapping[str, Tensor]]
) -> bool:
    """Store what `Traced` says of nodes, found with edges between rows such as x [n, F].

    data(n): an example of the graph's edge data by name, for n edges. Returns whether a message depends on other edges.
    Raises NotTraceableError if the operations fail, change values in place, or do not return one row per edge, and
    ValueError if they draw random numbers.
    """
    graph, result = found.graph, found.graph.output_node().args[0]
    if not isinstance(result, fx.Node):
        raise NotTraceableError("apply_edge does not return a tensor")
    changes = any(map(_changes, graph.nodes))
    for node in reversed(graph.nodes):
        if not changes and not node.users and node.op not in ("placeholder", "output"):
            graph.erase_node(node)
    values = []
    with torch.no_grad(), torch.random.fork_rng(devices=[]), without_draws(x.device):
        for edges, shapes in ((EDGES, "shape"), (MORE, "more")):
            src, dst = (example(edges, (x.shape[1],), x, shift) for shift in (1, 2))
            tensors = [
                each.detach() if each.requires_grad and not changes else each.detach().clone()
                for each in found.tensors
            ]
            before = list(map(version, tensors))
            try:
                edge = Edge(src, dst, data(edges), x.new_ones(edges, 1))
                values.append(Run(graph, tensors, shapes=shapes).run(edge))
            except Exception as error:
                raise NotTraceableError(f"apply_edge fails on an example ({first_line(error)})") from error
    labels = {id(value): name for name, value in (*layer.named_parameters(), *layer.named_buffers())}
    for node in graph.nodes:
        shape, node.meta["ends"] = node.meta["shape"], _ends(node)
        node.meta["rows"] = bool(shape) and shape[0] == EDGES and node.meta["more"] == (MORE, *shape[1:])
        if node.op == "get_attr":
            number = int(str(node.target))
            node.meta["label"] = labels.get(id(found.tensors[number]), f"tensor_{number}")
    wrong = misfit(values[0], EDGES) or misfit(values[1], MORE)
    if not wrong and not _near(values[0], values[1].flip(0)[:EDGES]):
        return True  # as does a width that is the number of edges
    if changes:
        raise NotTraceableError("apply_edge changes values in place")
    if list(map(version, tensors)) != before:
        raise NotTraceableError("apply_edge changes tensors in place")
    if wrong:
        raise NotTraceableError(wrong)
    return False


def example(edges: int, shape: Sequence[int], like: Tensor, shift: int = 0) -> Tensor:
    """Return values [edges, *shape]: zeros for integers, else numbers, with MORE edges with others before them.

    The EDGES rows are then the last, in reverse order.
    """
    if not like.is_floating_point():
        return like.new_zeros(edges, *shape)
    numbers = torch.arange(edges * math.prod(shape), dtype=torch.float64) + shift
    made = torch.sin(numbers * (shift + 1) + 0.3).reshape(edges, *shape).to(like)
    return made.flip(0) if edges == MORE else made


def misfit(value: Any, edges: int) -> str:
    """Return what is wrong with a value of `Layer.apply_edge`, or ""."""
    if isinstance(value, Tensor) and value.dim() == 2 and len(value) == edges:
        return ""
    what = "None" if value is None else f"a {type(value).__name__}"
    if isinstance(value, Tensor):
        what = f"[{', '.join('E' if size == edges else str(size) for size in value.shape)}]"
    return f"apply_edge returns {what}; expected a row for each edge, [E, F]"


def _near(a: Tensor, b: Tensor) -> bool:
    """Return whether values [E, ...] are equal but for rounding, which is a share of the largest value of a column."""
    if a.shape != b.shape:
        return False
    share = 0.02 if a.is_floating_point() and a.dtype.itemsize == 2 else 1e-3
    a, b = a.double(), b.double()
    size = a.nan_to_num(0, 0, 0).abs().amax(0) if a.numel() else a
    alike = (a == b) | ((a - b).abs() <= share * size) | (a.isnan() & b.isnan())
    return bool(alike.all())


def _changes(node: fx.Node) -> bool:
    """Return whether an operation changes a value in place that something else may read."""
    if node.kwargs.get("out") is not None or is_in_place(name_of(node)):
        return node.op in ("call_function", "call_method")
    value = node.args[0] if node.args else None
    alone = isinstance(value, fx.Node) and len(value.users) == 1 and name_of(value) in NEW
    return bool(node.kwargs.get("inplace")) and not alone


def _ends(node: fx.Node) -> frozenset[str]:
    for name in (SRC, DST):
        if attribute(node, name):
            return frozenset([name])
    if is_data(node) or attribute(node, "weight"):
        return frozenset([DATA])
    return frozenset().union(*(arg.meta["ends"] for arg in node.all_input_nodes))
