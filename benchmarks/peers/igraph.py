"""igraph: one thread, whatever the options say. Its PageRank is PRPACK, whose tolerance is its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import igraph
import numpy as np

from .traversals import DAMPING, Task, finite, least_nodes

ABOUT = f"igraph {igraph.__version__} (one thread)"


def traverse(**inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return the run "igraph"."""
    task = Task(**inputs)
    source, destination, length = task.edges()
    edges = np.stack([source, destination], axis=1)
    graph = igraph.Graph(n=task.nodes, edges=edges, directed=task.directed)
    if task.part == "sssp":
        graph.es["length"] = length.astype(np.float64)
    calls: dict[str, tuple[Callable[[int], Any], Callable[[Any], np.ndarray]]] = {
        "bfs": (lambda at: graph.distances(source=[at]), lambda found: finite(found[0])),
        "sssp": (lambda at: graph.distances(source=[at], weights="length"), lambda found: finite(found[0])),
        "cc": (lambda _: graph.connected_components(), lambda found: least_nodes(found.membership)),
        "pagerank": (lambda _: graph.pagerank(damping=DAMPING), np.asarray),
    }
    return {"igraph": task.run(*calls[task.part])}
