"""The structure of a whole graph, in memory that the ranks of a node share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...plan.workload import prefix_sum
from .. import mpi
from ..window import ALIGNMENT, SharedWindow

if TYPE_CHECKING:
    from mpi4py import MPI

MESSAGE_BYTES = 1 << 30  # largest message between nodes; MPI counts bytes in an int32

Named = Mapping[str, NDArray[Any]]


@dataclass(eq=False)
class Structure:
    """A graph's in-edge CSR, and values of its nodes and edges: read-only arrays over all rows of all ranks.

    bounds: int64 [P + 1], rows of the job's ranks. indptr: int64 [N + 1]. indices: [E], global sources, int32, or int64
    where N is 2^31 or more. weight: [E] or None. ids: int64 [N], original ids of the rows, or None, which stands for
    0 .. N - 1. nodes: arrays [N, ...] by name. edges: arrays [E, ...] by name. nbytes: of all arrays, which a node
    holds once.

    The arrays dangle after `close` where several ranks share them.
    """

    bounds: NDArray[np.int64]
    indptr: NDArray[np.int64]
    indices: NDArray[np.integer]
    weight: NDArray[np.floating] | None
    ids: NDArray[np.int64] | None
    nodes: dict[str, NDArray[Any]]
    edges: dict[str, NDArray[Any]]
    nbytes: int
    _window: SharedWindow | None = field(default=None, repr=False)

    def close(self) -> None:
        """Free the shared memory. Collective over the ranks of a node."""
        if self._window is not None:
            window, self._window = self._window, None
            window.free()


def share(
    comm: Any,
    bounds: NDArray[np.int64],
    indptr: NDArray[np.int64],
    indices: NDArray[np.integer],
    *,
    weight: NDArray[np.floating] | None = None,
    ids: NDArray[np.int64] | None = None,
    nodes: Named | None = None,
    edges: Named | None = None,
    node: MPI.Intracomm | None = None,
) -> Structure:
    """Return the whole graph of which each rank passes its rows; every node holds it once. Collective.

    bounds: int64 [P + 1], the same on all ranks. indptr: int64 [n + 1] of this rank's n rows, from 0. indices: [e],
    int32 or int64, global numbers of sources. weight: [e]. ids: int64 [n]. nodes: arrays [n, ...]. edges: arrays
    [e, ...]. Names, dtypes and trailing shapes are the same on all ranks, also on one without rows.
    node: communicator of the ranks that share memory, in any order. [default: the ranks of this machine]

    The matrix need not be square: of sparse features, indices are the columns and weight the values. With one rank the
    result holds views of the arrays that were passed; only int64 indices that fit int32 are copied. Raises ValueError
    for arrays that do not fit each other, and InputError, the same on all ranks, where a node's memory cannot hold the
    graph.
    """
    with mpi.agree(comm):
        own = int(bounds[comm.rank + 1] - bounds[comm.rank])
        parts = _parts(own, indptr, indices, weight, ids, nodes or {}, edges or {})
    kinds = {key: (part.dtype, part.shape[1:]) for key, part in parts.items()}
    described = comm.allgather((len(indices), kinds))
    kinds = _common([each for _, each in described], int(bounds[-1]))
    with mpi.agree(comm):
        if (
            kinds[_INDICES][0] == np.int32
            and indices.dtype != np.int32
            and len(indices)
            and indices.max() >= 1 << 31
        ):
            raise ValueError(f"indices: {indices.max()} does not fit int32")
    if comm.size == 1:
        whole = {key: _read_only(part.astype(kinds[key][0], copy=False)) for key, part in parts.items()}
        return _structure(bounds, whole, None)
    edge_bounds = prefix_sum(np.array([count for count, _ in described], dtype=np.int64))
    places = _placed(bounds, edge_bounds, kinds)
    parts[_INDPTR] = indptr[1:] + edge_bounds[comm.rank]
    window = _filled(comm, node or mpi.node(comm), places, parts)
    whole = {key: _read_only(place.of(window)) for key, place in places.items()}
    return _structure(bounds, whole, window)


_Key = tuple[str, str]  # group and name: "graph", "nodes" or "edges", and an array's name there
_Kind = tuple[np.dtype[Any], tuple[int, ...]]  # dtype and trailing shape

_INDPTR, _INDICES, _WEIGHT, _IDS = (("graph", name) for name in ("indptr", "indices", "weight", "ids"))
_BY_EDGE = ("indices", "weight")


@dataclass(frozen=True, eq=False)
class _Place:
    """Where an array over the whole graph lies in the window.

    start: in bytes. cuts: int64 [P + 1], where each rank's part begins in the array.
    """

    start: int
    kind: _Kind
    cuts: NDArray[np.int64]

    @property
    def item_bytes(self) -> int:
        """Bytes of one row of the array."""
        return self.kind[0].itemsize * math.prod(self.kind[1])

    @property
    def end(self) -> int:
        """First byte behind the array."""
        return self.start + int(self.cuts[-1]) * self.item_bytes

    def of(self, window: SharedWindow) -> NDArray[Any]:
        """Return the whole array."""
        dtype, shape = self.kind
        return window.buffer(0)[self.start : self.end].view(dtype).reshape(int(self.cuts[-1]), *shape)

    def span(self, rank: int) -> tuple[int, int]:
        """Return the first byte of a rank's part, and the one behind it."""
        begin, end = (self.start + int(cut) * self.item_bytes for cut in self.cuts[rank : rank + 2])
        return begin, end


def _parts(
    rows: int,
    indptr: NDArray[np.int64],
    indices: NDArray[np.integer],
    weight: NDArray[np.floating] | None,
    ids: NDArray[np.int64] | None,
    nodes: Named,
    edges: Named,
) -> dict[_Key, NDArray[Any]]:
    """Return this rank's arrays, checked."""
    if len(indptr) != rows + 1 or indptr[0] != 0 or indptr[-1] != len(indices):
        raise ValueError(f"indptr: must have {rows + 1} values from 0 to {len(indices)}, the number of edges")
    if indptr.dtype != np.int64 or indices.dtype not in (np.int32, np.int64):
        raise ValueError(
            f"indptr, indices: {indptr.dtype}, {indices.dtype}; expected int64, and int32 or int64"
        )
    parts: dict[_Key, NDArray[Any]] = {_INDPTR: indptr, _INDICES: indices}
    parts |= {key: part for key, part in ((_WEIGHT, weight), (_IDS, ids)) if part is not None}
    parts |= {("nodes", name): part for name, part in nodes.items()}
    parts |= {("edges", name): part for name, part in edges.items()}
    for key, part in parts.items():
        count = len(indices) if _by_edge(key) else rows
        if key != _INDPTR and len(part) != count:
            raise ValueError(
                f"{key[1]}: {len(part)} values, and there are {count} {'edges' if _by_edge(key) else 'rows'}"
            )
    return parts


def _by_edge(key: _Key) -> bool:
    """Return whether an array has a value for each edge, and not for each row."""
    group, name = key
    return group == "edges" or (group == "graph" and name in _BY_EDGE)


def _common(of_ranks: list[dict[_Key, _Kind]], rows: int) -> dict[_Key, _Kind]:
    """Return the arrays of all ranks, in one order. Raises ValueError, on every rank, where they differ."""
    wide = rows >= 1 << 31 and any(kinds[_INDICES][0] == np.int64 for kinds in of_ranks)
    index: _Kind = (np.dtype(np.int64 if wide else np.int32), ())
    of_ranks = [kinds | {_INDICES: index} for kinds in of_ranks]
    for rank, kinds in enumerate(of_ranks):
        if kinds != of_ranks[0]:
            raise ValueError(f"ranks 0 and {rank} share different arrays: {of_ranks[0]} and {kinds}")
    return of_ranks[0]


def _placed(
    bounds: NDArray[np.int64], edge_bounds: NDArray[np.int64], kinds: dict[_Key, _Kind]
) -> dict[_Key, _Place]:
    """Return where each array lies, one behind the other, each at the start of a line."""
    places, start = {}, 0
    for key, kind in kinds.items():
        cuts = edge_bounds if _by_edge(key) else bounds
        place = places[key] = _Place(start, kind, cuts + 1 if key == _INDPTR else cuts)
        start = -(-place.end // ALIGNMENT) * ALIGNMENT
    return places


def _filled(
    comm: Any, node: Any, places: dict[_Key, _Place], parts: dict[_Key, NDArray[Any]]
) -> SharedWindow:
    """Return a window of this node with the arrays of all ranks. Collective."""
    window = None
    try:
        with mpi.agree(comm):
            window = SharedWindow(node, max(place.end for place in places.values()), one=True)
    except BaseException:  # raised again below
        if window is not None:
            window.free()  # there was room here, but not on another node
        raise
    for key, place in places.items():
        begin, end = place.cuts[comm.rank : comm.rank + 2]
        place.of(window)[begin:end] = parts[key]
    _settle(node, window)
    first_of = comm.allgather(node.bcast(comm.rank))
    if len(set(first_of)) > 1:
        _exchanged(comm, window, places, first_of)
        _settle(node, window)
    return window


def _settle(node: Any, window: SharedWindow) -> None:
    """Make what the ranks of this node have written readable by all of them. Collective over the node."""
    window.sync()
    node.Barrier()
    window.sync()


def _exchanged(comm: Any, window: SharedWindow, places: dict[_Key, _Place], first_of: list[int]) -> None:
    """Have the first rank of each node send what its node's ranks have written to the others'. Collective.

    first_of: of each rank, the first rank of its node.
    """
    from mpi4py import MPI

    first = first_of[comm.rank] == comm.rank
    leaders = comm.Split(0 if first else MPI.UNDEFINED, comm.rank)
    if first:
        number = {rank: place for place, rank in enumerate(sorted(set(first_of)))}
        whole = window.buffer(0)
        for place in places.values():
            for rank, root in enumerate(first_of):
                begin, end = place.span(rank)
                for at in range(begin, end, MESSAGE_BYTES):
                    message = whole[at : min(at + MESSAGE_BYTES, end)]
                    leaders.Bcast([message, len(message), MPI.BYTE], root=number[root])
        leaders.Free()


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return a view that cannot be written."""
    view = array.view()
    view.flags.writeable = False
    return view


def _structure(
    bounds: NDArray[np.int64], whole: dict[_Key, NDArray[Any]], window: SharedWindow | None
) -> Structure:
    """Return the structure of arrays over the whole graph."""
    nodes, edges = (
        {name: each for (of, name), each in whole.items() if of == group} for group in ("nodes", "edges")
    )
    nbytes = sum(each.nbytes for each in whole.values())
    return Structure(
        bounds=bounds,
        indptr=whole[_INDPTR],
        indices=whole[_INDICES],
        weight=whole.get(_WEIGHT),
        ids=whole.get(_IDS),
        nodes=nodes,
        edges=edges,
        nbytes=nbytes,
        _window=window,
    )
