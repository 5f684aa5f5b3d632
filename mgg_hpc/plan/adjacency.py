"""The matrices that layers multiply by, made from a graph's edges: self loops, and factors of rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..data import native

Weight = NDArray[np.float32] | None


def with_self_loops(
    first_row: int, indptr: NDArray[np.int64], indices: NDArray[np.integer], weight: Weight
) -> tuple[NDArray[np.int64], NDArray[np.integer], Weight]:
    """Add each row's missing self loop after its other edges, with weight 1; of several, keep the last.

    GCN sums over this matrix (Kipf and Welling, ICLR 2017); PyG's ``add_remaining_self_loops`` does the same. indptr
    int64 [n + 1], indices [E], weight float32 [E] or None: in-edge CSR of rows first_row .. first_row + n - 1.
    """
    new_indptr, new_indices = native.load().add_self_loops(
        first_row, indptr, np.ascontiguousarray(indices), False
    )
    if weight is None:
        return new_indptr, new_indices, None
    added = np.diff(new_indptr) - np.diff(indptr)
    ends = indptr[1:][added > 0]
    if (added < 0).any():
        earlier = earlier_self_loops(first_row, indptr, indices)
        weight, ends = np.delete(weight, earlier), ends - np.searchsorted(earlier, ends)
    return new_indptr, new_indices, np.insert(weight, ends, np.float32(1))


def earlier_self_loops(
    first_row: int, indptr: NDArray[np.int64], indices: NDArray[np.integer]
) -> NDArray[np.int64]:
    """Return the positions of all self loops but the last of each row, ascending; `with_self_loops` leaves them out."""
    row = np.repeat(np.arange(first_row, first_row + len(indptr) - 1, dtype=indices.dtype), np.diff(indptr))
    loops = np.flatnonzero(indices == row)
    return loops[:-1][row[loops[1:]] == row[loops[:-1]]]


def with_one_self_loop(
    first_row: int, indptr: NDArray[np.int64], indices: NDArray[np.integer]
) -> tuple[NDArray[np.int64], NDArray[np.integer]]:
    """Replace the self loops of each row by one after its other edges.

    GAT attends to these edges (Velickovic et al., ICLR 2018), as PyG's GATConv does. Arrays as in `with_self_loops`.
    """
    made: tuple[NDArray[np.int64], NDArray[np.integer]] = native.load().add_self_loops(
        first_row, indptr, np.ascontiguousarray(indices), True
    )
    return made


def one_self_loop_places(
    first_row: int, indptr: NDArray[np.int64], indices: NDArray[np.integer]
) -> NDArray[np.int64]:
    """Return int64 [E']: the position of each edge of `with_one_self_loop`'s result among the given E edges.

    The self loop of row first_row + i has position E + i.
    """
    rows, edges = len(indptr) - 1, len(indices)
    row = np.repeat(np.arange(rows), np.diff(indptr))
    kept = np.flatnonzero(indices != row + first_row)
    ends = np.cumsum(np.bincount(row[kept], minlength=rows))
    return np.insert(kept, ends, np.arange(edges, edges + rows))


def in_degree(indptr: NDArray[np.int64], weight: Weight) -> NDArray[np.float64]:
    """Return the sum of the weights of each row's in-edges (1 each without weights), float64 [n]."""
    if weight is None:
        return np.diff(indptr).astype(np.float64)
    destination = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    return np.bincount(destination, weight, minlength=len(indptr) - 1).astype(np.float64)


def inverse(degree: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return 1 / degree, and 1 where the degree is 0: the mean of no rows is 0 / 1."""
    return 1.0 / np.where(degree > 0, degree, 1.0)


def inverse_square_root(degree: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return degree^-1/2, and 0 where the degree is 0 (or negative, with negative weights), as PyG defines it."""
    return np.where(degree > 0, 1.0 / np.sqrt(np.where(degree > 0, degree, 1.0)), 0.0)
