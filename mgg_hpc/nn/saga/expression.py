"""Column programs: the message of an edge as an expression graph, its derivatives, and their compilation.

Methods of `Expressions` return the number of a node of the graph. Nodes are numbered in the order of their
creation, so that the arguments of a node have smaller numbers, and equal nodes are stored once. A node is wide
if it has a value for each column of a row, or narrow if it has one for the whole edge. A tape
(`runtime.backends.tape`) is the list of steps by which kernels compute some of the nodes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ...runtime.backends.tape import MOST_VALUES, Output, Step, Tape, Value

_FOLDED: dict[str, Callable[[float, float], float]] = {
    "add_value": operator.add,
    "mul_value": operator.mul,
}
_SYMMETRIC = ("add", "mul")


@dataclass(frozen=True)
class Node:
    """An operator with its arguments, or an operand.

    op: an operator of `runtime.backends.tape.OPS`, or the kind of an operand: "src" or "dst" for a value of
    that node, "edge" for edge data, "shared" for a value that all edges share, or "const". args: node numbers
    of the arguments. value: the operator's constant (1 or -1 for `bounded`), or the value of "const". index:
    number of the operand among those of its kind. wide: True for a value per column, False for one value. type:
    for an operand that has other columns for each edge type, index of the "edge" operand that holds the type;
    else -1.
    """

    op: str
    args: tuple[int, ...] = ()
    value: float = 0.0
    index: int = -1
    wide: bool = True
    type: int = -1


@dataclass
class Expressions:
    """The expression graph of one program. Expressions are simplified as they are created."""

    nodes: list[Node] = field(default_factory=list)
    _numbers: dict[Node, int] = field(default_factory=dict)

    def add(self, node: Node) -> int:
        """Return the number of a node. It is added to the graph unless an equal node exists."""
        if node not in self._numbers:
            self._numbers[node] = len(self.nodes)
            self.nodes.append(node)
        return self._numbers[node]

    def operand(self, op: str, index: int, *, wide: bool, type: int = -1) -> int:
        """Return the node of an operand. op: "src", "dst", "edge" or "shared". index, type: as in `Node`."""
        return self.add(Node(op, index=index, wide=wide, type=type))

    def constant(self, value: float) -> int:
        """Return the number of the (narrow) node of a constant."""
        return self.add(Node("const", value=float(value), wide=False))

    def value_of(self, number: int) -> float | None:
        """Return the value of the node ``number`` if it is a constant, else None."""
        node = self.nodes[number]
        return node.value if node.op == "const" else None

    def splat(self, number: int) -> int:
        """Return the wide node that repeats a narrow one in each column; a wide node or a constant as it is."""
        node = self.nodes[number]
        return number if node.wide or node.op == "const" else self.add(Node("splat", (number,)))

    def column_sum(self, number: int) -> int:
        """Return the narrow node of the sum over the columns of a wide node."""
        return self.add(Node("column_sum", (number,), wide=False))

    def unary(self, op: str, x: int, value: float = 0.0) -> int:
        """Return the node of op(x). op: a unary operator of tapes, or "neg". value: the operator's constant."""
        node, known = self.nodes[x], self.value_of(x)
        if op == "neg":
            op, value = "mul_value", -1.0
        if (op, value) in (("add_value", 0), ("mul_value", 1)):
            return x
        if known is not None and op in _FOLDED:
            return self.constant(_FOLDED[op](known, value))
        if op == "mul_value" and node.op == "mul_value":
            return self.unary("mul_value", node.args[0], node.value * value)
        return self.add(Node(op, (x,), value=float(value), wide=node.wide))

    def binary(self, op: str, a: int, b: int) -> int:
        """Return the node of op(a, b). A narrow argument is broadcast over the columns of a wide one."""
        simple = self._with_constant(op, a, b)
        if simple is not None:
            return simple
        wide = self.nodes[a].wide or self.nodes[b].wide
        if wide:
            a, b = self.splat(a), self.splat(b)
        if op in _SYMMETRIC:
            a, b = sorted((a, b))
        return self.add(Node(op, (a, b), wide=wide))

    def bounded(self, op: str, x: int, bound: float, *, passes: bool) -> int:
        """Return the node of the "maximum" or "minimum" (op) of x and a number.

        passes: True if the gradient passes to x where x equals the bound.
        """
        return self.add(
            Node(op, (x, self.constant(bound)), value=1.0 if passes else -1.0, wide=self.nodes[x].wide)
        )

    def product(self, x: int, y: int) -> int:
        """Return the node of x * y. If x is a * b and the graph has a * y already, this is (a * y) * b."""
        node = self.nodes[x]
        if node.op == "mul":
            for a, b in (node.args, node.args[::-1]):
                if Node("mul", tuple(sorted((a, y))), wide=self.nodes[a].wide) in self._numbers:
                    return self.binary("mul", self.binary("mul", a, y), b)
        return self.binary("mul", x, y)

    def where_positive(self, a: int, b: int, slope: float) -> int:
        """Return the node of a where b > 0, else slope * a."""
        wide = self.nodes[a].wide or self.nodes[b].wide
        if wide:
            a, b = self.splat(a), self.splat(b)
        return self.add(Node("where_positive", (a, b), value=slope, wide=wide))

    def _with_constant(self, op: str, a: int, b: int) -> int | None:
        """Return the node of op(a, b) as a unary operation with a constant; None if that is not possible."""
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
        """Return the numbers of ``outputs`` and of all nodes that they depend on, ascending."""
        found, open_nodes = set(outputs), list(outputs)
        while open_nodes:
            for arg in self.nodes[open_nodes.pop()].args:
                if arg not in found:
                    found.add(arg)
                    open_nodes.append(arg)
        return sorted(found)

    def gradients(self, output: int, seed: int, wrt: list[int]) -> list[int]:
        """Return the nodes of the gradients of ``output`` with respect to the nodes ``wrt``.

        seed: node of the gradient of ``output``.
        """
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
        """Return the gradient ``part`` of the node ``number``, summed over columns if that node is narrow."""
        if not self.nodes[number].wide and self.nodes[part].wide:
            return self.column_sum(part)
        return part


def _partials(of: Expressions, node: Node, number: int, gradient: int) -> Mapping[int, int]:
    """Return the gradients of a node's arguments, by node number. gradient: node of its own gradient."""
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
    if op in ("maximum", "minimum") and node.value:  # of `bounded`
        ends = (x, y) if (op == "maximum") == (node.value < 0) else (y, x)
        part = of.where_positive(gradient, of.binary("sub", *ends), 0.0)
        return {x: part if node.value < 0 else of.binary("sub", gradient, part)}
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


# ---- tapes

LANES, BATCH = 16, 32  # values in the widest vector register; edges in a batch (cuda/cpu/edge_batches.h)


class TooLargeError(Exception):
    """A program with more values than a tape can hold."""


@dataclass(frozen=True)
class Result:
    """A node whose values are reduced over the edges of each destination. width: number of columns. type: as in
    `Output`.
    """

    node: int
    width: int
    type: int = -1


def constant_room(columns: int) -> int:
    """Return how often a constant is repeated among the shared values, so that kernels read it as a vector."""
    return max(BATCH, -(-columns // LANES) * LANES)


def compiled(
    program: Expressions,
    results: Sequence[Result],
    places: Mapping[Node, tuple[str, int]],
    *,
    columns: int,
    far_columns: int,
    shared: int = 0,
    reduce: str = "sum",
) -> tuple[Tape, list[float]]:
    """Return the tape that computes ``results``, and its constants.

    Kernels read the constants after the ``shared`` shared values; each is repeated `constant_room` times there.
    places: (kind, index), as in `Value`, of each operand. columns: number of columns of wide values.
    far_columns: number of columns of the rows at the other end of the edges. reduce: "sum", "mean" or "max".
    Raises TooLargeError if the tape has more than MOST_VALUES values.
    """
    outputs = [result.node for result in results]
    order = program.needed(outputs)
    last = {arg: number for number in order for arg in program.nodes[number].args}  # its last reader
    values: list[Value] = []
    steps: list[Step] = []
    constants: list[float] = []
    registers = {"wide": 0, "narrow": 0}
    free: dict[str, list[int]] = {"wide": [], "narrow": []}  # registers that nothing reads any more
    at: dict[int, int] = {}  # index of each node's value

    def added(value: Value) -> int:
        values.append(value)
        return len(values) - 1

    def register(kind: str) -> int:
        if free[kind]:
            return free[kind].pop()
        registers[kind] += 1
        return added(Value(kind, registers[kind] - 1, narrow=kind == "narrow"))

    for number in order:
        node = program.nodes[number]
        if node.op == "const":
            place = shared + constant_room(columns) * len(constants)
            constants.append(node.value)
            at[number] = added(Value("shared", place, narrow=True))
        elif node.args:
            a, b = (*[at[arg] for arg in node.args], -1)[:2]
            for arg in set(node.args):
                if (kind := values[at[arg]].kind) in free and last[arg] == number and arg not in outputs:
                    free[kind].append(at[arg])
            at[number] = register("wide" if node.wide else "narrow")
            steps.append(Step(node.op, at[number], a, b, node.value))
        else:
            kind, index = places[node]
            operand = at[number] = added(Value(kind, index, node.type, narrow=not node.wide))
            if not node.wide:
                at[number] = register("narrow")
                steps.append(Step("pick", at[number], operand))
    if len(values) > MOST_VALUES:
        raise TooLargeError
    written = [Output(at[result.node], result.width, result.type) for result in results]
    tape = Tape(columns, far_columns, values, steps, written, registers["wide"], reduce)
    return tape, constants
