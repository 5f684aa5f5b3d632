"""NetworKit, on all threads where its algorithms have several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import networkit as nk
import numpy as np

import peers

from .traversals import DAMPING, Task, finite, least_nodes

nk.setNumberOfThreads(peers.THREADS)


def about() -> str:
    """Return the version."""
    return f"networkit {nk.__version__}"


def traverse(**inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return the run "networkit".

    PageRank ends by the same norm as ours. It spreads the rank of nodes without out-edges where a graph is directed; in
    others ranks are divided by their sum here, which gives the same.
    """
    task = Task(**inputs)
    graph = _graph(task)

    def search(kind: Any) -> Callable[[], Any]:
        return task.run(lambda at: kind(graph, at, False).run(), lambda found: finite(found.getDistances()))

    def pagerank(_: int) -> Any:
        sinks = nk.centrality.SinkHandling
        spread = sinks.DistributeSinks if task.directed else sinks.NoSinkHandling
        found = nk.centrality.PageRank(graph, DAMPING, task.tolerance, distributeSinks=spread)
        found.norm = nk.centrality.Norm.L1_NORM
        return found.run()

    def ranks(found: Any) -> np.ndarray:
        scores = np.asarray(found.scores())
        return scores / scores.sum()

    if task.part == "cc":
        components = nk.components.ParallelConnectedComponents
        run = task.run(lambda _: components(graph).run(), lambda found: _least_nodes(found, task.nodes))
        return {"networkit": run}
    if task.part == "pagerank":
        return {"networkit": task.run(pagerank, ranks)}
    return {"networkit": search(nk.distance.BFS if task.part == "bfs" else nk.distance.Dijkstra)}


def _graph(task: Task) -> nk.Graph:
    source, destination, length = task.edges()
    ends, weighted = (source.astype(np.uint64), destination.astype(np.uint64)), task.part == "sssp"
    given = (length.astype(np.float64), ends) if weighted else ends
    return nk.graph.GraphFromCoo(given, n=task.nodes, directed=task.directed, weighted=weighted)


def _least_nodes(found: Any, nodes: int) -> np.ndarray:
    labels = np.empty(nodes, np.int64)
    for number, members in enumerate(found.getComponents()):
        labels[members] = number
    return least_nodes(labels)
