"""The CPU's kernel that runs tapes edge by edge: every tape in every type of rows, against float64; and its elementary
functions, a few units in the last place from float64's, also at the ends."""

from __future__ import annotations

import cases
import ml_dtypes
import numpy as np
import pytest
import reference
from gpu.pes import tape_programs as tapes
from gpu.pes.edges import Edges, close
from gpu.pes.engine import Engine
from gpu.pes.table import WORLDS, Entry

from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.edges import TailedRows, TapeArrays
from mgg_hpc.runtime.backends.tape import Output, Step, Tape, Value

HOST = Engine.host()
FUNCTIONS = {
    "exp": np.exp,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}
UNITS = 4.0
SMALLEST = float(np.finfo(np.float32).tiny)


def propagated(rng, case, entry, tape, far, near=(), shared=(), edge=None):
    """The outputs of a tape over rows ``far``, in all ranks' order."""
    dtype = np.dtype(entry.dtype)
    wide = TailedRows(dtype, 1).accumulator
    given = {f"near{i}": each.astype(wide) for i, each in enumerate(near)}
    given |= {} if edge is None else {"edges": edge.astype(wide)}
    names = [f"out{o}" for o in range(len(tape.outputs))]

    def call(backend, plan, rows, out, mine):
        of_ends, into = [mine[f"near{i}"] for i in range(len(near))], [out[name] for name in names]
        arrays = TapeArrays(of_ends, np.asarray(shared, wide), into, mine.get("edges"))
        backend.edges.propagate(plan, tape, rows, arrays)

    outputs = {name: RowFormat(wide, of.width) for name, of in zip(names, tape.outputs, strict=True)}
    sets, layout = [far.astype(dtype)] * 2, TailedRows(dtype, tape.far_columns)  # a schedule is used again
    edges = Edges(HOST, case, entry, rng, halo=False)
    found = edges.calls(case, layout, (1, tape.columns), sets, outputs, given, call)[-1]
    return [found[name] for name in names]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("ranks", "transfer"), WORLDS)
@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("columns", tapes.WIDTHS)
@pytest.mark.parametrize("way", tapes.WAYS)
@pytest.mark.parametrize("program", tapes.PROGRAMS)
def test_tapes_are_those_of_the_reference(rng, program, way, columns, kind, reduce, ranks, transfer):
    """Over a hub more often than over others: equal maxima lie in several of its parts."""
    name = "hub" if rng.integers(4) == 0 else str(rng.choice(list(cases.CASES)))
    given, case = tapes.tape(program, way, columns, reduce), cases.CASES[name](rng, ranks)
    more = tapes.arrays(given, case.nodes, len(case.indices), rng)
    wanted = reference.propagate(*case.edge_list, case.nodes, given.tape, *more.values())
    entry = Entry("propagate", np.dtype(kind).name, 0, name, transfer, ranks)
    found = propagated(rng, case, entry, given.tape, *more.values())
    bound, terms = TailedRows(np.dtype(kind), 1).accumulator, given.tape.columns**0.5  # sums may cancel
    for output, right in zip(found, wanted, strict=True):
        close(output, right, bound, terms)


def of_rows(rng, op: str, x: np.ndarray) -> np.ndarray:
    """Return op of rows [n, columns] by a tape, over the graph in which each node has itself as its neighbour."""
    nodes, columns = x.shape
    case = cases.Case(np.arange(nodes + 1), np.arange(nodes), np.array([0, nodes]))
    values = [Value("far", 0), Value("wide", 0)]
    tape = Tape(columns, columns, values, [Step(op, 1, 0)], [Output(1, columns)], 1)
    return propagated(rng, case, Entry("propagate", "float32", 0, "loops", "direct", 1), tape, x)[0]


@pytest.mark.parametrize("columns", [5, 80, 208])  # fewer than a vector, and one, four and eight at a time
@pytest.mark.parametrize("op", FUNCTIONS)
def test_functions_are_off_by_a_few_units(rng, op, columns):
    size = rng.choice([1e-6, 1e-2, 1.0, 10.0, 87.0], (300, columns))
    x = (rng.uniform(-1, 1, (300, columns)) * size).astype(np.float32)
    right = FUNCTIONS[op](x.astype(np.float64))
    unit = np.maximum(np.abs(right), SMALLEST) * np.finfo(np.float32).eps
    assert (np.abs(of_rows(rng, op, x) - right) / unit).max() <= UNITS


@pytest.mark.parametrize("op", FUNCTIONS)
def test_functions_at_the_ends(rng, op):
    x = np.array([[0, -0.0, 100, -100, np.inf, -np.inf, np.nan, 3e38]], np.float32)
    with np.errstate(over="ignore"):
        right = FUNCTIONS[op](x.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(of_rows(rng, op, x), right, rtol=1e-6, atol=SMALLEST)
