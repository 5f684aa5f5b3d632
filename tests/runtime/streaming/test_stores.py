"""Stores of rows, and the files past the page cache and the memory below them: any place and size, against NumPy."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from chunks.gridded import PLACES, store_of
from system_calls import move_little

from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.streaming import files
from mgg_hpc.runtime.streaming.files import (
    BLOCK,
    MOST_KEPT,
    DirectFile,
    FileStore,
    Pages,
    scratch_file,
)
from mgg_hpc.runtime.streaming.store import new_pages

LAID = (
    np.ascontiguousarray,
    np.asfortranarray,
    lambda x: np.repeat(x, 2, axis=0)[::2],
    lambda x: x[:1].repeat(len(x), 0),
)  # however rows lie in memory


@pytest.mark.parametrize("little", [False, True], ids=["whole", "in few blocks a call"])
@pytest.mark.parametrize(("kind", "width"), [("f4", 3), ("f4", 4), ("f4", 37), ("f8", 129), ("f2", 7)])
@pytest.mark.parametrize("place", PLACES)
def test_stores_give_back_what_they_hold(rng, tmp_path, monkeypatch, place, kind, width, little):
    """In pieces; padded ones, and those that lie as they are stored; rows of one block are neighbours."""
    monkeypatch.setattr(files, "PADDED", 4096)
    monkeypatch.setattr(files, "PIECE", 2 * BLOCK)
    if little:
        move_little(monkeypatch, rng, unit=BLOCK, most=2)
    x = rng.standard_normal((1500, width)).astype(kind)
    store = store_of(place, x, tmp_path)
    for _ in range(6):
        first, last = np.sort(rng.integers(1501, size=2))
        if place in ("host", "file", "direct") and first < last:
            rows = LAID[rng.integers(4)](rng.standard_normal((last - first, width)).astype(kind))
            store.write(int(first), rows)
            x[first:last] = rows
        np.testing.assert_array_equal(store.read(0, 1500), x)
        rows = store.read(int(first), int(last - first))
        np.testing.assert_array_equal(rows, x[first:last])
        assert len(rows) < 2 or rows.strides[0] == RowFormat(x.dtype, width).row_bytes
    assert store.read(7, 0).shape == (0, width)
    store.close()


@pytest.mark.parametrize("count", [1, 1024, 1025])
def test_room_for_all_rows_is_taken_before_any_is_written(tmp_path, monkeypatch, count):
    asked = []
    monkeypatch.setattr(
        files, "scratch_file", lambda folder, size: asked.append(size) or scratch_file(folder, size)
    )
    FileStore(RowFormat(np.dtype(np.float32), 64), count, tmp_path).close()
    assert len(asked) == 1 and asked[0] % BLOCK == 0 and 0 <= asked[0] - 256 * count < BLOCK


def opened(folder, size, *, direct=True):
    return DirectFile(scratch_file(folder, size), Pages(), direct=direct, writes=True, name="scratch")


@pytest.mark.parametrize("little", [False, True], ids=["whole", "in few bytes a call"])
@pytest.mark.parametrize("direct", [True, False])
def test_any_place_is_written_and_read(rng, tmp_path, monkeypatch, direct, little):
    size = 40 * BLOCK
    if little:
        move_little(monkeypatch, rng, unit=BLOCK if direct else 1, most=2 if direct else 5000)
    file, wanted = opened(tmp_path, size, direct=direct), np.zeros(size, np.uint8)
    for _ in range(60):
        first = int(rng.integers(size)) if rng.integers(2) else int(rng.integers(40)) * BLOCK
        count = int(min(rng.choice([0, 1, 17, BLOCK, 3 * BLOCK, 5 * BLOCK + 3]), size - first))
        values = rng.integers(0, 256, count, dtype=np.uint8)
        file.write(first, values)
        wanted[first : first + count] = values
        low = int(rng.integers(size))
        many = int(rng.integers(size - low + 1))
        np.testing.assert_array_equal(file.read(low, many), wanted[low : low + many])
    file.close()
    assert list(tmp_path.iterdir()) == []


def test_what_belongs_to_nobody_may_be_overwritten(rng, tmp_path):
    """So that the last rows of a store, and whole tensors, go past the page cache, too; large ones in pieces."""
    size = (9 << 20) + 3 * BLOCK + 10
    file, values = opened(tmp_path, size + 2 * BLOCK), rng.integers(1, 256, size, dtype=np.uint8)
    file.write(BLOCK, values, to_end=True)
    np.testing.assert_array_equal(file.read(BLOCK + 5, size - 5), values[5:])
    assert not file.read(0, BLOCK).any()
    file.close()


@pytest.mark.slow
def test_memory_is_used_again_once_no_array_is_left():
    """Unless it is large. New pages are zero, and shared with nobody."""
    pages = Pages()
    taken = pages.take(3 * BLOCK - 5)
    address, rows = taken.ctypes.data, taken[64:112].view(np.float32).reshape(3, 4)[:, 1:]
    assert address % BLOCK == 0 and len(taken) == 3 * BLOCK - 5
    del taken
    gc.collect()
    assert pages.take(3 * BLOCK).ctypes.data != address  # the rows still have it
    rows[:] = 7
    del rows
    gc.collect()
    found = {each.ctypes.data for each in [pages.take(3 * BLOCK) for _ in range(2)]}
    assert address in found
    large = Pages()
    large.take(MOST_KEPT + 1)
    gc.collect()
    assert not any(large._free.values())
    one, other = new_pages(10), new_pages(10)
    assert not one.any() and len(one) == 10 and len(new_pages(0)) == 0
    assert abs(one.ctypes.data - other.ctypes.data) >= BLOCK
