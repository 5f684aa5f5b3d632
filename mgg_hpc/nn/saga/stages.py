"""A layer's program in stages: what moves from the edges to the vertices, and what is left (NGra, section 3.2).

A value that depends on one end of an edge alone is the same for all edges of that vertex, so it is computed there,
once: products above all. Operators that are computed column by column stay on the edges where what they read is read
there anyway, since a row of their results would only be one more that has to come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from .operators import ALONG_ROWS, BY_COLUMN, BY_ROW, PRODUCTS, name_of, typed_linear, typed_rows
from .tracing import DATA, DST, SRC, Traced, attribute, is_data

CHEAP = {"add", "sub", "mul", "neg", "relu", "leaky_relu", "square", "identity", "maximum", "minimum", "abs"}


@dataclass(frozen=True)
class Moved:
    """Values that are computed at the vertices of one end, each [n, width].

    values: their nodes, in the order in which `at_vertices` returns them. A product by types has the columns of all
    types beside each other, ``types`` of them; others have 0.
    """

    values: tuple[fx.Node, ...]
    widths: tuple[int, ...]
    types: tuple[int, ...]


@dataclass(frozen=True)
class Staged:
    """A program whose one-ended values have moved. src, dst: what moved to each end. moved: all nodes that did."""

    traced: Traced
    src: Moved
    dst: Moved
    moved: frozenset[fx.Node]

    @property
    def left(self) -> list[fx.Node]:
        """The operations that are left on the edges."""
        cut = {*self.src.values, *self.dst.values}
        found: dict[fx.Node, None] = {}
        open_nodes = [self.traced.result]
        while open_nodes:
            node = open_nodes.pop()
            if node not in cut and node not in found and node.meta["ends"]:
                found[node] = None
                open_nodes += node.all_input_nodes
        return [node for node in self.traced.graph.nodes if node in found]


def staged(traced: Traced, layer: torch.nn.Module) -> Staged:
    """Return the program with what depends on one end alone moved to the vertices."""
    movable = {node for node in traced.graph.nodes if _moves(node, layer)}
    moved = {node for node in movable if len(node.meta["ends"]) == 1}
    typed = {node for node in traced.graph.nodes if _is_typed(node) and _rows_of(node) in moved}
    result = traced.result
    while True:
        cut = _cut(traced, moved)
        back = [node for node in cut if _reads_nothing_new(node, cut, layer, result)]
        if not back:
            break
        moved -= set(back)
    cut = _cut(traced, moved)
    values = [node for node in cut if not _read_by_typed_alone(node, typed)] + sorted(typed, key=str)
    ends = {SRC: [], DST: []}  # type: dict[str, list[fx.Node]]
    for node in values:
        (end,) = node.meta["ends"] - {DATA}
        ends[end].append(node)
    return Staged(traced, _moved(ends[SRC], typed, layer), _moved(ends[DST], typed, layer), frozenset(moved))


def at_vertices(stage: Staged, end: str, layer: torch.nn.Module, x: Tensor) -> list[Tensor]:
    """Return the values that moved to one end, computed of rows x [n, F]: [n, width] each."""
    moved = stage.src if end == SRC else stage.dst
    if not moved.values:
        return []
    graph = fx.Graph()
    rows = graph.placeholder("rows")
    copies: dict[fx.Node, fx.Node] = {}

    def copied(node: fx.Node) -> fx.Node:
        if node not in copies:
            if attribute(node, end):
                copies[node] = rows
            elif _is_typed(node):
                copies[node] = graph.call_function(typed_rows, (copied(_rows_of(node)), copied(node.args[1])))  # type: ignore[arg-type]
            else:
                copies[node] = graph.node_copy(node, copied)
        return copies[node]

    graph.output([copied(node) for node in moved.values])
    values: list[Tensor] = fx.Interpreter(layer, graph=graph).run(x)
    found = zip(values, moved.widths, strict=True)
    return [(value if value.dim() == 2 else value[:, None]).expand(len(x), width) for value, width in found]


@dataclass(frozen=True)
class Linear:
    """A sum of rows with a weight for each edge. weight: None for ones, "" for `Edge.weight`, or a name of data."""

    weight: str | None


def linear(stage: Staged, layer: torch.nn.Module, accumulator: str) -> Linear | None:
    """Return how the messages are rows of sources times weights of edges; None where they are not."""
    result = stage.traced.result
    values = [value for value, types in zip(stage.src.values, stage.src.types, strict=True) if not types]
    if stage.dst.values or len(stage.src.values) != 1 or not values:
        return None
    if result is values[0]:
        return Linear(None)
    if name_of(result, layer) != "mul" or accumulator == "max" or len(result.args) != 2:
        return None
    factors = [arg for arg in result.args if arg is not values[0]]
    return None if len(factors) != 1 else _weight_of(factors[0])


def _weight_of(factor: Any) -> Linear | None:
    """Return the weights that are a column of an edge's data; None for another factor."""
    if attribute(factor, "weight"):
        return Linear("")
    if not isinstance(factor, fx.Node) or factor.meta["shape"] is None or factor.meta["shape"][1:] != (1,):
        return None
    column = factor if is_data(factor) else factor.args[0] if factor.args else None
    reshaped = str(getattr(factor.target, "__name__", factor.target)) in ("unsqueeze", "getitem")
    return Linear(str(column.args[1])) if is_data(column) and (reshaped or column is factor) else None  # type: ignore[union-attr]


# ---- what moves


def _moves(node: fx.Node, layer: torch.nn.Module) -> bool:
    """Return whether a node is a function of one row of one end, or of parameters."""
    ends = node.meta["ends"]
    if attribute(node, SRC) or attribute(node, DST) or node.op == "get_attr":
        return True
    if node.op not in ("call_function", "call_method", "call_module") or len(ends) > 1 or ends == {DATA}:
        return False
    if not ends:
        return all(_moves(arg, layer) for arg in node.all_input_nodes) and bool(node.all_input_nodes)
    name = name_of(node, layer)
    by_row = name in BY_COLUMN or name in BY_ROW or (name in ALONG_ROWS and takes_last(node))
    if name in PRODUCTS and node.op != "call_module" and node.args and isinstance(node.args[-1], fx.Node):
        by_row = by_row and not node.args[1].meta["ends"]  # type: ignore[union-attr]
    if name == "dropout":
        by_row = not drops(node, layer)
    if name == "expand":
        by_row = widens(node)
    return by_row and all(_moves(arg, layer) for arg in node.all_input_nodes)


def takes_last(node: fx.Node) -> bool:
    dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None)
    return dim in (1, -1, (1,), (-1,), [1], [-1])


def widens(node: fx.Node) -> bool:
    """Return whether `expand` makes rows wider, and leaves their number alone."""
    sizes = node.args[1] if len(node.args) == 2 else node.args[1:]
    return isinstance(sizes, Sequence) and len(sizes) == 2 and isinstance(sizes[0], int) and sizes[0] == -1


def drops(node: fx.Node, layer: torch.nn.Module) -> bool:
    if node.op == "call_module":
        module: Any = layer.get_submodule(str(node.target))
        return bool(module.training and module.p > 0)
    return True


def _cut(traced: Traced, moved: set[fx.Node]) -> list[fx.Node]:
    """Return the moved nodes that the result or what is left on the edges reads."""
    found = []
    for node in traced.graph.nodes:
        readers = [user for user in node.users if user not in moved]
        if node in moved and node.meta["ends"] and readers:
            found.append(node)
    return found


def _reads_nothing_new(
    node: fx.Node, cut: Sequence[fx.Node], layer: torch.nn.Module, result: fx.Node
) -> bool:
    """Return whether a cheap operator, left on the edges, reads only rows that are read there anyway."""
    inputs = [arg for arg in node.all_input_nodes if arg.meta["ends"]]
    if node is result or not inputs or node.op == "get_attr" or name_of(node, layer) not in CHEAP:
        return False
    return all(arg in cut for arg in inputs)


def _is_typed(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target is typed_linear


def _rows_of(node: fx.Node) -> Any:
    return node.args[0]


def _read_by_typed_alone(node: fx.Node, typed: set[fx.Node]) -> bool:
    return all(user in typed for user in node.users)


def _moved(nodes: list[fx.Node], typed: set[fx.Node], layer: torch.nn.Module) -> Moved:
    types = []
    for node in nodes:
        weight: Any = node.args[1] if node in typed else None
        types.append(0 if weight is None else int(weight.meta["shape"][0]))
    widths = [width_of(node) * max(1, count) for node, count in zip(nodes, types, strict=True)]
    return Moved(tuple(nodes), tuple(widths), tuple(types))


def width_of(node: fx.Node) -> int:
    shape = node.meta["shape"]
    return int(shape[1]) if len(shape) == 2 else 1
