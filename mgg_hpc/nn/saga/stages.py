"""Move operations of ApplyEdge from the edges to the vertices, where they are computed once (NGra, section 3.2).

A value that depends on one end of an edge only is the same for all edges of that vertex: matrix products above all. A
cheap operator stays on the edges if its operands are read there anyway, since its result would be another row to fetch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx

from .operators import (
    ALONG_ROWS,
    BY_COLUMN,
    BY_ROW,
    PRODUCTS,
    RESHAPES,
    keeps,
    name_of,
    takes_last,
    typed_linear,
    typed_rows,
)
from .tracing import DATA, DST, SRC, Traced, attribute, is_data, width_of

CHEAP = {"add", "sub", "mul", "neg", "relu", "leaky_relu", "square", "identity", "maximum", "minimum", "abs"}


@dataclass(frozen=True)
class Moved:
    """Values that are computed at the vertices of one end, [n, width] each.

    values: their nodes, in the order of `at_vertices`. types: number of types of a typed product, whose width includes
    the columns for all types; 0 for other values.
    """

    values: tuple[fx.Node, ...]
    widths: tuple[int, ...]
    types: tuple[int, ...]


@dataclass(frozen=True)
class Staged:
    """A program whose values of one end have moved to the vertices. src, dst: values that edges read of each end."""

    traced: Traced
    src: Moved
    dst: Moved

    @property
    def left(self) -> list[fx.Node]:
        """The operations that are still computed for each edge, in the order of the program."""
        return computed(self.traced, [self.traced.result], [*self.src.values, *self.dst.values])


def computed(traced: Traced, values: Sequence[fx.Node], operands: Sequence[fx.Node] = ()) -> list[fx.Node]:
    """Return the nodes that compute ``values`` from ``operands``, in the order of the program."""
    found: set[fx.Node] = set()
    open_nodes = list(values)
    while open_nodes:
        node = open_nodes.pop()
        if node not in found and node not in operands and node.meta["ends"]:
            found.add(node)
            open_nodes += node.all_input_nodes
    return [node for node in traced.graph.nodes if node in found]


def staged(traced: Traced) -> Staged:
    """Return the program in which values that depend on one end of an edge only are computed once for each vertex."""
    movable = {node for node in traced.graph.nodes if _moves(node)}
    moved = {node for node in movable if len(node.meta["ends"]) == 1}
    typed = {node for node in traced.graph.nodes if _is_typed(node) and node.args[0] in moved}
    result = traced.result
    while True:
        cut = _cut(traced, moved)
        back = [node for node in cut if _reads_nothing_new(node, cut, result)]
        if not back:
            break
        moved -= set(back)
    cut = _cut(traced, moved)
    values = [node for node in cut if not all(user in typed for user in node.users)]
    ends: dict[str, list[fx.Node]] = {SRC: [], DST: []}
    for node in values + sorted(typed, key=str):
        (end,) = node.meta["ends"] - {DATA}
        ends[end].append(node)
    return Staged(traced, _moved(ends[SRC], typed), _moved(ends[DST], typed))


def at_vertices(stage: Staged, end: str, tensors: Sequence[Tensor], x: Tensor) -> list[Tensor]:
    """Return the values that moved to one end, [n, width] each, computed from rows x [n, F].

    tensors: those that the trace of this call has found (`Traced`).
    """
    moved, values = stage.src if end == SRC else stage.dst, dict[fx.Node, Any]()

    def value(node: fx.Node) -> Any:
        return tensors[int(str(node.target))] if node.op == "get_attr" else values[node]

    for node in computed(stage.traced, moved.values):
        if attribute(node, end):
            values[node] = x
        elif _is_typed(node):
            values[node] = typed_rows(*map(value, node.all_input_nodes[:2]))
        elif not is_data(node):  # types, which edges read
            args, options = fx.map_arg((node.args, node.kwargs), value)
            target: Any = node.target
            values[node] = (
                getattr(args[0], target)(*args[1:], **options)
                if node.op == "call_method"
                else target(*args, **options)
            )
    found = zip(map(value, moved.values), moved.widths, strict=True)
    return [(each if each.dim() == 2 else each[:, None]).expand(len(x), width) for each, width in found]


@dataclass(frozen=True)
class Linear:
    """A weighted sum of rows. weight: None for ones, "" for `Edge.weight`, or the name of edge data."""

    weight: str | None


def linear(stage: Staged, accumulator: str) -> Linear | None:
    """Return the weights if the messages are rows of sources times weights of edges, else None."""
    result = stage.traced.result
    values = [value for value, types in zip(stage.src.values, stage.src.types, strict=True) if not types]
    if stage.dst.values or len(stage.src.values) != 1 or not values:
        return None
    if result is values[0]:
        return Linear(None)
    if name_of(result) != "mul" or accumulator == "max" or len(result.args) != 2:
        return None
    factors = [arg for arg in result.args if arg is not values[0]]
    return None if len(factors) != 1 else _weight_of(factors[0])


def _weight_of(factor: Any) -> Linear | None:
    """Return which weight of edges a factor of a message is, or None if it is no column of edge data."""
    if attribute(factor, "weight"):
        return Linear("")
    if not isinstance(factor, fx.Node) or factor.meta["shape"] is None or factor.meta["shape"][1:] != (1,):
        return None
    column = factor if is_data(factor) else factor.args[0] if factor.args else None
    kept = column is factor or (name_of(factor) in RESHAPES and is_data(column) and keeps(factor))
    return Linear(str(column.args[1])) if is_data(column) and kept else None  # type: ignore[union-attr]


# ---- values that move


def _moves(node: fx.Node) -> bool:
    """Return whether a node is a function of one row of one end, or of parameters."""
    ends = node.meta["ends"]
    if attribute(node, SRC) or attribute(node, DST) or node.op == "get_attr":
        return True
    if node.op not in ("call_function", "call_method") or len(ends) != 1 or ends == {DATA}:
        return False
    if not node.meta["rows"]:
        return False
    name = name_of(node)
    by_row = name in BY_COLUMN or name in BY_ROW or (name in ALONG_ROWS and takes_last(node))
    if name in PRODUCTS:
        by_row = not any(arg.meta["ends"] for arg in node.all_input_nodes[1:])
    if name in ("expand", "getitem"):
        by_row = _widens(node) if name == "expand" else _of_columns(node)
    return by_row and all(_moves(arg) for arg in node.all_input_nodes)


def _widens(node: fx.Node) -> bool:
    """Return whether `expand` makes rows wider and keeps their number."""
    sizes = node.args[1] if len(node.args) == 2 else node.args[1:]
    return isinstance(sizes, Sequence) and len(sizes) == 2 and isinstance(sizes[0], int) and sizes[0] == -1


def _of_columns(node: fx.Node) -> bool:
    """Return whether `getitem` takes some columns of each row."""
    index: Any = node.args[1]
    pair = isinstance(index, tuple) and len(index) == 2 and all(isinstance(each, slice) for each in index)
    if not pair or index[0] != slice(None):
        return False
    return all(type(each) in (int, type(None)) for each in (index[1].start, index[1].stop, index[1].step))


def _cut(traced: Traced, moved: set[fx.Node]) -> list[fx.Node]:
    """Return the moved nodes that are the result, or that operations on the edges read."""
    found = []
    for node in traced.graph.nodes:
        readers = [user for user in node.users if user not in moved]
        if node in moved and node.meta["ends"] and readers:
            found.append(node)
    return found


def _reads_nothing_new(node: fx.Node, cut: Sequence[fx.Node], result: fx.Node) -> bool:
    """Return whether an operator is cheap and would read, on the edges, only rows that are read there anyway."""
    inputs = [arg for arg in node.all_input_nodes if arg.meta["ends"]]
    if node is result or not inputs or node.op == "get_attr" or name_of(node) not in CHEAP:
        return False
    return all(arg in cut for arg in inputs)


def _is_typed(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target is typed_linear


def _moved(nodes: list[fx.Node], typed: set[fx.Node]) -> Moved:
    types = []
    for node in nodes:
        weight: Any = node.args[1] if node in typed else None
        types.append(0 if weight is None else int(weight.meta["shape"][0]))
    widths = [width_of(node) * max(1, count) for node, count in zip(nodes, types, strict=True)]
    return Moved(tuple(nodes), tuple(widths), tuple(types))
