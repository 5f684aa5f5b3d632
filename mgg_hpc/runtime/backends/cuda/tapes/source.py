"""CUDA source for one tape: its operators as straight-line code, for all columns of a lane.

Registers become variables, each written once, so that the compiler keeps them where it likes. What it reads of an
edge's other end is loaded for several edges before the first is computed. A sum over columns is one over the worker's
lanes; where rows are walked in passes, a function of its own finds it over all passes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...tape import Tape, Value
from . import text

ROWS = {"float32": "float", "float16": "Half16", "bfloat16": "BHalf16"}
# Members of `Call`, each of 8 bytes, before those of a tape's arrays; all but the last three as the module names them.
FIELDS = {
    "tasks": "const Block*",
    "count": "i64",
    "segments": "const Segment*",
    "hubs": "const Hub*",
    "counters": "i64",
    "pending": "i32*",
    "degree": "const i32*",
    "indices": "const i32*",
    "sources": "const Row* const*",
    "own": "const Row*",
    "staging": "const char*",
    "staging_bytes": "i64",
    "calls": "const u64*",
    "stride": "i64",
    "partials": "float*",
    "shared": "const float*",
    "edge": "const float*",
    "edge_columns": "i64",
}
MOST_COLUMNS = 8  # of a lane in a pass
LOADED = 8  # values of an operand that a lane loads before it computes

FORMS = {
    "exp": "expf({a})",
    "log": "logf({a})",
    "sqrt": "sqrtf({a})",
    "tanh": "tanhf({a})",
    "sigmoid": "logistic(expf(-{a}))",
    "abs": "magnitude({a})",
    "reciprocal": "1 / {a}",
    "leaky_relu": "leaky_relu({a}, {value})",
    "add_value": "{a} + {value}",
    "mul_value": "{a} * {value}",
    "add": "{a} + {b}",
    "sub": "{a} - {b}",
    "mul": "{a} * {b}",
    "div": "{a} / {b}",
    "maximum": "larger_of({a}, {b})",
    "minimum": "smaller_of({a}, {b})",
    "where_positive": "where_positive({a}, {b}, {value})",
    "times_sign": "times_sign({a}, {b})",
    "above": "above({a}, {b})",
    "equal": "equal({a}, {b})",
}


@dataclass(frozen=True)
class Source:
    """The source of a tape's kernel ``mgg_tape``.

    It takes a struct of 8-byte members: FIELDS, then for each of the first ``arrays`` of this end, and for each output,
    its address and the values between its rows.

    lanes, columns: of a worker, and of a lane in a pass. passes: over the columns, each a part of a task. state: floats
    of all outputs of a row.
    """

    text: str
    lanes: int
    columns: int
    passes: int
    state: int
    arrays: int


@dataclass(frozen=True)
class _Node:
    """An operand (place), or a step's result."""

    op: str = ""
    args: tuple[int, ...] = ()
    value: float = 0.0
    wide: bool = True
    place: Value | None = None


@dataclass
class _Program:
    """The values of a tape, each written once. results: of outputs. sums: the nodes of sums over columns."""

    nodes: list[_Node] = field(default_factory=list)
    results: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, tape: Tape) -> _Program:
        """Return the program of a tape."""
        made, now = cls(), dict[int, int]()

        def node_of(value: int) -> int:
            if value not in now:
                place = tape.values[value]
                now[value] = made._add(_Node(place=place, wide=not place.narrow))
            return now[value]

        for step in tape.steps:
            args = tuple(node_of(value) for value in (step.a, step.b) if value >= 0)
            if step.op in ("pick", "splat"):  # a narrow value counts for each column
                now[step.out] = args[0]
                continue
            wide = tape.values[step.out].kind == "wide"
            now[step.out] = made._add(_Node(step.op, args, step.value, wide))
        made.results = [node_of(output.value) for output in tape.outputs]
        return made

    def _add(self, node: _Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    @property
    def sums(self) -> list[int]:
        """The nodes of sums over columns, in their order."""
        return [number for number, node in enumerate(self.nodes) if node.op == "column_sum"]

    def needed(self, wanted: Iterable[int], known: Sequence[int] = ()) -> list[int]:
        """Return the nodes that some are computed from, and these, in their order. known: those that are there."""
        found, open_nodes = set[int](), list(wanted)
        while open_nodes:
            number = open_nodes.pop()
            if number not in found:
                found.add(number)
                open_nodes += [] if number in known else self.nodes[number].args
        return sorted(found)


def source(tape: Tape, dtype: str) -> Source:
    """Return the source of a tape over rows of a type, which is a name of ROWS."""
    lanes = 1
    while lanes < min(32, tape.columns):
        lanes *= 2
    columns = min(-(-tape.columns // lanes), MOST_COLUMNS)
    passes = -(-tape.columns // (lanes * columns))
    state = sum(output.width for output in tape.outputs)
    body = _Writer(tape, passes).functions()
    arrays = 1 + max((value.index for value in tape.values if value.kind == "near"), default=-1)
    parts = [
        text.DEVICE,
        f"using Row = {ROWS[dtype]};",
        _constants(tape, lanes, columns, passes, state),
        _call(tape, arrays),
        text.WORKER,
        body,
        text.KERNEL,
    ]
    return Source("\n".join(parts), lanes, columns, passes, state, arrays)


def _constants(tape: Tape, lanes: int, columns: int, passes: int, state: int) -> str:
    numbers = {
        "LANES": lanes,
        "COLUMNS": tape.columns,
        "MINE": columns,
        "PASSES": passes,
        "STATE": state,
        "OUTPUTS": len(tape.outputs),
        "AHEAD": max(1, min(4, LOADED // columns)),
    }
    lines = [f"constexpr i32 {name} = {number};" for name, number in numbers.items()]
    lines += [
        f"constexpr bool {name.upper()} = {str(tape.reduce == name).lower()};" for name in ("max", "mean")
    ]
    return "\n".join(lines)


def _call(tape: Tape, arrays: int) -> str:
    """Return the struct of arguments, and what is known of each output."""
    members = [f"  {type} {name};" for name, type in FIELDS.items()]
    members += [f"  const float* near{i};\n  i64 near{i}_stride;" for i in range(arrays)]
    members += [f"  float* out{o};\n  i64 out{o}_stride;" for o in range(len(tape.outputs))]
    outputs, place = range(len(tape.outputs)), 0
    places = []
    for output in tape.outputs:
        places.append(place)
        place += output.width
    types = [output.width // tape.columns if output.type >= 0 else 0 for output in tape.outputs]
    tables = [
        _table("float*", "out_of(const Call& call, int o)", [f"call.out{o}" for o in outputs]),
        _table("i64", "out_stride(const Call& call, int o)", [f"call.out{o}_stride" for o in outputs]),
        _table("i32", "width_of(int o)", [output.width for output in tape.outputs]),
        _table("i32", "place_of(int o)", places),
        _table("i32", "types_of(int o)", types),
        _table("i32", "type_of(int o)", [output.type for output in tape.outputs]),
    ]
    size = 8 * (len(FIELDS) + 2 * arrays + 2 * len(tape.outputs))
    check = f'static_assert(sizeof(Call) == {size}, "Call is shared with Python");'
    return "\n".join(["struct Call {", *members, "};", check, *tables])


def _table(type: str, signature: str, values: Sequence[object]) -> str:
    """Return a function of an output's number, which is a constant wherever it is called."""
    chosen = "".join(f"o == {o} ? {value} : " for o, value in enumerate(values[:-1]))
    return f"MGG_DEVICE {type} {signature} {{ return {chosen}{values[-1]}; }}"


class _Writer:
    """Writes the functions of a tape's values."""

    def __init__(self, tape: Tape, passes: int) -> None:
        self.tape, self.program, self.passes = tape, _Program.of(tape), passes
        leaves = [n for n, node in enumerate(self.program.nodes) if node.place is not None]
        by_edge = [n for n in leaves if self._place(n).kind in ("far", "edge") or self._place(n).type >= 0]
        self.by_edge = by_edge
        self.by_task = [n for n in leaves if n not in by_edge]

    def functions(self) -> str:
        """Return all of them."""
        parts = [self._typed(), self._loads("Near", self.by_task), self._loads("Far", self.by_edge)]
        in_passes = self.program.sums if self.passes > 1 else []
        for k, number in enumerate(in_passes):
            parts.append(self._sum(k, number, in_passes[:k]))
        return "\n".join([*parts, self._compute(in_passes)])

    def _typed(self) -> str:
        """Return the function for the first of the columns that an edge's type chooses."""
        return (
            "MGG_DEVICE i64 typed(const Call& call, i32 type, i64 edge) {\n"
            "  return i64(COLUMNS) * static_cast<i32>(call.edge[edge * call.edge_columns + type]);\n}"
        )

    def _place(self, number: int) -> Value:
        place = self.program.nodes[number].place
        assert place is not None
        return place

    def _loads(self, name: str, numbers: list[int]) -> str:
        """Return a struct of operands, and the function that loads them: of a task (Near), or of an edge (Far)."""
        members, lines = [], []
        for number in numbers:
            place, wide = self._place(number), self.program.nodes[number].wide
            members.append(f"  float v{number}{'[MINE]' if wide else ''};")
            address = self._address(place)
            if wide:
                lines.append(
                    f"  MGG_UNROLL\n  for (int i = 0; i < MINE; ++i)\n    found.v{number}[i] = has(at, pass, i) ? "
                    f"widen({address}[column(at, pass, i)]) : 0.0f;"
                )
            else:
                lines.append(f"  found.v{number} = widen({address}[0]);")
        more = ", const Row* source, i64 edge" if name == "Far" else ""
        return "\n".join(
            [
                f"struct {name} {{",
                *members,
                "};",
                f"MGG_DEVICE {name} load_{name.lower()}(const Call& call, const Worker& at, i32 pass{more}) {{",
                f"  {name} found;",
                *lines,
                "  return found;\n}",
            ]
        )

    def _address(self, place: Value) -> str:
        """Return where an operand's first column lies."""
        if place.kind == "edge":
            return f"(call.edge + edge * call.edge_columns + {place.index})"
        base = {
            "far": f"source + {place.index}",
            "near": f"call.near{place.index} + at.destination * call.near{place.index}_stride",
            "shared": f"call.shared + {place.index}",
        }[place.kind]
        return f"({base}{f' + typed(call, {place.type}, edge)' if place.type >= 0 else ''})"

    def _sum(self, k: int, number: int, known: list[int]) -> str:
        """Return the function for a sum over all columns of an edge, given those before it."""
        (arg,) = self.program.nodes[number].args
        lines = [self._step(n) for n in self.program.needed([arg], known) if n not in known]
        before = "".join(f", float v{n}" for n in known)
        return "\n".join(
            [
                f"MGG_DEVICE float sum{k}(const Call& call, const Worker& at, const Row* source, i64 edge{before}) {{",
                "  float total = 0.0f;",
                "  for (i32 pass = 0; pass < PASSES; ++pass) {",
                "  const Near near = load_near(call, at, pass);",
                "  const Far far = load_far(call, at, pass, source, edge);",
                *filter(None, lines),
                "  MGG_UNROLL\n  for (int i = 0; i < MINE; ++i)",
                f"    if (has(at, pass, i)) total += {self._operand(arg)};",
                "  }",
                "  return over_lanes(at, total);\n}",
            ]
        )

    def _compute(self, in_passes: list[int]) -> str:
        """Return the function for the outputs of an edge."""
        lines = []
        for k, number in enumerate(in_passes):
            before = "".join(f", v{n}" for n in in_passes[:k])
            lines.append(f"  const float v{number} = sum{k}(call, at, source, edge{before});")
        wanted = self.program.results
        lines += [self._step(n) for n in self.program.needed(wanted, in_passes) if n not in in_passes]
        for o, number in enumerate(wanted):
            index = "[i]" if self.program.nodes[number].wide else ""
            lines.append(
                f"  MGG_UNROLL\n  for (int i = 0; i < MINE; ++i) out[{o}][i] = {self._value(number)}{index};"
            )
        return "\n".join(
            [
                "MGG_DEVICE void compute(const Call& call, const Worker& at, const Row* source, i64 edge, "
                "const Near& near, const Far& far, float (&out)[OUTPUTS][MINE]) {",
                "  const i32 pass = at.pass;" if self.program.sums and not in_passes else "",
                *filter(None, lines),
                "}",
            ]
        )

    def _value(self, number: int) -> str:
        """Return the variable of a node."""
        if self.program.nodes[number].place is None:
            return f"v{number}"
        return f"{'far' if number in self.by_edge else 'near'}.v{number}"

    def _step(self, number: int) -> str:
        """Return the statement of a node; nothing for an operand."""
        node = self.program.nodes[number]
        if node.place is not None:
            return ""
        if node.op == "column_sum":
            (arg,) = node.args
            total = f"v{number}_part"
            return (
                f"  float {total} = 0.0f;\n  MGG_UNROLL\n  for (int i = 0; i < MINE; ++i)\n"
                f"    if (has(at, pass, i)) {total} += {self._operand(arg)};\n"
                f"  const float v{number} = over_lanes(at, {total});"
            )
        names = dict(zip("ab", map(self._operand, node.args), strict=False))
        form = FORMS[node.op].format(**names, value=_literal(node.value))
        if not node.wide:
            return f"  const float v{number} = {form};"
        return (
            f"  float v{number}[MINE];\n  MGG_UNROLL\n  for (int i = 0; i < MINE; ++i) v{number}[i] = {form};"
        )

    def _operand(self, number: int) -> str:
        return self._value(number) + ("[i]" if self.program.nodes[number].wide else "")


def _literal(value: float) -> str:
    """Return a float32 as it stands in source, with all of its bits."""
    narrow = float(np.float32(value))
    if not np.isfinite(narrow):
        return {"inf": "infinity()", "-inf": "(-infinity())"}.get(str(narrow), "(infinity() - infinity())")
    return f"({narrow:.9e}f)" if narrow < 0 else f"{narrow:.9e}f"
