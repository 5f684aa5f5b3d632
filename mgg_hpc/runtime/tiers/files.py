"""Rows of a file, which are read by their places."""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ..streaming.files import scratch_file, shared


class FileRows:
    """Rows [n, dim] of a file, one after another from a byte offset on, which are read by their places.

    close: closes the file, as the end of this object does. Raises InputError for a file that is shorter than that.
    """

    scratch = False  # whether nobody else knows the places of rows

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

    def __len__(self) -> int:
        return self.count

    def __str__(self) -> str:
        return str(self.path)

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


class ScratchRows(FileRows):
    """Rows [n, dim] of a scratch file, initially zeros, which are written too. Collective over ``node``, who share it.

    folder: of the file, which has no name: nothing is left of it however the process ends. Raises InputError, the same
    on all ranks, for a folder without room.
    """

    scratch = True

    def __init__(self, node: Any, folder: Path, count: int, dim: int, dtype: np.dtype[Any]) -> None:
        self.path, self.offset, self.count, self.dim, self.dtype = folder, 0, count, dim, dtype
        self.descriptor = shared(node, lambda: scratch_file(folder, count * self.row_bytes))
        self.close = weakref.finalize(self, os.close, self.descriptor)

    def __str__(self) -> str:
        return f"the scratch file in {self.path}"

    def check(self) -> None:
        pass  # it is written to

    def write(self, first: int, rows: NDArray[Any]) -> None:
        """Write contiguous rows [k, dim] from row ``first`` on. Raises InputError where they cannot be written."""
        values, done = rows.view(np.uint8).reshape(-1), 0
        try:
            while done < len(values):
                done += os.pwrite(self.descriptor, values[done:].data, first * self.row_bytes + done)
        except OSError as error:
            raise InputError(f"the scratch folder {self.path}: {error.strerror}") from error
