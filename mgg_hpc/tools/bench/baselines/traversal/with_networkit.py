"""NetworKit, on as many threads as are set where its algorithms have any."""

from __future__ import annotations

from typing import Any

import networkit as nk
import numpy as np

from .task import DAMPING, Task, finite, from_each, named


def set_threads(count: int) -> None:
    """Set the number of threads of all later runs."""
    nk.setNumberOfThreads(count)


def about() -> str:
    """Return the version."""
    return f"networkit {nk.__version__}"


def _graph(task: Task, *, weighted: bool = False) -> nk.Graph:
    source, destination, length = task.edges()
    ends = (source.astype(np.uint64), destination.astype(np.uint64))
    given = (length.astype(np.float64), ends) if weighted else ends
    return nk.graph.GraphFromCoo(given, n=task.nodes, directed=task.directed, weighted=weighted)


def bfs(**inputs: Any) -> dict[str, Any]:
    """Return the run "networkit"."""
    task = Task(**inputs)
    graph = _graph(task)

    def call(at: int) -> Any:
        return nk.distance.BFS(graph, at, False).run()

    return {"networkit": from_each(task.sources, call, lambda found: finite(found.getDistances()))}


def sssp(**inputs: Any) -> dict[str, Any]:
    """Return the run "networkit"."""
    task = Task(**inputs)
    graph = _graph(task, weighted=True)

    def call(at: int) -> Any:
        return nk.distance.Dijkstra(graph, at, False).run()

    return {"networkit": from_each(task.sources, call, lambda found: finite(found.getDistances()))}


def cc(**inputs: Any) -> dict[str, Any]:
    """Return the runs "networkit" and "networkit parallel"."""
    graph = _graph(Task(**inputs))

    def told(found: Any) -> np.ndarray:
        labels = np.empty(graph.numberOfNodes(), np.int64)
        for number, members in enumerate(found.getComponents()):
            labels[members] = number
        return named(labels)

    one, several = nk.components.ConnectedComponents, nk.components.ParallelConnectedComponents
    return {
        "networkit": from_each([0], lambda _: one(graph).run(), told),
        "networkit parallel": from_each([0], lambda _: several(graph).run(), told),
    }


def pagerank(**inputs: Any) -> dict[str, Any]:
    """Return the run "networkit", which ends by the same norm.

    It spreads the rank of nodes without out-edges where a graph is directed; in others ranks are divided by their sum
    here, which gives the same.
    """
    task = Task(**inputs)
    graph, sinks = _graph(task), nk.centrality.SinkHandling

    def call(_: int) -> Any:
        found = nk.centrality.PageRank(
            graph,
            DAMPING,
            task.tolerance,
            distributeSinks=sinks.DistributeSinks if task.directed else sinks.NoSinkHandling,
        )
        found.norm = nk.centrality.Norm.L1_NORM
        return found.run()

    def told(found: Any) -> np.ndarray:
        ranks = np.asarray(found.scores())
        return ranks / ranks.sum()

    return {"networkit": from_each([0], call, told)}
