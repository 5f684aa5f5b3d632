"""The interface of traversals: a rank's edges in its own numbering, and the searches over them."""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...plan.workload import HaloLists


def own_pages(nbytes: int) -> NDArray[np.uint8]:
    """Return uninitialised memory that shares no page with other data, so that it can be locked for a GPU in place."""
    page = mmap.PAGESIZE
    whole = np.empty(nbytes + 2 * page, np.uint8)
    return whole[-whole.ctypes.data % page :][:nbytes]


@dataclass(frozen=True, eq=False)
class LocalGraph:
    """One rank's n rows and all edges into them; the S sources of the edges are these rows and the rank's halo.

    Sources, and so rows, are numbered by falling number of edges (`traversal.part` has the details).

    total: rows of all ranks.
    indptr int64 [n + 1], indices int32 [E]: sources of the edges into each row, ascending.
    out_indptr int64 [S + 1], out_indices int32 [E]: rows that each source has edges to, ascending.
    slot: int32 [n], number of each row among the sources, ascending.
    halo: int32 [H], numbers of the halo's rows in the order in which they arrive.
    lists: lists of the halo exchange, with send_rows in this numbering; None for a lone rank.
    out_degree: int32 [n], number of edges out of each row, on all ranks.
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
        """Number of this rank's rows and of the rows of its halo, S."""
        return len(self.out_indptr) - 1


@dataclass(frozen=True)
class Source:
    """Where a traversal begins. slot: number of the source on this rank; row: its row. -1 if the rank has none."""

    slot: int
    row: int


class Traversal(ABC):
    """Traversals of one graph. All are collective.

    moved: bytes that this rank has pushed to others since it was last set to 0.
    """

    moved: int

    @abstractmethod
    def prepare(self, kind: str) -> None:
        """Allocate for a kind of traversal ("bfs", "sssp", "components", "pagerank"), before it is timed.

        Raises InputError if it does not fit.
        """

    @abstractmethod
    def exchange(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values of the halo's rows, [H], from each rank's own values, [n] of 4 or 8 bytes.

        The next call overwrites them, so ranks must synchronise between two calls.
        """

    @abstractmethod
    def bfs(self, source: Source, parent: NDArray[np.int32], depth: NDArray[np.int32]) -> int:
        """Fill parent and depth, [n], by a breadth-first search; return the number of levels below the source.

        A row's parent is the first of its sources one level up; the source is its own parent. Both are -1 for rows that
        are not reached.
        """

    @abstractmethod
    def sssp(self, source: Source, distance: NDArray[np.float32]) -> int:
        """Fill distance, [n], with the lengths of shortest paths, or inf; return the number of steps.

        Edges have the lengths of the last `set_lengths`.
        """

    @abstractmethod
    def set_lengths(self, lengths: NDArray[np.float32], width: float) -> None:
        """Set the lengths of edges, [E] in the order of ``out_indices``. width: distance that a bucket spans."""

    @abstractmethod
    def set_shares(self, shares: NDArray[np.floating], giving: NDArray[np.int32]) -> None:
        """Set the part of a source's rank that each edge carries in `pagerank`. [default: 1 / out_degree]

        shares: [E] in the order of ``indices``, of the type of the ranks. giving: int32 [n], 1 for rows whose shares
        sum to 1, 0 for those without.
        """

    @abstractmethod
    def components(self, names: NDArray[np.int64], label: NDArray[np.int64]) -> int:
        """Fill label, [n], with the least name in each row's component of an undirected graph.

        names: [S], names of the sources. Return the number of exchanges.
        """

    @abstractmethod
    def pagerank(
        self, rank: NDArray[np.floating], damping: float, tolerance: float, iterations: int
    ) -> tuple[int, float]:
        """Fill rank, float32 or float64 [n], which sums to 1 over all ranks; return iterations and the last change.

        It ends when the sum over all rows of |new - old| is below ``tolerance``, or after ``iterations``.
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
