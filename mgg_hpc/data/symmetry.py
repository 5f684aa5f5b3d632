"""Check that each edge's reverse is stored, with the same weight, in memory that does not grow with the graph.

Every edge adds a hash of its unordered pair of ends and its weight to a sum, with a plus sign for u < v and a minus
sign for u > v. The sum is zero (mod 2**64) if edges and reverses pair up; chance hides an unpaired edge with
probability 2**-64. If it is not zero, edges are divided into buckets of unordered pairs, and one bucket whose sum is
not zero is collected and sorted to find an unpaired edge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from . import native

BUCKET_BITS = 12
EXPANDED = 1 << 20  # edges whose destinations are computed at a time


class EdgeSlice(NamedTuple):
    """Consecutive stored edges: destinations int64 [k], sources int32 or int64 [k], weight float32 [k] or None."""

    destinations: np.ndarray
    sources: np.ndarray
    weight: np.ndarray | None


Edges = Callable[[], Iterator[EdgeSlice]]


def unpaired_edge(edges: Edges) -> tuple[int, int] | None:
    """Return an edge (source, destination) whose reverse is missing or has another weight; None if there is none.

    edges: starts a pass over the stored edges.
    """
    if sum(map(imbalance, edges())) % 2**64 == 0:
        return None
    sums = [0] * (1 << BUCKET_BITS)
    for part in edges():
        buckets = _buckets(part)
        order = np.argsort(buckets, kind="stable")
        bounds = np.searchsorted(buckets[order], np.arange(len(sums) + 1, dtype=np.uint64))
        for bucket in np.flatnonzero(np.diff(bounds)).tolist():
            sums[bucket] += imbalance(_select(part, order[bounds[bucket] : bounds[bucket + 1]]))
    bucket = next(number for number, found in enumerate(sums) if found % 2**64)
    return _first_unpaired(_select(part, _buckets(part) == bucket) for part in edges())


def imbalance(part: EdgeSlice) -> int:
    """Return the sum over these edges (see above), in 0 .. 2**64 - 1."""
    weight = np.zeros(0, np.float32) if part.weight is None else np.ascontiguousarray(part.weight)
    destinations, sources = (np.ascontiguousarray(ids) for ids in (part.destinations, part.sources))
    return int(native.load().imbalance(destinations, sources, weight))


def csr_imbalance(first: int, indptr: np.ndarray, indices: np.ndarray, weight: np.ndarray | None) -> int:
    """Return `imbalance` of a CSR from row ``first`` on: indptr [n + 1] from 0 on, indices [E], weight [E] or None."""
    total = 0
    for low in range(0, len(indices), EXPANDED):
        high = min(low + EXPANDED, len(indices))
        begin = int(np.searchsorted(indptr, low, side="right")) - 1
        end = int(np.searchsorted(indptr, high, side="left"))
        counts = np.diff(np.clip(indptr[begin : end + 1], low, high))
        rows = np.repeat(np.arange(first + begin, first + end), counts)
        values = None if weight is None else weight[low:high]
        total += imbalance(EdgeSlice(rows, indices[low:high], values))
    return total % 2**64


def _buckets(part: EdgeSlice) -> np.ndarray:
    """Return the bucket of each edge, which its reverse shares: the upper bits of a multiplicative hash."""
    v, u = part.destinations.astype(np.uint64), part.sources.astype(np.uint64)
    mixed = np.minimum(u, v) * np.uint64(0x9E3779B97F4A7C15) + np.maximum(u, v)
    return mixed * np.uint64(0xBF58476D1CE4E5B9) >> np.uint64(64 - BUCKET_BITS)


def _select(part: EdgeSlice, chosen: np.ndarray) -> EdgeSlice:
    weight = None if part.weight is None else part.weight[chosen]
    return EdgeSlice(part.destinations[chosen], part.sources[chosen], weight)


def _first_unpaired(parts: Iterable[EdgeSlice]) -> tuple[int, int]:
    """Sort edges, pair them with their reverses, and return the lowest unpaired edge (source, destination)."""
    collected = []
    for v, sources, weight in parts:
        u = sources.astype(np.int64)
        # Adding zero makes -0.0 equal to 0.0.
        w = np.zeros(len(v), np.float32) if weight is None else weight + np.float32(0)
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
