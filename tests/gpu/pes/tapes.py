"""Tapes run edge by edge for the table of cases, by any transfer; against float64."""

from __future__ import annotations

import numpy as np
import reference

from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.cuda.tape_source import Source, tape_source
from mgg_hpc.runtime.backends.edges import TailedRows, TapeArrays

from . import tape_programs as tapes
from .edges import Edges, close

CALLS = 3
# What the shim runs, since it is compiled ahead: each program, way, type of rows, and number of columns of a lane;
# several passes with sums over columns and without.
FIXED = [
    ("gated", "forward", 33, "mean", "float32"),
    ("gated", "sources", 5, "sum", "float16"),
    ("typed", "sources", 40, "sum", "bfloat16"),
    ("of type", "sources", 9, "sum", "float32"),
    ("scored", "targets", 16, "sum", "float32"),
    ("twice scored", "targets", 300, "sum", "float32"),
    ("every operator", "forward", 129, "sum", "float32"),
    ("largest", "forward", 64, "sum", "float32"),
]


def source_of(program: str, way: str, columns: int, reduce: str, dtype: str) -> Source:
    """Return the source of a tape, a line of FIXED for example."""
    return tape_source(tapes.tape(program, way, columns, reduce).tape, dtype)


def drawn(rng: np.random.Generator, device: str, dtype: str) -> tapes.Given:
    """One of the tapes, of any width; over the shim of those in FIXED."""
    if device == "shim":
        fixed = [words for *words, kind in FIXED if kind == dtype]
        return tapes.tape(*fixed[rng.integers(len(fixed))])
    programs, columns = list(tapes.PROGRAMS), int(rng.choice(tapes.WIDTHS))
    reduce = str(rng.choice(["sum", "mean"]))
    return tapes.tape(str(rng.choice(programs)), str(rng.choice(tapes.WAYS)), columns, reduce)


def propagated(engine, case, entry, rng, *, halo=False, given=None):
    """Several sets of rows by one tape, `drawn` or given."""
    given = drawn(rng, engine.device, entry.dtype) if given is None else given
    edges = Edges(engine, case, entry, rng, halo)
    sets, more = _arrays(given, case, rng)
    wanted = _wanted(given, case, sets, more)
    dtype = np.dtype(entry.dtype)
    found = _run(edges, given, dtype, sets, more)
    terms = given.tape.columns**0.5  # of sums over columns, which may cancel
    worst = max(
        close(each[f"out{o}"], right, np.dtype(np.float32), terms)
        for each, all_right in zip(found, wanted, strict=True)
        for o, right in enumerate(all_right)
    )
    again = _run(edges.again(), given, dtype, sets[-1:], more)[0]
    for name, values in found[-1].items():
        assert again[name].tobytes() == values.tobytes(), (
            f"{edges.transfer}: other bits of {name} the second time"
        )
    return worst


def _arrays(given, case, rng):
    """Sets of rows of other ends, and what all calls take beside them."""
    nodes, count = case.nodes, len(case.indices)
    more = tapes.arrays(given, nodes, count, rng)
    return [
        more.pop("far"),
        *(tapes.steps_of_eight(rng, nodes, given.tape.far_columns) for _ in range(CALLS - 1)),
    ], more


def _wanted(given, case, sets, more):
    ends = reference.edge_list(case.indptr, case.indices)
    rest = (more["near"], more["shared"], more["edge"])
    return [reference.propagate(*ends, case.nodes, given.tape, far, *rest) for far in sets]


def _run(edges, given, dtype, sets, more):
    engine, tape = edges.engine, given.tape
    shared = engine.array(more["shared"])
    arrays = {f"near{i}": rows for i, rows in enumerate(more["near"])}
    arrays |= {} if more["edge"] is None else {"edges": more["edge"]}
    outputs = {f"out{o}": RowFormat(np.dtype(np.float32), each.width) for o, each in enumerate(tape.outputs)}

    def call(backend, plan, rows, out, mine):
        near = [mine[f"near{i}"] for i in range(len(given.near))]
        into = TapeArrays(near, shared, list(out.values()), mine.get("edges"))
        backend.edges.propagate(plan, tape, rows, into)

    def ready(backend, plan, rows):
        backend.edges.ready_propagate(plan, rows, tape)

    layout = TailedRows(dtype, tape.far_columns)
    rows = [far.astype(dtype) for far in sets]
    return edges.calls(edges.case, layout, (1, tape.columns), rows, outputs, arrays, call, ready)
