"""Stores that are read and written by threads, while others compute."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from numpy.typing import NDArray

from .store import Place, Store

PENDING = 2  # writes of a store that may be under way; each keeps its rows in memory

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Behind(Store):
    """A store whose writes return at once; reads, by any thread, wait for those of their rows. Rows that are written
    stay as they are.

    pool: of the threads that write.
    """

    def __init__(self, store: Store, pool: ThreadPoolExecutor) -> None:
        self._store, self._pool = store, pool
        self.format, self.count = store.format, store.count
        self._writes: list[tuple[int, int, Future[None]]] = []

    @property
    def place(self) -> Place:
        # All writes are done then.
        self.settle()
        return self._store.place

    def read(self, first: int, count: int) -> NDArray[Any]:
        for low, high, write in list(self._writes):
            if low < first + count and first < high:
                write.result()
        return self._store.read(first, count)

    def write(self, first: int, rows: NDArray[Any]) -> None:
        # Errors are raised by a later call.
        last = first + len(rows)
        while len(self._writes) >= PENDING or any(
            low < last and first < high for low, high, _ in self._writes
        ):
            self._end_first()
        self._writes.append((first, last, self._pool.submit(self._store.write, first, rows)))

    def settle(self) -> None:
        """Wait for all writes."""
        while self._writes:
            self._end_first()

    def _end_first(self) -> None:
        """Wait for a write, which reads of other threads see until then."""
        try:
            self._writes[0][2].result()
        finally:
            self._writes.pop(0)

    def close(self) -> None:
        self.settle()
        self._store.close()


def read_ahead(
    pool: ThreadPoolExecutor | None, keys: Iterable[_Key], read: Any
) -> Iterator[tuple[_Key, _Value]]:
    """Yield each key with read(key). The next one is read while the caller works; without a pool, when it is due."""
    pending: tuple[_Key, Future[_Value]] | None = None
    for key in keys:
        if pool is None:
            yield key, read(key)
            continue
        following = key, pool.submit(read, key)
        if pending is not None:
            yield pending[0], pending[1].result()
        pending = following
    if pending is not None:
        yield pending[0], pending[1].result()
