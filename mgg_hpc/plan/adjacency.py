"""The matrices that layers sum with, made from a graph's edges: self loops, and what rows are divided by."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..data import native
from .workload import prefix_sum

Weight = NDArray[np.float32] | None


def with_self_loops(
    first_row: int, indptr: NDArray[np.int64], indices: NDArray[np.integer], weight: Weight
) -> tuple[NDArray[np.int64], NDArray[np.integer], Weight]:
    """Add each row's missing self loop behind its other edges, with weight 1; existing ones stay as they are.

    What GCN sums (Kipf and Welling, ICLR 2017), as PyG's ``add_remaining_self_loops`` has it. indptr int64 [n + 1],
    indices [E], weight float32 [E] or None: in-edge CSR of rows first_row .. first_row + n - 1.
    """
    new_indptr, new_indices = _looped(first_row, indptr, indices, replace=False)
    if weight is None:
        return new_indptr, new_indices, None
    missing = np.diff(new_indptr) != np.diff(indptr)
    return new_indptr, new_indices, np.insert(weight, indptr[1:][missing], np.float32(1))


def with_one_self_loop(
    first_row: int, indptr: NDArray[np.int64], indices: NDArray[np.integer]
) -> tuple[NDArray[np.int64], NDArray[np.integer]]:
    """Replace the self loops of each row by one behind its other edges.

    What GAT attends to (Velickovic et al., ICLR 2018), as PyG's GATConv has it. Arrays as in `with_self_loops`.
    """
    return _looped(first_row, indptr, indices, replace=True)


def _looped(
    first_row: int, indptr: NDArray[np.int64], indices: NDArray[np.integer], *, replace: bool
) -> tuple[NDArray[np.int64], NDArray[np.integer]]:
    """Return the CSR with a self loop behind each row's other edges, where it is missing, or (replace) in any case."""
    kernels, degree = native.load(), np.empty(len(indptr) - 1, np.int64)
    indices = np.ascontiguousarray(indices)
    kernels.loop_degrees(first_row, indptr, indices, replace, degree)
    made = prefix_sum(degree)
    out = np.empty(int(made[-1]), indices.dtype)
    kernels.add_loops(first_row, indptr, indices, replace, made, out)
    return made, out


def one_self_loop_places(
    first_row: int, indptr: NDArray[np.int64], indices: NDArray[np.integer]
) -> NDArray[np.int64]:
    """Return int64 [E']: the place of each edge of `with_one_self_loop`'s result among the given E edges.

    Of the self loop of row first_row + i it is E + i.
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
    result = np.zeros_like(degree)
    np.divide(1.0, np.sqrt(degree, where=degree > 0, out=np.ones_like(degree)), out=result, where=degree > 0)
    return result
