"""Column programs: what an edge computes column by column, as a graph of operators, and its derivatives.

Nodes are numbered in the order in which they were made, so that a node's arguments come before it. Equal nodes are one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

_FOLDED: dict[str, Callable[[float, float], float]] = {
    "add_value": operator.add,
    "mul_value": operator.mul,
}
_SYMMETRIC = ("add", "mul")
LEAVES = ("src", "dst", "edge", "shared", "const")


@dataclass(frozen=True)
class Node:
    """An operator, or an operand.

    op: one of `runtime.backends.tape.OPS`, or of LEAVES. args: numbers of nodes. value: a constant of the operator, or
    the value of "const". index: of an operand, which one among those of its end. wide: whether it has a value for each
    column, or one for each edge. type: of an operand with columns for each type, the operand "edge" that chooses; of
    others -1.
    """

    op: str
    args: tuple[int, ...] = ()
    value: float = 0.0
    index: int = -1
    wide: bool = True
    type: int = -1


@dataclass
class Expressions:
    """Nodes of one program, which it simplifies as they are made."""

    nodes: list[Node] = field(default_factory=list)
    _numbers: dict[Node, int] = field(default_factory=dict)

    def add(self, node: Node) -> int:
        """Return the number of a node, which is new or known."""
        if node not in self._numbers:
            self._numbers[node] = len(self.nodes)
            self.nodes.append(node)
        return self._numbers[node]

    def operand(self, op: str, index: int, *, wide: bool, type: int = -1) -> int:
        """Return an operand: one of an edge's source or destination, its data, or values that all edges share."""
        return self.add(Node(op, index=index, wide=wide, type=type))

    def constant(self, value: float) -> int:
        """Return a constant."""
        return self.add(Node("const", value=float(value), wide=False))

    def value_of(self, number: int) -> float | None:
        """Return a constant's value; None for other nodes."""
        node = self.nodes[number]
        return node.value if node.op == "const" else None

    def splat(self, number: int) -> int:
        """Return a narrow node as a wide one."""
        node = self.nodes[number]
        return number if node.wide or node.op == "const" else self.add(Node("splat", (number,)))

    def column_sum(self, number: int) -> int:
        """Return the sum over the columns of a wide node."""
        return self.add(Node("column_sum", (number,), wide=False))

    def unary(self, op: str, x: int, value: float = 0.0) -> int:
        """Return op(x). op: of tapes, or "neg"."""
        node, known = self.nodes[x], self.value_of(x)
        if op == "neg":
            op, value = "mul_value", -1.0
        if (op, value) in (("add_value", 0), ("mul_value", 1)):
            return x
        if known is not None and op in _FOLDED:
            return self.constant(_FOLDED[op](known, value))
        if (op, value) == ("mul_value", 0):
            return self.constant(0)
        if op == "mul_value" and node.op == "mul_value":
            return self.unary("mul_value", node.args[0], node.value * value)
        return self.add(Node(op, (x,), value=float(value), wide=node.wide))

    def binary(self, op: str, a: int, b: int) -> int:
        """Return op(a, b); a narrow operand of a wide one counts for each column."""
        simple = self._with_constant(op, a, b)
        if simple is not None:
            return simple
        wide = self.nodes[a].wide or self.nodes[b].wide
        if wide:
            a, b = self.splat(a), self.splat(b)
        if op in _SYMMETRIC:
            a, b = sorted((a, b))
        return self.add(Node(op, (a, b), wide=wide))

    def product(self, x: int, y: int) -> int:
        """Return x y, of x = a b as (a y) b if a y is computed anyway."""
        node = self.nodes[x]
        if node.op == "mul":
            for a, b in (node.args, node.args[::-1]):
                if Node("mul", tuple(sorted((a, y))), wide=self.nodes[a].wide) in self._numbers:
                    return self.binary("mul", self.binary("mul", a, y), b)
        return self.binary("mul", x, y)

    def where_positive(self, a: int, b: int, slope: float) -> int:
        """Return a where b > 0, else slope a."""
        wide = self.nodes[a].wide or self.nodes[b].wide
        if wide:
            a, b = self.splat(a), self.splat(b)
        return self.add(Node("where_positive", (a, b), value=slope, wide=wide))

    def _with_constant(self, op: str, a: int, b: int) -> int | None:
        """Return an operation of a node and a constant without one of two operands; None where there is none."""
        left, right = self.value_of(a), self.value_of(b)
        if right is None and left is not None:
            if op in ("add", "mul"):
                return self._with_constant(op, b, a)
            inner = {"sub": lambda: self.unary("neg", b), "div": lambda: self.unary("reciprocal", b)}.get(op)
            outer = {"sub": "add_value", "div": "mul_value"}.get(op, "")
            return None if inner is None else self.unary(outer, inner(), left)
        if right is None or (op == "div" and right == 0):
            return None
        one = {
            "add": ("add_value", right),
            "sub": ("add_value", -right),
            "mul": ("mul_value", right),
            "div": ("mul_value", 1 / (right or 1)),
        }.get(op)
        return None if one is None else self.unary(one[0], a, one[1])

    def needed(self, outputs: list[int]) -> list[int]:
        """Return the numbers of the nodes that outputs are computed from, and of these, ascending."""
        found, open_nodes = set(outputs), list(outputs)
        while open_nodes:
            for arg in self.nodes[open_nodes.pop()].args:
                if arg not in found:
                    found.add(arg)
                    open_nodes.append(arg)
        return sorted(found)

    def gradients(self, output: int, seed: int, wrt: list[int]) -> list[int]:
        """Return the gradients of ``output``, whose own gradient is ``seed``, with respect to some nodes."""
        order = self.needed([output])
        of: dict[int, int] = {output: seed}
        for number in reversed(order):
            if number in of:
                for arg, part in _partials(self, self.nodes[number], number, of[number]).items():
                    narrow = self._as_wide_as(arg, part)
                    of[arg] = narrow if arg not in of else self.binary("add", of[arg], narrow)
        zero = self.constant(0)
        return [of.get(number, zero) for number in wrt]

    def _as_wide_as(self, number: int, part: int) -> int:
        """Return a gradient with as many values as the node that it is of."""
        if not self.nodes[number].wide and self.nodes[part].wide:
            return self.column_sum(part)
        return part


def _partials(of: Expressions, node: Node, number: int, gradient: int) -> Mapping[int, int]:
    """Return the gradients with respect to a node's arguments, given that of the node."""
    args, op = node.args, node.op

    def times(x: int) -> int:
        return of.binary("mul", gradient, x)

    def times_twice() -> int:
        return of.binary("mul", of.product(gradient, number), number)

    if not args:
        return {}
    x = args[0]
    if len(args) == 1:
        part = {
            "splat": lambda: gradient,
            "column_sum": lambda: of.splat(gradient),
            "exp": lambda: times(number),
            "log": lambda: of.binary("div", gradient, x),
            "sqrt": lambda: of.binary("div", of.unary("mul_value", gradient, 0.5), number),
            "tanh": lambda: of.binary("sub", gradient, times_twice()),
            "sigmoid": lambda: of.binary("sub", of.product(gradient, number), times_twice()),
            "abs": lambda: of.binary("times_sign", gradient, x),
            "reciprocal": lambda: of.unary("neg", times(of.binary("mul", number, number))),
            "leaky_relu": lambda: of.where_positive(gradient, x, node.value),
            "add_value": lambda: gradient,
            "mul_value": lambda: of.unary("mul_value", gradient, node.value),
        }[op]()
        return {x: part}
    y = args[1]
    parts = {
        "add": lambda: (gradient, gradient),
        "sub": lambda: (gradient, of.unary("neg", gradient)),
        "mul": lambda: (times(y), times(x)),
        "div": lambda: (of.binary("div", gradient, y), of.unary("neg", of.binary("div", times(number), y))),
        "maximum": lambda: (times(of.binary("above", x, y)), times(of.binary("above", y, x))),
        "minimum": lambda: (times(of.binary("above", y, x)), times(of.binary("above", x, y))),
    }[op]()
    if x == y:
        return {x: of.binary("add", *parts)}
    return {x: parts[0], y: parts[1]}
