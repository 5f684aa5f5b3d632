"""Files of kept plans: named arrays with what they belong to, checked by a digest when they are read.

A file is: "mgg-plan" and a line feed; the bytes of the description, uint64; the description, JSON: key, and name, type
and shape of each array; the arrays, each from a multiple of 64 bytes on; XXH3-128 of all bytes before. Kernels trust
what plans say, so only files that belong to this user, and that only this user may write, are read.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from ...data.atomic_write import replacement
from ...data.digest import PIECE, byte_slices
from ...plan.layout import CHUNK, SEGMENT

Arrays = dict[str, NDArray[Any]]
Pieces = list[NDArray[Any]]  # of an array, one after another; no piece: no array

MAGIC = b"mgg-plan\n"
MOST_DESCRIBED = 1 << 16  # bytes of a description
ALIGNED = 64
TYPES = {np.dtype(kind).str: np.dtype(kind) for kind in ("<i4", "<i8", "<f4", "<f8")}
TYPES |= {"chunk": CHUNK, "segment": SEGMENT}
DIGEST_BYTES = 16


def read(path: Path, key: Mapping[str, Any]) -> tuple[Arrays | None, str]:
    """Return the arrays of a file, or None and what is wrong with the file that there is.

    Nothing is wrong where there is none, or one of another user. key: the one that the file was written with.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None, ""
    try:
        held = os.fstat(descriptor)
        if not stat.S_ISREG(held.st_mode) or held.st_uid != os.geteuid() or held.st_mode & 0o022:
            return None, ""
        return _arrays(descriptor, held.st_size, key), ""
    except (OSError, ValueError, KeyError, TypeError, RecursionError, MemoryError) as error:
        reason = str(error) if isinstance(error, ValueError) else type(error).__name__
        return None, f"{path}: ignored, since it is damaged ({reason}); the plan is made anew"
    finally:
        os.close(descriptor)


def write(path: Path, key: Mapping[str, Any], arrays: Mapping[str, Pieces]) -> None:
    """Write a file, whole or not at all. Raises what `replacement` does, and OSError."""
    hasher = xxhash.xxh3_128()
    with (
        replacement(path, force=True, size=size_of(key, arrays), mode=0o600) as draft,
        draft.open("wb") as file,
    ):
        for piece in _bytes_of(key, arrays):
            hasher.update(piece)
            file.write(piece)
        file.write(hasher.digest())


def size_of(key: Mapping[str, Any], arrays: Mapping[str, Pieces]) -> int:
    """Return the bytes of a file."""
    size = _aligned(len(_head(key, arrays)))
    return (
        size + sum(_aligned(sum(piece.nbytes for piece in each)) for each in arrays.values()) + DIGEST_BYTES
    )


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def _head(key: Mapping[str, Any], arrays: Mapping[str, Pieces]) -> bytes:
    names = {kind: name for name, kind in TYPES.items()}
    described = {
        name: [names[each[0].dtype], [sum(len(piece) for piece in each), *each[0].shape[1:]]]
        for name, each in arrays.items()
        if each
    }
    text = json.dumps({"key": dict(key), "arrays": described}).encode()
    return MAGIC + len(text).to_bytes(8, "little") + text


def _bytes_of(key: Mapping[str, Any], arrays: Mapping[str, Pieces]) -> Iterator[memoryview | bytes]:
    """Yield all bytes of a file but its digest."""
    head = _head(key, arrays)
    yield head + bytes(_aligned(len(head)) - len(head))
    for each in arrays.values():
        size = sum(piece.nbytes for piece in each)
        for piece in each:
            for part in byte_slices(piece):
                yield part.data
        yield bytes(_aligned(size) - size)


def _arrays(descriptor: int, size: int, key: Mapping[str, Any]) -> Arrays:
    """Return the arrays of a file. Raises ValueError, among others, for a damaged one."""
    file = _Hashed(descriptor)
    start = file.read(len(MAGIC) + 8)
    length = int.from_bytes(start[len(MAGIC) :], "little")
    if start[: len(MAGIC)] != MAGIC or not 0 < length <= min(MOST_DESCRIBED, size):
        raise ValueError("no description")
    described = json.loads(file.read(length))
    if described["key"] != dict(key):
        raise ValueError("another key")
    layouts = {name: (TYPES[kind], tuple(shape)) for name, (kind, shape) in described["arrays"].items()}
    if any(type(extent) is not int or extent < 0 for _, shape in layouts.values() for extent in shape):
        raise ValueError("no shape")
    sizes = [kind.itemsize * math.prod(shape) for kind, shape in layouts.values()]
    if _aligned(file.at) + sum(map(_aligned, sizes)) + DIGEST_BYTES != size:
        raise ValueError("another size")
    found: Arrays = {}
    for name, (kind, shape) in layouts.items():
        file.read(_aligned(file.at) - file.at)
        found[name] = np.empty(shape, kind)
        file.fill(found[name].reshape(-1).view(np.uint8))
    file.read(_aligned(file.at) - file.at)
    digest = file.digest()
    if file.read(DIGEST_BYTES) != digest:
        raise ValueError("another digest")
    return found


class _Hashed:
    """Reads a file in order, and takes the digest of what it reads."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._hasher, self.at = descriptor, xxhash.xxh3_128(), 0

    def fill(self, data: NDArray[np.uint8]) -> None:
        """Read the next bytes into an array. Raises ValueError if there are fewer."""
        for start in range(0, len(data), PIECE):
            piece, done = data[start : start + PIECE], 0
            while done < len(piece):
                count = os.preadv(self._descriptor, [piece.data[done:]], self.at)
                if count == 0:
                    raise ValueError("it ends too early")
                done, self.at = done + count, self.at + count
            self._hasher.update(piece.data)

    def read(self, count: int) -> bytes:
        """Return the next bytes."""
        data = np.empty(count, np.uint8)
        self.fill(data)
        return data.tobytes()

    def digest(self) -> bytes:
        """Return the digest of all bytes so far."""
        return self._hasher.digest()
