"""Rows in several kinds of memory, read by number: the rows that are read most often lie nearest.

A row has a slot. The first slots are those of the nearest tier, and so on to the file, which holds the rest (data
tiering: Min, dissertation, University of Illinois, 2022, chapter 4). Placement is fixed: no row moves while it is read.
"""

from __future__ import annotations

import os
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

    name: as statistics have it. rows: arrays [n, dim], of which each holds every len(rows)-th slot in turn.
    """

    name: str
    rows: Sequence[NDArray[Any]]

    @property
    def slots(self) -> int:
        """Number of slots."""
        return sum(len(each) for each in self.rows)

    @property
    def spec(self) -> tuple[int, list[int], int]:
        """As the native module takes it. Raises ValueError for rows whose values are not contiguous."""
        first = self.rows[0]
        if any(each.ndim != 2 or (each.size and each.strides[1] != each.itemsize) for each in self.rows):
            raise ValueError(f"{self.name}: rows [n, dim] whose values are contiguous")
        bytes_of_row = first.strides[0] if len(first) > 1 else first.shape[1] * first.itemsize
        return self.slots, [each.ctypes.data for each in self.rows], bytes_of_row


class FileRows:
    """Rows [n, dim] of a file, one after another from a byte offset on, which are read by their places.

    Raises InputError for a file that is shorter than that.
    """

    def __init__(self, path: Path, offset: int, count: int, dim: int, dtype: np.dtype[Any]) -> None:
        self.path, self.offset, self.count, self.dim, self.dtype = path, offset, count, dim, dtype
        try:
            self.descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from error
        self._state = self._now()
        if (end := offset + count * self.row_bytes) > self._state[0]:
            os.close(self.descriptor)
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

    def check(self) -> None:
        """Raise InputError if the file was written to since it was opened."""
        if self._now() != self._state:
            raise InputError(f"{self.path}: has changed since it was opened; open it again")

    def close(self) -> None:
        """Close the file."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


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
        """out[i] = row ids[i]. ids: int64 [n]. out: [n, dim], of the rows' dtype, with contiguous values in each row.

        Raises IndexError for a number outside the rows, before anything is written, and InputError, which names file
        and row, for a row of a file that cannot be read.
        """
        if self.file is not None:
            self.file.check()
        if out.itemsize == 2:
            out = out.view(np.uint16)
        try:
            read, slot, error = self._module.gather_tiers(
                ids, self.rows, *self._slots, self._specs, self._filed, out, threads
            )
        except ValueError as wrong:
            if not str(wrong).startswith("row "):
                raise
            raise IndexError(str(wrong)) from None
        self.read += read
        if slot >= 0:
            assert self.file is not None
            row = slot - sum(each.slots for each in self.tiers) + self._first
            why = os.strerror(error) if error else "the file ends before it"
            raise InputError(f"{self.file.path}: row {row:,} cannot be read: {why}")


def placed(order: NDArray[np.int64], near: int) -> NDArray[np.integer]:
    """Return slots [N]: the first ``near`` rows of ``order`` have 0 .. near - 1, and row r of the rest near + r.

    order: int64 [N], rows by descending score. The rest keeps its numbers, as it lies in an array or a file.
    """
    wide = near + len(order) >= SMALL_SLOTS
    slots: NDArray[np.integer] = np.arange(near, near + len(order)).astype(np.int64 if wide else np.int32)
    slots[order[:near]] = np.arange(near)
    return slots
