"""SciPy's product of a CSR matrix, and its csgraph: one thread, whatever the options say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy
from scipy import sparse

ABOUT = f"scipy {scipy.__version__} (one thread)"


def operands(
    indptr: str, indices: str, weight: str | None, x: str, dtype: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return indptr int32 [N+1], indices int32 [E], values float32 [E] (1 without weights) and rows float32 [N, F].

    Raises TypeError for rows of another type.
    """
    if dtype != "float32":
        raise TypeError("float32 rows only")
    sources = np.load(indices)
    values = np.ones(len(sources), np.float32) if weight is None else np.load(weight)
    return np.load(indptr).astype(np.int32), sources, values, np.load(x)


def aggregate(**inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return the run "scipy"."""
    pointers, sources, values, rows = operands(**inputs)
    adjacency = sparse.csr_matrix((values, sources, pointers), (len(rows), len(rows)))
    return {"scipy": lambda: adjacency @ rows}


def traverse(**inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return the run "scipy". Raises ValueError for PageRank, which SciPy has not."""
    from scipy.sparse import csgraph

    from .traversals import Task, finite, least_nodes

    task = Task(**inputs)
    if task.part == "pagerank":
        raise ValueError("it has no PageRank")
    indptr, indices = np.load(task.indptr).astype(np.int32), np.load(task.indices)
    lengths = np.load(task.lengths).astype(np.float64)
    matrix = sparse.csr_matrix((lengths, indices, indptr), (task.nodes,) * 2)

    def depths(found: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        order, before = found
        depth = np.full(task.nodes, -1.0)
        depth[order[0]] = 0
        for node in order[1:]:
            depth[node] = depth[before[node]] + 1
        return depth

    calls: dict[str, tuple[Callable[[int], Any], Callable[[Any], np.ndarray]]] = {
        "bfs": (lambda at: csgraph.breadth_first_order(matrix, at), depths),
        "sssp": (lambda at: csgraph.dijkstra(matrix, indices=at), finite),
        "cc": (lambda _: csgraph.connected_components(matrix, directed=False)[1], least_nodes),
    }
    return {"scipy": task.run(*calls[task.part])}
