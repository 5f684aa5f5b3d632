"""Passes of chunks: overlap with sums, ends in their midst, errors of files, and calls that do not fit."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cases
import numpy as np
import pytest
from chunks.gridded import Gridded, cut, loaded_rows, lone, store_of

from mgg_hpc.errors import InputError
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.host.components import padded
from mgg_hpc.runtime.streaming.buffer import ChunkBuffer, slot_bytes
from mgg_hpc.runtime.streaming.files import FileStore
from mgg_hpc.runtime.streaming.store import HostStore, Pace

FORMAT = RowFormat(np.dtype(np.float32), 5)
X = np.ones((97, 5), np.float32)


def summing(backend, format, took=0.0):
    """What a pass calls: the sums of an interval. took: seconds that it takes before it sums."""

    def call(plan, rows, target):
        out = padded(plan.destinations, format)
        time.sleep(took)
        backend.aggregate(plan, "sum", rows, out)
        return out

    return call


def threads():
    return {entry.name for entry in Path("/proc/self/task").iterdir()}


def all_end(begun):
    """Whether these threads end. Linux lists one for a moment after it was joined."""
    until = time.perf_counter() + 5
    while (there := begun & threads()) and time.perf_counter() < until:
        time.sleep(0.001)
    return not there


@pytest.fixture
def grid(rng):
    return Gridded(cases.CASES["ordinary"](rng, 1), cut(97, 8), cut(97, 40))


@pytest.mark.slow
def test_loads_overlap_with_what_runs_between_calls(tmp_path):
    """Each interval has edges from itself alone. Its load takes as long as what runs before its call."""
    loops = np.arange(96)
    grid = Gridded(cases.csr(loops, loops, 96, np.array([0, 96])), cut(96, 12), cut(96, 12))
    backend, order, seconds = lone(1), grid.order(2), 0.05
    store = store_of("packed", np.ones((96, 256), np.float32), tmp_path, rate=12 * 1024 / seconds)

    def taken(ahead):
        began = time.perf_counter()
        grid.run(backend, store, order, summing(backend, store.format, seconds), ahead=ahead)
        return time.perf_counter() - began

    overlapped, in_turn = min(taken(True) for _ in range(3)), taken(False)
    assert in_turn > 15 * seconds
    assert overlapped < 0.8 * in_turn
    assert backend.stream.meter.loading > 15 * seconds
    assert backend.stream.meter.waited > 7 * seconds


@pytest.mark.slow
def test_stores_that_share_a_pace_are_one_device(rng, tmp_path, grid):
    """Reads and writes of one store and chunks of another take their time one after the other."""
    x, taken = np.ones((97, 256), np.float32), []
    for pace in (Pace(1e6), None):
        stores = [store_of("packed", x.copy(), tmp_path, rate=pace or 1e6) for _ in range(2)]
        backend, order, began = lone(1), grid.order(2), time.perf_counter()
        with ThreadPoolExecutor(1) as pool:
            read = pool.submit(lambda store=stores[0]: store.write(0, store.read(0, 97)))
            grid.run(backend, stores[1], order, summing(backend, stores[1].format))
            read.result()
        taken.append(time.perf_counter() - began)
        if pace is not None:
            assert pace.nbytes == 2 * x.nbytes
    chunks = loaded_rows(order) * 1024
    assert taken[0] > (chunks + 2 * x.nbytes) / 1e6
    assert taken[1] < 0.9 * taken[0]


@pytest.mark.parametrize("place", ["host", "direct"])
@pytest.mark.parametrize("calls", [0, 1])
def test_a_pass_ends_anywhere(rng, tmp_path, grid, place, calls):
    """Also while its source is slow: nothing waits for the chunk under way."""
    x = rng.standard_normal((97, 64)).astype(np.float32)
    store, backend, before = store_of(place, x, tmp_path), lone(1), threads()
    slow = store_of("packed", x, tmp_path, rate=1000.0)
    order = grid.order(2)
    buffer = ChunkBuffer(backend, order.slots * slot_bytes(order.capacity, store.format))
    for source, made in ((slow, 0), (store, calls)):
        began = time.perf_counter()
        with backend.stream_rows(source, order, buffer) as rows:
            for plan in grid.plans[:made]:
                summing(backend, store.format)(plan, rows, 0)
        assert time.perf_counter() - began < 1
    out = np.concatenate(grid.run(backend, store, order, summing(backend, store.format)))
    assert np.isfinite(out).all()
    assert all_end(threads() - before)


def test_a_pass_that_is_forgotten_ends_with_its_rows(rng, tmp_path, grid):
    store, backend = store_of("packed", np.ones((97, 64), np.float32), tmp_path, rate=1e4), lone(1)
    order, before = grid.order(2), threads()
    rows = backend.stream_rows(store, order, ChunkBuffer(backend, 1 << 20))
    begun = threads() - before
    assert begun
    del rows
    assert all_end(begun)


@pytest.mark.parametrize("direct", [False, True])
def test_a_file_that_ends_early_is_an_error_of_its_call(rng, tmp_path, grid, direct):
    x = rng.standard_normal((97, 64)).astype(np.float32)
    path = tmp_path / "rows"
    path.write_bytes(x.tobytes())
    format = RowFormat(x.dtype, 64)
    store, backend = FileStore.over(path, 0, format, 97, direct=direct), lone()
    os.truncate(path, 60 * 256)
    done = []
    with pytest.raises(OSError, match=f"{path} ends at byte {60 * 256}"):
        grid.run(backend, store, grid.order(2), lambda *call: done.append(summing(backend, format)(*call)))
    assert not done  # the first interval has edges from the last rows
    with pytest.raises(OSError, match="ends at byte"):
        store.read(50, 20)
    store.close()


@pytest.mark.parametrize(
    ("error", "match", "call"),
    [
        (
            InputError,
            "it ends before the 97 rows",
            lambda folder: FileStore.over(__file__, 1 << 20, FORMAT, 97),
        ),
        (InputError, "No such file", lambda folder: FileStore.over(folder / "none", 0, FORMAT, 97)),
        (InputError, "no room", lambda folder: FileStore(FORMAT, 1 << 50, folder)),
        (InputError, "scratch folder", lambda folder: FileStore(FORMAT, 97, folder / "none")),
        (ValueError, "read only", lambda folder: FileStore.over(__file__, 0, FORMAT, 2).write(0, X[:1])),
        (ValueError, "of a store of 97 rows", lambda folder: HostStore(FORMAT, 97).write(90, X[:20])),
        (ValueError, "of a store of 97 rows", lambda folder: HostStore(FORMAT, 97).read(90, 20)),
        (
            ValueError,
            "bytes apart",
            lambda folder: HostStore(FORMAT, 97, rows=np.zeros((97, 16), "f4")[:, :5]),
        ),
    ],
)
def test_what_is_not_there_is_refused(tmp_path, error, match, call):
    with pytest.raises(error, match=match):
        call(tmp_path)


def test_rows_in_memory_are_read_where_they_lie(rng, tmp_path, grid):
    """Nothing is copied, neither into slots nor within the store."""
    x = rng.standard_normal((97, 6)).astype(np.float32)
    backend, store = lone(), store_of("host", x, tmp_path)
    order, call = grid.order(2), summing(backend, store.format)
    wanted = np.concatenate(grid.run(backend, store, order, call))
    backend.stream.meter.taken()
    found = np.concatenate(grid.run(backend, store, order, call, in_place=True))
    np.testing.assert_array_equal(found, wanted)
    assert backend.stream.meter.stored_bytes == 0
    np.testing.assert_array_equal(store.read(0, 97), x)
    for place in ("packed", "file"):
        with pytest.raises(ValueError, match="in place"):
            grid.run(backend, store_of(place, x, tmp_path), order, call, in_place=True)
    uneven = Gridded(grid.case, np.array([0, 10, 40, 97]), np.array([0, 97]))
    with pytest.raises(ValueError, match="chunks of one size"):
        uneven.run(backend, store, uneven.order(2), call, in_place=True)


def test_calls_are_those_of_the_pass(rng, tmp_path, grid):
    backend, store, order = lone(), store_of("host", X, tmp_path), grid.order(3)
    with pytest.raises(InputError, match=r"plan.memory: 3 chunks of 8 rows take"):
        backend.stream_rows(store, order, ChunkBuffer(backend, 4096))
    buffer, out = ChunkBuffer(backend, 3 * 4096), padded(40, FORMAT)
    with backend.stream_rows(store, order, buffer) as rows:
        with pytest.raises(ValueError, match="stream: the pass has"):
            backend.aggregate(grid.plans[1], "sum", rows, out)
        for plan in grid.plans:
            backend.aggregate(plan, "sum", rows, out[: plan.destinations])
        with pytest.raises(ValueError, match="all calls"):
            backend.aggregate(grid.plans[0], "sum", rows, out)
        rows.close()
        rows.close()
    with backend.stream_rows(store, order, buffer) as rows:
        rows.close()
        with pytest.raises(RuntimeError, match="closed"):
            backend.aggregate(grid.plans[0], "sum", rows, out)
    plain = backend.rows(np.array([97]), FORMAT, symmetric=True)
    with pytest.raises(ValueError, match="take rows that stream"):
        backend.aggregate(grid.plans[0], "sum", plain, out)
