"""The inputs of all traversals that are compared, and how their results are told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

DAMPING = 0.85


@dataclass(frozen=True)
class Task:
    """A graph, and where traversals begin.

    file: a graph file. indptr, indices, lengths: files of its edges by their source, int64 [N + 1], int32 [E] and
    float32 [E]. directed: without it each edge's reverse is there. sources: nodes. tolerance: of PageRank.
    """

    file: str
    indptr: str
    indices: str
    lengths: str
    directed: bool
    sources: list[int]
    tolerance: float

    def edges(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return each edge's source, destination and length; an undirected edge once, from its lower end."""
        indptr, destination, length = (np.load(each) for each in (self.indptr, self.indices, self.lengths))
        source = np.repeat(np.arange(len(indptr) - 1, dtype=np.int32), np.diff(indptr))
        kept = slice(None) if self.directed else source <= destination
        return source[kept], destination[kept], length[kept]

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(np.load(self.indptr, mmap_mode="r")) - 1


def from_each(sources: Sequence[int], call: Callable[[int], Any], told: Callable[[Any], np.ndarray]) -> Any:
    """Return a run that calls from each source in turn; its result is what ``told`` makes of the last one."""

    def run() -> Callable[[], np.ndarray]:
        found = None
        for source in sources:
            found = call(source)
        return lambda: told(found)

    return run


def finite(values: Any) -> np.ndarray:
    """Return distances with -1 for what is not reached."""
    found = np.asarray(values, dtype=np.float64)
    return np.where(np.isfinite(found) & (found < 1e300), found, -1)


def named(labels: Any) -> np.ndarray:
    """Return the least node of each node's component, from any labels."""
    labels = np.asarray(labels)
    _, first, place = np.unique(labels, return_index=True, return_inverse=True)
    return first[place]
