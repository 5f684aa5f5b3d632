"""Calls of tapes on a GPU: their arrays, checked; the interpreter's arguments, and those of compiled ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from .....plan.workload import Plan
from ...tape import Tape
from ..arrays import edge_values, flat, rows_of
from ..device_arrays import DeviceArrays
from ..launches import DeviceLaunches
from .kernels import THREADS, TapeKernels
from .source import FIELDS, Source
from .source import source as written

_SOURCES: WeakKeyDictionary[Tape, dict[str, Source]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Operands:
    """Addresses of a call's arrays; of rows also the values between them. counts: of shared values, and of columns of
    edge data.
    """

    near: list[tuple[int, int]]
    out: list[tuple[int, int]]
    shared: int
    shared_count: int
    edge: int
    edge_columns: int


def operands(
    arrays: DeviceArrays, plan: Plan, *, near: Sequence[Any], shared: Any, out: Sequence[Any], edge: Any
) -> Operands:
    """Return where the arrays of `EdgeKernels.propagate` lie. Raises ValueError for arrays that it does not take."""

    def rows(name: str, array: Any) -> tuple[int, int]:
        _, shape, _ = arrays.kind(array)
        return rows_of(arrays, name, array, "float32", (plan.destinations, *shape[1:]))

    count = arrays.kind(shared)[1][0]
    edge_at, edge_columns = (0, 0) if edge is None else edge_values(arrays, "edge", edge, plan.edges)
    return Operands(
        near=[rows("near", array) for array in near],
        out=[rows("out", array) for array in out],
        shared=flat(arrays, "shared", shared, count),
        shared_count=count,
        edge=edge_at,
        edge_columns=edge_columns,
    )


def native_call(native: Any, tape: Tape, given: Operands) -> Any:
    """Return a call as the module takes it. Raises ValueError for a tape that reads what is not there."""
    values, steps, outputs = tape.packed
    return native.TapeCall(
        columns=tape.columns,
        far_columns=tape.far_columns,
        values=values,
        steps=steps,
        outputs=outputs,
        registers=tape.registers,
        reduce=tape.reduce,
        near=given.near,
        shared=given.shared,
        shared_count=given.shared_count,
        edge=given.edge,
        edge_columns=given.edge_columns,
        out=given.out,
    )


def compiled(kernels: TapeKernels | None, tape: Tape, kind: str) -> Source | None:
    """Return the source of a tape over rows of a type, which is loaded; None where nothing compiles it."""
    if kernels is None:
        return None
    of_types = _SOURCES.setdefault(tape, {})
    if kind not in of_types:
        of_types[kind] = written(tape, kind)
    return of_types[kind] if kernels.load(of_types[kind].text) else None


def launch(
    launches: DeviceLaunches, plan: Plan, rows: Any, source: Source, given: Operands, kind: str
) -> None:
    """Launch a compiled tape."""
    made = getattr(launches.native_plan(plan), f"compiled_tape_{kind}")
    found = made(rows, source.lanes, source.columns, source.state)
    found |= {"shared": given.shared, "edge": given.edge, "edge_columns": given.edge_columns}
    workers = found["count"] * source.passes
    if workers == 0:
        return
    arrays = [word for array in (*given.near[: source.arrays], *given.out) for word in array]
    words = np.array([*(found[name] for name in FIELDS), *arrays], np.uint64)
    assert launches.tape_kernels is not None
    blocks = min(-(-workers * source.lanes // THREADS), 2**31 - 1)
    launches.tape_kernels.launch(source.text, words, blocks, launches.arrays.stream())


def ready(launches: DeviceLaunches, plan: Plan, rows: Any, tape: Tape, kind: str) -> None:
    """Allocate what calls of a tape keep on the GPU, however it is run."""
    native = launches.native_plan(plan)
    source = compiled(launches.tape_kernels, tape, kind)
    if source is not None:
        getattr(native, f"compiled_tape_{kind}")(rows, source.lanes, source.columns, source.state)
    else:
        getattr(native, f"ready_propagate_{kind}")(rows, sum(output.width for output in tape.outputs))
