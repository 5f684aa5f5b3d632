"""Orders of rows for locality: rows that are summed together lie together.

A permutation is int64 [N], the old number of each new row, as in a graph file's /order/permutation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data import native
from ..data.graph import Graph
from ..errors import InputError

METHODS = ("none", "degree", "rcm", "community")  # of a graph's structure alone; "visits" is in scores.py
# Bytes of memory for each node, and for each edge.
MEMORY = {"none": (8, 0), "degree": (40, 0), "rcm": (60, 5), "community": (160, 12), "visits": (200, 0)}
WINDOW = 1024  # rows; with 128 float32 columns these are half a megabyte, which a core's cache holds
STRIPES = 32  # few enough to fill pages with hubs, enough for ranks to get similar shares
GROUPS = np.array([0.5, 1, 2, 4, 8, 16, 32])  # bounds of groups, times the mean degree (after Faldu et al.)

Permutation = NDArray[np.int64]


def permutation(graph: Graph, method: str) -> Permutation:
    """Return the permutation of a graph's rows by one of METHODS.

    It depends on the present numbers of the rows. Raises InputError if the graph is too large for the method,
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

    edges: number of edges of the symmetric pattern. where: the file that the error names. available: bytes of memory.
    [default: any]
    """
    most = np.iinfo(np.int32).max
    if method in ("rcm", "community") and (nodes > most or (method == "rcm" and edges > most)):
        kinds = "nodes and edges (both directions of each)" if method == "rcm" else "nodes"
        raise InputError(
            f"{where}: the order {method} is for graphs of fewer than 2**31 {kinds}; this one has {nodes:,} nodes and "
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
    """Return the rows of a symmetric pattern in reversed breadth-first order, by ascending degree.

    Cuthill and McKee, "Reducing the bandwidth of sparse symmetric matrices", ACM 1969, reversed as George (1971)
    found better; SciPy's implementation. ``indptr`` int64 [N+1], ``indices`` int32 [E].
    """
    from scipy.sparse import csgraph

    if len(indptr) == 1:
        return np.zeros(0, dtype=np.int64)
    return csgraph.reverse_cuthill_mckee(_pattern(indptr, indices), symmetric_mode=True).astype(np.int64)


def community(indptr: NDArray[np.int64], indices: NDArray[np.int32]) -> Permutation:
    """Return an order that keeps communities of a symmetric pattern together; other nodes by degree, in STRIPES.

    Communities and the order within them are those of Rabbit order (Arai et al., IPDPS 2016). It does little for a node
    most of whose edges leave its community, and a graph may consist of such nodes; they are better grouped by degree,
    so that hubs share pages (Faldu, Diamond, Grot: "A closer look at lightweight graph reordering", IISWC 2019), as
    Balaji et al. do with the hubs ("Community-based matrix reordering for sparse linear algebra optimization", ISPASS
    2023). Within a group Rabbit order remains; nodes without edges come last. Whole groups would give one rank many
    hubs and few rows, and another rank the rest, so each group is cut into STRIPES runs, and the order takes a run of
    each group in turn: all ranks get about as many rows and edges.

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
    """Add the reverse of each edge to a pattern; return a sorted CSR without duplicates, int64 [N+1] and int32 [E']."""
    pattern = _pattern(indptr, indices)
    both = (pattern + pattern.T).tocsr()
    both.sort_indices()
    return both.indptr.astype(np.int64), both.indices.astype(np.int32, copy=False)


def inverse(order: Permutation) -> Permutation:
    """Return the new number of each old row, int64 [N]: the inverse of a permutation."""
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return place


@dataclass(frozen=True)
class Locality:
    """Distances of the ends of edges in the numbering of rows.

    gap: mean of log2(1 + distance) over all edges (the bits of each edge in a compressed graph; Chierichetti et al.,
    KDD 2009, call its minimum MLogA). near: share of edges whose ends are within WINDOW rows. Both are 0 without edges.
    """

    gap: float
    near: float


class LocalityMeter:
    """Measures the locality of edges that are added piece by piece."""

    def __init__(self) -> None:
        self._gap, self._near, self._edges = 0.0, 0, 0

    def add(self, destinations: NDArray[np.integer], sources: NDArray[np.integer]) -> None:
        """Add edges, [k] each."""
        distance = np.abs(destinations.astype(np.int64) - sources)
        self._gap += float(np.log2(1.0 + distance).sum())
        self._near += int(np.count_nonzero(distance <= WINDOW))
        self._edges += len(distance)

    def result(self) -> Locality:
        """Return the locality of all edges so far."""
        edges = max(1, self._edges)
        return Locality(self._gap / edges, self._near / edges)


def _pattern(indptr: NDArray[np.int64], indices: NDArray[np.integer]) -> Any:
    """Return a CSR pattern as a SciPy matrix of int8 ones."""
    from scipy.sparse import csr_matrix

    nodes = len(indptr) - 1
    ones = np.ones(len(indices), dtype=bool)
    return csr_matrix((ones, indices, indptr), shape=(nodes, nodes))
