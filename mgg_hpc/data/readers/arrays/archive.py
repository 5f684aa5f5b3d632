"""Archives of NumPy (.npz): zip files of arrays, stored or deflated, whose members are read side by side in passes.

An archive is data: what it claims is checked before anything is unpacked, and members that are not asked for are not
touched.
"""

from __future__ import annotations

import errno
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import InputError
from ..limits import check_memory
from ..npy import NUMBERS, Array, Header, Take, read_header

MEMBERS = 1000  # most arrays of an archive
DEFLATE_RATIO = 1032  # the most that deflate reaches
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # that NumPy writes
KINDS = {"int": "iu", "float": "f", "number": "iuf", "any number": "biuf", "bool": "b", "text": "SU"}
SKIPPED = 1 << 20  # bytes that are passed over at a time

# Exceptions of zipfile for damaged archives: RuntimeError if a flipped bit means "encrypted", UnicodeDecodeError if
# one means that a damaged name is UTF-8, NotImplementedError for what no archive of NumPy has.
DAMAGE = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    RuntimeError,
    NotImplementedError,
    UnicodeDecodeError,
    OverflowError,
    ValueError,
    EOFError,
    struct.error,
    zlib.error,
)


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Raise InputError that names the archive for what zipfile finds wrong with it."""
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        if error.errno == errno.EINVAL:  # of a place before the file's begin
            raise InputError(
                f"{path} is not a NumPy archive (.npz): it names a place that it has not"
            ) from error
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except DAMAGE as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path} is not a NumPy archive (.npz): {reason}") from error


class Archive:
    """The arrays of an archive by their names; types and sizes are checked before one is read.

    Raises InputError for a file that cannot be read, is no archive, or has too many members or two of one name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with _refusing(path):
            self._file = zipfile.ZipFile(path)
            infos = self._file.infolist()
        if len(infos) > MEMBERS:
            raise InputError(
                f"{path} has {len(infos)} members; expected the arrays of a graph, {MEMBERS} at most"
            )
        self._members = {info.filename.removesuffix(".npy"): info for info in infos}
        if len(self._members) < len(infos):
            raise InputError(f"{path} has two arrays of one name; expected one")

    @property
    def names(self) -> list[str]:
        """Names of the arrays."""
        return list(self._members)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of an array, None if there is none."""
        if name not in self._members:
            return None
        with self.opened(name) as file, _refusing(self.path):
            return read_header(file, f"{self.path}: {name}").shape

    def find(self, name: str, kind: str, *shape: int | None) -> Array | None:
        """Return an array of a kind (a key of KINDS) and shape (None: any length); None if there is none.

        Raises InputError for another kind or shape, or where the member does not hold what it claims.
        """
        if name not in self._members:
            return None
        where = f"{self.path}: {name}"
        with self.opened(name) as file, _refusing(self.path):
            found = read_header(file, where, kinds=KINDS[kind] if kind == "text" else NUMBERS)
            offset = file.tell()
        fits = len(found.shape) == len(shape) and all(
            want in (None, have) for want, have in zip(shape, found.shape, strict=True)
        )
        if not fits or found.dtype.kind not in KINDS[kind]:
            wanted = ", ".join("any" if length is None else str(length) for length in shape)
            raise InputError(f"{where} is {found}; expected {kind} [{wanted}]")
        if offset + found.nbytes != self._members[name].file_size:
            raise InputError(f"{where} claims {found}, which it does not hold")
        return _Member(self, name, found, offset)

    def need(self, name: str, kind: str, *shape: int | None) -> Array:
        """Return an array as ``find`` does. Raises InputError also if there is none."""
        array = self.find(name, kind, *shape)
        if array is None:
            raise InputError(f"{self.path}: the array {name} is missing")
        return array

    @contextmanager
    def opened(self, name: str) -> Iterator[Any]:
        """Open a member. Raises InputError for one that is packed otherwise than NumPy does, or claims too much."""
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
        with _refusing(self.path):
            file = self._file.open(info)
        with file:
            yield file


class _Member(Array):
    """An array of an archive, whose data begin behind ``offset`` bytes of the member."""

    def __init__(self, archive: Archive, name: str, header: Header, offset: int) -> None:
        super().__init__(f"{archive.path}: {name}", header)
        self._archive, self._name, self._offset = archive, name, offset

    def stored(self, *shape: int) -> Array:
        return _Member(self._archive, self._name, Header(shape, False, self.header.dtype), self._offset)

    @contextmanager
    def reading(self, low: int = 0) -> Iterator[Take]:
        if self.columns_lie_together:  # they are in no order in which rows could be read
            at, whole = low, self._transposed()

            def rows(count: int) -> NDArray[Any]:
                nonlocal at
                at += count
                return np.ascontiguousarray(whole[at - count : at])

            yield rows
            return
        with self._archive.opened(self._name) as file:
            left = self._offset + low * self.row_bytes
            while left:
                left -= len(self._bytes(file, min(left, SKIPPED)))

            def take(count: int) -> NDArray[Any]:
                data = self._bytes(file, count * self.row_bytes)
                found = np.frombuffer(data, self.header.dtype).reshape((count, *self.shape[1:]))
                return found.astype(self.dtype, copy=False)

            yield take

    def _transposed(self) -> NDArray[Any]:
        """Return the whole array, of which columns lie together."""
        check_memory(self.where, self.header.nbytes)
        with self.flat().reading() as take:
            return take(math.prod(self.shape)).reshape(self.shape, order="F")

    def _bytes(self, file: Any, count: int) -> bytes:
        with _refusing(self._archive.path):
            data: bytes = file.read(count)
        if len(data) < count:
            raise InputError(f"{self.where} is truncated")
        return data
