"""Check that each edge's reverse is there, with the same weight, in memory that does not grow with the graph.

Every edge adds a hash of its unordered pair of ends and its weight to a sum, with a plus sign for u < v
and a minus sign for u > v. The sum is zero (mod 2**64) when edges and reverses pair up; chance hides an
unpaired edge with probability 2**-64. Only where it is not zero does the search for one offender begin:
the edges fall into buckets by hash, and one bucket whose sum is not zero is collected and sorted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from . import native

BUCKETS = 4096
HASHED = 1 << 20  # edges whose rows are written out at a time


class EdgeSlice(NamedTuple):
    """A run of stored edges: destinations int64 [k], sources [k], weight [k] or None."""

    destinations: np.ndarray
    sources: np.ndarray
    weight: np.ndarray | None


Edges = Callable[[], Iterator[EdgeSlice]]


def unpaired_edge(edges: Edges) -> tuple[int, int] | None:
    """Return an edge (source, destination) whose reverse is missing or has another weight; None if there is none.

    ``edges()`` starts a new pass over the stored edges.
    """
    if sum(imbalance(part) for part in edges()) % 2**64 == 0:
        return None
    sums = np.zeros(BUCKETS, dtype=np.uint64)
    for part in edges():
        keys, signed = _signed_hashes(part)
        np.add.at(sums, (keys % BUCKETS).astype(np.intp), signed)
    return _first_unpaired(edges, int(np.flatnonzero(sums)[0]))


def imbalance(part: EdgeSlice) -> int:
    """Return these edges' part of the sum that is 0 (mod 2**64) if every edge has its reverse."""
    weight = np.zeros(0, np.float32) if part.weight is None else np.ascontiguousarray(part.weight)
    destinations, sources = (np.ascontiguousarray(ids) for ids in (part.destinations, part.sources))
    return int(native.load().imbalance(destinations, sources, weight))


def csr_imbalance(first: int, indptr: np.ndarray, indices: np.ndarray, weight: np.ndarray | None) -> int:
    """Return `imbalance` of a CSR: indptr [n + 1] from 0, of rows from ``first`` on, indices [E], weight [E]."""
    total = 0
    for low in range(0, len(indices), HASHED):
        high = min(low + HASHED, len(indices))
        begin = int(np.searchsorted(indptr, low, side="right")) - 1
        end = int(np.searchsorted(indptr, high, side="left"))
        counts = np.diff(np.clip(indptr[begin : end + 1], low, high))
        rows = np.repeat(np.arange(first + begin, first + end), counts)
        values = None if weight is None else weight[low:high]
        total += imbalance(EdgeSlice(rows, indices[low:high], values))
    return total % 2**64


def _signed_hashes(part: EdgeSlice) -> tuple[np.ndarray, np.ndarray]:
    """Return for each edge the hash of its unordered ends and weight, and that hash with the direction's sign."""
    v, u = part.destinations.astype(np.uint64), part.sources.astype(np.uint64)
    key = _mix(_mix(np.minimum(u, v)) + np.maximum(u, v))
    if part.weight is not None:
        # Adding zero makes -0.0 the same as 0.0.
        key = _mix(key + (part.weight + np.float32(0)).view(np.uint32))
    signed = np.where(u < v, key, ~key + np.uint64(1))
    signed[u == v] = 0
    return key, signed


def _mix(h: np.ndarray) -> np.ndarray:
    """Apply the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA '14), a bijection of uint64."""
    h = h + np.uint64(0x9E3779B97F4A7C15)
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return h ^ (h >> np.uint64(31))


def _first_unpaired(edges: Edges, bucket: int) -> tuple[int, int]:
    """Collect one bucket's edges, pair them up, and return the lowest one that is left over."""
    collected = []
    for part in edges():
        keys, _ = _signed_hashes(part)
        mine = keys % BUCKETS == bucket
        v, u = part.destinations[mine], part.sources[mine].astype(np.int64)
        w = np.zeros(len(v), np.float32) if part.weight is None else part.weight[mine] + np.float32(0)
        collected.append(np.stack([np.minimum(u, v), np.maximum(u, v), w.view(np.int32), np.sign(v - u)]))
    low, high, bits, sign = np.concatenate(collected, axis=1)
    order = np.lexsort((bits, high, low))
    low, high, bits, sign = low[order], high[order], bits[order], sign[order]
    new = np.ones(len(low), dtype=bool)
    new[1:] = (np.diff(low) != 0) | (np.diff(high) != 0) | (np.diff(bits) != 0)
    starts = np.flatnonzero(new)
    surplus = np.add.reduceat(sign, starts)
    at = int(np.flatnonzero(surplus)[0])
    ends = int(low[starts[at]]), int(high[starts[at]])
    return ends if surplus[at] > 0 else (ends[1], ends[0])
