"""Rows of a file, which are read by their places."""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError


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

    def __len__(self) -> int:
        return self.count

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
