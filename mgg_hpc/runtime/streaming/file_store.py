"""Rows in files: scratch files without a name, and contiguous datasets of graph files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...plan.layout import ROW_ALIGNMENT, RowFormat
from .. import mpi
from .direct import BLOCK, DirectFile, Pages, scratch_file
from .store import Pace, Place, Store, check_place, check_rows, paced, padded_rows

PADDED = 4 << 20  # bytes of rows that are padded at a time
STEP = 256  # their number is a multiple of it, so that they are whole blocks: rows are multiples of 16 bytes


class FileStore(Store):
    """Rows in a scratch file without a name, of which nothing is left however the process ends.

    folder: where it lies. direct: read and write it past the page cache (O_DIRECT), where its file system can; the
    attribute says whether it does. node, rate: as for `HostStore`. pages: buffers for reads, which stores can share; by
    default a pool of this store's own. Collective over ``node``. Raises InputError, the same on all ranks, where the
    folder has no room.
    """

    _folder: Path | None

    def __init__(
        self,
        format: RowFormat,
        count: int,
        folder: Path,
        *,
        direct: bool = False,
        node: Any = None,
        rate: float | Pace = 0.0,
        pages: Pages | None = None,
    ) -> None:
        self._folder = folder
        nbytes = -(-count * format.row_bytes // BLOCK) * BLOCK
        file = _shared(node, lambda: scratch_file(folder, nbytes))
        opened = DirectFile(
            file, pages or Pages(), direct=direct, writes=True, name=f"the scratch file in {folder}"
        )
        self._open(format, count, opened, 0, format.row_bytes, rate)

    @classmethod
    def over(
        cls,
        path: Path,
        offset: int,
        format: RowFormat,
        count: int,
        *,
        direct: bool = False,
        rate: float | Pace = 0.0,
        pages: Pages | None = None,
    ) -> FileStore:
        """Return a store that reads rows of a file, one after another without padding from byte ``offset`` on.

        A contiguous dataset of HDF5 has this layout. Raises InputError where the file has fewer rows.
        """
        store = cls.__new__(cls)
        store._folder = None
        row_bytes = format.dim * format.dtype.itemsize
        try:
            file = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from error
        opened = DirectFile(file, pages or Pages(), direct=direct, writes=False, name=str(path))
        store._open(format, count, opened, offset, row_bytes, rate)
        if opened.size < offset + count * row_bytes:
            store.close()
            raise InputError(f"{path}: it ends before the {count} rows from byte {offset} on")
        return store

    def _open(
        self,
        format: RowFormat,
        count: int,
        file: DirectFile,
        offset: int,
        row_bytes: int,
        rate: float | Pace,
    ) -> None:
        """Keep an open file."""
        self.format, self.count, self._pace, self._file = format, count, paced(rate), file
        self.direct = file.direct
        self._place = Place(row_bytes, 0, file.number, offset, file.direct, self._pace.native, file.name)

    @property
    def place(self) -> Place:
        return self._place

    def read(self, first: int, count: int) -> NDArray[Any]:
        # Raises OSError where the file ends before.
        began, place, format = time.perf_counter(), self._place, self.format
        check_place(self, first, count)
        read = self._file.read(place.offset + first * place.row_bytes, count * place.row_bytes)
        apart = place.row_bytes, format.dtype.itemsize
        rows = np.ndarray((count, format.dim), format.dtype, read, 0, apart)
        if place.row_bytes != format.row_bytes or read.ctypes.data % ROW_ALIGNMENT:
            packed, rows = rows, padded_rows(count, format)
            rows[:] = packed
        self._pace.took(count * place.row_bytes, began)
        return rows

    def write(self, first: int, rows: NDArray[Any]) -> None:
        began, format = time.perf_counter(), self.format
        if self._folder is None:
            raise ValueError(f"{self._file.name} is read only")
        check_rows(self, first, rows)
        most = max(1, PADDED // format.row_bytes // STEP) * STEP
        padded = format.stride != format.dim or not rows.flags.c_contiguous
        for low in range(0, len(rows), most if padded else max(1, len(rows))):
            part = rows[low : low + most] if padded else rows
            if padded:
                packed, part = part, np.zeros((len(part), format.stride), format.dtype)
                part[:, : format.dim] = packed
            values = part.view(np.uint8).reshape(-1)
            to_end = first + low + len(part) == self.count
            self._file.write((first + low) * format.row_bytes, values, to_end=to_end)
        self._pace.took(len(rows) * format.row_bytes, began)

    def close(self) -> None:
        self._file.close()


def _shared(node: Any, make: Callable[[], int]) -> int:
    """Return an open file that rank 0 of a node makes. Collective."""
    if node is None or node.size == 1:
        return make()
    file = -1
    with mpi.agree(node):
        if node.rank == 0:
            file = make()
    place = node.bcast((os.getpid(), file))
    with mpi.agree(node):
        if node.rank > 0:
            try:
                file = os.open(f"/proc/{place[0]}/fd/{place[1]}", os.O_RDWR)
            except OSError as error:
                raise InputError(f"ranks of this node cannot share a file without a name: {error}") from error
    return file
