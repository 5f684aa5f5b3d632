"""A graph of billions of edges, drawn where it is used: on the device, in blocks, without a copy on the host.

Row v has rank (v A) mod N for a prime A, so that neighbours in rank are strangers in memory. The share of edges that
end, or begin, in the first x N ranks is x^s. uniform: s = 1, as many edges for each row, to within one. skewed: s =
-log2(a + b) = 0.396 of Graph500's recursive matrix (`data.generate.rmat`), whose first half of the ids has 0.76 of
the edges, the first quarter 0.76^2, and so on; the same at both ends.

Degrees come from that formula, floor(E ((r + 1) / N)^s) - floor(E (r / N)^s) for rank r: they sum to E exactly, each
can be had without the others, and offsets are their prefix sum in whole numbers. Sources are drawn by a hash of the
edge's number (SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA '14), so
that neither the size of a block nor the device matters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..harness.gpu import Device

EXPONENTS = {"uniform": 1.0, "skewed": -math.log2(0.57 + 0.19)}
STRIDE = 2_147_483_629  # a prime below 2^31, and so without a factor in common with fewer rows
BLOCK = 1 << 24  # rows or edges drawn at once


@dataclass
class DrawnGraph:
    """In-edge CSR of N rows and E edges. indptr: int64 [N + 1] on the host. indices: int32 [E] on the device."""

    indptr: NDArray[np.int64]
    indices: Any

    @property
    def rows(self) -> int:
        """Number of rows N."""
        return len(self.indptr) - 1

    @property
    def edges(self) -> int:
        """Number of edges E."""
        return int(self.indptr[-1])

    def pieces(self, ps: int) -> int:
        """Return the number of neighbour partitions of at most ``ps`` edges; a row without any edge has one."""
        return sum(
            int(np.maximum(1, -(-np.diff(self.indptr[low : high + 1]) // ps)).sum())
            for low, high in blocks(self.rows, BLOCK)
        )


def block_bytes(count: int) -> int:
    """Return the temporary bytes of drawing ``count`` numbers: up to eight arrays of a block, of 8 bytes each."""
    return 8 * 8 * min(BLOCK, count)


def blocks(count: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield each block's first number, and the one after its last."""
    return ((low, min(low + size, count)) for low in range(0, count, size))


def draw(device: Device, rows: int, edges: int, distribution: str, seed: int) -> DrawnGraph:
    """Draw a graph of fewer than STRIDE rows. distribution: a key of EXPONENTS."""
    import torch

    exponent = EXPONENTS[distribution]
    indices = device.tensor(device.arrays.zeros(4 * edges)).view(torch.int32)
    offsets = device.tensor(device.arrays.zeros(8 * (rows + 1))).view(torch.int64)
    numbers = {"dtype": torch.int64, "device": indices.device}
    for low, high in blocks(rows, BLOCK):
        rank = torch.arange(low, high, **numbers) * STRIDE % rows
        offsets[low + 1 : high + 1] = edges_before(rank + 1, rows, edges, exponent)
        offsets[low + 1 : high + 1] -= edges_before(rank, rows, edges, exponent)
    indptr = offsets.cumsum_(0).cpu().numpy()
    del offsets
    back = pow(STRIDE, -1, rows) if rows > 1 else 0  # from a rank to its row
    key = hashed(torch.tensor([seed], **numbers))
    for low, high in blocks(edges, BLOCK):
        drawn = hashed(torch.arange(low, high, **numbers) ^ key)
        part = (drawn >> 11 & (1 << 53) - 1).double() * 2.0**-53  # 0 .. 1, without 1
        rank = (part ** (1 / exponent) * rows).long().clamp_(max=rows - 1)
        indices[low:high] = rank * back % rows  # less than 2^62 between
    return DrawnGraph(indptr, indices)


def edges_before(rank: Any, rows: int, edges: int, exponent: float) -> Any:
    """Return the number of edges that end in rows of lower ranks."""
    return ((rank.double() / rows) ** exponent * edges).long().clamp_(max=edges)


def hashed(numbers: Any) -> Any:
    """Return SplitMix64's mix of int64 numbers as unsigned; torch's shifts keep the sign, and products wrap."""
    mixed = numbers + (0x9E3779B97F4A7C15 - (1 << 64))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ mixed >> shift & (1 << 64 - shift) - 1) * (factor - (1 << 64))
    return mixed ^ mixed >> 31 & (1 << 33) - 1
