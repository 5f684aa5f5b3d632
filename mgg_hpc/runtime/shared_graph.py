"""A whole graph in memory that the ranks of a node share."""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..plan.workload import prefix_sum
from . import mpi
from .mpi import SharedWindow

if TYPE_CHECKING:
    from mpi4py import MPI

MESSAGE_BYTES = 1 << 30  # largest message between nodes; MPI counts bytes in an int32

_Key = tuple[str, str]  # group and name: "graph", "nodes" or "edges", and an array's name there
_Kind = tuple[np.dtype[Any], tuple[int, ...]]  # dtype and trailing shape

_INDPTR, _INDICES, _WEIGHT, _IDS = (("graph", name) for name in ("indptr", "indices", "weight", "ids"))


@dataclass(eq=False)
class SharedGraph:
    """A graph's in-edge CSR, and values of its nodes and edges: read-only arrays over all rows of all ranks.

    bounds: int64 [P + 1], rows of the job's ranks. indptr: int64 [N + 1]. indices: [E], global sources, int32, or int64
    where N is 2^31 or more. weight: [E] or None. ids: int64 [N], original ids of the rows, or None for 0 .. N - 1.
    nodes: arrays [N, ...] by name. edges: arrays [E, ...] by name. nbytes: size of all arrays, which a node holds once.

    Where several ranks share the arrays, they may not be used after `close`.
    """

    bounds: NDArray[np.int64]
    indptr: NDArray[np.int64]
    indices: NDArray[np.integer]
    weight: NDArray[np.floating] | None
    ids: NDArray[np.int64] | None
    nodes: dict[str, NDArray[Any]]
    edges: dict[str, NDArray[Any]]
    nbytes: int
    window: SharedWindow | None

    def close(self) -> None:
        """Free the shared memory. Collective over the ranks of a node."""
        if self.window is not None:
            window, self.window = self.window, None
            window.free()


def share(
    comm: Any,
    bounds: NDArray[np.int64],
    indptr: NDArray[np.int64],
    indices: NDArray[np.integer],
    *,
    weight: NDArray[np.floating] | None = None,
    ids: NDArray[np.int64] | None = None,
    nodes: Mapping[str, NDArray[Any]] | None = None,
    edges: Mapping[str, NDArray[Any]] | None = None,
    node: MPI.Intracomm | None = None,
) -> SharedGraph:
    """Return the whole graph, of which each rank passes its rows; every node holds it once. Collective.

    bounds: int64 [P + 1], the same on all ranks. indptr: int64 [n + 1] of this rank's n rows, from 0. indices: [e],
    int32 or int64, global numbers of sources. weight: [e]. ids: int64 [n]. nodes: arrays [n, ...]. edges: arrays
    [e, ...]. Names, dtypes and trailing shapes are the same on all ranks, also on one without rows.
    node: communicator of the ranks that share memory, in any order. [default: the ranks of this machine]

    The matrix need not be square: of sparse features, indices are the columns and weight the values. With one rank the
    result holds views of the arrays that were passed; only int64 indices that fit int32 are copied. Raises ValueError
    for arrays that do not fit each other, and InputError, the same on all ranks, where a node's memory cannot hold the
    graph.
    """
    parts: dict[_Key, NDArray[Any]] = {_INDPTR: indptr, _INDICES: indices}
    parts |= {key: part for key, part in ((_WEIGHT, weight), (_IDS, ids)) if part is not None}
    parts |= {("nodes", name): part for name, part in (nodes or {}).items()}
    parts |= {("edges", name): part for name, part in (edges or {}).items()}
    with mpi.agree(comm):
        _check(int(bounds[comm.rank + 1] - bounds[comm.rank]), parts)
    described = comm.allgather(
        (len(indices), {key: (part.dtype, part.shape[1:]) for key, part in parts.items()})
    )
    kinds = _common([each for _, each in described], int(bounds[-1]))
    with mpi.agree(comm):
        if kinds[_INDICES][0] == np.int32 and indices.max(initial=0) >= 1 << 31:
            raise ValueError(f"indices: {indices.max()} does not fit int32")
    if comm.size == 1:
        return _made(
            bounds, {key: part.astype(kinds[key][0], copy=False) for key, part in parts.items()}, None
        )
    edge_bounds = prefix_sum(np.array([count for count, _ in described], dtype=np.int64))
    # Bounds of each array between ranks' parts.
    cuts = {key: edge_bounds if _by_edge(key) else bounds for key in kinds}
    cuts[_INDPTR] = bounds + 1
    parts[_INDPTR] = indptr[1:] + edge_bounds[comm.rank]
    return _filled(comm, node or mpi.node(comm), bounds, kinds, cuts, parts)


def _by_edge(key: _Key) -> bool:
    """Return whether an array has a value for each edge, else for each row."""
    return key[0] == "edges" or key in (_INDICES, _WEIGHT)


def _check(rows: int, parts: Mapping[_Key, NDArray[Any]]) -> None:
    """Raise ValueError for arrays of one rank that do not fit each other."""
    indptr, edges = parts[_INDPTR], len(parts[_INDICES])
    if len(indptr) != rows + 1 or indptr[0] != 0 or indptr[-1] != edges:
        raise ValueError(f"indptr: must have {rows + 1} values from 0 to {edges}, the number of edges")
    for key, part in parts.items():
        count, what = (edges, "edges") if _by_edge(key) else (rows, "rows")
        if key != _INDPTR and len(part) != count:
            raise ValueError(f"{key[1]}: {len(part)} values, and there are {count} {what}")


def _common(of_ranks: list[dict[_Key, _Kind]], rows: int) -> dict[_Key, _Kind]:
    """Return the arrays of all ranks, in one order. Raises ValueError, on every rank, where they differ."""
    wide = rows >= 1 << 31 and any(kinds[_INDICES][0] == np.int64 for kinds in of_ranks)
    index: _Kind = (np.dtype(np.int64 if wide else np.int32), ())
    of_ranks = [kinds | {_INDICES: index} for kinds in of_ranks]
    for rank, kinds in enumerate(of_ranks):
        if kinds != of_ranks[0]:
            raise ValueError(f"ranks 0 and {rank} share different arrays: {of_ranks[0]} and {kinds}")
    return of_ranks[0]


def _filled(
    comm: Any,
    node: Any,
    bounds: NDArray[np.int64],
    kinds: dict[_Key, _Kind],
    cuts: dict[_Key, NDArray[np.int64]],
    parts: dict[_Key, NDArray[Any]],
) -> SharedGraph:
    """Return the graph in a window of this node, filled with the parts of all ranks. Collective."""
    # In bytes; each array has pages of its own, to be locked for a GPU.
    starts, end, page = {}, 0, mmap.PAGESIZE
    for key, (dtype, shape) in kinds.items():
        starts[key] = end
        end += -(-int(cuts[key][-1]) * dtype.itemsize * math.prod(shape) // page) * page
    window = None
    try:
        with mpi.agree(comm):
            window = SharedWindow(node, end + page, one=True)
    except BaseException:  # raised again below
        if window is not None:
            window.free()  # there was room here, but not on another node
        raise
    whole, shared = {}, window.buffer(0)[-window.address(0) % page :]
    for key, (dtype, shape) in kinds.items():
        count = int(cuts[key][-1])
        size = count * dtype.itemsize * math.prod(shape)
        flat = shared[starts[key] : starts[key] + size]
        whole[key] = flat.view(dtype).reshape(count, *shape)
        begin, last = cuts[key][comm.rank : comm.rank + 2]
        whole[key][begin:last] = parts[key]
    _settle(node, window)
    first_of = comm.allgather(node.bcast(comm.rank))
    if len(set(first_of)) > 1:
        _exchange(comm, whole, cuts, first_of)
        _settle(node, window)
    return _made(bounds, whole, window)


def _settle(node: Any, window: SharedWindow) -> None:
    """Make the writes of this node's ranks readable by all of them. Collective over the node."""
    window.sync()
    node.Barrier()
    window.sync()


def _exchange(
    comm: Any, whole: dict[_Key, NDArray[Any]], cuts: dict[_Key, NDArray[np.int64]], first_of: list[int]
) -> None:
    """Have the first rank of each node send the parts of its node's ranks to the other nodes. Collective.

    first_of: of each rank, the first rank of its node.
    """
    from mpi4py import MPI

    first = first_of[comm.rank] == comm.rank
    leaders = comm.Split(0 if first else MPI.UNDEFINED, comm.rank)
    if first:
        number = {rank: i for i, rank in enumerate(sorted(set(first_of)))}
        for key, array in whole.items():
            for rank, root in enumerate(first_of):
                part = array[cuts[key][rank] : cuts[key][rank + 1]].reshape(-1).view(np.uint8)
                for at in range(0, len(part), MESSAGE_BYTES):
                    message = part[at : at + MESSAGE_BYTES]
                    leaders.Bcast([message, len(message), MPI.BYTE], root=number[root])
        leaders.Free()


def _made(
    bounds: NDArray[np.int64], whole: dict[_Key, NDArray[Any]], window: SharedWindow | None
) -> SharedGraph:
    """Return the graph of these arrays, which are read-only there."""
    views = {key: each.view() for key, each in whole.items()}
    for view in views.values():
        view.flags.writeable = False
    nodes, edges = (
        {name: each for (of, name), each in views.items() if of == group} for group in ("nodes", "edges")
    )
    graph = (views[_INDPTR], views[_INDICES], views.get(_WEIGHT), views.get(_IDS))
    return SharedGraph(bounds, *graph, nodes, edges, sum(each.nbytes for each in whole.values()), window)
