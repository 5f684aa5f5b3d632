"""From column programs (expression.py) to tapes (`runtime.backends.tape`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...runtime.backends.tape import MOST_VALUES, Output, Step, Tape, Value
from .expression import Expressions, Node

LANES, EDGES = 16, 32  # values of the widest vector, and edges of a batch (cuda/cpu/edge_batches.h)


class TooLargeError(Exception):
    """A program of more values than a tape holds."""


@dataclass(frozen=True)
class Result:
    """A node whose values are reduced. width: of its rows; type: as in `Output`."""

    node: int
    width: int
    type: int = -1


def constant_room(columns: int) -> int:
    """Return the number of shared values that a constant takes: as many as any vector reads of it."""
    return max(EDGES, -(-columns // LANES) * LANES)


class _Compiler:
    """Steps of one tape, and registers, which are given out again once nothing reads them."""

    def __init__(
        self, program: Expressions, places: Mapping[Node, tuple[str, int]], columns: int, shared: int
    ):
        self.program, self.places, self.columns, self.shared = program, places, columns, shared
        self.values: list[Value] = []
        self.steps: list[Step] = []
        self.constants: list[float] = []
        self.registers = {"wide": 0, "narrow": 0}
        self.at: dict[int, int] = {}  # the value of each node
        self._free: dict[str, list[int]] = {"wide": [], "narrow": []}

    def compute(self, number: int, ends: Sequence[int]) -> None:
        """Add a node. ends: nodes that are read here for the last time."""
        node = self.program.nodes[number]
        if node.op == "const":
            place = self.shared + constant_room(self.columns) * len(self.constants)
            self.constants.append(node.value)
            self.at[number] = self._value(Value("shared", place, narrow=True))
        elif node.args:
            a, b = (*[self.at[arg] for arg in node.args], -1)[:2]
            for arg in ends:
                if (kind := self.values[self.at[arg]].kind) in self._free:
                    self._free[kind].append(self.at[arg])
            self.at[number] = self._register("wide" if node.wide else "narrow")
            self.steps.append(Step(node.op, self.at[number], a, b, node.value))
        else:
            kind, index = self.places[node]
            operand = self._value(Value(kind, index, node.type, narrow=not node.wide))
            self.at[number] = operand
            if not node.wide:
                self.at[number] = self._register("narrow")
                self.steps.append(Step("pick", self.at[number], operand))

    def _value(self, value: Value) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def _register(self, kind: str) -> int:
        if self._free[kind]:
            return self._free[kind].pop()
        self.registers[kind] += 1
        return self._value(Value(kind, self.registers[kind] - 1, narrow=kind == "narrow"))


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
    """Return the tape of some results, and the constants that it finds behind the ``shared`` values of all edges.

    places: kind and index, as in `Value`, of each operand. columns: of wide values. far_columns: of the rows of other
    ends. Each constant takes `constant_room` values. Raises TooLargeError for a program that no tape holds.
    """
    outputs = [result.node for result in results]
    order = program.needed(outputs)
    last = {arg: number for number in order for arg in program.nodes[number].args}
    compiler = _Compiler(program, places, columns, shared)
    for number in order:
        args = set(program.nodes[number].args)
        compiler.compute(number, [arg for arg in args if last[arg] == number and arg not in outputs])
    if len(compiler.values) > MOST_VALUES:
        raise TooLargeError
    written = [Output(compiler.at[result.node], result.width, result.type) for result in results]
    tape = Tape(
        columns, far_columns, compiler.values, compiler.steps, written, compiler.registers["wide"], reduce
    )
    return tape, compiler.constants
