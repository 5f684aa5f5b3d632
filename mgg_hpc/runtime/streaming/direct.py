"""Direct I/O: files that are read and written past the page cache, and page-aligned buffers for it."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import tempfile
import weakref
from collections import defaultdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError

BLOCK = 4096  # bytes: places in files and in memory that direct reads and writes take are multiples of it
PIECE = 4 << 20  # bytes that are written at a time
MOST_KEPT = 64 << 20  # bytes of the largest buffer that the pool keeps


class Pages:
    """A pool of page-aligned buffers. A buffer is used again when no array over it is left. For any thread.

    New memory costs a page fault for every 4 KiB, which takes as long as reading them from a fast disk.
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
            memory = _mapped(size)
        # NumPy's views keep the array that was made of the mmap, so its end is the end of all of them.
        taken = np.frombuffer(memory, np.uint8)
        if size <= MOST_KEPT:
            weakref.finalize(taken, free.append, memory).atexit = False
        return taken[:nbytes]


def new_pages(nbytes: int) -> NDArray[np.uint8]:
    """Return zeros, uint8 [nbytes], on pages of their own."""
    return np.frombuffer(_mapped(max(1, nbytes)), np.uint8)[:nbytes]


def _mapped(nbytes: int) -> mmap.mmap:
    memory = mmap.mmap(-1, nbytes)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


class DirectFile:
    """An open file. Whole blocks are read and written past the page cache, where the file system allows it.

    file: file descriptor, which `close` closes. pages: pool of the buffers. direct: whether to go past the page cache;
    the attribute says whether it does. writes: whether the file is open for writing. name: of the file in errors.
    number: file descriptor for reads.
    """

    def __init__(self, file: int, pages: Pages, *, direct: bool, writes: bool, name: str) -> None:
        self._file, self._pages, self.name = file, pages, name
        opened = _directly(file, writes=writes) if direct else None
        self.direct = opened is not None
        self.number = file if opened is None else opened
        self._end = weakref.finalize(self, _close, {file, self.number})

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return os.fstat(self._file).st_size

    def read(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Return bytes, uint8 [nbytes]. Raises OSError where the file ends before."""
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
        """Write bytes, uint8 [any], at an offset. The page cache is asked to keep none of them.

        to_end: whether the rest of the last block may be overwritten with zeros.
        """
        first = min(len(values), -offset % BLOCK) if self.direct else len(values)
        last = len(values) if to_end else first + (len(values) - first) // BLOCK * BLOCK
        self._write_cached(offset, values[:first])
        for low in range(first, last, PIECE):
            part = values[low : min(low + PIECE, last)]
            box = self._pages.take(-(-len(part) // BLOCK) * BLOCK)
            box[: len(part)], box[len(part) :] = part, 0
            _write(self.number, box, offset + low)
        self._write_cached(offset + last, values[last:])

    def _write_cached(self, offset: int, values: NDArray[np.uint8]) -> None:
        if len(values):
            _write(self._file, values, offset)
            os.posix_fadvise(self._file, offset, len(values), os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the file."""
        self._end()


def scratch_file(folder: Path, nbytes: int = 0) -> int:
    """Return an open file of so many zeros without a name. Raises InputError where it cannot be."""
    try:
        try:
            file = os.open(folder, os.O_RDWR | os.O_TMPFILE, 0o600)
        except (IsADirectoryError, NotImplementedError):  # older kernels
            file = -1
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            file = -1
        if file < 0:
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


def _directly(file: int, *, writes: bool) -> int | None:
    """Open an open file once more, past the page cache; None where its file system cannot."""
    try:
        return os.open(f"/proc/self/fd/{file}", (os.O_RDWR if writes else os.O_RDONLY) | os.O_DIRECT)
    except OSError:
        return None


def _write(file: int, values: NDArray[np.uint8], offset: int) -> None:
    done = 0
    while done < len(values):
        done += os.pwrite(file, values.data[done:], offset + done)


def _close(files: set[int]) -> None:
    for file in files:
        os.close(file)
