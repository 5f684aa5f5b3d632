"""Turn the operations that remain on the edges into a column program (expression.py) with its operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx

from ...errors import InputError
from .expression import Expressions, Node
from .fused import Operands, Propagation
from .operators import BY_COLUMN, OPTIONS, RESHAPES, NotByColumnError, keeps, name_of, takes_last
from .stages import Moved, Staged
from .tracing import DST, SRC, attribute, is_data, width_of

WEIGHT, ESTIMATE = -1, -2  # index of an edge's weight among operands, and of the factor of a sampled edge


@dataclass(frozen=True)
class WeightParts:
    """Factors of an edge's weight, if it is read, and of its message.

    scaled: one of each end (a normalised matrix). by_edge: one of the edge itself. estimates: the message is multiplied
    by 1 / p(sampled), so that a sum over sampled edges is unbiased.
    """

    scaled: bool
    by_edge: bool
    estimates: bool


@dataclass(frozen=True)
class ColumnProgram:
    """The operations that remain on the edges, computed column by column.

    shared: numbers of tensors (`Traced`), in the order of their operands. data: names of edge data and their numbers of
    columns, in the order of concatenation. weight: the factors that are read. types: (column of the edge data, number
    of types) of each column with types of edges.
    """

    propagation: Propagation
    shared: tuple[int, ...]
    data: tuple[tuple[str, int], ...]
    weight: WeightParts
    types: tuple[tuple[int, int], ...]

    def shared_values(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the values of ``shared``, [columns] each."""
        return [tensors[number].reshape(-1).expand(self.propagation.columns) for number in self.shared]

    def check_types(self, values: Tensor) -> None:
        """Raise InputError if edge data [E, D] hold a type of edges that `typed_linear` has no matrix for."""
        names = [name for name, width in self.data for _ in range(width)]
        for column, count in self.types:
            wrong = (values[:, column] < 0) | (values[:, column] >= count) | (values[:, column].frac() != 0)
            if bool(wrong.any()):
                found = float(values[wrong, column][0])
                raise InputError(
                    f"data of edges {names[column]!r}: {found:g} is no type; "
                    f"typed_linear has matrices of types 0 to {count - 1}"
                )


@dataclass
class _Lowering:
    stage: Staged
    columns: int
    weight: WeightParts
    program: Expressions
    numbers: dict[fx.Node, int]
    shared: list[int]
    data: dict[str, tuple[int, int]]  # first column and number of columns
    types: dict[int, int]  # number of types, by column of the edge data
    reads_weight: bool = False

    def number(self, node: Any) -> int:
        if not isinstance(node, fx.Node):
            if isinstance(node, bool) or not isinstance(node, (int, float)):
                raise NotByColumnError(f"an operand {node!r} is no number")
            return self.program.constant(node)
        if node not in self.numbers:
            self.numbers[node] = self._made(node)
        return self.numbers[node]

    def _made(self, node: fx.Node) -> int:
        for op, moved in ((SRC, self.stage.src), (DST, self.stage.dst)):
            if node in moved.values:
                return self._of_vertex(op, moved, moved.values.index(node), node)
        if attribute(node, "weight"):
            self.reads_weight = True
            return self._weight()
        if is_data(node):
            return self._of_data(node)
        if not node.meta["ends"]:
            return self._of_all(node)
        return self._computed(node)

    def _weight(self) -> int:
        ends = [SRC, DST] * self.weight.scaled + ["edge"] * self.weight.by_edge
        product = self.program.constant(1)
        for end in ends:
            factor = self.program.operand(end, WEIGHT, wide=self.columns == 1)
            product = self.program.binary("mul", factor, product)
        return product

    def _of_vertex(self, op: str, moved: Moved, at: int, node: fx.Node) -> int:
        column = -1
        if moved.types[at]:
            types: Any = node.args[2]
            if not is_data(types) or len(types.meta["shape"]) != 1:
                raise NotByColumnError("types of edges are not data of edges by name, [E]")
            self._of_data(types)
            column = self.data[str(types.args[1])][0]
            self.types[column] = min(moved.types[at], self.types.get(column, moved.types[at]))
        return self.program.operand(op, at, wide=self._is_wide(node), type=column)

    def _of_data(self, node: fx.Node) -> int:
        name, shape = str(node.args[1]), node.meta["shape"]
        width = 1 if len(shape) == 1 else int(shape[1])
        if len(shape) > 2:
            raise NotByColumnError(
                f"data of edges {name!r} have {len(shape) - 1} dimensions beside that of edges"
            )
        if width not in (1, self.columns):
            raise NotByColumnError(
                f"data of edges {name!r} have {width} columns, and messages {self.columns}"
            )
        if name not in self.data:
            self.data[name] = sum(columns for _, columns in self.data.values()), width
        return self.program.operand("edge", self.data[name][0], wide=width == self.columns)

    def _of_all(self, node: fx.Node) -> int:
        shape = node.meta["shape"]
        if shape is None or [size for size in shape if size != 1] not in ([], [self.columns]):
            raise NotByColumnError(f"{node} is {shape}, and messages have {self.columns} columns")
        if node.op != "get_attr":
            raise NotByColumnError(f"{node} is computed of no values of edges")
        number = int(str(node.target))
        if number not in self.shared:
            self.shared.append(number)
        return self.program.operand("shared", self.shared.index(number), wide=True)

    def _computed(self, node: fx.Node) -> int:
        name, shape = name_of(node), node.meta["shape"]
        if not node.meta["rows"] or (len(shape) == 2 and shape[1] not in (1, self.columns)) or len(shape) > 2:
            raise NotByColumnError(
                f"{name} gives values {shape} of edges, and messages have {self.columns} columns"
            )
        if name in RESHAPES:
            if not keeps(node):
                raise NotByColumnError(f"{name} takes parts of the rows of edges")
            return self.number(node.args[0])
        if name == "sum" and takes_last(node) and "dtype" not in node.kwargs:
            x = self.number(node.args[0])
            wide = self._is_wide(node.args[0])  # type: ignore[arg-type]
            return self.program.column_sum(x) if wide and self.columns > 1 else x
        if name == "dropout":
            given = dict(zip(("p", "training"), node.args[1:], strict=False)) | node.kwargs
            if given.get("training", given.get("train", True)) and given.get("p", 0.5) != 0:
                raise NotByColumnError("dropout drops values")
            return self.number(node.args[0])
        if name not in BY_COLUMN:
            raise NotByColumnError(f"{name} is not computed column by column")
        if name in ("add", "sub") and "alpha" in node.kwargs:
            raise NotByColumnError(f"{name} has an alpha")
        given = {key: value for key, value in node.kwargs.items() if key != "inplace" and value is not None}
        options = {key: given.pop(key) for key in OPTIONS if key in given}
        operands = {key: self.number(value) for key, value in given.items()}
        args = [
            arg if name in ("leaky_relu", "elu") and i else self.number(arg)
            for i, arg in enumerate(node.args)
        ]
        try:
            return BY_COLUMN[name](self.program, *args, **operands, **options)
        except TypeError as error:
            raise NotByColumnError(f"{name} has arguments that are not known here") from error

    def _is_wide(self, node: fx.Node) -> bool:
        return width_of(node) == self.columns


def by_column(stage: Staged, weight: WeightParts, accumulator: str) -> ColumnProgram:
    """Return the operations that remain on the edges as a column program. Raises NotByColumnError if they are none."""
    if any(node.meta["shape"] is None for node in stage.left):
        raise NotByColumnError("the number of edges, or what else is no value of each edge, is read")
    nodes = [stage.traced.result, *stage.left, *stage.src.values, *stage.dst.values]
    columns = max(width_of(node) for node in nodes if node.meta["shape"] is not None)
    lowering = _Lowering(stage, columns, weight, Expressions(), {}, [], {}, {})
    result = lowering.number(stage.traced.result)
    program = lowering.program
    if stage.traced.result.meta["shape"][1] == columns:
        result = program.splat(result)
    elif program.nodes[result].wide:
        raise NotByColumnError("a message of one column is computed of values that have more")
    if program.value_of(result) is not None:
        raise NotByColumnError("the message of an edge is a constant")
    if weight.estimates:
        result = program.binary("mul", result, program.operand("edge", ESTIMATE, wide=columns == 1))
    if not lowering.reads_weight:
        weight = WeightParts(scaled=False, by_edge=False, estimates=weight.estimates)
    edge = {}  # the column of each operand in the edge data
    for at, width in lowering.data.values():
        edge[Node("edge", index=at, wide=width == columns)] = at
    at = sum(width for _, width in lowering.data.values())
    for number, read in ((WEIGHT, weight.by_edge), (ESTIMATE, weight.estimates)):
        if read:
            edge[Node("edge", index=number, wide=columns == 1)] = at
            at += 1
    made = Propagation(
        program=program,
        result=result,
        columns=columns,
        src=_operands(SRC, stage.src, program, columns, scaled=weight.scaled),
        dst=_operands(DST, stage.dst, program, columns, scaled=weight.scaled),
        shared=len(lowering.shared),
        edge=edge,
        reduce=accumulator,
    )
    data = tuple((name, width) for name, (_, width) in lowering.data.items())
    return ColumnProgram(made, tuple(lowering.shared), data, weight, tuple(lowering.types.items()))


def _operands(end: str, moved: Moved, program: Expressions, columns: int, *, scaled: bool) -> Operands:
    """Return what the program reads of one end of an edge: its operand nodes and their widths.

    moved: the values of this end, in order. scaled: append this end's factor of the normalised weight, one
    column.
    """
    known = {node.index: node for node in program.nodes if node.op == end}
    nodes = [known[i] for i in range(len(moved.values))]
    scale = [Node(end, index=WEIGHT, wide=columns == 1)] * scaled
    return Operands((*nodes, *scale), (*moved.widths, *[1] * scaled))
