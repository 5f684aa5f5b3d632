"""XXH3-64 digests of a dataset's bytes, one a block of 4 MiB."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import xxhash

BLOCK = 4 << 20


def blocks(nbytes: int) -> int:
    """How many digests a dataset of this many bytes has."""
    return -(-nbytes // BLOCK)


def byte_slices(array: np.ndarray, step: int = BLOCK) -> Iterator[np.ndarray]:
    """An array's bytes in C order as uint8 slices of about ``step`` bytes, without a second copy of it."""
    if not array.size:
        return
    row_bytes = array.nbytes // len(array)
    rows = max(1, step // row_bytes)
    for row in range(0, len(array), rows):
        yield np.ascontiguousarray(array[row : row + rows]).reshape(-1).view(np.uint8)


def digests(array: np.ndarray) -> np.ndarray:
    """uint64 [blocks]: the digest of each 4 MiB of the array's bytes in C order; the last is of the rest."""
    found: list[int] = []
    hasher, room = xxhash.xxh3_64(), BLOCK
    for piece in byte_slices(array):
        start = 0
        while start < len(piece):
            taken = piece[start : start + room]
            hasher.update(taken.data)
            start, room = start + len(taken), room - len(taken)
            if room == 0:
                found.append(hasher.intdigest())
                hasher, room = xxhash.xxh3_64(), BLOCK
    if room < BLOCK:
        found.append(hasher.intdigest())
    return np.array(found, dtype=np.uint64)


def block_digests(data: np.ndarray) -> np.ndarray:
    """uint64 [blocks] of contiguous bytes (uint8) that begin at a block's start."""
    view = data.data
    found = [xxhash.xxh3_64_intdigest(view[at : at + BLOCK]) for at in range(0, len(view), BLOCK)]
    return np.array(found, dtype=np.uint64)
