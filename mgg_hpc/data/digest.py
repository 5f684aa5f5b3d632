"""XXH3-64 digests of a dataset's bytes, one a block of 4 MiB."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import xxhash
from numpy.typing import NDArray

BLOCK = 4 << 20


def byte_slices(array: np.ndarray, step: int = BLOCK) -> Iterator[np.ndarray]:
    """Yield an array's bytes in C order as uint8 slices of about ``step`` bytes, without a copy of all of it."""
    if not array.size:
        return
    row_bytes = array.nbytes // len(array)
    rows = max(1, step // row_bytes)
    for row in range(0, len(array), rows):
        yield np.ascontiguousarray(array[row : row + rows]).reshape(-1).view(np.uint8)


class BlockDigests:
    """The digests of bytes that come in pieces, from a block's start on."""

    def __init__(self) -> None:
        self._hasher, self._room = xxhash.xxh3_64(), BLOCK

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
        if self._room == BLOCK:
            return []
        found = [self._hasher.intdigest()]
        self._hasher, self._room = xxhash.xxh3_64(), BLOCK
        return found


def digests(array: np.ndarray) -> np.ndarray:
    """Return uint64 [blocks]: the digest of each 4 MiB of the array's bytes in C order; the last may be shorter."""
    run = BlockDigests()
    found = [digest for piece in byte_slices(array) for digest in run.update(piece)]
    return np.array(found + run.rest(), dtype=np.uint64)


def edge_digest(found: Mapping[str, NDArray[np.uint64]]) -> str:
    """Return one digest of all edges: XXH3-128, in hexadecimal, of the digests of their datasets, given by path."""
    hasher = xxhash.xxh3_128()
    for path, sums in sorted(found.items()):
        hasher.update(path.encode() + sums.tobytes())
    return hasher.hexdigest()
