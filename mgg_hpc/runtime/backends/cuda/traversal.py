"""Traversals on GPUs (kernels: cuda/gpu/traversal).

Values of nodes and offsets of lists are in the GPU's memory, and edges in one of PLACES. Values are indexed by the
numbers of sources. Ranks work on their own rows, and values of the halo cross after each step (crossing.py).
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import InputError
from ....plan.cuda_grid import LANES
from ... import cores, mpi
from ..traversal import LocalGraph, Source, Traversal, TraversalKernels, own_pages
from . import crossing
from .context import DeviceContext
from .crossing import Crossing, Ranks

# Where edges lie: in the GPU's memory, or page-locked in the host's (EMOGI, Min et al., VLDB '20).
PLACES = ("device", "host")
BYTES_PER_SOURCE = 72  # of values, offsets and numbers
# A search goes bottom-up once the frontier has more than 1 / ALPHA of the edges that no frontier has had, until it is
# less than 1 / BETA of all sources (Beamer, Asanovic, Patterson, "Direction-Optimizing Breadth-First Search", SC '12).
ALPHA, BETA = 14, 24


class EdgeLists:
    """Lists of edges of one graph in one of PLACES, as kernels take them (EdgeLists of the native module).

    offset: int64 [L + 1] on the GPU, the first edge of each list.
    """

    def __init__(
        self,
        context: DeviceContext,
        place: str,
        indptr: NDArray[np.int64],
        indices: NDArray[Any],
        number: NDArray[np.int32] | None,
    ) -> None:
        """Put lists into their place.

        Args:
            indptr: int64 [L + 1].
            indices: int32 [E].
            number: int32 [L], number of the source of each list, or None where list i is of source i.
        """
        self._context, self._place, self._count = context, place, len(indptr) - 1
        self.offset = context.upload_bytes(indptr)
        self._numbers = None if number is None else context.upload_bytes(number)
        self._edges = self.put(indices)

    def launch(self, values: Any = None) -> tuple[Any, Any]:
        """Return the lists as native calls take them, and the shape of a launch over all of them.

        values: lengths or shares of the edges, as `put` returns them.
        """
        addresses = [
            0 if array is None else self._context.arrays.address(array)
            for array in (self.offset, self._edges, values, self._numbers)
        ]
        lists = self._context.native.EdgeLists(self._count, *addresses)
        return lists, self._context.spread(LANES, self._count)

    def put(self, values: NDArray[Any]) -> Any:
        """Return the bytes of an array [E] in this place, aligned to 128 bytes.

        In the host's memory they stay where they are if they have pages of their own (`locked_bytes`).
        """
        keep = self._context.upload_bytes if self._place == "device" else self._context.locked_bytes
        return keep(values)


class DeviceTraversal(TraversalKernels):
    """Traversals on one rank's GPU."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def check(self, edges: str) -> None:
        if edges not in PLACES:
            raise InputError(f"edges: {edges} is none of {', '.join(PLACES)}")

    def bind(
        self,
        graph: LocalGraph,
        *,
        edges: str = "device",
        bottom_up: bool = True,
    ) -> DeviceGraph:
        """Return traversals of a graph, as `TraversalKernels.bind` does. bottom_up: whether searches may go so."""
        return DeviceGraph(self._ranks, graph, edges, bottom_up=bottom_up)


class DeviceGraph(Traversal):
    """Traversals of one graph on GPUs.

    search_seconds: time of the levels of the last search, without copies of its results.
    """

    def __init__(self, ranks: Ranks, graph: LocalGraph, edges: str, *, bottom_up: bool) -> None:
        self.moved, self.search_seconds = 0, 0.0
        self._ranks, self._context = ranks, ranks.context
        self._graph, self._edges, self._bottom_up = graph, edges, bottom_up
        self._alone = graph.lists is None and graph.rows == graph.sources
        self._in: EdgeLists | None = None
        self._values: dict[str, Any] = {}  # "lengths" of out-edges, "shares" of in-edges
        self._giving = graph.out_degree
        self._crossing: Crossing | None = None
        self._ranks_of_node = 1 if graph.lists is None else mpi.node(ranks.collectives.comm).Get_size()
        with self._agreed():
            held = BYTES_PER_SOURCE * graph.sources
            if graph.lists is not None:
                held += crossing.BYTES_PER_ROW * (len(graph.lists.send_rows) + len(graph.halo))
            self._check_room(held, *self._edge_bytes())
            rows = graph.out_indices
            if not self._alone:
                rows = own_pages(rows.nbytes).view(np.int32)
                np.take(graph.slot, graph.out_indices, out=rows, mode="clip")  # another mode would copy first
            self._out = EdgeLists(self._context, edges, graph.out_indptr, rows, None)
        if graph.lists is not None:
            self._crossing = Crossing(ranks, graph.lists, graph.slot, graph.halo)
        self._shape = ranks.context.spread(1, graph.sources)
        self._found = ranks.context.arrays.zeros(16)

    def _agreed(self) -> AbstractContextManager[None]:
        """Raise an InputError of any rank inside on all of them."""
        return nullcontext() if self._graph.lists is None else mpi.agree(self._ranks.collectives.comm)

    def _edge_bytes(self) -> tuple[int, int]:
        """Return the bytes of values of all edges on the GPU, and on the host in addition to the graph."""
        nbytes = 4 * len(self._graph.out_indices)
        if self._edges == "device":
            return 2 * nbytes, 0  # twice, while they are uploaded
        # The graph's own edges are read where they are, unless they get other numbers.
        return 0, 0 if self._alone else nbytes

    def _check_room(self, held: int, on_device: int, on_host: int) -> None:
        """Raise InputError for bytes that are not free. held: of values and tables on the GPU; others: of edges."""
        needed, free = held + on_device, self._ranks.memory.free()
        if needed > free:
            said = f"the graph takes {needed / 2**30:.1f} GiB on the GPU, and {free / 2**30:.1f} GiB are free"
            if self._edges == "device":
                said += "; leave its edges in the host's memory (--edges host)"
            raise InputError(said)
        needed, free = self._ranks_of_node * on_host, cores.memory_available()
        if needed > free:
            raise InputError(
                f"edges take {needed / 2**30:.1f} GiB of the host's memory, and {free / 2**30:.1f} GiB are free"
            )

    def prepare(self, kind: str) -> None:
        # Makes lists of in-edges, which only some traversals read.
        graph = self._graph
        if self._in is not None or not (kind == "pagerank" or (kind == "bfs" and self._bottom_up)):
            return
        if graph.indices is graph.out_indices:
            self._in = self._out
            return
        self._check_room(0, *self._edge_bytes())
        number = None if self._alone else graph.slot
        self._in = EdgeLists(self._context, self._edges, graph.indptr, graph.indices, number)

    def _launch(self, *, incoming: bool, values: str = "") -> tuple[Any, Any]:
        lists = self._in if incoming else self._out
        assert lists is not None, "prepare first"
        return lists.launch(self._values.get(values))

    def _set(self, name: str, values: NDArray[np.float32]) -> None:
        self._values.pop(name, None)  # its memory is free for the next ones
        with self._agreed():
            on_device, _ = self._edge_bytes()
            self._check_room(0, on_device, values.nbytes if self._edges == "host" else 0)
            self._values[name] = self._out.put(values)

    def exchange(self, values: NDArray[Any]) -> NDArray[Any]:
        if self._crossing is None:
            return np.zeros(0, values.dtype)
        memory = self._upload(values, 0)
        self._cross(values.itemsize, memory, all=True)
        return self._download(memory, values.dtype)[self._graph.halo]

    def _cross(self, item: int, values: Any, *, all: bool = False, following: Any = None) -> None:
        if self._crossing is not None:
            found = None if following is None else self._found
            self.moved += self._crossing.cross(item, values, all=all, following=following, found=found)

    def _download(self, memory: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return values of all sources, [S]."""
        nbytes = self._graph.sources * dtype.itemsize
        return self._context.arrays.downloaded(memory)[:nbytes].view(dtype)

    def _copy_rows(self, out: NDArray[Any], memory: Any) -> None:
        """Copy the values of this rank's rows to an array of the host."""
        found = self._download(memory, out.dtype)
        out[:] = found if self._alone else found[self._graph.slot]

    def _upload(self, values: NDArray[Any], other: Any) -> Any:
        """Return values of all sources on the GPU: those of this rank's rows, and another one for the halo."""
        whole = np.full(self._graph.sources, other, values.dtype)
        whole[self._graph.slot] = values
        return self._context.upload_bytes(whole)

    def _unreached(self, source: Source, value: int) -> Any:
        """Return int32 [S] on the GPU: ``value`` at the source, else -1."""
        memory = self._context.arrays.zeros(max(4 * self._graph.sources, 1))
        memory[:] = 0xFF
        if source.slot >= 0:
            item = np.array([value], np.int32).view(np.uint8)
            memory[4 * source.slot : 4 * source.slot + 4] = self._context.arrays.uploaded(item)
        return memory

    def bfs(self, source: Source, parent: NDArray[np.int32], depth: NDArray[np.int32]) -> int:
        graph, context = self._graph, self._context
        parents, depths = self._unreached(source, source.slot), self._unreached(source, 0)
        at, native = context.arrays.address, context.native
        level, bottom_up, unread = 0, False, len(graph.out_indices)
        context.arrays.finish()
        began = time.perf_counter()
        while True:
            self._found[:] = 0
            native.frontier(
                graph.sources, at(self._out.offset), at(depths), level, at(self._found), self._shape
            )
            sources, edges = context.arrays.downloaded(self._found).view(np.uint64).tolist()
            if not self._ranks.collectives.least(-sources):
                break
            unread -= edges
            if self._bottom_up:
                bottom_up = sources * BETA > graph.sources if bottom_up else edges * ALPHA > unread
            lists, shape = self._launch(incoming=bottom_up)
            native.bfs_level(lists, at(parents), at(depths), level, bottom_up, shape)
            self._cross(4, depths)
            level += 1
        self.search_seconds = time.perf_counter() - began
        self._copy_rows(parent, parents)
        self._copy_rows(depth, depths)
        return level - 1

    def set_lengths(self, lengths: NDArray[np.float32], width: float) -> None:
        # Rounds need no width.
        self._set("lengths", lengths)

    def set_shares(self, shares: NDArray[np.floating], giving: NDArray[np.int32]) -> None:
        self._set("shares", shares.astype(np.float32, copy=False))
        self._giving = giving

    def sssp(self, source: Source, distance: NDArray[np.float32]) -> int:
        begin = np.full(self._graph.sources, np.inf, np.float32)
        active = np.zeros(self._graph.sources, np.uint8)
        if source.slot >= 0:
            begin[source.slot], active[source.slot] = 0, 1
        return self._rounds(self._context.native.sssp_round, begin, active, distance)

    def components(self, names: NDArray[np.int64], label: NDArray[np.int64]) -> int:
        active = np.ones(self._graph.sources, np.uint8)
        return self._rounds(self._context.native.components_round, names, active, label)

    def _rounds(self, step: Any, begin: NDArray[Any], active: NDArray[np.uint8], out: NDArray[Any]) -> int:
        """Run rounds over the sources that are active until none is on any rank; return their number."""
        context, at, rounds = self._context, self._context.arrays.address, 0
        values, now, following = (
            context.upload_bytes(each) for each in (begin, active, np.zeros_like(active))
        )
        lists, shape = self._launch(incoming=False, values="lengths")
        while True:
            self._found[:] = 0
            step(lists, at(values), at(now), at(following), at(self._found), shape)
            self._cross(begin.itemsize, values, following=following)
            if not self._ranks.collectives.least(-int(context.arrays.downloaded(self._found).any())):
                break
            rounds += 1
            now, following = following, now
            following[:] = 0
        self._copy_rows(out, values)
        return rounds

    def pagerank(
        self, rank: NDArray[np.floating], damping: float, tolerance: float, iterations: int
    ) -> tuple[int, float]:
        # Raises InputError for float64.
        if rank.dtype != np.float32:
            raise InputError("PageRank on GPUs is of float32; take --dtype float32, or a backend of CPUs")
        graph, context, at = self._graph, self._context, self._context.arrays.address
        inverse = np.divide(damping, self._giving, out=np.zeros(graph.rows), where=self._giving > 0).astype(
            np.float32
        )
        first = np.full(graph.rows, 1 / graph.total, np.float32)
        ranks, inverses, given = (self._upload(each, 0) for each in (first, inverse, first * inverse))
        following = self._upload(np.zeros_like(first), 0)
        sums = context.arrays.uploaded(np.zeros((2, graph.sources), np.float32))
        dangling = float(first[inverse == 0].sum(dtype=np.float64))
        change, dangling = self._sum(np.inf, dangling)
        lists, shape = self._launch(incoming=True, values="shares")
        done = 0
        while done < iterations and change >= tolerance:
            done += 1
            base = (1 - damping + damping * dangling) / graph.total
            self._cross(4, given, all=True)
            values = (at(each) for each in (given, inverses, ranks, following, sums[0], sums[1]))
            context.native.pagerank_round(lists, *values, base, shape)
            change, dangling = self._sum(*(context.arrays.total(sums[i]) for i in range(2)))
            given, following = following, given
        self._copy_rows(rank, ranks)
        return done, change

    def _sum(self, *values: float) -> list[float]:
        """Return the sums of values over all ranks."""
        total = np.array(values)
        self._ranks.collectives.sum_on_host(total)
        return total.tolist()
