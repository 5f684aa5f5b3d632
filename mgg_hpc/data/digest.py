"""XXH3-64 digests of a dataset's bytes, one a block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import xxhash
from numpy.typing import NDArray

# Bytes of a block in files that are written: of each dataset a slice reads up to two blocks more than it is.
BLOCK = 64 << 10
LARGE_BLOCK = 4 << 20  # in files that do not say it; and in what a graph's uuid comes from
PIECE = 4 << 20  # bytes that are read or written at a time


def byte_slices(array: np.ndarray, step: int = PIECE) -> Iterator[np.ndarray]:
    """Yield an array's bytes in C order as uint8 slices of about ``step`` bytes, without a copy of all of it."""
    if not array.size:
        return
    row_bytes = array.nbytes // len(array)
    rows = max(1, step // row_bytes)
    for row in range(0, len(array), rows):
        yield np.ascontiguousarray(array[row : row + rows]).reshape(-1).view(np.uint8)


class BlockDigests:
    """The digests of bytes that come in pieces, from a block's start on. block: bytes of a block."""

    def __init__(self, block: int = BLOCK) -> None:
        self.block = block
        self._hasher, self._room = xxhash.xxh3_64(), block

    def update(self, piece: np.ndarray) -> list[int]:
        """Return the digests of the blocks that end within these bytes, contiguous uint8."""
        found: list[int] = []
        start = 0
        while start < len(piece):
            taken = piece[start : start + self._room]
            self._hasher.update(taken.data)
            start, self._room = start + len(taken), self._room - len(taken)
            if self._room == 0:
                found += self.rest()
        return found

    def rest(self) -> list[int]:
        """Return the digest of the last, incomplete block, if there is one, and begin a new block."""
        if self._room == self.block:
            return []
        found = [self._hasher.intdigest()]
        self._hasher, self._room = xxhash.xxh3_64(), self.block
        return found


def edge_digest(found: Mapping[str, NDArray[np.uint64]]) -> str:
    """Return one digest of all edges: XXH3-128, in hexadecimal, of the digests of their datasets, given by path."""
    hasher = xxhash.xxh3_128()
    for path, sums in sorted(found.items()):
        hasher.update(path.encode() + sums.tobytes())
    return hasher.hexdigest()
