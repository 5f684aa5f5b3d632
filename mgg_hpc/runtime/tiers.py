"""Rows in several kinds of memory, read by number: the rows that are read most often lie nearest.

A row has a slot. The first slots are those of the nearest tier, and so on to the file, which holds the rest (data
tiering: Min, dissertation, University of Illinois, 2022, chapter 4). Placement is fixed: no row moves while it is read.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .backends import native

SMALL_SLOTS = 1 << 31  # from here on a slot takes 8 bytes instead of 4


@dataclass(frozen=True, eq=False)
class Tier:
    """The next slots, in memory that this process reads through pointers.

    name: in statistics. rows: arrays [n, dim], of which each holds every len(rows)-th slot in turn.
    """

    name: str
    rows: Sequence[NDArray[Any]]

    @property
    def slots(self) -> int:
        """Number of slots."""
        return sum(len(each) for each in self.rows)

    @property
    def spec(self) -> tuple[int, list[int], int]:
        """Arguments of the native module: slots, addresses, bytes from one row to the next.

        Raises ValueError for rows whose values are not contiguous.
        """
        first = self.rows[0]
        if any(each.size and each.shape[1] > 1 and each.strides[1] != each.itemsize for each in self.rows):
            raise ValueError(f"{self.name}: rows [n, dim] whose values are contiguous")
        bytes_of_row = first.strides[0] if len(first) > 1 else first.shape[1] * first.itemsize
        return self.slots, [each.ctypes.data for each in self.rows], bytes_of_row


class FileRows:
    """Rows [n, dim] of a file, one after another from a byte offset on, which are read by their places.

    close: closes the file, as the end of this object does. Raises InputError for a file that is shorter than that.
    """

    def __init__(self, path: Path, offset: int, count: int, dim: int, dtype: np.dtype[Any]) -> None:
        self.path, self.offset, self.count, self.dim, self.dtype = path, offset, count, dim, dtype
        try:
            self.descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from error
        self.close = weakref.finalize(self, os.close, self.descriptor)
        self._state = self._now()
        if (end := offset + count * self.row_bytes) > self._state[0]:
            self.close()
            raise InputError(
                f"{path}: has {self._state[0]:,} bytes, and its rows end at byte {end:,}: it was cut off"
            )

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.dim * self.dtype.itemsize

    def _now(self) -> tuple[int, int]:
        state = os.fstat(self.descriptor)
        return state.st_size, state.st_mtime_ns

    def is_mapped_at(self, address: int) -> bool:
        """Return whether this file, and not one that has replaced it or was there before, is mapped at an address."""
        for line in Path("/proc/self/maps").read_text().splitlines():
            span, _, _, _, number = line.split()[:5]
            first, end = (int(each, 16) for each in span.split("-"))
            if first <= address < end:
                return int(number) == os.fstat(self.descriptor).st_ino
        return False

    def check(self) -> None:
        """Raise InputError if the file was written to since it was opened."""
        if self._now() != self._state:
            raise InputError(f"{self.path}: has changed since it was opened; open it again")


class TieredRows:
    """Rows [N, dim] in tiers, the nearest first, and the rest in a file, if there is one.

    slots: int32 or int64 [N], the slot of each row; None where a row's number is its slot. file: its slots follow those
    of the tiers. first: row of the file's first slot. read: rows that were read so far, int64 [tiers + 1], the file's
    last.
    """

    def __init__(
        self,
        rows: int,
        tiers: Sequence[Tier],
        file: FileRows | None = None,
        *,
        slots: NDArray[np.integer] | None = None,
        first: int = 0,
    ) -> None:
        self.rows, self.tiers, self.file, self.slots, self._first = rows, tuple(tiers), file, slots, first
        self.read = np.zeros(len(tiers) + 1, np.int64)
        self._specs = [each.spec for each in tiers]
        self._filed = (0, -1, 0)
        if file is not None:
            self._filed = (file.count - first, file.descriptor, file.offset + first * file.row_bytes)
        narrow = slots is not None and slots.dtype == np.int32
        self._slots = (slots, None) if narrow else (None, slots)
        self._module = native.load()

    def gather(self, ids: NDArray[np.int64], out: NDArray[Any], *, threads: int = 1) -> None:
        """Copy rows by number: out[i] = row ids[i].

        ids: int64 [n]. out: [n, dim], of the rows' dtype, with contiguous values in each row. Raises IndexError for a
        number outside the rows, before anything is written, and InputError for a row of a file that cannot be read,
        with its place there.
        """
        if self.file is not None:
            self.file.check()
        if out.itemsize == 2:
            out = out.view(np.uint16)
        read, slot, error = self._module.gather_tiers(
            ids, self.rows, *self._slots, self._specs, self._filed, out, threads
        )
        self.read += read
        if slot >= 0:
            assert self.file is not None
            place = slot - sum(each.slots for each in self.tiers) + self._first
            why = os.strerror(error) if error else "the file ends before it"
            raise InputError(f"{self.file.path}: row {place:,} of it cannot be read: {why}")


def placed(
    order: NDArray[np.int64], near: int, places: NDArray[np.integer] | None = None
) -> NDArray[np.integer]:
    """Return slots [N]: the first ``near`` rows of ``order`` have 0 .. near - 1, and each other row near + its place.

    order: int64 [N], rows by descending score. places: [N], of the rows in an array or a file. [default: their numbers]
    """
    found = near + (np.arange(len(order)) if places is None else places.astype(np.int64))
    slots: NDArray[np.integer] = found.astype(slot_type(near + len(order)))
    slots[order[:near]] = np.arange(near)
    return slots


def slot_type(slots: int) -> type[np.integer]:
    """Return the type that holds the numbers of so many slots."""
    return np.int64 if slots >= SMALL_SLOTS else np.int32
