"""Stores that threads write and read: every read finds what was written before it, and no error is lost."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.streaming.store import PENDING, HostStore, WriteBehind, read_ahead

FORMAT = RowFormat(np.dtype(np.float32), 4)


class Slow(HostStore):
    """Rows whose writes take longer or shorter; most: how many were under way at once."""

    def __init__(self, rng, count):
        super().__init__(FORMAT, count)
        self.takes, self.most, self._now, self._lock = list(rng.random(200) * 4e-3), 0, 0, threading.Lock()

    def write(self, first, rows):
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        time.sleep(self.takes.pop())
        super().write(first, rows)
        with self._lock:
            self._now -= 1


def test_reads_and_writes_find_the_rows_before_them(rng):
    x = np.zeros((40, 4), np.float32)
    with ThreadPoolExecutor(4) as pool:
        store = Slow(rng, 40)
        behind = WriteBehind(store, pool)
        for value in range(1, 81):
            first, last = np.sort(rng.integers(41, size=2))
            if rng.integers(3):
                x[first:last] = value
                behind.write(int(first), x[first:last].copy())
            else:
                np.testing.assert_array_equal(behind.read(int(first), int(last - first)), x[first:last])
        behind.settle()
        np.testing.assert_array_equal(store.read(0, 40), x)
        assert store.most <= PENDING
        behind.close()


ONES = np.ones((4, 4), np.float32)


@pytest.mark.parametrize(
    ("found_by", "again"),
    [  # a read may be any thread's, so that the error stays for the one that writes
        (lambda behind: behind.read(5, 1), True),
        (lambda behind: behind.write(6, ONES), False),
        (WriteBehind.settle, False),
        (lambda behind: behind.place, False),
    ],
    ids=["read", "write", "settle", "place"],
)
def test_an_error_of_a_write_is_raised_once_and_ends_no_other(found_by, again):
    class Failing(HostStore):
        def write(self, first, rows):
            if first == 3:
                raise OSError("the disk is gone")
            super().write(first, rows)

    with ThreadPoolExecutor(2) as pool:
        behind = WriteBehind(Failing(FORMAT, 20), pool)
        behind.write(3, ONES)
        behind.write(10, ONES)
        for each in (found_by, *[WriteBehind.settle] * again):
            with pytest.raises(OSError, match="the disk is gone"):
                each(behind)
        behind.settle()
        np.testing.assert_array_equal(behind.read(10, 4), ONES)
        behind.close()


def test_the_next_key_is_read_while_the_caller_works():
    asked, reached = [], threading.Event()

    def read(key):
        asked.append(key)
        if key == 1:
            reached.set()
        return 10 * key

    with ThreadPoolExecutor(1) as pool:
        pairs = read_ahead(pool, iter(range(3)), read)
        assert next(pairs) == (0, 0) and reached.wait(5)
        assert list(pairs) == [(1, 10), (2, 20)]
        assert list(read_ahead(pool, [], read)) == []
    asked.clear()
    pairs = read_ahead(None, range(3), read)
    assert next(pairs) == (0, 0) and asked == [0]
    assert list(pairs) == [(1, 10), (2, 20)]
