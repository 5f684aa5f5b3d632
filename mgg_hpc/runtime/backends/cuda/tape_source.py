"""Generate the CUDA source of one tape: its operators as straight-line code, for all columns of a lane.

The loop over edges is in cuda/gpu/edges/tape.cuh, a template over the struct that is generated here. Registers
of the tape become variables, each assigned once, so that the compiler allocates them. Operands of the edge's
other end are loaded for several edges before the first is computed. A worker is the group of lanes that
computes a destination; a sum over columns is reduced over its lanes. If rows are wider than a worker computes
at once, they are processed in passes, and a function of its own computes such a sum over all passes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..tape import Tape, Value

ROWS = {"float32": "float", "float16": "Float16", "bfloat16": "BFloat16"}
MOST_COLUMNS = 8  # per lane and pass
ARGUMENTS, EDGE = "const Call& call, const Worker& at", "const Row* source, int64_t edge"  # parameters

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
    "above": "above({a}, {b}, 1.0f)",
    "equal": "equal({a}, {b}, 1.0f)",
}


@dataclass(frozen=True)
class Source:
    """CUDA source of a tape's kernel, ``mgg_tape``, to be compiled after the headers of cuda/gpu/edges.

    Args:
        text: the source.
        lanes: number of threads that compute one destination together (a worker).
        columns: number of columns that each of these threads computes at once.
        state: number of floats in all outputs of one destination.
        near: number of arrays with values of destinations that the kernel takes.
    """

    text: str
    lanes: int
    columns: int
    state: int
    near: int


@dataclass(frozen=True)
class _Node:
    """An operand, with its location ``place`` in the tape's terms, or the result of a step."""

    op: str = ""
    args: tuple[int, ...] = ()
    value: float = 0.0
    wide: bool = True
    place: Value | None = None


def tape_source(tape: Tape, dtype: str) -> Source:
    """Return the source of a tape's kernel for rows of ``dtype``, a key of ROWS."""
    lanes = 1
    while lanes < min(32, tape.columns):
        lanes *= 2
    columns = min(-(-tape.columns // lanes), MOST_COLUMNS)
    passes = -(-tape.columns // (lanes * columns))
    widths = [output.width for output in tape.outputs]
    near = 1 + max((value.index for value in tape.values if value.kind == "near"), default=0)
    types = [output.width // tape.columns if output.type >= 0 else 0 for output in tape.outputs]
    parts = [
        "namespace mgg {",
        f"struct Tape : TapeColumns<{ROWS[dtype]}, {tape.columns}, {lanes}, {columns}, {passes}> {{",
        f"using Call = DeviceTape<Row, {len(widths)}, {near}>;",
        f"static constexpr int outputs = {len(widths)}, state = {sum(widths)};",
        *(f"static constexpr bool {name} = {str(tape.reduce == name).lower()};" for name in ("max", "mean")),
        _constants("width", widths),
        _constants("place", np.cumsum([0, *widths[:-1]]).tolist()),
        _constants("types", types),
        _constants("type", [output.type for output in tape.outputs]),
        _Writer(tape, passes).functions(),
        "};\n}  // namespace mgg\nMGG_TAPE_KERNEL(mgg::Tape)\n",
    ]
    return Source("\n".join(parts), lanes, columns, sum(widths), near)


def _constants(name: str, values: Sequence[int]) -> str:
    """Return the source of a function ``name(o)`` that returns values[o], for the number ``o`` of an output."""
    chosen = "".join(f"o == {o} ? {value} : " for o, value in enumerate(values[:-1]))
    return f"MGG_DEVICE static int32_t {name}(int o) {{ return {chosen}{values[-1]}; }}"


class _Writer:
    """Generates the source of a tape's functions.

    Values of the tape become nodes, each of which is assigned once.

    results: numbers of the nodes of the outputs. sums: numbers of the nodes that are sums over columns. near,
    far: operands by the number of their node; ``near`` are the same for all edges of a destination, ``far`` are
    not.
    """

    def __init__(self, tape: Tape, passes: int) -> None:
        self.nodes, self.passes = list[_Node](), passes
        current = dict[int, int]()  # the node that a value of the tape is in now

        def add(node: _Node) -> int:
            self.nodes.append(node)
            return len(self.nodes) - 1

        def node_of(value: int) -> int:
            if value not in current:
                place = tape.values[value]
                current[value] = add(_Node(place=place, wide=not place.narrow))
            return current[value]

        for step in tape.steps:
            args = tuple(node_of(value) for value in (step.a, step.b) if value >= 0)
            if step.op in ("pick", "splat"):  # a narrow value counts for each column
                current[step.out] = args[0]
                continue
            wide = tape.values[step.out].kind == "wide"
            current[step.out] = add(_Node(step.op, args, step.value, wide))
        self.results = [node_of(output.value) for output in tape.outputs]
        self.sums = [number for number, node in enumerate(self.nodes) if node.op == "column_sum"]
        places = {n: node.place for n, node in enumerate(self.nodes) if node.place is not None}
        self.far = {n: at for n, at in places.items() if at.kind in ("far", "edge") or at.type >= 0}
        self.near = {n: at for n, at in places.items() if n not in self.far}

    def _steps(self, wanted: Iterable[int], known: Sequence[int]) -> list[str]:
        """Return the statements that compute the nodes ``wanted`` from operands and the nodes ``known``."""
        found, open_nodes = set[int](), list(wanted)
        while open_nodes:
            number = open_nodes.pop()
            if number not in found and number not in known:
                found.add(number)
                open_nodes += self.nodes[number].args
        return [self._step(number) for number in sorted(found) if self.nodes[number].place is None]

    def functions(self) -> str:
        """Return the source of all functions of the tape."""
        parts = [self._loads("Near", self.near, ""), self._loads("Far", self.far, f", {EDGE}")]
        in_passes = self.sums if self.passes > 1 else []
        for k, number in enumerate(in_passes):
            parts.append(self._sum(k, number, in_passes[:k]))
        return "\n".join([*parts, self._compute(in_passes)])

    def _loads(self, name: str, operands: dict[int, Value], more: str) -> str:
        """Return the source of a struct of operands, and of the function that loads them.

        name: name of the struct. more: further parameters of the function.
        """
        members, lines = [], []
        for number, place in operands.items():
            wide, address = self.nodes[number].wide, self._address(place)
            members.append(f"  float v{number}{'[mine]' if wide else ''};")
            if wide:
                lines.append(
                    f"  MGG_EACH_COLUMN found.v{number}[i] = has(at, pass, i) ? "
                    f"widen({address}[column(at, pass, i)]) : 0.0f;"
                )
            else:
                lines.append(f"  found.v{number} = widen({address}[0]);")
        return "\n".join(
            [
                f"struct {name} {{",
                *members,
                "};",
                f"MGG_DEVICE static {name} load_{name.lower()}({ARGUMENTS}, int32_t pass{more}) {{",
                f"  {name} found;",
                *lines,
                "  return found;\n}",
            ]
        )

    def _address(self, place: Value) -> str:
        """Return the C++ expression of the address of an operand's first column."""
        if place.kind == "edge":
            return f"(call.edge + edge * call.edge_columns + {place.index})"
        base = {
            "far": f"source + {place.index}",
            "near": f"call.near[{place.index}].rows + at.destination * call.near[{place.index}].stride",
            "shared": f"call.shared + {place.index}",
        }[place.kind]
        return f"({base}{f' + typed(call, {place.type}, edge)' if place.type >= 0 else ''})"

    def _sum(self, k: int, number: int, known: list[int]) -> str:
        """Return the source of the function ``sum<k>``, which computes a sum over all columns, in passes.

        number: node of the sum. known: nodes of the sums before it, which are parameters of the function.
        """
        (arg,) = self.nodes[number].args
        before = "".join(f", float v{n}" for n in known)
        return "\n".join(
            [
                f"MGG_DEVICE static float sum{k}({ARGUMENTS}, {EDGE}{before}) {{",
                "  float total = 0.0f;",
                "  for (int32_t pass = 0; pass < passes; ++pass) {",
                "  const Near near = load_near(call, at, pass);",
                "  const Far far = load_far(call, at, pass, source, edge);",
                *self._steps([arg], known),
                "  MGG_EACH_COLUMN",
                f"    if (has(at, pass, i)) total += {self._operand(arg)};",
                "  }",
                "  return at.over_lanes(total);\n}",
            ]
        )

    def _compute(self, in_passes: list[int]) -> str:
        """Return the source of the function ``compute``, which computes all outputs of the tape for one edge.

        in_passes: nodes of sums over columns that functions of their own (`_sum`) compute first.
        """
        lines = []
        for k, number in enumerate(in_passes):
            before = "".join(f", v{n}" for n in in_passes[:k])
            lines.append(f"  const float v{number} = sum{k}(call, at, source, edge{before});")
        lines += self._steps(self.results, in_passes)
        for o, number in enumerate(self.results):
            lines.append(f"  MGG_EACH_COLUMN out[{o}][i] = {self._operand(number)};")
        return "\n".join(
            [
                f"MGG_DEVICE static void compute({ARGUMENTS}, {EDGE}, const Near& near, const Far& far, "
                "float (&out)[outputs][mine]) {",
                "  const int32_t pass = at.pass;" if self.sums and not in_passes else "",
                *lines,
                "}",
            ]
        )

    def _step(self, number: int) -> str:
        """Return the statements that compute a node which is not an operand."""
        node = self.nodes[number]
        if node.op == "column_sum":
            (arg,) = node.args
            total = f"v{number}_part"
            return (
                f"  float {total} = 0.0f;\n  MGG_EACH_COLUMN\n"
                f"    if (has(at, pass, i)) {total} += {self._operand(arg)};\n"
                f"  const float v{number} = at.over_lanes({total});"
            )
        names = dict(zip("ab", map(self._operand, node.args), strict=False))
        form = FORMS[node.op].format(**names, value=_literal(node.value))
        if not node.wide:
            return f"  const float v{number} = {form};"
        return f"  float v{number}[mine];\n  MGG_EACH_COLUMN v{number}[i] = {form};"

    def _operand(self, number: int) -> str:
        """Return the C++ expression of a node's value; for a wide node, of its column i."""
        owner = "far." if number in self.far else "near." if number in self.near else ""
        return f"{owner}v{number}{'[i]' if self.nodes[number].wide else ''}"


def _literal(value: float) -> str:
    """Return a C++ expression for a float32 value, exact to the bit."""
    narrow = float(np.float32(value))
    if not np.isfinite(narrow):
        return f"float_of_bits({np.float32(value).view(np.uint32):#x}u)"
    return f"({narrow:.9e}f)" if narrow < 0 else f"{narrow:.9e}f"
