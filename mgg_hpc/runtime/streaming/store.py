"""Where rows lie that are not in the memory that a job counts: in the host's memory, or in a file.

All rows [count, dim] of a graph lie in one store, whatever the number of ranks: each of a node's ranks reads any of
them, and writes its own.
"""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...plan.layout import RowFormat
from .. import mpi
from ..window import SharedWindow
from .direct import new_pages


@dataclass(frozen=True)
class Place:
    """Where a store's rows lie, as native code reads them: row i ``row_bytes`` after row i - 1.

    address: of row 0 in memory, or 0. file: number of the open file, if they lie in one. offset: of row 0 in it.
    direct: the file was opened with O_DIRECT. pace: a native Pace, or None. name: of the file, for errors.
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
        """Where the rows lie; as long as the store is open."""

    @abstractmethod
    def read(self, first: int, count: int) -> NDArray[Any]:
        """Return rows first .. first + count - 1, an array [count, dim] in the layout of kernels (`RowFormat`).

        It is not written: rows in the host's memory are not copied.
        """

    @abstractmethod
    def write(self, first: int, rows: NDArray[Any]) -> None:
        """Write rows [any, dim] of the store's dtype from row ``first`` on. Raises ValueError where they may not go."""

    @abstractmethod
    def close(self) -> None:
        """Give the rows back. Collective over the store's ranks."""


class Pace:
    """Counts what is read from stores and written to them, and keeps it to a rate, for studies of slow stores.

    Stores that share it are one device's. rate: bytes per second, or 0 for any number. nbytes: that were read and
    written so far, without the chunks that native code loads.
    """

    def __init__(self, rate: float = 0.0) -> None:
        self.rate, self.nbytes, self.native = rate, 0, None
        self._lock = threading.Lock()
        if rate:
            from ..backends import native

            self.native = native.load().Pace(rate)

    def took(self, nbytes: int, began: float) -> None:
        """Sleep for what is left of the time that ``nbytes`` take, which began to move at ``began``."""
        with self._lock:
            self.nbytes += nbytes
        if self.native is not None:
            self.native.took(nbytes, time.perf_counter() - began)


def paced(rate: float | Pace) -> Pace:
    """Return the pace itself, or a new one for a rate."""
    return rate if isinstance(rate, Pace) else Pace(rate)


def padded_rows(count: int, format: RowFormat) -> NDArray[Any]:
    """Return uninitialised rows [count, dim] in the layout of kernels."""
    return np.empty((count, format.stride), format.dtype)[:, : format.dim]


def check_place(store: Store, first: int, count: int) -> None:
    """Raise ValueError for rows that a store does not have."""
    if first < 0 or count < 0 or first + count > store.count:
        raise ValueError(f"rows {first} .. {first + count - 1} of a store of {store.count} rows")


def check_rows(store: Store, first: int, rows: NDArray[Any]) -> None:
    """Raise ValueError where rows [any, dim] do not belong into a store."""
    check_place(store, first, len(rows))
    if rows.ndim != 2 or rows.shape[1] != store.format.dim or rows.dtype != store.format.dtype:
        raise ValueError(
            f"rows of {list(rows.shape[1:])} x {rows.dtype} into a store of rows of {store.format.dim} x "
            f"{store.format.dtype}"
        )


class HostStore(Store):
    """Rows in the host's memory, beside what a job counts.

    node: the ranks of one node that share the rows (a communicator), or None for a lone one. rows: an array [count,
    dim] that has them, each of them contiguous, at most as far apart as in ``format``; else they are zero at first.
    rate: bytes per second, for studies; 0: any number; or the pace of several stores. lock: locks their pages
    (`Memory.lock`), or None. Collective over ``node``.
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
        if rows is None and node is not None and node.size > 1:
            self._window = SharedWindow(node, count * format.row_bytes, one=True)
            flat = self._window.buffer(0).view(format.dtype)
            rows = flat.reshape(count, format.stride)[:, : format.dim]
        elif rows is None:
            whole = new_pages(count * format.row_bytes).view(format.dtype)
            rows = whole.reshape(count, format.stride)[:, : format.dim]
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
