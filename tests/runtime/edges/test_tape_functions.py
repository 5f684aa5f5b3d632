"""Elementary functions of tapes on CPUs: a few units in the last place from float64, and what happens at the ends."""

from __future__ import annotations

import cases
import numpy as np
import pytest
from world import SMALL, plans_of

from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.arguments import Options
from mgg_hpc.runtime.backends.host.serial import SerialBackend
from mgg_hpc.runtime.backends.simulated import World
from mgg_hpc.runtime.backends.tape import Output, Step, Tape, Value

FUNCTIONS = {
    "exp": np.exp,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}
UNITS = 4.0
SMALLEST = float(np.finfo(np.float32).tiny)


def of_rows(op: str, x: np.ndarray) -> np.ndarray:
    """Return op of rows [n, columns] by a tape, over the graph in which each node has itself as its neighbour."""
    nodes, columns = x.shape
    case = cases.Case(np.arange(nodes + 1), np.arange(nodes), np.array([0, nodes]))
    values = [Value("far", 0), Value("wide", 0)]
    tape = Tape(columns, columns, values, [Step(op, 1, 0)], [Output(1, columns)], 1)
    backend = SerialBackend(0, World(1), Options(SMALL, 1))
    (plan,), format = plans_of(case, "direct"), RowFormat(np.dtype(np.float32), columns)
    rows = backend.rows(np.array([nodes]), format, symmetric=True)
    rows.local[:] = x
    backend.prepare(plan, format)
    backend.publish(rows)
    out = np.full((nodes, columns), np.nan, np.float32)
    backend.edges.propagate(plan, tape, rows, near=[], shared=np.zeros(0, np.float32), out=[out], edge=None)
    return out


@pytest.mark.parametrize("columns", [5, 80, 208])  # fewer than a vector, and one, four and eight at a time
@pytest.mark.parametrize("op", FUNCTIONS)
def test_functions_are_off_by_a_few_units(rng, op, columns):
    size = rng.choice([1e-6, 1e-2, 1.0, 10.0, 87.0], (300, columns))
    x = (rng.uniform(-1, 1, (300, columns)) * size).astype(np.float32)
    right = FUNCTIONS[op](x.astype(np.float64))
    unit = np.maximum(np.abs(right), SMALLEST) * np.finfo(np.float32).eps
    assert (np.abs(of_rows(op, x) - right) / unit).max() <= UNITS


@pytest.mark.parametrize("op", FUNCTIONS)
def test_functions_at_the_ends(op):
    x = np.array([[0, -0.0, 100, -100, np.inf, -np.inf, np.nan, 3e38]], np.float32)
    with np.errstate(over="ignore"):
        right = FUNCTIONS[op](x.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(of_rows(op, x), right, rtol=1e-6, atol=SMALLEST)
