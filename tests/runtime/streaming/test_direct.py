"""Files past the page cache, and the memory that they are read into: any place and size, against a plain file."""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest
from system_calls import move_little

from mgg_hpc.runtime.streaming.direct import BLOCK, MOST_KEPT, DirectFile, Pages, new_pages, scratch_file


def opened(folder, pages, size, *, direct):
    return DirectFile(scratch_file(folder, size), pages, direct=direct, writes=True, name="scratch")


@pytest.mark.parametrize("little", [False, True], ids=["whole", "in few bytes a call"])
@pytest.mark.parametrize("direct", [True, False])
def test_any_place_is_written_and_read(rng, tmp_path, monkeypatch, direct, little):
    size = 40 * BLOCK
    if little:
        move_little(monkeypatch, rng, unit=BLOCK if direct else 1, most=2 if direct else 5000)
    file, wanted = opened(tmp_path, Pages(), size, direct=direct), np.zeros(size, np.uint8)
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
    """So that the last rows of a store, and whole tensors, go past the page cache, too."""
    file = opened(tmp_path, Pages(), 3 * BLOCK, direct=True)
    values = rng.integers(1, 256, BLOCK + 10, dtype=np.uint8)
    file.write(BLOCK, values, to_end=True)
    np.testing.assert_array_equal(file.read(BLOCK, BLOCK + 10), values)
    assert not file.read(0, BLOCK).any()
    file.close()


def test_large_values_are_written_in_pieces(rng, tmp_path):
    size = (9 << 20) + 3 * BLOCK
    file, values = opened(tmp_path, Pages(), size, direct=True), rng.integers(0, 256, size, dtype=np.uint8)
    file.write(0, values)
    np.testing.assert_array_equal(file.read(5, size - 5), values[5:])
    file.close()


def test_a_file_that_ends_before_says_where(tmp_path):
    (tmp_path / "short").write_bytes(bytes(BLOCK + 100))
    number = os.open(tmp_path / "short", os.O_RDONLY)
    file = DirectFile(number, Pages(), direct=True, writes=False, name="short")
    assert len(file.read(BLOCK, 100)) == 100
    with pytest.raises(OSError, match=rf"short ends at byte {BLOCK + 100}"):
        file.read(BLOCK, 101)
    file.close()


@pytest.mark.slow
def test_memory_is_used_again_once_no_array_is_left():
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


def test_large_memory_is_not_kept():
    pages = Pages()
    pages.take(MOST_KEPT + 1)
    gc.collect()
    assert not any(pages._free.values())


def test_new_pages_are_zero_and_shared_with_nobody():
    one, other = new_pages(10), new_pages(10)
    assert not one.any() and len(one) == 10
    assert abs(one.ctypes.data - other.ctypes.data) >= BLOCK
    assert len(new_pages(0)) == 0
