"""The inputs of traversals, which are the same for all libraries, and the forms of their results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

DAMPING = 0.85  # of PageRank


@dataclass(frozen=True)
class Task:
    """A traversal of a graph.

    part: "bfs", "sssp", "cc" or "pagerank". file: a graph file. indptr, indices, lengths: files of its edges by their
    source, int64 [N + 1], int32 [E] and float32 [E]. directed: without it each edge's reverse is there. sources: nodes
    at which it begins, one after the other; of components and PageRank one, which is ignored. tolerance: of PageRank.
    """

    part: str
    file: str
    indptr: str
    indices: str
    lengths: str
    directed: bool
    sources: list[int]
    tolerance: float

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(np.load(self.indptr, mmap_mode="r")) - 1

    def edges(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return each edge's source, destination and length; an undirected edge once, from its lower end."""
        indptr, destination, length = (np.load(each) for each in (self.indptr, self.indices, self.lengths))
        source = np.repeat(np.arange(len(indptr) - 1, dtype=np.int32), np.diff(indptr))
        kept = slice(None) if self.directed else source <= destination
        return source[kept], destination[kept], length[kept]

    def run(self, call: Callable[[int], Any], values: Callable[[Any], np.ndarray]) -> Callable[[], Any]:
        """Return a run that calls from each source. values: returns an array of what the last call returned."""

        def run() -> Callable[[], np.ndarray]:
            found = None
            for source in self.sources:
                found = call(source)
            return lambda: values(found)

        return run


def finite(distances: Any) -> np.ndarray:
    """Return distances, with -1 for nodes that are not reached."""
    found = np.asarray(distances, dtype=np.float64)
    return np.where(np.isfinite(found) & (found < 1e300), found, -1)


def least_nodes(labels: Any) -> np.ndarray:
    """Return the least node of each node's component, from any labels."""
    _, first, component = np.unique(np.asarray(labels), return_index=True, return_inverse=True)
    return first[component]
