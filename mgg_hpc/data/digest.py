"""XXH3-64 digests of the blocks of a dataset's bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import xxhash
from numpy.typing import NDArray

# Bytes of a block in new files; a slice reads up to two blocks more of each dataset than it needs.
BLOCK = 64 << 10
LARGE_BLOCK = 4 << 20  # the same in files without the attribute digest_block, and in digests for the uuid
PIECE = 4 << 20  # bytes that are read or written at a time


def byte_slices(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the bytes of an array in C order as uint8 arrays of about PIECE bytes."""
    if not array.size:
        return
    rows = max(1, PIECE // (array.nbytes // len(array)))
    for row in range(0, len(array), rows):
        yield np.ascontiguousarray(array[row : row + rows]).reshape(-1).view(np.uint8)


class BlockDigests:
    """Computes the digests of blocks of ``block`` bytes from pieces of any size."""

    def __init__(self, block: int = BLOCK) -> None:
        self.block = block
        self._hasher, self._room = xxhash.xxh3_64(), block

    def update(self, piece: np.ndarray) -> list[int]:
        """Add contiguous uint8 [n], and return the digests of the blocks that were completed."""
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
        """Return the digest of the incomplete block, if any, and begin a new block."""
        if self._room == self.block:
            return []
        found = [self._hasher.intdigest()]
        self._hasher, self._room = xxhash.xxh3_64(), self.block
        return found


def edge_digest(found: Mapping[str, NDArray[np.uint64]]) -> str:
    """Return the XXH3-128 in hexadecimal of the digests, by path, of the datasets of edges."""
    hasher = xxhash.xxh3_128()
    for path, sums in sorted(found.items()):
        hasher.update(path.encode() + sums.tobytes())
    return hasher.hexdigest()
