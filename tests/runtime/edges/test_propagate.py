"""The CPU's kernel that runs tapes edge by edge, over the table of hard cases, against float64."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import cases
import ml_dtypes
import numpy as np
import pytest
import reference
from gpu.pes import tape_programs as tapes
from world import geometry_of, plans_of

from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.arguments import Options
from mgg_hpc.runtime.backends.edges import TailedRows
from mgg_hpc.runtime.backends.host.serial import SerialBackend
from mgg_hpc.runtime.backends.simulated import World

EPS = {np.dtype(np.float32): 1e-5, np.dtype(np.float64): 1e-13}
KINDS = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
WORLDS = [(1, "direct"), *((ranks, transfer) for ranks in (2, 4) for transfer in ("direct", "get", "halo"))]


def run(case, given, kind, more, ranks, transfer, threads):
    """Return all ranks' outputs of the second of two calls."""
    tape, world = given.tape, World(ranks)
    wide = TailedRows(np.dtype(kind), 1).accumulator
    geometry = geometry_of(case)
    backends = [SerialBackend(rank, world, Options(geometry, threads)) for rank in range(ranks)]
    plans, format = plans_of(case, transfer), RowFormat(np.dtype(kind), tape.far_columns)
    counts = np.diff(case.bounds)
    rows = [backend.rows(counts, format, symmetric=True) for backend in backends]
    for rank, (backend, plan) in enumerate(zip(backends, plans, strict=True)):
        rows[rank].local[:] = more["far"][case.rows(rank)]
        backend.prepare(plan, format)

    def play(rank):
        backend, plan, mine = backends[rank], plans[rank], case.rows(rank)
        edge = None if more["edge"] is None else more["edge"][case.edges(rank)][plan.edge].astype(wide)
        for _ in range(2):
            out = [np.full((plan.destinations, output.width), np.nan, wide) for output in tape.outputs]
            backend.publish(rows[rank])
            near = [np.ascontiguousarray(each[mine].astype(wide)) for each in more["near"]]
            shared = more["shared"].astype(wide)
            backend.edges.propagate(plan, tape, rows[rank], near=near, shared=shared, out=out, edge=edge)
        return out

    with ThreadPoolExecutor(ranks) as pool:
        parts = list(pool.map(play, range(ranks)))
    return [np.concatenate(each) for each in zip(*parts, strict=True)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("world", WORLDS, ids=str)
@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: np.dtype(kind).name)
@pytest.mark.parametrize("columns", tapes.WIDTHS)
@pytest.mark.parametrize("way", tapes.WAYS)
@pytest.mark.parametrize("program", tapes.PROGRAMS)
def test_tapes_are_those_of_the_reference(rng, program, way, columns, kind, reduce, world):
    name = "hub" if rng.integers(4) == 0 else str(rng.choice(list(cases.CASES)))
    check(rng, tapes.tape(program, way, columns, reduce), name, kind, world)


@pytest.mark.parametrize("world", [(1, "direct"), (2, "get"), (4, "halo")], ids=str)
@pytest.mark.parametrize("name", ["ordinary", "hub"])
@pytest.mark.parametrize("way", tapes.WAYS)
def test_equal_maxima_lie_in_several_parts_and_chunks(rng, way, name, world):
    for columns in (1, 33):
        check(rng, tapes.tape("largest", way, columns), name, np.float32, world)


def check(rng, given, name, kind, world):
    """Compare a tape over a case with the reference."""
    ranks, transfer = world
    case = cases.CASES[name](rng, ranks)
    more = tapes.arrays(given, case.nodes, len(case.indices), rng)
    ends = reference.edge_list(case.indptr, case.indices)
    rest = (more["far"], more["near"], more["shared"], more["edge"])
    wanted = reference.propagate(*ends, case.nodes, given.tape, *rest)
    found = run(case, given, kind, more, ranks, transfer, int(rng.integers(1, 3)))
    for output, right in zip(found, wanted, strict=True):
        assert output.shape == right.shape and np.isfinite(output).all()
        # Of sums over columns, which may cancel.
        size = max(np.abs(right).max(initial=0.0), given.tape.columns**0.5)
        assert np.abs(output - right).max(initial=0.0) <= EPS[output.dtype] * size
