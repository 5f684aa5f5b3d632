"""What rows lie in: buffers, stores and places of a file are used again when, and only when, nothing holds them any
more; and blocks of streamed rows, as modules see them.
"""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from convolutions import GEOMETRY

from mgg_hpc.nn.streaming.graph import BlockView
from mgg_hpc.nn.streaming.rows import StorePool, StreamedRows, drop_with
from mgg_hpc.nn.streaming.spill import LEAST, PENDING, Spill
from mgg_hpc.nn.workspace import Workspace
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.arguments import Options
from mgg_hpc.runtime.backends.base import Capabilities
from mgg_hpc.runtime.backends.host.kernels import SerialBackend
from mgg_hpc.runtime.backends.simulated import World
from mgg_hpc.runtime.streaming.files import BLOCK, Pages
from mgg_hpc.runtime.streaming.store import HostStore

SIZE = 3 * BLOCK // 4  # float32 values of three blocks
WIDE, NARROW = (RowFormat(np.dtype(np.float32), dim) for dim in (8, 4))


def test_a_block_has_the_ids_and_numbers_of_its_rows_and_refuses_what_needs_others(rng):
    ids, numbers = rng.permutation(50), 100 + np.arange(50)
    given = dict.fromkeys(("backend", "dtype", "device", "workspace", "comm", "rank", "ranks"))
    graph = SimpleNamespace(**given, ids=ids, numbers=numbers)
    for low, high in ((0, 50), (0, 7), (7, 21), (21, 21), (49, 50)):
        block = BlockView(graph, low, high)
        np.testing.assert_array_equal(block.ids, ids[low:high])
        np.testing.assert_array_equal(block.numbers, numbers[low:high])
        assert block.rows == block.destinations == high - low
    refused = [block.adjacency, block.edge_values, block.exchange, block.publish]
    for call in (*refused, lambda: block.all_destinations):
        with pytest.raises(TypeError, match="sees a block of its rows here"):
            call()


@pytest.fixture
def stores():
    """A pool, and the stores that it has made."""
    made = []

    def make(format):
        made.append(HostStore(format, 3))
        return made[-1]

    pool = StorePool(make)
    yield pool, made
    pool.close()


class Graph:
    """A graph as far as its rows use it."""

    first, rows = 0, 3

    def __init__(self, pool):
        self.drop = pool.give

    def check_open(self) -> None:
        """It is."""


def test_a_store_is_dropped_once_by_its_owner(stores):
    """When the owner says so, or is gone; and the graph may be gone before."""
    pool, made = stores
    graph, owner, first = Graph(pool), Graph(pool), pool.take(WIDE)
    drop = drop_with(owner, graph, first)
    drop()
    assert pool.take(WIDE) is first
    drop()
    del owner
    assert pool.take(WIDE) is made[1] and pool.take(NARROW) is made[2]
    pool.give(HostStore(WIDE, 3))  # not of the pool
    assert pool.take(WIDE) is made[3]


def test_rows_drop_their_store_and_keep_no_graph(stores):
    pool, _ = stores
    graph = Graph(pool)
    graph.x, held = StreamedRows(graph, pool.take(WIDE), torch.zeros(())), weakref.ref(graph)
    del graph
    gc.collect()
    assert held() is None
    graph, store = Graph(pool), pool.take(WIDE)
    rows = StreamedRows(graph, store, torch.zeros(()))
    del rows
    assert pool.take(WIDE) is store


@pytest.fixture
def pool():
    with ThreadPoolExecutor(2) as made:
        yield made


@pytest.fixture
def spill(tmp_path, pool):
    made = Spill(tmp_path, pool, Pages(), direct=False, device="cpu")
    yield made
    made.close()


@pytest.fixture
def hanging(spill, monkeypatch):
    """Events: the first write has begun; writes go on."""
    began, goes_on, write = threading.Event(), threading.Event(), spill._file.write

    def slow(offset, values, **options):
        began.set()
        assert goes_on.wait(60)
        write(offset, values, **options)

    monkeypatch.setattr(spill._file, "write", slow)
    return began, goes_on


def drawn(rng, size=SIZE):
    return torch.from_numpy(rng.standard_normal(size)).float()


def hangs(future):
    with pytest.raises(TimeoutError):
        future.result(timeout=0.05)


def test_places_that_are_dropped_unread_are_free_again(rng, spill):
    """Others stay as they are; tensors of another size take other places."""
    kept = [spill.put(drawn(rng, size)) for size in (SIZE, 2 * SIZE)]
    end = spill._end
    wanted = [drawn(rng) for _ in range(3)]
    for values in wanted:
        place = spill.put(values)
        assert place.offset == end  # that of the one before, which is gone
        del place
    places = [spill.put(values) for values in wanted]
    assert sorted(place.offset for place in places) == [end + i * 3 * BLOCK for i in range(3)]
    for fetch in (list, spill.fetch):
        fetch(places)
        assert all(map(torch.equal, map(spill.get, places), wanted))
    assert [len(spill.get(place)) for place in kept] == [SIZE, 2 * SIZE]


def test_a_place_is_not_written_before_the_write_that_it_was_dropped_with_has_ended(
    rng, spill, pool, hanging
):
    """The first write hangs; the place's next tensor, and readers, wait for it."""
    began, goes_on = hanging
    place = spill.put(drawn(rng))
    assert began.wait(60)
    del place
    values = drawn(rng)
    later = pool.submit(spill.put, values)
    hangs(later)
    goes_on.set()
    assert torch.equal(spill.get(later.result(60)), values)


def test_reading_waits_for_the_write_and_few_writes_are_under_way(rng, spill, hanging):
    wanted = [drawn(rng) for _ in range(PENDING + 1)]
    places = [spill.put(values) for values in wanted[:-1]]
    with ThreadPoolExecutor(2) as other:
        read, put = other.submit(spill.get, places[0]), other.submit(spill.put, wanted[-1])
        hangs(read), hangs(put)
        hanging[1].set()
        assert torch.equal(read.result(60), wanted[0])
        assert torch.equal(spill.get(put.result(60)), wanted[-1])


def test_tensors_that_autograd_saves_come_back(rng, spill):
    """Large ones from the file, parameters and small ones from memory; a small part does not keep the whole."""
    kept, x, small = (drawn(rng, size).requires_grad_() for size in (LEAST // 4, LEAST // 4, LEAST // 4 - 1))

    def value():
        return (kept * x).sum() + (small * small).sum() + (x[:3] * 2 * x[3:6]).sum()

    places = []
    with spill.saved([kept], places):
        out = value()
    assert [place.shape for place in places] == [x.shape]
    gradients, wanted = (torch.autograd.grad(each, [kept, x, small]) for each in (out, value()))
    assert all(map(torch.equal, gradients, wanted))


@pytest.fixture
def workspace():
    return Workspace(SerialBackend(0, World(1), Options(GEOMETRY)))


def test_rows_are_padded_and_reused_only_when_released(workspace):
    first = workspace.rows(10, 7, torch.float32)
    assert first.shape == (10, 7) and first.stride() == (8, 1) and first.data_ptr() % 64 == 0
    address = first.data_ptr()
    second = workspace.rows(10, 7, torch.float32)
    assert second.data_ptr() != address
    view = first[3:5].t()
    del first
    third = workspace.rows(10, 7, torch.float32)
    assert third.data_ptr() not in (address, second.data_ptr())  # the view still holds the first
    del view
    assert workspace.rows(10, 7, torch.float32).data_ptr() == address
    assert workspace.rows(10, 3, torch.float64).data_ptr() != second.data_ptr()


def test_no_rows_no_columns_and_rows_of_another_device(workspace):
    assert workspace.rows(0, 5, torch.float32).shape == (0, 5)
    assert workspace.rows(5, 0, torch.float64).shape == (5, 0)
    rows = Workspace(SimpleNamespace(capabilities=Capabilities("none", device="meta"))).rows(
        10, 7, torch.float16
    )  # from torch, and padded too
    assert (rows.device.type, rows.shape, rows.stride()) == ("meta", (10, 7), (8, 1))


def test_rows_of_varying_numbers_take_buffers_of_a_few_sizes(rng):
    workspace = Workspace(SerialBackend(0, World(1), Options(GEOMETRY)), varying=True)
    kept = [workspace.rows(1000, 8, torch.float32) for _ in range(2)]
    del kept
    for count in rng.integers(900, 1100, 200):
        first, second = (workspace.rows(int(count), 8, torch.float32) for _ in range(2))
        first.fill_(1.0)
        second.fill_(2.0)
        assert first.shape == (count, 8) and float(first.sum()) == 8 * count  # apart from the second
        del first, second
    held = [buffer for buffers in workspace._free.values() for buffer in buffers]
    assert len(held) == 2 and sum(map(len, held)) < 2 * 2 * 1100 * 32
