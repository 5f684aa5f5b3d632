"""Sums and kernels over edges whose sources stream past, against those of rows in memory, over the hard cases."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import cases
import ml_dtypes
import numpy as np
import programs
import pytest
import reference
from chunks.gridded import PLACES, Gridded, cut, loaded_rows, lone, store_of
from gpu.pes.edges import as_rows
from world import SMALL

from mgg_hpc.plan import grid, workload
from mgg_hpc.runtime.backends.arguments import Epilogue, Options, RngKey
from mgg_hpc.runtime.backends.edges import Attention
from mgg_hpc.runtime.backends.host.components import padded
from mgg_hpc.runtime.backends.host.kernels import SerialBackend
from mgg_hpc.runtime.backends.simulated import World
from mgg_hpc.runtime.streaming.buffer import ChunkBuffer, slot_bytes

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def gridded(case, rng):
    """Destination intervals are larger than source intervals, and end elsewhere."""
    sources, targets = rng.integers(8, 25), rng.integers(20, 45)
    return Gridded(case, cut(case.nodes, int(sources)), cut(case.nodes, int(targets)))


def aggregated(grid, backend, store, slots, *, weight=None, reduce="sum", epilogue=None, ahead=True):
    """The sums [nodes, dim] of one pass."""

    def call(plan, rows, target):
        out = padded(plan.destinations, store.format)
        out[:] = np.nan
        edge = None if weight is None else weight[grid.edges(target)]
        finish = epilogue(grid.rows(target)) if epilogue else None
        backend.aggregate(plan, reduce, rows, out, edge=edge, epilogue=finish)
        return out

    order = grid.order(slots)
    backend.stream.meter.taken()
    out = np.concatenate(grid.run(backend, store, order, call, ahead=ahead))
    row_bytes = store.format.dim * store.format.dtype.itemsize
    spent = backend.stream.meter.taken()
    assert spent.stored_bytes == spent.remote_bytes == loaded_rows(order) * row_bytes
    assert spent.local_bytes == 0
    return out


@pytest.mark.sampled(2)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("slots", [2, 3, "all"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", cases.CASES)
def test_sums_are_within_the_error_bound(rng, tmp_path, name, place, slots, threads):
    case = cases.CASES[name](rng, 1)
    grid, backend = gridded(case, rng), lone(threads)
    edges = case.edge_list
    for width, kind in ((rng.choice(cases.WIDTHS), np.float32), (rng.choice(cases.WIDTHS), np.float64)):
        x = rng.standard_normal((case.nodes, width)).astype(kind)
        weight = rng.standard_normal(len(case.indices)).astype(kind)
        store = store_of(place, x, tmp_path)
        for given in (None, weight):
            out = aggregated(grid, backend, store, slots, weight=given)
            wanted = reference.aggregate(*edges, case.nodes, x, given)
            assert (np.abs(out - wanted) <= reference.error_bound(*edges, case.nodes, x, given)).all()
        store.close()
    assert not programs.open_files(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} <= {"dataset"}


@pytest.mark.parametrize("kind", [np.dtype(np.float32), np.dtype(np.float16), BFLOAT16], ids=str)
@pytest.mark.parametrize("reduce", ["mean", "max"])
@pytest.mark.parametrize("name", ["ordinary", "empty_rows", "hub"])
def test_reductions_and_epilogues(rng, tmp_path, name, reduce, kind):
    case = cases.CASES[name](rng, 1)
    x = rng.integers(-8, 9, (case.nodes, 33)).astype(kind)
    scale = rng.integers(1, 3, case.nodes).astype(np.float32)
    bias = rng.integers(-3, 4, 33).astype(np.float32)
    finish = {"reduce": reduce, "epilogue": lambda rows: Epilogue(scale[rows], bias, relu=True)}
    out = aggregated(gridded(case, rng), lone(), store_of("host", x, tmp_path), 2, **finish)
    wanted = reference.aggregate(*case.edge_list, case.nodes, x.astype(np.float64), None, reduce)
    wanted = np.maximum(wanted * scale[:, None] + bias, 0)
    eps = max(np.finfo(np.float32).eps, 2.0 ** -(7 if kind == BFLOAT16 else 10) if kind.itemsize == 2 else 0)
    assert (np.abs(out.astype(np.float64) - wanted) <= eps * (np.abs(wanted) + 8)).all()


@pytest.mark.parametrize("name", ["ordinary", "hub", "rank_without_rows"])
def test_bits_depend_on_the_order_of_chunks_alone(rng, tmp_path, name):
    """Neither slots, stores, threads nor loading ahead change a bit."""
    case = cases.CASES[name](rng, 1)
    grid, x = gridded(case, rng), rng.standard_normal((case.nodes, 65)).astype(np.float32)
    ways = ("host", 2, 1, True), ("packed", 3, 2, False), ("direct", "all", 2, True), ("dataset", 2, 2, False)
    found = {
        aggregated(grid, lone(threads), store_of(place, x, tmp_path), slots, ahead=ahead).tobytes()
        for place, slots, threads, ahead in ways
    }
    assert len(found) == 1


@pytest.mark.parametrize("p", [0.0, 0.4])
@pytest.mark.parametrize("name", cases.CASES)
def test_attention(rng, tmp_path, name, p):
    """As over rows in memory."""
    case, how = cases.CASES[name](rng, 1), Attention(3, 5, True, 0.2, RngKey(p, 5, 3, 0x4001) if p else None)
    grid, backend, layout = gridded(case, rng), lone(), how.forward_rows(np.dtype(np.float32))
    h, score = (rng.standard_normal((case.nodes, each)).astype(np.float32) for each in (15, 3))
    ids = rng.permutation(case.nodes)
    given = as_rows(layout, [h], [score], ids)

    def call(plan, rows, mine):
        out = np.full((plan.destinations, 15), np.nan, np.float32)
        on = replace(how, ids=ids[mine] if p else None)
        backend.edges.attend(plan, on, rows, out, score=score[mine])
        return out

    store = store_of("host", given, tmp_path)
    out = grid.run(
        backend, store, grid.order(2), lambda plan, rows, target: call(plan, rows, grid.rows(target))
    )
    rows = backend.rows(np.array([case.nodes]), layout.format, symmetric=True)
    rows.local[:] = given
    wanted = call(
        workload.direct(workload.split(0, case.bounds, case.indptr, case.indices)), rows, slice(None)
    )
    np.testing.assert_allclose(np.concatenate(out), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_chunks_of_more_than_4_mib_are_loaded_in_pieces(rng, tmp_path, place, chained):
    """Two and a bit of them; rows of 999 columns are padded. The second rank of a chain copies them from the first."""
    rows, columns = 2500, 999
    x = rng.integers(-9, 10, (rows, columns)).astype(np.float32)
    ends = np.stack([rng.integers(rows, size=300), np.sort(rng.integers(40, size=300))])
    indptr, sources = np.searchsorted(ends[1], np.arange(41)), np.array([0, rows - 40, rows])
    plan, store = grid.grid_plan(sources, np.arange(2), indptr, ends[0]), store_of(place, x, tmp_path)
    order, world = grid.replacement(sources, [grid.chunks_of(plan)], 2), World(2)
    backends = [SerialBackend(rank, world, Options(SMALL, 1)) for rank in range(2)]
    nbytes = order.slots * slot_bytes(order.capacity, store.format)
    buffers = [ChunkBuffer(backend, nbytes, [[1, 0]] if chained else ()) for backend in backends]

    def run(rank):
        out = padded(40, store.format)
        with backends[rank].stream_rows(store, order, buffers[rank]) as streamed:
            backends[rank].aggregate(plan, "sum", streamed, out)
        return out

    with ThreadPoolExecutor(2) as pool:
        for out in pool.map(run, range(2)):
            np.testing.assert_array_equal(out, reference.aggregate(*ends, 40, x))
    store.close()


@pytest.mark.parametrize("kind", [np.dtype(np.float32), BFLOAT16], ids=str)
@pytest.mark.parametrize("name", ["ordinary", "hub", "duplicates"])
def test_equal_maxima_lie_in_several_chunks(rng, tmp_path, name, kind):
    """Numbers that are next to each other, and finer ones that are rounded to them; their ties are counted."""
    case = cases.CASES[name](rng, 1)
    cells, backend = gridded(case, rng), lone()
    eps = float(ml_dtypes.finfo(kind).eps)
    x = (1 + rng.integers(-12, 13, (case.nodes, 7)) * (eps / 4)).astype(kind)
    store = store_of("host", x, tmp_path)

    def call(plan, rows, target):
        out, ties = np.full((2, plan.destinations, 7), np.nan, np.float32)
        out = out.astype(kind)
        backend.edges.max_ties(plan, rows, out, ties)
        return out.astype(np.float32), ties

    found = cells.run(backend, store, cells.order(2), call)
    edges = case.edge_list
    wanted = reference.aggregate(*edges, case.nodes, x, reduce="max")
    np.testing.assert_array_equal(np.concatenate([out for out, _ in found]), wanted)
    ties = reference.max_ties(*edges, case.nodes, x)
    np.testing.assert_array_equal(np.concatenate([each for _, each in found]), ties)
