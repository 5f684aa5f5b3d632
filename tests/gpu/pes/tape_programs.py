"""Tapes for the kernels' tests: programs of edges as layers have them, forward and backward, and their arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mgg_hpc.nn.saga.expression import Expressions, Node, constant_room
from mgg_hpc.nn.saga.fused import Operands, Propagation
from mgg_hpc.runtime.backends.tape import Tape

WIDTHS = (1, 5, 16, 31, 32, 33, 40, 64, 129)
TYPES = 3


@dataclass(frozen=True)
class Given:
    """A tape, and the widths of its arrays: of this end's, and of edge data; constants: behind the shared values."""

    tape: Tape
    constants: list[float]
    near: tuple[int, ...]
    shared: int
    edge: int


def _operand(of: Expressions, op: str, index: int, *, wide: bool = True, type: int = -1) -> int:
    return of.operand(op, index, wide=wide, type=type)


def _made(
    of: Expressions,
    result: int,
    columns: int,
    reduce: str,
    src: tuple[int, ...],
    dst: tuple[int, ...] = (),
    shared: int = 0,
) -> Propagation:
    """Return a program whose operands have these widths."""

    def operands(op: str, widths: tuple[int, ...]) -> Operands:
        known = {node.index: node for node in of.nodes if node.op == op}
        return Operands(tuple(known.get(i, Node(op, index=i)) for i in range(len(widths))), widths)

    of_edges = {node: node.index for node in of.nodes if node.op == "edge"}
    return Propagation(
        of, result, columns, operands("src", src), operands("dst", dst), shared, of_edges, reduce
    )


def gated(columns: int, reduce: str) -> Propagation:
    """sigmoid(a[u] + c[v]) h[u]: gated GCN."""
    of = Expressions()
    a, h, c = _operand(of, "src", 0), _operand(of, "src", 1), _operand(of, "dst", 0)
    result = of.binary("mul", of.unary("sigmoid", of.binary("add", a, c)), h)
    return _made(of, result, columns, reduce, (columns, columns), (columns,))


def typed(columns: int, reduce: str) -> Propagation:
    """leaky_relu(h[u, type] + b[v]) w: rows that the edge's type chooses, and weights of edges."""
    of = Expressions()
    h, b = _operand(of, "src", 0, type=0), _operand(of, "dst", 0)
    weight = _operand(of, "edge", 1, wide=columns == 1)
    result = of.binary("mul", of.unary("leaky_relu", of.binary("add", h, b), 0.25), weight)
    return _made(of, result, columns, reduce, (TYPES * columns,), (columns,))


def of_type(columns: int, reduce: str) -> Propagation:
    """h[u, type]: no step at all, and backward an array of this end that nothing reads."""
    of = Expressions()
    return _made(of, _operand(of, "src", 0, type=0), columns, reduce, (TYPES * columns,))


def scored(columns: int, reduce: str) -> Propagation:
    """tanh(<q[v], h[u]> w + s[u]) (h[u] + r): a dot product, narrow values, and a row that all edges share."""
    of = Expressions()
    h, s = _operand(of, "src", 0), _operand(of, "src", 1, wide=columns == 1)
    q, r = _operand(of, "dst", 0), _operand(of, "shared", 0)
    weight = _operand(of, "edge", 0, wide=columns == 1)
    product = of.binary("mul", q, h)
    dot = product if columns == 1 else of.column_sum(product)
    score = of.unary("tanh", of.binary("add", of.binary("mul", dot, weight), s))
    return _made(
        of, of.binary("mul", of.binary("add", h, r), score), columns, reduce, (columns, 1), (columns,), 1
    )


def twice_scored(columns: int, reduce: str) -> Propagation:
    """h[u] <g, h[u]> / <r, h[u]>... with a sum over columns that depends on another."""
    of = Expressions()
    h, q = _operand(of, "src", 0), _operand(of, "dst", 0)
    first = of.column_sum(of.binary("mul", h, q)) if columns > 1 else of.binary("mul", h, q)
    again = of.unary("abs", of.binary("sub", h, first))
    second = of.column_sum(again) if columns > 1 else again
    result = of.binary("div", of.binary("mul", h, first), of.unary("add_value", second, 1.0))
    return _made(of, result, columns, reduce, (columns,), (columns,))


def every_operator(columns: int, reduce: str) -> Propagation:
    """All operators, each once at least, where they are defined."""
    of = Expressions()
    x, y = _operand(of, "src", 0), _operand(of, "dst", 0)
    falling = of.unary("exp", of.unary("mul_value", of.unary("abs", x), -0.5))
    parts = [
        of.unary("log", of.unary("add_value", falling, 1.0)),
        of.unary("sqrt", of.unary("add_value", of.binary("mul", y, y), 0.5)),
        of.unary("reciprocal", of.unary("add_value", of.unary("abs", y), 2.0)),
        of.binary("div", x, of.unary("add_value", of.binary("mul", x, x), 1.0)),
        of.binary("maximum", x, y),
        of.binary("minimum", x, of.unary("tanh", y)),
        of.unary("leaky_relu", of.binary("sub", x, y), 0.125),
        of.unary("sigmoid", x),
    ]
    total = parts[0]
    for part in parts[1:]:
        total = of.binary("add", total, part)
    return _made(of, total, columns, reduce, (columns,), (columns,))


def largest(columns: int, reduce: str) -> Propagation:
    """leaky_relu(h[u] + c[v]) b[v]: exact in float32 for multiples of 1/8."""
    of = Expressions()
    h, c, b = _operand(of, "src", 0), _operand(of, "dst", 0), _operand(of, "dst", 1)
    result = of.binary("mul", of.unary("leaky_relu", of.binary("add", h, c), 0.25), b)
    return _made(of, result, columns, "max", (columns,), (columns, columns))


PROGRAMS: dict[str, Callable[[int, str], Propagation]] = {
    "gated": gated,
    "typed": typed,
    "of type": of_type,
    "scored": scored,
    "twice scored": twice_scored,
    "every operator": every_operator,
    "largest": largest,
}
WAYS = ("forward", "sources", "targets")


def tape(program: str, way: str, columns: int, reduce: str = "sum") -> Given:
    """Return a tape of a program: of its messages with what targets' gradients need, or of gradients at one end.

    Of programs that read nothing of targets, "targets" is "forward".
    """
    of = PROGRAMS[program](columns, reduce)
    every = tuple(range(len(of.dst.nodes) + of.shared))
    gradient = (of.width,) * (1 + (of.reduce == "max"))
    if way == "forward" or (way == "targets" and not every):
        wrt = every if of.by_target(every) else ()
        (made, constants), near = of.forward(wrt, trains=bool(wrt)), of.dst.widths
    elif way == "sources":
        (made, constants), near = of.gradients("src", tuple(range(len(of.src.nodes)))), of.src.widths
    else:
        (made, constants), near = of.gradients("dst", every), (*of.dst.widths, *gradient)
    columns_of_edges = [value.index for value in made.values if value.kind == "edge"]
    columns_of_edges += [each.type for each in (*made.values, *made.outputs)]
    return Given(made, constants, near, of.shared * columns, 1 + max(columns_of_edges))


def steps_of_eight(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Multiples of 1/8 between -2 and 2: exact in every type, and so are their sums. So kinks are where they are."""
    return (rng.integers(-16, 17, shape) / 8).astype(np.float32)


def arrays(given: Given, nodes: int, edges: int, rng: np.random.Generator) -> dict:
    """Return all that a call takes: rows of the other ends, of this end, shared values and edge data."""
    edge = steps_of_eight(rng, edges, given.edge)
    if any(each.type >= 0 for each in (*given.tape.values, *given.tape.outputs)):
        edge[:, 0] = rng.integers(0, TYPES, edges)
    room = constant_room(given.tape.columns)
    return {
        "far": steps_of_eight(rng, nodes, given.tape.far_columns),
        "near": [steps_of_eight(rng, nodes, width) for width in given.near],
        "shared": np.concatenate(
            [steps_of_eight(rng, given.shared), np.repeat(np.float32(given.constants), room)]
        ),
        "edge": edge if given.edge else None,
    }
