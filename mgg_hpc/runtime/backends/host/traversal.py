"""Traversals on CPUs: native steps over a rank's edges, and an exchange of the halo between them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import InputError
from ....plan.layout import RowFormat
from ..traversal import LocalGraph, Source, Traversal, TraversalKernels
from .components import Exchange, HostCollectives, HostMemory

WIDEST = RowFormat(np.dtype(np.float64), 1)  # format of the widest values that are exchanged
END = np.iinfo(np.int64).max  # a bucket after all others


class HostTraversal(TraversalKernels):
    """Makes native traversals."""

    def __init__(self, memory: HostMemory, collectives: HostCollectives, threads: int) -> None:
        self._memory, self._collectives, self._threads = memory, collectives, threads

    def check(self, edges: str) -> None:
        if edges != "device":
            raise InputError(f"--edges {edges} is for --backend cuda; CPUs have one memory")

    def bind(self, graph: LocalGraph, *, edges: str = "device") -> HostGraph:
        return HostGraph(self._memory, self._collectives, self._threads, graph)


class HostGraph(Traversal):
    """Native traversals of a graph. Each kind of traversal is set up at its first call."""

    def __init__(
        self, memory: HostMemory, collectives: HostCollectives, threads: int, graph: LocalGraph
    ) -> None:
        self.moved = 0
        self._module, self._collectives, self._graph = memory.native, collectives, graph
        self._exchange: Exchange | None = None
        if graph.lists is not None:
            memory.reserve(memory.exchange_bytes(graph.lists, WIDEST))
            self._exchange = memory.exchange(graph.lists, WIDEST)
        alone = graph.rows == graph.sources and graph.lists is None
        edges = graph.indptr, graph.indices, graph.out_indptr, graph.out_indices
        self._native: Any = self._module.TraversalGraph(*edges, None if alone else graph.slot, threads)
        self._bfs: Any = None
        self._sssp: Any = None
        self._components: Any = None
        self._pageranks: dict[np.dtype[Any], Any] = {}
        self._shares: NDArray[np.floating] | None = None
        self._giving = graph.out_degree
        memory.on_close(self._close)

    def _close(self) -> None:
        """Drop native objects, which arrays that are alive at exit would keep."""
        self._bfs = self._sssp = self._components = self._native = self._exchange = None
        self._pageranks.clear()

    def prepare(self, kind: str) -> None:
        """The first call of a kind sets it up."""

    def exchange(self, values: NDArray[Any]) -> NDArray[Any]:
        if self._exchange is None:
            return np.zeros(0, values.dtype)
        native, staging, item = self._exchange.native, self._exchange.staging, values.itemsize
        native.transfer(values.ctypes.data, item)
        self.moved += native.take_moved()[0] * item
        begin = native.arrived - int(staging.addresses[self._collectives.rank])
        return staging.buffer[begin : begin + len(self._graph.halo) * item].view(values.dtype)

    def _sum(self, *values: float) -> list[float]:
        """Return the sums of values over all ranks."""
        total = np.array(values, dtype=np.float64)
        self._collectives.sum(total)
        return total.tolist()

    def bfs(self, source: Source, parent: NDArray[np.int32], depth: NDArray[np.int32]) -> int:
        self._bfs = search = self._bfs or self._module.Bfs(self._native)
        search.begin(parent, depth, source.slot, source.row)
        if self._exchange is None:
            return search.run()
        levels = 0
        while self._collectives.least(-search.advance()):
            levels += 1
            search.arrive(self._graph.halo, self.exchange(depth))
        return levels

    def set_lengths(self, lengths: NDArray[np.float32], width: float) -> None:
        self._sssp = None  # its memory is free for the next one
        self._sssp = self._module.Sssp(self._native, lengths, width)

    def sssp(self, source: Source, distance: NDArray[np.float32]) -> int:
        search = self._sssp
        search.begin(source.slot)
        steps = 0
        if self._exchange is None:
            steps = search.run()
        else:
            while True:
                first = search.next()
                first = self._collectives.least(END if first < 0 else first)
                if first == END:
                    break
                search.advance(first)
                search.distances(distance)
                search.arrive(self._graph.halo, self.exchange(distance))
                steps += 1
        search.distances(distance)
        return steps

    def components(self, names: NDArray[np.int64], label: NDArray[np.int64]) -> int:
        self._components = found = self._components or self._module.Components(self._native)
        found.link(names)
        found.labels(label)
        exchanges = 0
        while self._exchange is not None:
            smaller = found.arrive(self._graph.halo, self.exchange(label))
            found.labels(label)
            exchanges += 1
            if not self._collectives.least(-smaller):
                break
        return exchanges

    def set_shares(self, shares: NDArray[np.floating], giving: NDArray[np.int32]) -> None:
        self._pageranks.clear()
        self._shares, self._giving = shares, giving

    def pagerank(
        self, rank: NDArray[np.floating], damping: float, tolerance: float, iterations: int
    ) -> tuple[int, float]:
        graph, dtype = self._graph, rank.dtype
        if dtype not in self._pageranks:
            kind = getattr(self._module, f"PageRank_{dtype.name}")
            self._pageranks[dtype] = kind(self._native, self._giving, graph.total, self._shares)
        native, shares = self._pageranks[dtype], np.empty(graph.rows, dtype)
        change, dangling = self._sum(*native.begin(rank, shares, damping))
        done = 0
        while done < iterations:
            done += 1
            change, dangling = self._sum(*native.advance(graph.halo, self.exchange(shares), dangling))
            if change < tolerance:
                break
        return done, change
