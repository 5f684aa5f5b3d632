"""One rank's part of a graph file for traversals, with its rows and sources numbered for locality.

Hot sources, which have the most edges, come first, by descending number of edges; all others follow in the order of the
file, so that neighbours in the file stay neighbours. Rows take the order of their own sources. So the values of hot
sources, which most edges read, fit the first caches (Zhang et al.: "Making Caches Work for Graph Analytics", IEEE Big
Data 2017), and a row's first source is the one from which a search most often reaches it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data import native
from ..data.store import GraphFile, GraphSlice, open_graph
from ..errors import InputError
from ..plan import halo, workload
from ..plan.row_ranges import bounds_of
from ..plan.workload import SplitEdges, prefix_sum
from ..runtime import cores, exchange, mpi
from ..runtime.backends.base import Backend
from ..runtime.backends.traversal import LocalGraph, Source, Traversal, own_pages
from ..sizes import counted

HOT = 1 << 17  # most hot sources: their values of 4 bytes fit the second cache of a core


@dataclass(eq=False)
class Part:
    """One rank's rows of a graph file, ready to be traversed.

    name, uuid, nodes, edges, directed: of the whole graph. bounds: int64 [P + 1], rows of each rank. ids: int64 [n],
    original ids of this rank's rows, in the order of ``graph``; order: int32 [n], their positions among the rank's rows
    of the file. names: int64 [S], original ids of its sources. weight: float32 [E] in the order of ``graph.indices``,
    or None if they were not read, or the file has none. out_place: int64 [E], position of each edge of
    ``graph.out_indices`` among ``graph.indices``; None if both have the same order. engine: the traversals. comm: all
    ranks.
    """

    name: str
    uuid: str
    nodes: int
    edges: int
    directed: bool
    bounds: NDArray[np.int64]
    ids: NDArray[np.int64]
    order: NDArray[np.int32]
    names: NDArray[np.int64]
    weight: NDArray[np.float32] | None
    out_place: NDArray[np.int64] | None
    graph: LocalGraph
    engine: Traversal
    comm: Any

    def find(self, node: int) -> Source:
        """Return a node's slot and row on this rank, by its original id; each is -1 if there is none."""
        slots = np.flatnonzero(self.names == node)
        rows = np.flatnonzero(self.ids == node)
        return Source(int(slots[0]) if len(slots) else -1, int(rows[0]) if len(rows) else -1)

    def out_order(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return values of edges, [E], in the order of ``graph.out_indices``."""
        return values if self.out_place is None else values[self.out_place]

    def out_weight(self, weight: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the total weight of the out-edges of each of this rank's rows, [n], on all ranks. Collective.

        weight: [E] in the order of ``graph.indices``.
        """
        graph = self.graph
        mine: NDArray[Any] = np.bincount(graph.indices, weight, graph.sources)
        found = mine[graph.slot]
        if graph.lists is not None:
            arrived = exchange.send(self.comm, mine[graph.halo], graph.lists.receive_counts[0])
            np.add.at(found, graph.lists.send_rows, arrived)
        return found

    def halo_of(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values of all sources, [S], from the values of each rank's rows, [n]. Collective."""
        whole = np.empty(self.graph.sources, values.dtype)
        whole[self.graph.slot] = values
        whole[self.graph.halo] = self.engine.exchange(np.ascontiguousarray(values))
        return whole


def load(path: Path, comm: Any, backend: Backend, *, weights: bool = False, edges: str = "device") -> Part:
    """Read and check this rank's part of a graph file. Collective.

    weights: True to read the edges' weights, and to prepare for traversals with edge lengths. edges: memory
    that holds the edges of a GPU's rank, "device" or "host". Raises InputError, the same on all ranks, for a
    file that is damaged or unsuitable, and for a graph that does not fit in memory.
    """
    with mpi.agree(comm):
        kernels = backend.traversal
        if kernels is None:
            raise InputError(f"backend {backend.capabilities.name} has no traversals; take another one")
        kernels.check(edges)
        file = open_graph(path)
    with file:
        with mpi.agree(comm):
            found = bounds_of(file, comm.size)[0] if comm.rank == 0 else None
        bounds = comm.bcast(found) if comm.size > 1 else found
        assert bounds is not None  # rank 0 has found them
        low, high = int(bounds[comm.rank]), int(bounds[comm.rank + 1])
        with mpi.agree(comm):
            needed = _needed(file, low, high, weights, comm.size == 1 and not file.directed)
        _check_memory(comm, path, needed)
        with mpi.agree(comm):
            rows = file.structure(low, high, weights=weights)
            proved = file.directed or file.proved_undirected()
    if not all(comm.allgather(proved)):
        exchange.check_symmetric(comm, path, low, rows.indptr, rows.indices, rows.weight)
    with mpi.agree(comm):
        divided = workload.split(comm.rank, bounds, rows.indptr, rows.indices)
    graph, order, place = _in_edges(comm, bounds, rows, divided, weights)
    ids, weight = rows.ids[order], None if rows.weight is None else rows.weight[place]
    del rows, divided, place
    graph, out_place = _with_out_edges(graph, shared=comm.size == 1 and not file.directed, places=weights)
    part = Part(
        name=file.name,
        uuid=file.uuid,
        nodes=file.nodes,
        edges=file.edges,
        directed=file.directed,
        bounds=bounds,
        ids=ids,
        order=order,
        names=np.zeros(0, np.int64),
        weight=weight,
        out_place=out_place,
        graph=graph,
        engine=kernels.bind(graph, edges=edges),
        comm=comm,
    )
    part.names = part.halo_of(ids)
    return part


def _needed(file: GraphFile, low: int, high: int, weights: bool, shared: bool) -> int:
    """Estimate the bytes that a rank takes at its peak for rows low .. high - 1 and traversals of any kind.

    shared: as for `_with_out_edges`. Raises InputError for a graph of too many nodes.
    """
    if file.nodes >= 1 << 31:
        raise InputError(
            f"{file.path}: traversals take graphs of less than 2^31 nodes; this one has {file.nodes:,}"
        )
    edges, stored = file.edge_count(low, high), np.dtype(file.index_dtype).itemsize
    # First the edges of the file, sorted by owner, and numbered; then edges in both directions, and lengths.
    an_edge = max(stored + 8 + (12 if weights else 0), (4 if shared else 8) + (24 if weights else 4))
    sources = min(file.nodes, high - low + edges)
    return edges * an_edge + 40 * (high - low) + 30 * sources + 4 * file.nodes


def _check_memory(comm: Any, path: Path, needed: int) -> None:
    """Raise InputError, the same on all ranks, if the ranks of a node need more memory than is free. Collective."""
    node = mpi.node(comm)
    together, free = node.allreduce(needed), cores.memory_available()
    with mpi.agree(comm):
        if together > free:
            raise InputError(
                f"{path}: traversals take about {together / 2**30:.1f} GiB on a node of "
                f"{counted(node.Get_size(), 'rank')}, and {free / 2**30:.1f} GiB are free; use more nodes"
            )


def _in_edges(
    comm: Any, bounds: NDArray[np.int64], rows: GraphSlice, edges: SplitEdges, places: bool
) -> tuple[LocalGraph, NDArray[np.int32], NDArray[np.int64]]:
    """Return the graph with its in-edges alone, and the positions of its rows and edges in the slice. Collective.

    places: whether to return the positions of edges; the array is empty otherwise.
    """
    low, total = int(bounds[comm.rank]), int(bounds[-1])
    count = len(rows.indptr) - 1
    owner = np.repeat(np.arange(comm.size), np.diff(edges.halo_bounds))
    halo_rows = edges.halo + bounds[owner]
    degree = _out_degree(comm, edges, count)
    own = np.arange(low, low + count)
    sources = np.concatenate([halo_rows[owner < comm.rank], own, halo_rows[owner > comm.rank]])
    sources = sources[_hot_first(sources, _hot(comm, degree, low))]
    number = np.full(total, -1, np.int32)
    number[sources] = np.arange(len(sources), dtype=np.int32)
    order = np.argsort(number[own], kind="stable").astype(np.int32)
    indptr = prefix_sum(np.diff(rows.indptr)[order])
    indices = own_pages(4 * len(rows.indices)).view(np.int32)
    place = np.empty(len(indices) if places else 0, np.int64)
    native.load().localize(rows.indptr, rows.indices, number, order, indptr, indices, place)
    lists = None
    if comm.size > 1:
        lists = exchange.halo_lists(comm, edges)
        lists.send_rows[:] = np.argsort(order).astype(np.int32)[lists.send_rows]
    graph = LocalGraph(
        total=total,
        indptr=indptr,
        indices=indices,
        out_indptr=np.zeros(len(sources) + 1, np.int64),
        out_indices=np.zeros(0, np.int32),
        slot=number[low + order],
        halo=number[halo_rows],
        lists=lists,
        out_degree=degree[order],
    )
    return graph, order, place


def _with_out_edges(
    graph: LocalGraph, *, shared: bool, places: bool
) -> tuple[LocalGraph, NDArray[np.int64] | None]:
    """Return the graph with its out-edges, and `Part.out_place`, which has no entries without ``places``.

    shared: whether all sources are rows and each edge has a reverse, so that out-edges are the in-edges.
    """
    if shared:
        return replace(graph, out_indptr=graph.indptr, out_indices=graph.indices), None
    out_indices = own_pages(graph.indices.nbytes).view(np.int32)
    place = np.empty(len(graph.indices) if places else 0, np.int64)
    native.load().transpose(graph.indptr, graph.indices, graph.out_indptr, out_indices, place)
    return replace(graph, out_indices=out_indices), place


def _out_degree(comm: Any, edges: SplitEdges, rows: int) -> NDArray[np.int32]:
    """Return the number of out-edges of each of this rank's rows, on all ranks together. Collective."""
    degree = np.bincount(edges.indices[: edges.local_edges], minlength=rows)
    counts = np.diff(edges.halo_bounds)
    np.add.at(degree, exchange.send(comm, edges.halo, counts), exchange.send(comm, halo.uses(edges), counts))
    return np.minimum(degree, np.iinfo(np.int32).max).astype(np.int32)


def _hot(comm: Any, degree: NDArray[np.int32], low: int) -> NDArray[np.int64]:
    """Return the HOT rows of all ranks with the most out-edges, by descending number, then row. Collective.

    Rows with no more out-edges than the mean are left out.
    """
    mine = np.argsort(-degree, kind="stable")[:HOT]
    total, count = comm.allreduce(int(degree.sum(dtype=np.int64))), comm.allreduce(len(degree))
    mine = mine[degree[mine] > total / max(1, count)]
    found = comm.allgather((mine + low, degree[mine]))
    rows, edges = (np.concatenate(each) for each in zip(*found, strict=True))
    return rows[np.lexsort((rows, -edges))][:HOT]


def _hot_first(sources: NDArray[np.int64], hot: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return an order of ascending sources: first the hot ones, in their order, then all others."""
    at = np.searchsorted(sources, hot)
    at = at[sources[np.minimum(at, len(sources) - 1)] == hot] if len(sources) else at[:0]
    others = np.ones(len(sources), bool)
    others[at] = False
    return np.concatenate([at, np.flatnonzero(others)])
