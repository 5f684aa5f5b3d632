"""Compute reference sums of rows and their error bounds."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from scipy import sparse

from mgg_hpc.data.graph import Graph

SAMPLE = 1024  # rows whose sums are compared


def product(
    graph: Graph, x: np.ndarray, weight: np.ndarray | None = None, picked: np.ndarray | None = None
) -> np.ndarray:
    """Return the sums of the rows x, [N, dim] of their type, by SciPy; or those of the picked rows."""
    values = np.ones(graph.edges, np.float32) if weight is None else weight
    shape = (graph.nodes, graph.nodes)
    matrix = sparse.csr_matrix((values, graph.indices, graph.indptr), shape)
    return np.asarray((matrix if picked is None else matrix[picked]) @ x)


def allowed(
    graph: Graph, x: np.ndarray, weight: np.ndarray | None = None, picked: np.ndarray | None = None
) -> np.ndarray:
    """Return how far two right sums of rows x may lie apart, float32 [N, dim]; or those of the picked rows.

    That is twice eps sqrt(degree) sum |w x|, each one's bound. Half rows, weights and results are rounded to their
    type: an eps of it is added for each.
    """
    rounding = 3 * float(ml_dtypes.finfo(x.dtype).eps) if x.dtype.itemsize == 2 else 0.0
    limit = product(graph, np.abs(x.astype(np.float32)), None if weight is None else np.abs(weight), picked)
    degree = np.diff(graph.indptr) if picked is None else np.diff(graph.indptr)[picked]
    summing = np.finfo(np.float32).eps * np.sqrt(degree)
    limit *= 2 * (summing + rounding).astype(np.float32)[:, None]
    return limit


def sample(indptr: np.ndarray) -> np.ndarray:
    """Return the numbers of the rows whose sums are compared: all of a small graph; else drawn, and the largest hub."""
    nodes = len(indptr) - 1
    if nodes <= SAMPLE:
        return np.arange(nodes)
    drawn = np.random.default_rng(0).integers(nodes, size=SAMPLE)
    return np.unique([int(np.diff(indptr).argmax()), *drawn.tolist()])


def differing(expected: np.ndarray, found: np.ndarray, limit: np.ndarray) -> str:
    """Return how many sums lie further apart than the limit (a NaN does), in words; "" if none does."""
    wrong = expected.size - int(np.count_nonzero(np.abs(expected - found) <= limit))
    return f"{wrong} of {expected.size} sums differ" if wrong else ""
