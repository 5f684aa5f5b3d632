"""SciPy's csgraph: one thread, whatever the options say. It has no PageRank."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy
from scipy import sparse
from scipy.sparse import csgraph

from .task import Task, finite, from_each, named


def set_threads(count: int) -> None:
    """Ignore the number of threads."""


def about() -> str:
    """Return the version and the number of threads."""
    return f"scipy {scipy.__version__} (one thread)"


def _matrix(task: Task) -> sparse.csr_matrix:
    indptr, indices = np.load(task.indptr).astype(np.int32), np.load(task.indices)
    return sparse.csr_matrix((np.load(task.lengths).astype(np.float64), indices, indptr), (task.nodes,) * 2)


def bfs(**inputs: Any) -> dict[str, Any]:
    """Return the run "scipy"."""
    task = Task(**inputs)
    matrix = _matrix(task)

    def told(found: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        order, before = found
        depth = np.full(task.nodes, -1.0)
        depth[order[0]] = 0
        for node in order[1:]:
            depth[node] = depth[before[node]] + 1
        return depth

    return {"scipy": from_each(task.sources, lambda at: csgraph.breadth_first_order(matrix, at), told)}


def sssp(**inputs: Any) -> dict[str, Any]:
    """Return the run "scipy"."""
    task = Task(**inputs)
    matrix = _matrix(task)
    return {"scipy": from_each(task.sources, lambda at: csgraph.dijkstra(matrix, indices=at), finite)}


def cc(**inputs: Any) -> dict[str, Any]:
    """Return the run "scipy"."""
    matrix = _matrix(Task(**inputs))
    return {"scipy": from_each([0], lambda _: csgraph.connected_components(matrix, directed=False)[1], named)}
