"""Stores of rows outside of the memory that a job counts: in the host's memory, or in a file (files.py).

All rows [count, dim] of a graph are in one store, whatever the number of ranks: each rank of a node reads any of them,
and writes its own.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...plan.layout import RowFormat
from .. import mpi
from ..mpi import SharedWindow

PENDING = 2  # unfinished writes of a store at most; each keeps its rows in memory

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Place:
    """The location of a store's rows, as native code reads them: row i ``row_bytes`` after row i - 1.

    address: address of row 0 in memory, or 0. file: descriptor of the open file, or -1. offset: byte of row 0 in the
    file. direct: the file was opened with O_DIRECT. pace: a native Pace, or None. name: name of the file, for errors.
    """

    row_bytes: int
    address: int = 0
    file: int = -1
    offset: int = 0
    direct: bool = False
    pace: Any = None
    name: str = ""


class Store(ABC):
    """Rows [count, dim] of one format."""

    format: RowFormat
    count: int

    @property
    @abstractmethod
    def place(self) -> Place:
        """Location of the rows, which holds as long as the store is open."""

    @abstractmethod
    def read(self, first: int, count: int) -> NDArray[Any]:
        """Return rows first .. first + count - 1, an array [count, dim] in the layout of kernels (`RowFormat`).

        Callers do not write into it: rows in the host's memory are not copied.
        """

    @abstractmethod
    def write(self, first: int, rows: NDArray[Any]) -> None:
        """Write rows [k, dim] of the store's dtype at row ``first``. Raises ValueError for rows that do not fit."""

    @abstractmethod
    def close(self) -> None:
        """Free the rows. Collective over the store's ranks."""


class Pace:
    """Counts the bytes that stores read and write, and limits their rate, for studies of slow stores.

    Stores on one device share it. rate: bytes per second, or 0 for no limit. nbytes: bytes read and written so far,
    without the chunks that native code loads.
    """

    def __init__(self, rate: float = 0.0) -> None:
        self.rate, self.nbytes, self.native = rate, 0, None
        self._lock = threading.Lock()
        if rate:
            from ..backends import native

            self.native = native.load().Pace(rate)

    def took(self, nbytes: int, began: float) -> None:
        """Sleep until a transfer of ``nbytes`` that began at ``began`` (`time.perf_counter`) would have ended at this
        rate.
        """
        with self._lock:
            self.nbytes += nbytes
        if self.native is not None:
            self.native.took(nbytes, time.perf_counter() - began)


def paced(rate: float | Pace) -> Pace:
    """Return the pace itself, or a new one for a rate."""
    return rate if isinstance(rate, Pace) else Pace(rate)


def mapped(nbytes: int) -> mmap.mmap:
    """Return new memory of whole pages, in huge pages where the kernel has them."""
    memory = mmap.mmap(-1, nbytes)
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def new_pages(nbytes: int) -> NDArray[np.uint8]:
    """Return zeros, uint8 [nbytes], on pages of their own."""
    return np.frombuffer(mapped(max(1, nbytes)), np.uint8)[:nbytes]


def padded_rows(count: int, format: RowFormat) -> NDArray[Any]:
    """Return uninitialised rows [count, dim] in the layout of kernels."""
    return np.empty((count, format.stride), format.dtype)[:, : format.dim]


def check_place(store: Store, first: int, count: int) -> None:
    """Raise ValueError for rows that a store does not have."""
    if first < 0 or count < 0 or first + count > store.count:
        raise ValueError(f"rows {first} .. {first + count - 1} of a store of {store.count} rows")


def check_rows(store: Store, first: int, rows: NDArray[Any]) -> None:
    """Raise ValueError for rows [k, dim] that do not fit a store from row ``first`` on."""
    check_place(store, first, len(rows))
    if rows.ndim != 2 or rows.shape[1] != store.format.dim or rows.dtype != store.format.dtype:
        raise ValueError(
            f"rows of {list(rows.shape[1:])} x {rows.dtype} into a store of rows of {store.format.dim} x "
            f"{store.format.dtype}"
        )


class HostStore(Store):
    """Rows in the host's memory.

    node: communicator of the ranks of one node that share the rows, or None for a lone rank. rows: an array [count,
    dim] that holds them, each row contiguous, and rows at most as far apart as in ``format``. [default: zeros] rate:
    bytes per second, 0 for no limit, or the `Pace` of several stores. lock: locks their pages (`Memory.lock`), or None.
    Collective over ``node``.
    """

    def __init__(
        self,
        format: RowFormat,
        count: int,
        *,
        rows: NDArray[Any] | None = None,
        node: Any = None,
        rate: float | Pace = 0.0,
        lock: Callable[[int, int], Callable[[], None]] | None = None,
    ) -> None:
        self.format, self.count, self._pace = format, count, paced(rate)
        self._window: SharedWindow | None = None
        if rows is None:
            nbytes = count * format.row_bytes
            if node is not None and node.size > 1:
                self._window = SharedWindow(node, nbytes, one=True)
            whole = new_pages(nbytes) if self._window is None else self._window.buffer(0)
            rows = whole.view(format.dtype).reshape(count, format.stride)[:, : format.dim]
        self._rows: NDArray[Any] = rows
        check_rows(self, 0, rows)
        apart = self.place.row_bytes
        contiguous = rows.size == 0 or rows.strides[1] == rows.itemsize
        if len(rows) != count or not contiguous or not 0 < apart <= format.row_bytes:
            raise ValueError(
                f"a store of {count} rows over {len(rows)}, {rows.strides} bytes apart of at most {format.row_bytes}"
            )
        self._unlock: Callable[[], None] | None = None
        try:
            if lock is not None:
                with contextlib.nullcontext() if node is None else mpi.agree(node):
                    self._unlock = lock(self.place.address, count * apart)
        except InputError:
            self.close()
            raise

    @property
    def place(self) -> Place:
        apart = self._rows.strides[0] if len(self._rows) > 1 else self.format.row_bytes
        return Place(apart, address=self._rows.ctypes.data, pace=self._pace.native)

    def read(self, first: int, count: int) -> NDArray[Any]:
        began = time.perf_counter()
        check_place(self, first, count)
        rows = self._rows[first : first + count]
        if self.place.row_bytes != self.format.row_bytes:
            out = padded_rows(count, self.format)
            out[:] = rows
            rows = out
        self._pace.took(count * self.format.row_bytes, began)
        return rows

    def write(self, first: int, rows: NDArray[Any]) -> None:
        began = time.perf_counter()
        check_rows(self, first, rows)
        self._rows[first : first + len(rows)] = rows
        self._pace.took(len(rows) * self.format.row_bytes, began)

    def close(self) -> None:
        if self._unlock is not None:
            self._unlock()
            self._unlock = None
        self._rows = np.zeros((0, self.format.dim), self.format.dtype)
        if self._window is not None:
            self._window.free()


class WriteBehind(Store):
    """A store whose writes return at once and are done by threads. Reads, by any thread, wait for writes of their rows.

    Callers do not change rows that they have written. pool: the threads that write.
    """

    def __init__(self, store: Store, pool: ThreadPoolExecutor) -> None:
        self._store, self._pool = store, pool
        self.format, self.count = store.format, store.count
        self._writes: list[tuple[int, int, Future[None]]] = []

    @property
    def place(self) -> Place:
        self.settle()
        return self._store.place

    def read(self, first: int, count: int) -> NDArray[Any]:
        for low, high, write in list(self._writes):
            if low < first + count and first < high:
                write.result()
        return self._store.read(first, count)

    def write(self, first: int, rows: NDArray[Any]) -> None:
        # Raises the error of an earlier write.
        last = first + len(rows)
        while len(self._writes) >= PENDING or any(lo < last and first < hi for lo, hi, _ in self._writes):
            self._end_first()
        self._writes.append((first, last, self._pool.submit(self._store.write, first, rows)))

    def settle(self) -> None:
        """Wait for all writes."""
        while self._writes:
            self._end_first()

    def _end_first(self) -> None:
        """Wait for the oldest write; reads of other threads see it until it has ended."""
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
    """Yield each (key, read(key)); a pool reads the next one while the caller works on this one."""
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
