"""Rows, edges and slots beyond 4 GiB: sparse memory and files, of which only what is read or written is ever there."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import reference
from harness.plans import halo_plans
from memory import untouched
from world import SMALL

from mgg_hpc.plan import grid, workload
from mgg_hpc.plan.layout import HALO, RowFormat
from mgg_hpc.runtime.backends.arguments import Options, RngKey, Tier, TieredRows
from mgg_hpc.runtime.backends.host import components
from mgg_hpc.runtime.backends.host.kernels import SerialBackend
from mgg_hpc.runtime.backends.simulated import World
from mgg_hpc.runtime.sampler import Sampler, take_csr
from mgg_hpc.runtime.streaming.buffer import ChunkBuffer, slot_bytes
from mgg_hpc.runtime.streaming.files import FileStore
from mgg_hpc.runtime.streaming.store import HostStore
from mgg_hpc.runtime.tiers.files import FileRows

FAR = 1 << 32  # bytes
FORMAT = RowFormat(np.dtype(np.float32), 1024)
ROWS = FAR // FORMAT.row_bytes + 40  # of each rank
LAST = ROWS - 20  # the rows from here on have values; an offset that lost its upper bits finds zeros
RANK_BOUNDS = np.array([0, ROWS, 2 * ROWS])


@pytest.fixture(autouse=True)
def sparse(monkeypatch):
    """Backends allocate memory that is not there before it is touched, and files are not filled."""
    monkeypatch.setattr(components, "aligned_zeros", untouched)
    monkeypatch.setattr(os, "posix_fallocate", lambda file, offset, size: os.truncate(file, offset + size))


def pair():
    world = World(2)
    return [SerialBackend(rank, world, Options(SMALL, 1)) for rank in range(2)]


def on_both(call):
    """What call(rank) returns of two ranks."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(call, range(2)))


@pytest.fixture
def held(rng):
    """(backends, rows, values [40, 1024]) of two ranks with ``ROWS`` rows each, of which the last 20 have values."""
    values, backends = rng.integers(1, 100, (40, 1024)).astype(np.float32), pair()
    rows = [backend.rows(np.diff(RANK_BOUNDS), FORMAT, symmetric=True) for backend in backends]
    for rank, own in enumerate(rows):
        own.local[LAST:] = values[20 * rank :][:20]
    return backends, rows, values


def rows_of_the_graph(source):
    return source // 20 * ROWS + LAST + source % 20


@pytest.mark.parametrize("reached", ["all", "own"])
def test_rows_beyond_4_gib_are_gathered(rng, held, reached):
    which = rng.integers(0, 40, 50)
    for rank, (backend, rows) in enumerate(zip(*held[:2], strict=True)):
        addresses = rows.addresses if reached == "all" else np.where(np.arange(2) == rank, rows.addresses, 0)
        out = components.padded(50, FORMAT)
        table = TieredRows.of_ranks(replace(rows, addresses=addresses), RANK_BOUNDS)
        backend.gather(table, rows_of_the_graph(which), out)
        np.testing.assert_array_equal(out, held[2][which])


def test_slots_beyond_2_31_are_gathered(rng, held, tmp_path):
    """Rows that lie on two ranks in turn, then 2^32 rows of an array, then rows of a file beyond 4 GiB of it."""
    (backend, _), (mine, _), values = held
    narrow = replace(mine.format, dim=1)  # of 4 bytes, 4,096 bytes apart
    turns = Tier("turns", 2 * ROWS, mine.addresses, np.arange(2), FORMAT.row_bytes)
    many = untouched(4 * (FAR + 9)).view(np.float32)
    many[-9:] = rng.standard_normal(9)
    with (tmp_path / "rows").open("wb") as file:
        file.seek(FAR + 4 * 30)
        file.write(values[:10, 7].tobytes())
    behind = FileRows(tmp_path / "rows", 20, (FAR + 4 * 35) // 4, 1, np.dtype(np.float32))
    tiers, ends = [turns, Tier.of_array("many", many[:, None])], 2 * ROWS + len(many)
    for first in (0, FAR // 4 + 1):
        slots = np.r_[2 * LAST : 2 * ROWS, ends - 9 : ends, ends + FAR // 4 + 25 - first + np.arange(10)]
        wanted = np.r_[values[:, 0].reshape(2, 20).T.ravel(), many[-9:], values[:10, 7]]
        ids, out = rng.permutation(len(slots)), np.empty((len(slots), 1), np.float32)
        backend.gather(TieredRows(len(slots), narrow, tiers, behind, slots=slots, first=first), ids, out)
        np.testing.assert_array_equal(out[:, 0], wanted[ids])
        whole = TieredRows(ends + behind.count - first, narrow, tiers, behind, first=first)
        backend.gather(whole, slots[ids], out)
        np.testing.assert_array_equal(out[:, 0], wanted[ids])
        assert whole.read.tolist() == [40, 9, 10]


def staged_far(plan):
    """The same plan, whose halo lies beyond 4 GiB of the staging."""
    chunks, lists = plan.chunks.copy(), plan.lists
    chunks["first_row"][chunks["kind"] == HALO] += ROWS
    lists = replace(lists, send_places=lists.send_places + ROWS, capacity=lists.capacity + ROWS)
    return replace(plan, chunks=chunks, lists=lists)


@pytest.mark.parametrize("transfer", ["direct", "get", "halo", "halo in far staging"])
@pytest.mark.parametrize("reduce", ["sum", "max", "ties"])
def test_rows_beyond_4_gib_are_summed(rng, held, transfer, reduce):
    (backends, rows, values), ties = held, reduce == "ties"
    source, indptr = rng.integers(0, 40, 80), np.array([0, 3, 3, 60, 80])
    given = RANK_BOUNDS, indptr, rows_of_the_graph(source)
    edges = [workload.split(rank, *given, keep_edges=True) for rank in range(2)]
    plans = [workload.direct(each, transfer) for each in edges]
    if transfer.startswith("halo"):
        plans = [plan for plan, _ in halo_plans(edges, 2)]
        plans = plans if transfer == "halo" else [*map(staged_far, plans)]
    weight = None if ties else rng.integers(0, 4, 80).astype(np.float32)

    def run(rank):
        backend, plan, out = backends[rank], plans[rank], components.padded(4, FORMAT)
        if ties:
            backend.edges.max_ties(plan, rows[rank], out, np.empty((4, 1024), np.float32))
        else:
            backend.aggregate(plan, reduce, rows[rank], out, edge=weight[plan.edge])
        return out

    for backend, plan in zip(backends, plans, strict=True):
        backend.prepare(plan, FORMAT)
    ends = source, np.repeat(np.arange(4), np.diff(indptr))
    wanted = reference.aggregate(*ends, 4, values, weight, "max" if ties else reduce)
    for out in on_both(run):
        np.testing.assert_array_equal(out, wanted)


def test_edges_beyond_4_gib_are_sampled():
    """More than 2^32 edges, of which no more are drawn than a few."""
    edges = FAR + 1000
    indptr = np.array([0, 2**31 - 5, FAR - 20, FAR + 17, edges])
    indices = untouched(4 * edges).view(np.int32)
    indices[FAR:], indices[FAR + 17 :] = 2, 1
    sampler = Sampler(indptr, indices)
    for step in range(5):
        got = sampler.sample(np.array([3, 2]), [6, 4], seed=3, step=step, edges=True)
        nodes, hops = reference.sample(indptr, indices, [3, 2], [6, 4], seed=3, step=step)
        assert got.nodes.tolist() == nodes
        for hop, (_, places, _, edge) in zip(got.hops, hops, strict=True):
            assert (hop.indices.tolist(), hop.edge.tolist()) == (places, edge)


def test_values_beyond_4_gib_of_a_csr_matrix_are_taken(rng):
    stored = FAR + 64
    indptr = np.array([0, 3, FAR, FAR + 40, stored])
    columns, values = (untouched(4 * stored).view(kind) for kind in (np.int32, np.float32))
    columns[FAR:], values[FAR:] = rng.integers(1, 99, 64), rng.standard_normal(64)
    _, found_columns, found = take_csr(indptr, columns, values, np.array([3, 0, 2]))
    order = np.r_[FAR + 40 : stored, 0:3, FAR : FAR + 40]
    np.testing.assert_array_equal(found_columns, columns[order])
    np.testing.assert_array_equal(found, values[order])


def test_rows_beyond_4_gib_are_dropped_as_others_are(rng):
    """Three rows, 9 GiB apart, which are as wide as the result's."""
    values, apart, found = rng.standard_normal((3, 40)).astype(np.float32), 9 << 28, []
    memory = untouched(4 * (2 * apart + 40)).view(np.float32)
    x = np.lib.stride_tricks.as_strided(memory, (3, 40), (4 * apart, 4))
    x[:] = values
    for given in (x, values):
        found.append(components.padded(3, RowFormat(values.dtype, 40)))
        pair()[0].dropout(given, found[-1], np.arange(3), RngKey(0.4, 5, 3, 1))
    np.testing.assert_array_equal(*found)


# ---- stores

BOUNDS = np.append(0, np.arange(LAST, ROWS + 1, 5))  # of source intervals: the first has no edges


def store_of(place, values, folder):
    """A store whose last 20 rows have values: of a file that begins beyond 4 GiB, not with a block, "dataset"."""
    direct = "direct" in place
    if place == "memory":
        rows = untouched(ROWS * FORMAT.row_bytes).view(np.float32).reshape(ROWS, 1024)
        rows[LAST:] = values
        return HostStore(FORMAT, ROWS, rows=rows)
    if "dataset" in place:
        offset = FAR + 24
        with (folder / "dataset").open("wb") as file:
            file.seek(offset + LAST * FORMAT.row_bytes)
            file.write(values.tobytes())
        return FileStore.over(folder / "dataset", offset, FORMAT, ROWS, direct=direct)
    store = FileStore(FORMAT, ROWS, folder, direct=direct)
    store.write(LAST, values[:7])
    store.write(LAST + 7, values[7:])
    return store


@pytest.mark.parametrize("place", ["memory", "dataset", "direct dataset", "scratch", "direct scratch"])
def test_rows_of_a_store_beyond_4_gib_are_read(rng, tmp_path, place):
    """By a pass, alone and as the second rank of a chain, whose slots are larger than 4 GiB too; and by themselves."""
    values, backends = rng.integers(1, 100, (20, 1024)).astype(np.float32), pair()
    store = store_of(place, values, tmp_path)
    np.testing.assert_array_equal(store.read(LAST + 2, 13), values[2:15])
    source, indptr = rng.integers(0, 20, 50), np.array([0, 30, 30, 50])
    plan = grid.grid_plan(BOUNDS, grid.reading_order(0, len(BOUNDS) - 1), indptr, LAST + source)
    order = grid.replacement(BOUNDS, [grid.chunks_of(plan)], 3)
    wanted = reference.aggregate(source, np.repeat(np.arange(3), np.diff(indptr)), 3, values)
    for chains in ([], [[1, 0]]):
        nbytes = order.slots * slot_bytes(order.capacity, FORMAT)
        buffers = [ChunkBuffer(backend, nbytes, chains) for backend in backends]

        def run(rank, buffers=buffers):
            out = components.padded(3, FORMAT)
            with backends[rank].stream_rows(store, order, buffers[rank]) as rows:
                backends[rank].aggregate(plan, "sum", rows, out)
            return out

        for out in on_both(run):
            np.testing.assert_array_equal(out, wanted)
    store.close()
