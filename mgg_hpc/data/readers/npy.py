"""NumPy's .npy format for arrays of numbers: headers are checked first, and data come in runs of rows.

Nothing is mapped: the pages of a mapped file count as memory of the process that has touched them.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ..edge_stream import Rows
from ..schema import Layout
from .limits import check_memory, shown

LONGEST_HEADER = 1024  # characters; 32 dimensions of 20 digits take 704
NUMBERS = "biuf"  # kinds of types
PIECE = 8 << 20  # bytes that a pass reads at a time

Take = Callable[[int], NDArray[Any]]  # returns so many next rows of an array


class Header(NamedTuple):
    """Shape, order and type of an array, as its first bytes tell them."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{str(self.dtype)[:60]} {list(self.shape)}"


def read_header(file: Any, where: str, *, kinds: str = NUMBERS) -> Header:
    """Read a header from a binary file. Raises InputError that begins with ``where``; the bytes after it may be none.

    kinds: those of the types that are taken; neither objects, which are pickles, nor records.
    """
    try:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            found = np.lib.format.read_array_header_1_0(file, LONGEST_HEADER)
        elif version in ((2, 0), (3, 0)):
            found = np.lib.format.read_array_header_2_0(file, LONGEST_HEADER)
        else:
            raise ValueError(f"its version is {version[0]}.{version[1]}")
    except OSError:
        raise
    # NumPy reads the header as a Python expression; damaged ones raise SyntaxError, TokenError, RecursionError.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{where} is not a NumPy array (.npy): {reason[:120]}") from error
    header = Header(*found)
    if any(type(length) is not int or not 0 <= length < 2**63 for length in header.shape):
        raise InputError(f"{where} is not a NumPy array (.npy): its shape is {shown(str(header.shape))}")
    if header.dtype.kind not in kinds:
        raise InputError(f"{where} is {header}; expected numbers")
    return header


class Array(ABC):
    """An array that is read in passes, row by row. where: what messages name; header: its shape, order and type.

    Values come in the byte order of the machine.
    """

    def __init__(self, where: str, header: Header) -> None:
        self.where, self.header = where, header
        self.shape, self.dtype = header.shape, header.dtype.newbyteorder("=")

    def __len__(self) -> int:
        return self.shape[0]

    def __str__(self) -> str:
        return str(self.header)

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def columns_lie_together(self) -> bool:
        """Whether rows are spread over the data: [N, F] in Fortran's order."""
        return self.header.fortran and sum(length > 1 for length in self.shape) > 1

    @abstractmethod
    def stored(self, *shape: int) -> Array:
        """Return the numbers in the order in which they are stored, in another shape of as many."""
        ...

    def flat(self) -> Array:
        """Return the numbers in the order in which they are stored, in one row."""
        return self.stored(math.prod(self.shape))

    @abstractmethod
    def reading(self, low: int = 0) -> AbstractContextManager[Take]:
        """Return a context manager that gives a function which returns the next rows, from row ``low`` on.

        It raises InputError where the data are damaged, or fewer than the header says.
        """
        ...

    def rows(self) -> Rows:
        """Return the array as rows that come in pieces."""
        step = max(1, PIECE // max(1, self.row_bytes))

        def pieces() -> Iterator[NDArray[Any]]:
            with self.reading() as take:
                for low in range(0, len(self), step):
                    yield take(min(step, len(self) - low))

        return Rows(Layout(self.dtype, self.shape), pieces)

    def whole(self) -> NDArray[Any]:
        """Return the whole array. Raises InputError if it is larger than memory."""
        check_memory(self.where, self.header.nbytes)
        if not self.shape:
            with self.flat().reading() as take:
                return take(1).reshape(())
        found = np.empty(self.shape, self.dtype)
        at = 0
        for piece in self.rows().pieces():
            found[at : at + len(piece)] = piece
            at += len(piece)
        return found


def load(path: Path) -> NDArray[Any]:
    """Return the array of a file, mapped and not read.

    Raises InputError for a file that holds less than it claims, or anything but numbers; OSError if it cannot be read.
    """
    with _regular(path) as file:
        header, offset = _described(file, str(path))
        if not header.nbytes:
            return np.empty(header.shape, header.dtype)
        order: Any = "F" if header.fortran else "C"
        return np.memmap(file, header.dtype, "r", offset, header.shape, order)


def open_array(path: Path, where: str = "") -> Array:
    """Open the array of a file. where: begins messages. [default: the path]

    Raises InputError for a file that cannot be read, holds less than it claims, or anything but numbers.
    """
    where = where or str(path)
    with _opened(path, where) as file:
        return _FileArray(path, where, *_described(file, where))


def _described(file: Any, where: str) -> tuple[Header, int]:
    """Return a file's header, and where its data begin. Raises InputError if the file does not hold them."""
    header = read_header(file, where)
    offset, size = file.tell(), os.fstat(file.fileno()).st_size
    if offset + header.nbytes > size:
        raise InputError(f"{where} claims {header}, {header.nbytes} bytes; the file does not hold them")
    return header, offset


def _regular(path: Path) -> Any:
    """Open a file for reading. Without O_NONBLOCK a pipe in the file's place has this wait for ever."""
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))


@contextmanager
def _opened(path: Path, where: str) -> Iterator[Any]:
    try:
        with _regular(path) as file:
            yield file
    except OSError as error:
        raise InputError(f"{where} cannot be read: {error.strerror or error}") from error


class _FileArray(Array):
    """An array in a file of its own, from byte ``offset`` on."""

    def __init__(self, path: Path, where: str, header: Header, offset: int) -> None:
        super().__init__(where, header)
        self._path, self._offset = path, offset

    def stored(self, *shape: int) -> Array:
        header = Header(shape, False, self.header.dtype)
        return _FileArray(self._path, self.where, header, self._offset)

    @contextmanager
    def reading(self, low: int = 0) -> Iterator[Take]:
        with _opened(self._path, self.where) as file:
            at = low

            def take(count: int) -> NDArray[Any]:
                nonlocal at
                first, at = at, at + count
                if not self.columns_lie_together:
                    found = self._numbers(file, first * math.prod(self.shape[1:]), (count, *self.shape[1:]))
                else:
                    columns = range(math.prod(self.shape[1:]))
                    runs = [self._numbers(file, column * len(self) + first, (count,)) for column in columns]
                    found = np.stack(runs, axis=1).reshape((count, *self.shape[1:]), order="F")
                return found.astype(self.dtype, copy=False)

            yield take

    def _numbers(self, file: Any, first: int, shape: tuple[int, ...]) -> NDArray[Any]:
        """Read numbers from number ``first`` of the file on."""
        found = np.empty(shape, self.header.dtype)
        view, done = found.reshape(-1).view(np.uint8).data, 0
        offset = self._offset + first * found.itemsize
        while done < len(view):
            count = os.preadv(file.fileno(), [view[done : done + (1 << 30)]], offset + done)
            if not count:
                raise InputError(f"{self.where} became shorter while it was read")
            done += count
        return found
