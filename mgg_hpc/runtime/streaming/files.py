"""Rows in files: scratch files without a name, and contiguous datasets of graph files, by direct I/O where possible."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import time
import weakref
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...plan.layout import ROW_ALIGNMENT, RowFormat
from .. import mpi
from .store import Pace, Place, Store, check_place, check_rows, mapped, paced, padded_rows

BLOCK = 4096  # bytes: direct I/O takes offsets in files, addresses and sizes that are multiples of it
PIECE = 4 << 20  # bytes that are written at a time
MOST_KEPT = 64 << 20  # bytes of the largest buffer that the pool keeps
PADDED = 4 << 20  # bytes of rows that are padded at a time
STEP = 256  # their number is a multiple of it, so that they are whole blocks: rows are multiples of 16 bytes


class Pages:
    """A pool of page-aligned buffers, for any thread. A buffer is used again when no array over it is left.

    New memory costs a page fault for every 4 KiB, which takes as long as reading 4 KiB from a fast disk.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[mmap.mmap]] = defaultdict(list)

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """Return an uninitialised array, uint8 [nbytes], whose memory begins with a page."""
        size = max(1, -(-nbytes // BLOCK)) * BLOCK
        free = self._free[size]
        try:
            memory = free.pop()
        except IndexError:
            memory = mapped(size)
        # NumPy's views keep the array that was made of the mmap, so its end is the end of all of them.
        taken = np.frombuffer(memory, np.uint8)
        if size <= MOST_KEPT:
            weakref.finalize(taken, free.append, memory).atexit = False
        return taken[:nbytes]


class DirectFile:
    """An open file whose whole blocks are read and written past the page cache, if the file system allows it.

    file: file descriptor, which `close` closes. pages: pool of the buffers. direct: whether to bypass the page cache;
    the attribute tells whether it does. writes: whether the file is open for writing. name: name of the file in error
    messages. number: file descriptor for reads.
    """

    def __init__(self, file: int, pages: Pages, *, direct: bool, writes: bool, name: str) -> None:
        self._file, self._pages, self.name = file, pages, name
        opened = _directly(file, writes=writes) if direct else None
        self.direct = opened is not None
        self.number = file if opened is None else opened
        self._end = weakref.finalize(self, _close, {file, self.number})

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return os.fstat(self._file).st_size

    def read(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Return bytes, uint8 [nbytes]. Raises OSError if the file ends earlier."""
        start = offset // BLOCK * BLOCK
        whole = -(-(offset + nbytes) // BLOCK) * BLOCK - start
        box = self._pages.take(whole)
        done = 0
        while done < whole:
            got = os.preadv(self.number, [box.data[done:]], start + done)
            done += got
            # A direct read that ends within a block has met the end of the file.
            if not got or (self.direct and got % BLOCK):
                break
        if start + done < offset + nbytes:
            raise OSError(f"{self.name} ends at byte {start + done}")
        return box[offset - start :][:nbytes]

    def write(self, offset: int, values: NDArray[np.uint8], *, to_end: bool = False) -> None:
        """Write bytes, uint8 [k], at an offset, and drop them from the page cache.

        to_end: whether the rest of the last block may be overwritten with zeros.
        """
        first = min(len(values), -offset % BLOCK) if self.direct else len(values)
        last = len(values) if to_end else first + (len(values) - first) // BLOCK * BLOCK
        self._write_cached(offset, values[:first])
        for low in range(first, last, PIECE):
            part = values[low : min(low + PIECE, last)]
            box = self._pages.take(-(-len(part) // BLOCK) * BLOCK)
            box[: len(part)], box[len(part) :] = part, 0
            write(self.number, box, offset + low)
        self._write_cached(offset + last, values[last:])

    def _write_cached(self, offset: int, values: NDArray[np.uint8]) -> None:
        if len(values):
            write(self._file, values, offset)
            os.posix_fadvise(self._file, offset, len(values), os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the file."""
        self._end()


def scratch_file(folder: Path, nbytes: int = 0) -> int:
    """Return the descriptor of a file without a name, of so many zeros. Raises InputError if it cannot be made."""
    try:
        try:
            file = os.open(folder, os.O_RDWR | os.O_TMPFILE, 0o600)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:  # by the file system
                raise
            file, name = tempfile.mkstemp(dir=folder, prefix="mgg-")
            Path(name).unlink()
    except OSError as error:
        raise InputError(f"the scratch folder {folder}: {error.strerror}") from error
    try:
        if nbytes:
            os.posix_fallocate(file, 0, nbytes)
    except OSError as error:
        os.close(file)
        raise InputError(
            f"the scratch folder {folder} has no room for {nbytes:,} bytes: {error.strerror}"
        ) from error
    return file


def in_memory(folder: Path) -> bool:
    """Return whether files of a folder take memory, as on a tmpfs; False for a folder that is not there."""
    if not folder.exists():
        return False
    device = folder.stat().st_dev
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, kind = line.partition(" - ")
        if mount.split()[2] == f"{os.major(device)}:{os.minor(device)}":
            return kind.split()[0] in ("tmpfs", "ramfs")
    return False


def _directly(file: int, *, writes: bool) -> int | None:
    """Open an open file once more with O_DIRECT; return None if its file system cannot."""
    try:
        return os.open(f"/proc/self/fd/{file}", (os.O_RDWR if writes else os.O_RDONLY) | os.O_DIRECT)
    except OSError:
        return None


def write(file: int, values: NDArray[np.uint8], offset: int) -> None:
    """Write bytes at an offset of an open file."""
    done = 0
    while done < len(values):
        done += os.pwrite(file, values.data[done:], offset + done)


def _close(files: set[int]) -> None:
    for file in files:
        os.close(file)


class FileStore(Store):
    """Rows in a scratch file without a name, of which nothing is left however the process ends.

    folder: folder of the file. direct: bypass the page cache (O_DIRECT), if the file system can; the attribute tells
    whether it does. node, rate: as for `HostStore`. pages: buffers for reads, which stores can share. [default: a pool
    of this store's own] Collective over ``node``. Raises InputError, the same on all ranks, where the folder has no
    room.
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
        file = shared(node, lambda: scratch_file(folder, nbytes))
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
        """Return a store that reads the unpadded rows of a file from byte ``offset`` on.

        A contiguous dataset of HDF5 has this layout. Raises InputError if the file has fewer rows.
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
        self.format, self.count, self._pace, self._file = format, count, paced(rate), file
        self.direct = file.direct
        self._place = Place(row_bytes, 0, file.number, offset, file.direct, self._pace.native, file.name)

    @property
    def place(self) -> Place:
        return self._place

    def read(self, first: int, count: int) -> NDArray[Any]:
        # Raises OSError if the file ends earlier.
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


def shared(node: Any, make: Callable[[], int]) -> int:
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
