"""igraph: one thread, whatever the options say."""

from __future__ import annotations

from typing import Any

import igraph
import numpy as np

from .task import DAMPING, Task, finite, from_each, named


def set_threads(count: int) -> None:
    """Ignore the number of threads."""


def about() -> str:
    """Return the version and the number of threads."""
    return f"igraph {igraph.__version__} (one thread)"


def _graph(task: Task) -> tuple[igraph.Graph, np.ndarray]:
    source, destination, length = task.edges()
    edges = np.stack([source, destination], axis=1)
    return igraph.Graph(n=task.nodes, edges=edges, directed=task.directed), length.astype(np.float64)


def bfs(**inputs: Any) -> dict[str, Any]:
    """Return the run "igraph"."""
    task = Task(**inputs)
    graph, _ = _graph(task)

    def call(at: int) -> Any:
        return graph.distances(source=[at])

    return {"igraph": from_each(task.sources, call, lambda found: finite(found[0]))}


def sssp(**inputs: Any) -> dict[str, Any]:
    """Return the run "igraph"."""
    task = Task(**inputs)
    graph, length = _graph(task)
    graph.es["length"] = length

    def call(at: int) -> Any:
        return graph.distances(source=[at], weights="length")

    return {"igraph": from_each(task.sources, call, lambda found: finite(found[0]))}


def cc(**inputs: Any) -> dict[str, Any]:
    """Return the run "igraph"."""
    graph, _ = _graph(Task(**inputs))
    return {
        "igraph": from_each(
            [0], lambda _: graph.connected_components(), lambda found: named(found.membership)
        )
    }


def pagerank(**inputs: Any) -> dict[str, Any]:
    """Return the run "igraph": PRPACK, whose tolerance is its own."""
    graph, _ = _graph(Task(**inputs))
    return {"igraph": from_each([0], lambda _: graph.pagerank(damping=DAMPING), np.asarray)}
