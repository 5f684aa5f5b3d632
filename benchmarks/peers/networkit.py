"""NetworKit, on all threads where its algorithms have several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import networkit as nk
import numpy as np

import peers

from .traversals import DAMPING, Task, finite, least_nodes

nk.setNumberOfThreads(peers.THREADS)

ABOUT = f"networkit {nk.__version__}"


def traverse(**inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return the run "networkit".

    PageRank ends by the same norm as ours. It spreads the rank of nodes without out-edges where a graph is directed; in
    others ranks are divided by their sum here, which gives the same.
    """
    task = Task(**inputs)
    graph = _graph(task)

    def pagerank(_: int) -> Any:
        sinks = nk.centrality.SinkHandling
        spread = sinks.DistributeSinks if task.directed else sinks.NoSinkHandling
        found = nk.centrality.PageRank(graph, DAMPING, task.tolerance, distributeSinks=spread)
        found.norm = nk.centrality.Norm.L1_NORM
        return found.run()

    def components(found: Any) -> np.ndarray:
        labels = np.empty(task.nodes, np.int64)
        for number, members in enumerate(found.getComponents()):
            labels[members] = number
        return least_nodes(labels)

    calls: dict[str, tuple[Callable[[int], Any], Callable[[Any], np.ndarray]]] = {
        "bfs": (lambda at: nk.distance.BFS(graph, at, False).run(), _distances),
        "sssp": (lambda at: nk.distance.Dijkstra(graph, at, False).run(), _distances),
        "cc": (lambda _: nk.components.ParallelConnectedComponents(graph).run(), components),
        "pagerank": (pagerank, lambda found: np.asarray(found.scores()) / np.sum(found.scores())),
    }
    return {"networkit": task.run(*calls[task.part])}


def _distances(found: Any) -> np.ndarray:
    return finite(found.getDistances())


def _graph(task: Task) -> nk.Graph:
    source, destination, length = task.edges()
    ends, weighted = (source.astype(np.uint64), destination.astype(np.uint64)), task.part == "sssp"
    given = (length.astype(np.float64), ends) if weighted else ends
    return nk.graph.GraphFromCoo(given, n=task.nodes, directed=task.directed, weighted=weighted)
