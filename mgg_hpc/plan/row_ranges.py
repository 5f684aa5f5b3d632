"""Divide rows among ranks: contiguous ranges with nearly equal numbers of edges.

MGG's range-constrained binary search (Wang et al., OSDI '23, section 4.1, algorithm 1) finds each split point by a
binary search on indptr between the last split and the end. Its listing averages offsets where it means row numbers, and
adds E/P to the last split, which passes every rounding on to the following ranks. Here the k-th split looks for k E / P
itself and takes the nearer of the two rows around it.
"""

from __future__ import annotations

import numpy as np

from ..data.store import GraphFile


def edge_balanced(indptr: np.ndarray, parts: int) -> np.ndarray:
    """Return row bounds int64 [parts+1] of ``parts`` ranges of rows with nearly the same number of edges.

    ``indptr`` int64 [N+1] are CSR offsets. A split misses its k E / P by half the largest degree at most, so a range
    has at most one largest degree more or fewer edges than E / P. Where rows without edges leave a choice, the split
    nearest to k N / P is taken: that balances rows at no cost in edges, and splits a graph without edges evenly. A
    range may be empty.
    """
    if parts < 1:
        raise ValueError(f"{parts} parts; expected 1 or more")
    nodes, edges = len(indptr) - 1, int(indptr[-1])
    k = np.arange(1, parts, dtype=np.int64)
    above = np.searchsorted(indptr, -(-k * edges // parts), side="left")
    offset, below = indptr[above], indptr[np.maximum(above - 1, 0)]
    # The offset that is nearer to k E / P, or the lower of two.
    offset = np.where(k * edges - parts * below <= parts * offset - k * edges, below, offset)
    # All rows from `low` to `high` begin at this offset: rows without edges lie between them.
    low, high = (np.searchsorted(indptr, offset, side=side) for side in ("left", "right"))
    return np.concatenate([[0], np.clip(np.rint(k * nodes / parts).astype(np.int64), low, high - 1), [nodes]])


def bounds_of(file: GraphFile, parts: int) -> tuple[np.ndarray, str]:
    """Return row bounds int64 [parts+1], and their origin: "file" if the file has them, else "computed"."""
    bounds = file.bounds(parts)
    return (bounds, "file") if bounds is not None else (edge_balanced(file.indptr(), parts), "computed")


def owner_of(bounds: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Return the rank that owns each row: int64 of the shape of ``ids``, whose values are in 0 .. bounds[-1] - 1."""
    # Of bounds that are equal, the last one begins the range that is not empty.
    return np.searchsorted(bounds, ids, side="right").astype(np.int64) - 1


def edge_counts(indptr: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Return the number of edges of each range, int64 [parts]."""
    return np.diff(indptr[bounds])
