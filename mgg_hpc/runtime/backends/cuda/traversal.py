"""Traversals on a GPU whose edges lie in its memory, or in the host's, where kernels read them by themselves.

Min et al.: "EMOGI: Efficient Memory-access for Out-of-memory Graph-traversal In GPUs", VLDB '20. Values of nodes and
offsets of lists are in the GPU's memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import InputError
from ....plan import launch
from ..traversal import LocalGraph, Source
from .context import DeviceContext

PLACES = ("device", "host")
BYTES_PER_ROW = 64  # of values and offsets


class DeviceTraversal:
    """See TraversalKernels."""

    def __init__(self, context: DeviceContext) -> None:
        self._context = context

    def of(
        self, graph: LocalGraph, *, edges: str = "device", reads: str = "aligned", wide: bool = False
    ) -> DeviceGraph:
        """See TraversalKernels. reads: how lists are read, "strided", "merged" or "aligned". wide: edges of 8 bytes."""
        if graph.lists is not None:
            raise InputError("traversals on GPUs run on one rank; CPUs take several")
        if edges not in PLACES:
            raise InputError(f"edges: {edges} is none of {', '.join(PLACES)}")
        return DeviceGraph(self._context, graph, edges, reads, wide)


class DeviceGraph:
    """See Traversal. bytes of edges in the host's memory cross to the GPU as kernels ask for them."""

    def __init__(self, context: DeviceContext, graph: LocalGraph, edges: str, reads: str, wide: bool) -> None:
        self.moved = 0
        self._context, self._graph, self._reads, self._wide = context, graph, reads, wide
        self._put: Callable[[NDArray[Any]], Any] = self._on_host if edges == "host" else self._on_device
        index = np.dtype(np.int64 if wide else np.int32)
        needed = graph.out_indptr.nbytes + BYTES_PER_ROW * graph.rows
        needed += (
            2 * index.itemsize * len(graph.out_indices) if edges == "device" else 0
        )  # a copy beside them
        if needed > (free := int(context.native.memory()[0])):
            raise InputError(
                f"the graph takes {needed / 2**30:.1f} GiB on the GPU, and {free / 2**30:.1f} GiB are free"
                + ("; leave its edges in the host's memory (--edges host)" if edges == "device" else "")
            )
        self._out = self._lists(graph.out_indptr, self._put(graph.out_indices.astype(index, copy=False)))
        self._in: Any = None
        self._lengths: Any = None
        self._shape = context.spread(launch.LANES, graph.sources)
        self._found = context.arrays.zeros(4)

    def _lists(self, indptr: NDArray[np.int64], edges: Any, lengths: Any = None) -> tuple[Any, list[Any]]:
        """Return lists as the module takes them, and what they are made of."""
        offsets = self._on_device(indptr)
        held = [offsets, edges, *([] if lengths is None else [lengths])]
        at = [self._address(each) for each in held]
        made = self._context.native.EdgeLists(
            len(indptr) - 1, at[0], at[1], at[2] if lengths is not None else 0, self._wide, self._reads
        )
        return made, held

    def _address(self, array: Any) -> int:
        if isinstance(array, np.ndarray):
            return int(array.ctypes.data)
        return self._context.arrays.address(array)

    def _on_device(self, values: NDArray[Any]) -> Any:
        """Return the bytes of an array in the GPU's memory, aligned to 256."""
        arrays = self._context.arrays
        memory = arrays.zeros(max(values.nbytes, 1))
        if values.nbytes:
            memory[: values.nbytes] = arrays.uploaded(np.ascontiguousarray(values).view(np.uint8).reshape(-1))
        return memory

    def _on_host(self, values: NDArray[Any]) -> NDArray[np.uint8]:
        """Return the bytes of an array in page-locked memory of the host, aligned to 128."""
        memory = self._context.arrays.pinned(values.nbytes + 129)
        first = -memory.ctypes.data % 128
        memory = memory[first : first + max(values.nbytes, 1)]  # NumPy moves nothing where nothing is left
        memory[: values.nbytes] = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
        return memory

    def exchange(self, values: NDArray[Any]) -> NDArray[Any]:
        """See Traversal; a lone rank has no halo."""
        return np.zeros(0, values.dtype)

    def _was_found(self) -> bool:
        found = bool(self._context.arrays.downloaded(self._found).any())
        if found:
            self._found[:] = 0
        return found

    def _into(self, out: NDArray[Any], memory: Any) -> None:
        """Copy values of the GPU's memory to an array of the host."""
        found = self._context.arrays.downloaded(memory)[: out.nbytes].view(out.dtype)
        out[:] = found

    def bfs(self, source: Source, parent: NDArray[np.int32], depth: NDArray[np.int32]) -> int:
        """See Traversal."""
        begin = [np.full(self._graph.rows, -1, np.int32) for _ in range(2)]
        if source.row >= 0:
            begin[0][source.row], begin[1][source.row] = source.slot, 0
        parents, depths = (self._on_device(each) for each in begin)
        at, native = self._address, self._context.native
        level = 0
        while True:
            native.bfs_level(self._out[0], at(parents), at(depths), level, at(self._found), self._shape)
            if not self._was_found():
                break
            level += 1
        self._into(parent, parents)
        self._into(depth, depths)
        return level

    def set_lengths(self, lengths: NDArray[np.float32], width: float) -> None:
        """See Traversal; rounds need no width."""
        _, held = self._out
        self._lengths = self._lists(self._graph.out_indptr, held[1], self._put(lengths))

    def sssp(self, source: Source, distance: NDArray[np.float32]) -> int:
        """See Traversal."""
        begin = np.full(self._graph.rows, np.inf, np.float32)
        if source.row >= 0:
            begin[source.row] = 0
        active = np.zeros(self._graph.rows, np.uint8)
        active[source.row : source.row + 1] = 1
        return self._rounds(self._context.native.sssp_round, self._lengths[0], begin, active, distance)

    def components(self, names: NDArray[np.int64], label: NDArray[np.int64]) -> int:
        """See Traversal."""
        active = np.ones(self._graph.rows, np.uint8)
        step = self._context.native.components_round
        return self._rounds(step, self._out[0], names[self._graph.slot], active, label)

    def _rounds(
        self, step: Any, lists: Any, begin: NDArray[Any], active: NDArray[np.uint8], out: NDArray[Any]
    ) -> int:
        """Run rounds over the nodes that are active until none is; return their number."""
        values, now, following = (self._on_device(each) for each in (begin, active, np.zeros_like(active)))
        at, rounds = self._address, 0
        while True:
            step(lists, at(values), at(now), at(following), at(self._found), self._shape)
            if not self._was_found():
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
        graph, arrays, at = self._graph, self._context.arrays, self._address
        if self._in is None:
            index = np.dtype(np.int64 if self._wide else np.int32)
            self._in = self._lists(graph.indptr, self._put(graph.indices.astype(index, copy=False)))
        inverse = np.divide(
            damping, graph.out_degree, out=np.zeros(graph.rows), where=graph.out_degree > 0
        ).astype(np.float32)
        first = np.full(graph.rows, 1 / graph.total, np.float32)
        ranks, inverses = self._on_device(first), self._on_device(inverse)
        given, following = self._on_device(first * inverse), self._on_device(np.zeros_like(first))
        sums = arrays.uploaded(np.zeros((2, graph.rows), np.float32))
        dangling = float(first[inverse == 0].sum(dtype=np.float64))
        change, done = np.inf, 0
        while done < iterations and change >= tolerance:
            done += 1
            base = (1 - damping + damping * dangling) / graph.total
            self._context.native.pagerank_round(
                self._in[0],
                at(given),
                at(inverses),
                at(ranks),
                at(following),
                *(arrays.address(sums[i]) for i in range(2)),
                base,
                self._shape,
            )
            change, dangling = (arrays.total(sums[i]) for i in range(2))
            given, following = following, given
        self._into(rank, ranks)
        return done, change
