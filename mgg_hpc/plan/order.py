"""Renumbering for locality: which row goes where, so that rows that are summed together lie together.

A permutation is int64 [N], new -> old, as a graph file's /order/permutation is.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data import native
from ..data.graph import Graph
from ..errors import InputError
from .workload import prefix_sum

METHODS = ("none", "degree", "rcm", "community")
MEMORY = {
    "none": (8, 0),
    "degree": (40, 0),
    "rcm": (60, 5),
    "community": (160, 12),
}  # bytes a node, and an edge
BLOCK_EDGES = 1 << 20  # sorted or measured at a time
WINDOW = 1024  # rows: of 128 float32 columns these are half a megabyte, which a core's cache keeps
STRIPES = 32  # few enough to fill pages with hubs, many enough for ranks to get alike shares
GROUPS = np.array([0.5, 1, 2, 4, 8, 16, 32])  # times the mean degree: powers of two, after Faldu et al.

Permutation = NDArray[np.int64]


def permutation(graph: Graph, method: str) -> Permutation:
    """Return the order of a graph's rows by one of METHODS, int64 [N], new -> old.

    It depends on the graph's rows as they are numbered. Raises InputError if the graph is too large for the method,
    ValueError for another method.
    """
    if method == "none":
        return np.arange(graph.nodes, dtype=np.int64)
    if method == "degree":
        return by_degree(graph.indptr)
    try:
        order = {"rcm": reverse_cuthill_mckee, "community": community}[method]
    except KeyError as error:
        raise ValueError(f"no order {method!r}; expected one of {', '.join(METHODS)}") from error
    check_size(method, graph.nodes, graph.edges * (1 + graph.directed), where=graph.name)
    indptr, indices = graph.indptr, graph.indices
    if graph.directed:
        indptr, indices = symmetric_pattern(indptr, indices)
    return order(indptr, indices.astype(np.int32, copy=False))


def check_size(method: str, nodes: int, edges: int, *, where: str, available: int | None = None) -> None:
    """Raise InputError if a graph is too large for a method of METHODS.

    edges: of the symmetric pattern. where: what the error names. available: bytes of memory. [default: any]
    """
    most = np.iinfo(np.int32).max
    if method in ("rcm", "community") and (nodes > most or (method == "rcm" and edges > most)):
        of = "nodes and edges (both directions of each)" if method == "rcm" else "nodes"
        raise InputError(
            f"{where}: the order {method} is for graphs of fewer than 2**31 {of}; this one has {nodes:,} nodes and "
            f"{edges:,} edges: use degree" + (" or community" if nodes <= most else "")
        )
    a_node, an_edge = MEMORY[method]
    needed = a_node * nodes + an_edge * edges
    if available is not None and needed > available:
        raise InputError(
            f"{where}: the order {method} takes about {needed / 2**30:,.1f} GiB of memory, and has "
            f"{max(0, available) / 2**30:,.1f} GiB: give more by --memory, or use degree"
        )


def by_degree(indptr: NDArray[np.int64]) -> Permutation:
    """Return rows by descending in-degree; rows of one degree keep their order. ``indptr`` int64 [N+1]."""
    return np.argsort(-np.diff(indptr), kind="stable").astype(np.int64, copy=False)


def reverse_cuthill_mckee(indptr: NDArray[np.int64], indices: NDArray[np.int32]) -> Permutation:
    """Return rows in reversed breadth-first order, by ascending degree, of a symmetric pattern.

    Cuthill and McKee, "Reducing the bandwidth of sparse symmetric matrices", ACM 1969, reversed as George (1971)
    found better; SciPy's implementation. ``indptr`` int64 [N+1], ``indices`` int32 [E].
    """
    from scipy.sparse.csgraph import reverse_cuthill_mckee as scipys

    if len(indptr) == 1:
        return np.zeros(0, dtype=np.int64)
    return scipys(_pattern(indptr, indices), symmetric_mode=True).astype(np.int64)


def community(indptr: NDArray[np.int64], indices: NDArray[np.int32]) -> Permutation:
    """Return an order that keeps communities of a symmetric pattern together; other nodes by degree, in STRIPES.

    Communities and the order within them are Rabbit order's (Arai et al., IPDPS 2016). It does little
    for a node most of whose edges leave its community, and a graph may consist of such nodes; they are better
    grouped by degree, so that hubs share pages (Faldu, Diamond, Grot: "A closer look at lightweight graph
    reordering", IISWC 2019), as Balaji et al. do with the hubs ("Community-based matrix reordering
    for sparse linear algebra optimization", ISPASS 2023). Within a group Rabbit order remains; nodes
    without edges come last. All groups in one piece would give a rank of many hubs and few rows, and another one
    the rest, so each group is cut into STRIPES runs that take turns: ranks get rows and edges alike.

    ``indptr`` int64 [N+1], ``indices`` int32 [E]. Deterministic. Raises InputError if the native module does not
    load.
    """
    nodes = len(indptr) - 1
    order, inside = np.empty(nodes, dtype=np.int64), np.empty(nodes, dtype=np.int64)
    native.load().rabbit_order(indptr, np.ascontiguousarray(indices), order, inside)
    degree = np.diff(indptr)
    linked = degree > 0
    mean = len(indices) / max(1, int(np.count_nonzero(linked)))
    group = 1 + np.searchsorted(GROUPS * mean, degree, side="right")
    group[2 * inside >= degree] = 0
    group[~linked] = -1
    order = order[np.argsort(-group[order], kind="stable")]
    falling = -group[order]
    first, last = (np.searchsorted(falling, falling, side=side) for side in ("left", "right"))
    stripe = (np.arange(nodes) - first) * STRIPES // (last - first)
    return order[np.argsort(stripe, kind="stable")]


def symmetric_pattern(
    indptr: NDArray[np.int64], indices: NDArray[np.integer]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the pattern with each edge's reverse added, as sorted CSR: int64 [N+1], int32 [E']; no edge twice."""
    pattern = _pattern(indptr, indices)
    both = (pattern + pattern.T).tocsr()
    both.sort_indices()
    return both.indptr.astype(np.int64), both.indices.astype(np.int32, copy=False)


def inverse(order: Permutation) -> Permutation:
    """Return the inverse of a permutation, int64 [N]: old -> new of new -> old."""
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return place


def renumbered(graph: Graph, order: Permutation) -> Graph:
    """Return the edges of a graph in memory with old row order[i] as row i, and sources ascending in each row.

    ``order`` int64 [N] is a permutation. The result has weights, but no other data of nodes and edges; its
    ``permutation`` gives the user's ids, those that ``graph`` gives. Edges listed twice keep their order.
    """
    indptr, indices, weight = _renumbered_edges(graph, order)
    ids = order if graph.permutation is None else graph.permutation[order]
    return Graph(graph.name, indptr, indices, weight=weight, directed=graph.directed, permutation=ids)


@dataclass(frozen=True)
class Locality:
    """How near edges' ends are in the numbering of rows.

    gap: the mean of log2(1 + distance) over all edges (what a compressed graph spends on each; Chierichetti et
    al., KDD 2009, call its minimum MLogA). near: the share of edges whose ends are within WINDOW rows.
    """

    gap: float
    near: float


def locality(indptr: NDArray[np.int64], indices: NDArray[np.integer]) -> Locality:
    """Measure CSR rows, int64 [N+1] and [E]. 0 without edges."""
    measured = LocalityMeter()
    for first, last in _runs(indptr):
        measured.add(_rows_of(indptr, first, last), indices[indptr[first] : indptr[last]])
    return measured.result()


class LocalityMeter:
    """Measures edges that come piece by piece."""

    def __init__(self) -> None:
        self._gap, self._near, self._edges = 0.0, 0, 0

    def add(self, destinations: NDArray[np.integer], sources: NDArray[np.integer]) -> None:
        """Add edges, [k] each."""
        distance = np.abs(destinations.astype(np.int64) - sources)
        self._gap += float(np.log2(1.0 + distance).sum())
        self._near += int(np.count_nonzero(distance <= WINDOW))
        self._edges += len(distance)

    def result(self) -> Locality:
        """Return what was measured of all edges so far."""
        edges = max(1, self._edges)
        return Locality(self._gap / edges, self._near / edges)


def _renumbered_edges(
    graph: Graph, order: Permutation
) -> tuple[NDArray[np.int64], NDArray[np.integer], NDArray[np.float32] | None]:
    """Return the renumbered CSR and its weights, made a run of rows at a time, so that sorting needs little memory."""
    nodes = graph.nodes
    indptr = prefix_sum(np.diff(graph.indptr)[order])
    indices = np.empty_like(graph.indices)
    weight = None if graph.weight is None else np.empty_like(graph.weight)
    place = inverse(order)
    for first, last in _runs(indptr):
        run = slice(int(indptr[first]), int(indptr[last]))
        entries = _entries(graph.indptr, order[first:last])
        key = (_rows_of(indptr, first, last) - first) * nodes + place[graph.indices[entries]]
        if weight is None or graph.weight is None:
            key.sort()
        else:
            sorting = np.argsort(key, kind="stable")
            key = key[sorting]
            weight[run] = graph.weight[entries[sorting]]
        indices[run] = key % nodes
    return indptr, indices, weight


def _entries(indptr: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the positions of the entries of some rows in a CSR, row after row."""
    counts = np.diff(indptr)[rows]
    offsets = prefix_sum(counts)
    return np.repeat(indptr[rows] - offsets[:-1], counts) + np.arange(offsets[-1])


def _rows_of(indptr: NDArray[np.int64], first: int, last: int) -> NDArray[np.int64]:
    """Return the row of each entry of rows first .. last-1."""
    return np.repeat(np.arange(first, last), np.diff(indptr[first : last + 1]))


def _runs(indptr: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Yield runs of rows [first, last) of about BLOCK_EDGES entries, or a single row of more."""
    cuts = np.searchsorted(indptr, np.arange(0, int(indptr[-1]), BLOCK_EDGES), side="right") - 1
    bounds = np.unique([0, *cuts.tolist(), len(indptr) - 1]).tolist()
    return list(itertools.pairwise(bounds))


def _pattern(indptr: NDArray[np.int64], indices: NDArray[np.integer]) -> Any:
    """Return a CSR pattern as a SciPy matrix of int8 ones."""
    from scipy.sparse import csr_matrix

    nodes = len(indptr) - 1
    ones = np.ones(len(indices), dtype=bool)
    return csr_matrix((ones, indices, indptr), shape=(nodes, nodes))
