"""PCIe requests of a GPU that reads lists of edges, or rows, in the host's memory, counted from where they lie (EMOGI).

A warp's loads become requests of 32, 64, 96 or 128 bytes: the sectors of 32 bytes that it loads at once within a line
of 128 bytes are one request (Min's dissertation, section 2.3.2). The shim, which counts the requests of each load of
the kernels in cuda/gpu/traversal and cuda/gpu/rows/gather.cuh, must give the same counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

READS = ("strided", "merged", "aligned")
SIZES = (32, 64, 96, 128)  # bytes of requests
SECTOR, LINE, LANES = 32, 128, 32


def count(first: NDArray[np.int64], last: NDArray[np.int64], item: int, reads: str) -> NDArray[np.int64]:
    """Return the number of requests of each of SIZES that reading lists of edges makes, int64 [4].

    first, last: int64 [n], the edges of each list, from the start of memory that is aligned to a line. item: bytes of
    an edge, 4 or 8. reads: "strided", a thread reads a list edge by edge, and keeps the sector that it has read last;
    "merged", a warp reads 32 edges at once; "aligned", it begins at the line in which the list does; "shifted", at the
    first whole line, and reads what lies before it last. Rows of a gather are lists of units of 2, 4 or 16 bytes.
    """
    full = last > first
    first, last = first[full], last[full]
    if reads == "shifted":
        whole = np.minimum(-(-first // (LINE // item)) * (LINE // item), last)
        return count(whole, last, item, "merged") + count(first, whole, item, "merged")
    if reads == "strided":
        sectors = (last * item - 1) // SECTOR - first * item // SECTOR + 1
        return np.array([sectors.sum(), 0, 0, 0])
    begin = first // (LINE // item) * (LINE // item) if reads == "aligned" else first
    loads = -(-(last - begin) // LANES)
    at = np.repeat(begin, loads) + LANES * (
        np.arange(loads.sum()) - np.repeat(np.cumsum(loads) - loads, loads)
    )
    low = np.maximum(at, np.repeat(first, loads)) * item
    high = np.minimum(at + LANES, np.repeat(last, loads)) * item
    found = np.zeros(len(SIZES) + 1, np.int64)
    for line in range(-(-LANES * item // LINE) + 1):  # of those that a load may touch
        start = (low // LINE + line) * LINE
        inside = np.minimum(high, start + LINE) - np.maximum(low, start)
        sectors = -(-np.minimum(high, start + LINE) // SECTOR) - np.maximum(low, start) // SECTOR
        found += np.bincount(sectors[inside > 0], minlength=len(found))
    return found[1:]


def requested_bytes(requests: NDArray[Any]) -> float:
    """Return the bytes of requests, [4]."""
    return float(requests @ np.array(SIZES))
