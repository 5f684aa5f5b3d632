"""The part of the seam for traversals: a rank's edges by numbers of its own, and what is computed over them."""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...plan.workload import HaloLists


def own_pages(nbytes: int) -> NDArray[np.uint8]:
    """Return uninitialised memory that shares no page with others, so that it can be locked for a GPU as it is."""
    page = mmap.PAGESIZE
    whole = np.empty(nbytes + 2 * page, np.uint8)
    return whole[-whole.ctypes.data % page :][:nbytes]


@dataclass(frozen=True, eq=False)
class LocalGraph:
    """One rank's n rows and all edges into them, whose S sources are those rows and the rank's halo.

    Sources, and so rows, are numbered with those first that have the most edges (`traversal.part` says how).

    total: rows of all ranks.
    indptr int64 [n + 1], indices int32 [E]: sources of the edges into each row, ascending.
    out_indptr int64 [S + 1], out_indices int32 [E]: rows that each source has edges to, ascending.
    slot: int32 [n], each row's own number among the sources, ascending.
    halo: int32 [H], the numbers of the halo's rows in the order in which they arrive.
    lists: what crosses, send_rows being rows of this rank by these numbers; None for a lone rank.
    out_degree: int32 [n], edges out of each row, on all ranks.
    """

    total: int
    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    out_indptr: NDArray[np.int64]
    out_indices: NDArray[np.int32]
    slot: NDArray[np.int32]
    halo: NDArray[np.int32]
    lists: HaloLists | None
    out_degree: NDArray[np.int32]

    @property
    def rows(self) -> int:
        """Number of this rank's rows, n."""
        return len(self.slot)

    @property
    def sources(self) -> int:
        """Number of its rows and of those of its halo, S."""
        return len(self.out_indptr) - 1


@dataclass(frozen=True)
class Source:
    """Where a traversal begins: slot, the source's number on this rank; row, its row. -1 where the rank has none."""

    slot: int
    row: int


class Traversal(ABC):
    """Traversals of one graph. All are collective.

    moved: bytes that this rank has pushed to others since it was last set to 0.
    """

    moved: int

    @abstractmethod
    def prepare(self, kind: str) -> None:
        """Set up what a kind of traversal takes ("bfs", "sssp", "components", "pagerank"), before it is timed.

        Raises InputError for what does not fit.
        """

    @abstractmethod
    def exchange(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values of the halo's rows, [H], from each rank's own, [n] of 4 or 8 bytes; until the next call.

        Ranks must meet between two calls: one that only receives may still read what the next call overwrites.
        """

    @abstractmethod
    def bfs(self, source: Source, parent: NDArray[np.int32], depth: NDArray[np.int32]) -> int:
        """Fill parent and depth, [n], by a breadth-first search; return the number of levels below the source.

        A row's parent is the first of its sources one level up; the source's is itself. Both are -1 where a row is not
        reached.
        """

    @abstractmethod
    def sssp(self, source: Source, distance: NDArray[np.float32]) -> int:
        """Fill distance, [n], with the lengths of shortest paths; inf where there is none. Return the number of steps.

        Lengths are those of the last `set_lengths`.
        """

    @abstractmethod
    def set_lengths(self, lengths: NDArray[np.float32], width: float) -> None:
        """Set the lengths of edges, [E] in the order of ``out_indices``. width: distance that a bucket spans."""

    @abstractmethod
    def components(self, names: NDArray[np.int64], label: NDArray[np.int64]) -> int:
        """Fill label, [n], with the least name in each row's component of an undirected graph; return the exchanges.

        names: [S], of the sources.
        """

    @abstractmethod
    def pagerank(
        self, rank: NDArray[np.floating], damping: float, tolerance: float, iterations: int
    ) -> tuple[int, float]:
        """Fill rank, float32 or float64 [n], which sum to 1 over all ranks; return iterations and the last change.

        Ends when the sum over all rows of |new - old| is below ``tolerance``, or after so many iterations.
        """


class TraversalKernels(ABC):
    """Makes traversals of graphs."""

    @abstractmethod
    def check(self, edges: str) -> None:
        """Raise InputError if this backend cannot keep edges in this memory, "device" or "host"."""

    @abstractmethod
    def bind(self, graph: LocalGraph, *, edges: str = "device") -> Traversal:
        """Return traversals of a graph; their memory is freed when the backend is closed. Collective.

        edges: memory of a GPU's edges, "device" or "host". Raises InputError where the graph does not fit the device.
        """
