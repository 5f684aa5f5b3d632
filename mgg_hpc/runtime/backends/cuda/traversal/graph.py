"""Traversals on a GPU, alone or among others.

Values of nodes and offsets of lists are in the GPU's memory; places.py says where edges are. Values lie by the numbers
of sources. Ranks work on their own rows, and values of the halo cross after each step.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from .....errors import InputError
from .....plan import launch
from .... import cores, mpi
from ...traversal import LocalGraph, Source, memory_for_edges
from .crossing import Crossing
from .places import PLACES, EdgeLists, on_device

if TYPE_CHECKING:
    from ..kernels import DeviceBackend
    from ..rank import RankBackend

BYTES_PER_SOURCE = 72  # of values, offsets and numbers
# A search goes into rows that are not reached where the frontier has more than 1 / MANY of their edges, until it is
# less than 1 / FEW of all sources (Beamer, Asanovic, Patterson, "Direction-Optimizing Breadth-First Search", SC '12).
MANY, FEW = 14, 24


class DeviceTraversal:
    """See TraversalKernels."""

    def __init__(self, backend: DeviceBackend) -> None:
        self._backend = backend

    def of(
        self,
        graph: LocalGraph,
        *,
        edges: str = "device",
        reads: str = "aligned",
        wide: bool = False,
        below: bool = True,
    ) -> DeviceGraph:
        """See TraversalKernels.

        reads: how lists are read, "strided", "merged" or "aligned". wide: edges of 8 bytes. below: whether searches may
        look from rows that are not reached for sources that are.
        """
        if edges not in PLACES:
            raise InputError(f"edges: {edges} is none of {', '.join(PLACES)}")
        return DeviceGraph(self._backend, graph, edges, reads, wide=wide, below=below)


class DeviceGraph:
    """See Traversal."""

    def __init__(
        self, backend: DeviceBackend, graph: LocalGraph, edges: str, reads: str, *, wide: bool, below: bool
    ) -> None:
        self.moved = 0
        self._backend, self._graph, self._edges, self._reads, self._below = (
            backend,
            graph,
            edges,
            reads,
            below,
        )
        self._index = np.dtype(np.int64 if wide else np.int32)
        self._alone = graph.lists is None and graph.rows == graph.sources
        self._check_room()
        rows = graph.out_indices
        if not self._alone:
            rows = np.take(
                graph.slot, rows, out=memory_for_edges(len(rows)), mode="clip"
            )  # "raise" would copy
        self._out = self._lists(graph.out_indptr, rows, None)
        self._in: EdgeLists | None = None
        self._crossing: Crossing | None = None
        if graph.lists is not None:
            ranks = cast("RankBackend", backend)
            self._crossing = Crossing(ranks, graph.lists, graph.slot, graph.halo)
        self._shape = backend.spread(launch.LANES, graph.sources)
        self._found = backend.arrays.zeros(16)

    def _check_room(self) -> None:
        """Raise InputError for a graph that does not fit; the same on all ranks."""
        graph, backend = self._graph, self._backend
        lists = 1 if graph.out_indices is graph.indices else 2
        held = lists * self._index.itemsize * len(graph.out_indices)
        needed, free = BYTES_PER_SOURCE * graph.sources, int(backend.native.memory()[0])
        said = None
        if self._edges == "device":
            needed += held + self._index.itemsize * len(
                graph.out_indices
            )  # one of them twice, while it is uploaded
        elif self._more_on_host(held) > (host := cores.memory_available()):
            said = f"the edges take {held / 2**30:.1f} GiB of the host's memory, and {host / 2**30:.1f} GiB are free"
        if needed > free:
            said = f"the graph takes {needed / 2**30:.1f} GiB on the GPU, and {free / 2**30:.1f} GiB are free"
            if self._edges == "device":
                said += "; leave its edges in the host's memory (--edges host)"
        with mpi.agree(cast("RankBackend", backend).comm) if graph.lists is not None else nullcontext():
            if said:
                raise InputError(said)

    def _more_on_host(self, held: int) -> int:
        """Return the bytes of the host's memory that edges take beside the graph's own, of all lists' bytes."""
        if self._edges == "managed" or self._index.itemsize > 4:
            return held
        return 0 if self._alone else 4 * len(self._graph.out_indices)

    def _lists(
        self, indptr: NDArray[np.int64], indices: NDArray[Any], number: NDArray[np.int32] | None
    ) -> EdgeLists:
        indices = indices.astype(self._index, copy=False)
        return EdgeLists(self._backend, self._edges, self._reads, indptr, indices, number)

    def _in_lists(self) -> EdgeLists:
        """Return the lists of in-edges, made at the first call."""
        graph = self._graph
        if self._in is None:
            same = graph.indices is graph.out_indices
            self._in = (
                self._out
                if same
                else self._lists(graph.indptr, graph.indices, None if self._alone else graph.slot)
            )
        return self._in

    def edges_to_host(self) -> None:
        """Move edges in managed memory back to the host."""
        for lists in (self._out, self._in):
            if lists is not None:
                lists.to_host()

    def exchange(self, values: NDArray[Any]) -> NDArray[Any]:
        """See Traversal."""
        if self._crossing is None:
            return np.zeros(0, values.dtype)
        whole = np.zeros(self._graph.sources, values.dtype)
        whole[self._graph.slot] = values
        memory = on_device(self._backend, whole)
        self.moved += self._crossing.cross(values.itemsize, memory, all=True)
        return self._from_device(memory, values.dtype)[self._graph.halo]

    def _cross(self, item: int, values: Any, *, all: bool = False, following: Any = None) -> None:
        if self._crossing is not None:
            found = None if following is None else self._found
            self.moved += self._crossing.cross(item, values, all=all, following=following, found=found)

    def _from_device(self, memory: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return values of all sources, [S]."""
        nbytes = self._graph.sources * dtype.itemsize
        return self._backend.arrays.downloaded(memory)[:nbytes].view(dtype)

    def _into(self, out: NDArray[Any], memory: Any) -> None:
        """Copy the rows' values to an array of the host."""
        out[:] = self._from_device(memory, out.dtype)[self._graph.slot]

    def _at_rows(self, values: NDArray[Any], other: Any) -> Any:
        """Return the rows' values among those of all sources, where the halo has another one, on the GPU."""
        whole = np.full(self._graph.sources, other, values.dtype)
        whole[self._graph.slot] = values
        return on_device(self._backend, whole)

    def bfs(self, source: Source, parent: NDArray[np.int32], depth: NDArray[np.int32]) -> int:
        """See Traversal."""
        graph, backend = self._graph, self._backend
        begin = [np.full(graph.sources, -1, np.int32) for _ in range(2)]
        if source.slot >= 0:
            begin[0][source.slot], begin[1][source.slot] = source.slot, 0
        parents, depths = (on_device(backend, each) for each in begin)
        at, native = backend.arrays.address, backend.native
        level, below, unread = 0, False, len(graph.out_indices)
        while True:
            self._found[:] = 0
            native.frontier(
                graph.sources, at(self._out.offset), at(depths), level, at(self._found), self._shape
            )
            sources, edges = backend.arrays.downloaded(self._found).view(np.uint64).tolist()
            if not backend.collectives.least(-sources):
                break
            unread -= edges
            if self._below:
                below = sources * FEW > graph.sources if below else edges * MANY > unread
            self._level(parents, depths, level, below)
            self._cross(4, depths)
            level += 1
        self._into(parent, parents)
        self._into(depth, depths)
        return level - 1

    def _level(self, parents: Any, depths: Any, level: int, below: bool) -> None:
        """Reach the rows of the next level."""
        at = self._backend.arrays.address

        def on_it() -> NDArray[np.bool_]:
            found = self._from_device(depths, np.dtype(np.int32))
            return found[self._graph.slot] < 0 if below else found == level

        for lists in (self._in_lists() if below else self._out).each(on_it):
            self._backend.native.bfs_level(lists, at(parents), at(depths), level, below, self._shape)

    def set_lengths(self, lengths: NDArray[np.float32], width: float) -> None:
        """See Traversal; rounds need no width."""
        self._out.set_lengths(lengths)

    def sssp(self, source: Source, distance: NDArray[np.float32]) -> int:
        """See Traversal."""
        begin = np.full(self._graph.sources, np.inf, np.float32)
        active = np.zeros(self._graph.sources, np.uint8)
        if source.slot >= 0:
            begin[source.slot], active[source.slot] = 0, 1
        return self._rounds(self._backend.native.sssp_round, begin, active, distance, lengths=True)

    def components(self, names: NDArray[np.int64], label: NDArray[np.int64]) -> int:
        """See Traversal."""
        active = np.ones(self._graph.sources, np.uint8)
        return self._rounds(self._backend.native.components_round, names, active, label, lengths=False)

    def _rounds(
        self, step: Any, begin: NDArray[Any], active: NDArray[np.uint8], out: NDArray[Any], *, lengths: bool
    ) -> int:
        """Run rounds over the sources that are active until none is on any rank; return their number."""
        backend, at, rounds = self._backend, self._backend.arrays.address, 0
        values, now, following = (on_device(backend, each) for each in (begin, active, np.zeros_like(active)))
        while True:
            self._found[:] = 0
            for lists in self._out.each(lambda: self._from_device(now, np.dtype(np.bool_)), lengths=lengths):  # noqa: B023
                step(lists, at(values), at(now), at(following), at(self._found), self._shape)
            self._cross(begin.itemsize, values, following=following)
            if not backend.collectives.least(-int(backend.arrays.downloaded(self._found).any())):
                break
            rounds += 1
            now, following = following, now
            following[:] = 0
        self._into(out, values)
        return rounds

    def pagerank(
        self, rank: NDArray[np.floating], damping: float, tolerance: float, iterations: int
    ) -> tuple[int, float]:
        """See Traversal. Raises InputError for float64."""
        if rank.dtype != np.float32:
            raise InputError("PageRank on GPUs is of float32; take --dtype float32, or a backend of CPUs")
        graph, backend, at = self._graph, self._backend, self._backend.arrays.address
        inverse = np.divide(
            damping, graph.out_degree, out=np.zeros(graph.rows), where=graph.out_degree > 0
        ).astype(np.float32)
        first = np.full(graph.rows, 1 / graph.total, np.float32)
        ranks, inverses, given = (self._at_rows(each, 0) for each in (first, inverse, first * inverse))
        following = self._at_rows(np.zeros_like(first), 0)
        sums = backend.arrays.uploaded(np.zeros((2, graph.sources), np.float32))
        dangling = float(first[inverse == 0].sum(dtype=np.float64))
        change, dangling = self._sum(np.inf, dangling)
        done = 0
        while done < iterations and change >= tolerance:
            done += 1
            base = (1 - damping + damping * dangling) / graph.total
            self._cross(4, given, all=True)
            for lists in self._in_lists().each(lambda: np.ones(graph.rows, np.bool_)):
                backend.native.pagerank_round(
                    lists,
                    at(given),
                    at(inverses),
                    at(ranks),
                    at(following),
                    *(at(sums[i]) for i in range(2)),
                    base,
                    self._shape,
                )
            change, dangling = self._sum(*(backend.arrays.total(sums[i]) for i in range(2)))
            given, following = following, given
        self._into(rank, ranks)
        return done, change

    def _sum(self, *values: float) -> list[float]:
        """Return the sums of values over all ranks."""
        total = np.array(values)
        self._backend.collectives.sum_on_host(total)
        return total.tolist()
