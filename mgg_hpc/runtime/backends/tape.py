"""Tapes: programs that `EdgeKernels.propagate` runs for each edge and column (cuda/include/mgg/tape.h).

Values are wide, of ``columns`` values for each edge, or narrow, of one. An operand lies in the row of the edge's other
end ("far"), in a row of this end ("near"), among values that all edges share, or in the edge's data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

VALUE = np.dtype([("kind", "<i4"), ("index", "<i4"), ("type", "<i4"), ("narrow", "<i4")])
STEP = np.dtype([("op", "<i4"), ("out", "<i4"), ("a", "<i4"), ("b", "<i4"), ("value", "<f8")])
OUTPUT = np.dtype([("value", "<i4"), ("type", "<i4"), ("width", "<i8")])

KINDS = ("wide", "narrow", "far", "near", "shared", "edge")
MOVES = ("pick", "splat", "column_sum")
UNARY = (
    "exp",
    "log",
    "sqrt",
    "tanh",
    "sigmoid",
    "abs",
    "reciprocal",
    "leaky_relu",
    "add_value",
    "mul_value",
)
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum")
DERIVATIVES = ("where_positive", "times_sign", "above", "equal")
OPS = (*MOVES, *UNARY, *BINARY, *DERIVATIVES)  # in the order of TapeOp
MOST_VALUES = 64


@dataclass(frozen=True)
class Value:
    """Location of a value. kind: one of KINDS; index, type and narrow as in cuda/include/mgg/tape.h."""

    kind: str
    index: int
    type: int = -1
    narrow: bool = False


@dataclass(frozen=True)
class Step:
    """One operation. out, a, b: indices of values; b is -1 for unary operations. value: a constant."""

    op: str
    out: int
    a: int
    b: int = -1
    value: float = 0.0


@dataclass(frozen=True)
class Output:
    """A value that is reduced over the edges of each destination.

    width: columns of its rows. type: column of edge data that selects the ``columns`` of a row it is added to, or -1.
    """

    value: int
    width: int
    type: int = -1


@dataclass(frozen=True, eq=False)
class Tape:
    """A program of an edge.

    columns: width of wide values. far_columns: width of the rows of other ends. registers: number of wide registers.
    reduce: "sum", "mean", or "max" of the first output; with "max" the other outputs, as wide, are summed over the
    edges that reach it.
    """

    columns: int
    far_columns: int
    values: Sequence[Value]
    steps: Sequence[Step]
    outputs: Sequence[Output]
    registers: int
    reduce: str = "sum"

    @cached_property
    def native(self) -> dict[str, Any]:
        """Arguments of native calls; values, steps and outputs are the structs that kernels read, in bytes."""
        values = [(KINDS.index(v.kind), v.index, v.type, v.narrow) for v in self.values]
        steps = [(OPS.index(s.op), s.out, s.a, s.b, s.value) for s in self.steps]
        outputs = [(o.value, o.type, o.width) for o in self.outputs]
        return {
            "columns": self.columns,
            "far_columns": self.far_columns,
            "values": np.array(values, VALUE).view(np.uint8),
            "steps": np.array(steps, STEP).view(np.uint8),
            "outputs": np.array(outputs, OUTPUT).view(np.uint8),
            "registers": self.registers,
            "reduce": self.reduce,
        }
