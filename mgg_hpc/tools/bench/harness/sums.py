"""Compute reference sums of rows and their error bounds."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from scipy import sparse

from ....data.graph import Graph

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


def rows_of(sums: Any, picked: np.ndarray) -> np.ndarray:
    """Return some rows of sums, a tensor or an array, as an array on the host; halves as float32."""
    if isinstance(sums, np.ndarray):
        return sums[picked].astype(np.float32) if sums.itemsize == 2 else sums[picked]
    import torch

    rows = sums[torch.from_numpy(picked).to(sums.device)]
    return np.asarray((rows.float() if rows.element_size() == 2 else rows).cpu())


def differing(ours: np.ndarray, theirs: np.ndarray, limit: np.ndarray) -> str:
    """Return how many sums lie further apart than the limit (a NaN does), in words; nothing if none does."""
    wrong = ours.size - int(np.count_nonzero(np.abs(ours - theirs) <= limit))
    return f"{wrong} of its {ours.size} sums differ from ours" if wrong else ""
