"""NumPy's files, arrays (.npy) and archives of arrays (.npz), checked before they are read, and read in passes.

A file is data: the claims of its header or its directory are checked before anything is allocated or unpacked, and
members of an archive that nobody needs are not touched. Nothing is memory-mapped (except by `load`): the pages of a
mapped file count as memory of the process that has touched them.
"""

from __future__ import annotations

import errno
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError, shown
from ..edge_stream import Rows
from ..schema import Layout
from .limits import check_memory

LONGEST_HEADER = 1024  # characters; 32 dimensions of 20 digits take 704
NUMBERS = "biuf"  # NumPy's kinds of types that are numbers
PIECE = 8 << 20  # bytes that a pass reads at a time

MEMBERS = 1000  # most arrays of an archive
DEFLATE_RATIO = 1032  # the largest compression ratio of deflate
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # those that NumPy writes
FORMS = ("csr", "csc", "coo")  # of SciPy's matrices
KINDS = {"int": "iu", "float": "f", "number": "iuf", "any number": NUMBERS, "bool": "b", "text": "SU"}

# Exceptions of zipfile for damaged archives: RuntimeError if a flipped bit means "encrypted" or a feature that it has
# not, ValueError (UnicodeDecodeError) if one means that a damaged name is UTF-8.
OF_PYTHON = (EOFError, OverflowError, RuntimeError, ValueError)
DAMAGED = (zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, struct.error, *OF_PYTHON)

Read = Callable[[int, int], bytes | memoryview]  # (first byte, number of bytes) -> bytes of an array's data
Take = Callable[[int], NDArray[Any]]  # (number of rows) -> the next rows of an array


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
    """Read the header of an array from a binary file, up to the first byte of its data.

    Args: where: the file, for messages. kinds: NumPy's kinds of types that are accepted; objects, which are pickles,
    and records never are. Raises InputError for anything else, OSError if the file cannot be read.
    """
    try:
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0), (3, 0)):
            raise ValueError(f"its version is {version[0]}.{version[1]}")
        first = version == (1, 0)
        read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
        header = Header(*read(file, LONGEST_HEADER))
    except OSError:
        raise
    # NumPy reads the header as a Python expression; damaged ones raise SyntaxError, TokenError, RecursionError.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{where} is not a NumPy array (.npy): {reason[:120]}") from error
    if any(type(length) is not int or not 0 <= length < 2**63 for length in header.shape):
        raise InputError(f"{where} is not a NumPy array (.npy): its shape is {shown(str(header.shape))}")
    if header.dtype.kind not in kinds:
        raise InputError(f"{where} is {header}; expected numbers")
    return header


class Array:
    """An array in a file, which is read in passes, row by row; values come in the byte order of the machine.

    Args: where: the file, for messages. opened: opens the array's data for a pass. start: number of stored values
    before the first one.
    """

    def __init__(
        self, where: str, header: Header, opened: Callable[[], AbstractContextManager[Read]], start: int = 0
    ) -> None:
        self.where, self.header, self._opened, self._start = where, header, opened, start
        self.shape, self.dtype = header.shape, header.dtype.newbyteorder("=")

    def __len__(self) -> int:
        return self.shape[0]

    def __str__(self) -> str:
        return str(self.header)

    @property
    def column_major(self) -> bool:
        """Whether the values of a row are apart: [N, F] in Fortran's order."""
        return self.header.fortran and sum(length > 1 for length in self.shape) > 1

    def stored(self, *shape: int, start: int = 0) -> Array:
        """Return the values in the order in which they are stored, from number ``start`` on, in this shape."""
        header = Header(shape, False, self.header.dtype)
        return Array(self.where, header, self._opened, self._start + start)

    def transposed(self) -> Array:
        """Return an array [M, N] as [N, M]."""
        header = Header(self.shape[::-1], not self.header.fortran, self.header.dtype)
        return Array(self.where, header, self._opened, self._start)

    @contextmanager
    def reading(self, low: int = 0) -> Iterator[Take]:
        """Yield a function that returns the next rows, from row ``low`` on.

        It raises InputError where the data are damaged, or fewer than the header says.
        """
        columns, item, at = math.prod(self.shape[1:]), self.header.dtype.itemsize, low
        with self._opened() as read:

            def values(first: int, *shape: int) -> NDArray[Any]:
                data = read((self._start + first) * item, math.prod(shape) * item)
                return np.frombuffer(data, self.header.dtype).reshape(shape)

            def take(count: int) -> NDArray[Any]:
                nonlocal at
                first, at, shape = at, at + count, (count, *self.shape[1:])
                if self.column_major:
                    runs = [values(column * len(self) + first, count) for column in range(columns)]
                    found = np.stack(runs, axis=1).reshape(shape, order="F")
                else:
                    found = values(first * columns, *shape)
                return found.astype(self.dtype, copy=False)

            yield take

    def rows(self) -> Rows:
        """Return the array as a dataset that comes in pieces."""
        step = max(1, PIECE // max(1, math.prod(self.shape[1:]) * self.dtype.itemsize))

        def pieces() -> Iterator[NDArray[Any]]:
            with self.reading() as take:
                for low in range(0, len(self), step):
                    yield take(min(step, len(self) - low))

        return Rows(Layout(self.dtype, self.shape), pieces)

    def whole(self) -> NDArray[Any]:
        """Return the whole array. Raises InputError if it is larger than memory."""
        check_memory(self.where, self.header.nbytes)
        if not self.shape:
            return self.stored(1).whole().reshape(())
        return whole(self.rows())


def whole(rows: Rows) -> NDArray[Any]:
    """Return all rows of a dataset as one array."""
    found, at = np.empty(rows.layout.shape, rows.layout.dtype), 0
    for piece in rows.pieces():
        found[at : at + len(piece)] = piece
        at += len(piece)
    return found


def load(path: Path) -> NDArray[Any]:
    """Return the array of a .npy file, memory-mapped.

    Raises InputError for a file that holds less than it claims, or anything but numbers; OSError if it cannot be read.
    """
    with _regular(path) as file:
        header, offset = _described(file, str(path))
        if not header.nbytes:
            return np.empty(header.shape, header.dtype)
        order: Any = "F" if header.fortran else "C"
        return np.memmap(file, header.dtype, "r", offset, header.shape, order)


def open_array(path: Path) -> Array:
    """Open the array of a .npy file.

    Raises InputError for a file that cannot be read, holds less than it claims, or anything but numbers.
    """
    where = str(path)
    with _readable(where), _regular(path) as file:
        header, offset = _described(file, where)

    @contextmanager
    def opened() -> Iterator[Read]:
        with _readable(where):
            file = _regular(path)

        def read(first: int, count: int) -> bytes:
            with _readable(where):
                file.seek(offset + first)
                data: bytes = file.read(count)
            if len(data) < count:
                raise InputError(f"{where} became shorter while it was read")
            return data

        with file:
            yield read

    return Array(where, header, opened)


def _described(file: Any, where: str) -> tuple[Header, int]:
    """Return a file's header, and where its data begin. Raises InputError if the file does not hold them."""
    header = read_header(file, where)
    offset, size = file.tell(), os.fstat(file.fileno()).st_size
    if offset + header.nbytes > size:
        raise InputError(f"{where} claims {header}, {header.nbytes} bytes; the file does not hold them")
    return header, offset


def _regular(path: Path) -> Any:
    """Open a file for reading. Without O_NONBLOCK, opening a pipe of this name would wait for its writer."""
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))


@contextmanager
def _readable(where: str) -> Iterator[None]:
    """Convert OSError to InputError that names the file."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{where} cannot be read: {error.strerror or error}") from error


# --- archives


@contextmanager
def _sound(path: Path) -> Iterator[None]:
    """Convert zipfile's exceptions to InputError that names the archive."""
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        if error.errno == errno.EINVAL:  # a negative position
            raise InputError(f"{path} is not a NumPy archive (.npz): a member lies outside of it") from error
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except DAMAGED as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path} is not a NumPy archive (.npz): {reason}") from error


class Archive:
    """The arrays of an archive (.npz) by name: a zip file with members that are stored or deflated.

    Raises InputError for a file that cannot be read, is no archive, or has too many members or two of one name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with _sound(path):
            self._file = zipfile.ZipFile(path)
        infos = self._file.infolist()
        if len(infos) > MEMBERS:
            raise InputError(
                f"{path} has {len(infos)} members; expected the arrays of a graph, {MEMBERS} at most"
            )
        self._members = {info.filename.removesuffix(".npy"): info for info in infos}
        if len(self._members) < len(infos):
            raise InputError(f"{path} has two arrays of one name; expected one")
        self.names = list(self._members)
        self.nbytes = sum(info.file_size for info in infos)

    def rename(self, names: Mapping[str, str]) -> None:
        """Give arrays other names, which messages do not show, each unless there is an array of this name."""
        for old, new in names.items():
            if old in self._members and new not in self._members:
                self._members[new] = self._members.pop(old)
        self.names = list(self._members)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an array, () if there is none."""
        return self._header(name)[0].shape if name in self._members else ()

    def find(self, name: str, kind: str, *shape: int | None) -> Array | None:
        """Return an array of a kind (a key of KINDS) and shape (None: any length); None if there is none.

        Raises InputError for another kind or shape, or where the member has another size than its header says.
        """
        if name not in self._members:
            return None
        where = f"{self.path}: {self._members[name].filename.removesuffix('.npy')}"
        found, offset = self._header(name, KINDS[kind] if kind == "text" else NUMBERS)
        fits = len(found.shape) == len(shape) and all(
            want in (None, have) for want, have in zip(shape, found.shape, strict=True)
        )
        if not fits or found.dtype.kind not in KINDS[kind]:
            wanted = ", ".join("any" if length is None else str(length) for length in shape)
            raise InputError(f"{where} is {found}; expected {kind} [{wanted}]")
        if offset + found.nbytes != self._members[name].file_size:
            raise InputError(f"{where} claims {found}, which it does not hold")
        array = Array(where, found, lambda: self._data(name, offset))
        if array.column_major:  # A row's values are all over the member, which can be read in order only.
            return Array(where, found._replace(dtype=array.dtype), lambda: _unpacked(array))
        return array

    def need(self, name: str, kind: str, *shape: int | None) -> Array:
        """Return an array as `find` does. Raises InputError also if there is none."""
        array = self.find(name, kind, *shape)
        if array is None:
            raise InputError(f"{self.path}: the array {name} is missing")
        return array

    def matrix(self) -> tuple[str, int, int] | None:
        """Return format, rows and columns of a matrix of SciPy; None in another archive.

        Without an array ``format``, which numpy.savez of a matrix's own arrays does not write, it is CSR or COO. Raises
        InputError for formats other than csr, csc and coo.
        """
        names = set(self.names)
        bare = {"data", "indices", "indptr"} <= names or {"data", "row", "col"} <= names
        if not (bare and "weight" not in names) and not {"format", "shape", "data"} <= names:
            return None
        form = "csr" if "indptr" in names else "coo"
        if "format" in names:
            value = self.need("format", "text")
            found = "" if value.header.nbytes > 64 else value.whole().item()
            form = found.decode("latin1") if isinstance(found, bytes) else str(found)
        if form not in FORMS:
            raise InputError(
                f"{self.path} is a matrix in the form {shown(form)}; expected {', '.join(FORMS)}: save its .tocsr()"
            )
        if "shape" not in names:
            raise InputError(
                f"{self.path}: has data but no shape; expected the shape of SciPy's matrix, or weights named weight"
            )
        rows, columns = self.need("shape", "int", 2).whole().tolist()
        if rows < 0 or columns < 0:
            raise InputError(f"{self.path}: shape is {[rows, columns]}; expected no negative lengths")
        return form, rows, columns

    def _header(self, name: str, kinds: str = NUMBERS) -> tuple[Header, int]:
        """Return the header of a member, and where its data begin."""
        with self._member(name) as file, _sound(self.path):
            return read_header(file, f"{self.path}: {name}", kinds=kinds), file.tell()

    def _member(self, name: str) -> Any:
        """Open a member. Raises InputError for one that NumPy would not write, or that claims too much."""
        info = self._members[name]
        if info.compress_type not in METHODS:
            raise InputError(
                f"{self.path}: {name} is packed by method {info.compress_type}; "
                "expected it stored or deflated, as by numpy.savez_compressed"
            )
        most = info.compress_size * (DEFLATE_RATIO if info.compress_type else 1)
        if info.file_size > most:
            raise InputError(
                f"{self.path}: {name} claims {info.file_size} bytes, packed in {info.compress_size}; "
                f"they hold {most} at most"
            )
        with _sound(self.path):
            return self._file.open(info)

    @contextmanager
    def _data(self, name: str, offset: int) -> Iterator[Read]:
        """Open a member's data for a pass, which never goes back: a seek would skip the check of the CRC."""
        with self._member(name) as file:
            at = 0

            def forward(count: int) -> bytes:
                nonlocal at
                with _sound(self.path):
                    data: bytes = file.read(count)
                if len(data) < count:
                    raise InputError(f"{self.path}: {name} is truncated")
                at += count
                return data

            def read(first: int, count: int) -> bytes:
                while at < offset + first:
                    forward(min(offset + first - at, PIECE))
                return forward(count)

            yield read


@contextmanager
def _unpacked(array: Array) -> Iterator[Read]:
    """Open an array's data, in the byte order of the machine, for reading in any order: all of them are in memory."""
    data = array.stored(math.prod(array.shape)).whole().view(np.uint8).data
    yield lambda first, count: data[first : first + count]
