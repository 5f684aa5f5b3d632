"""The least number of rows that must cross between ranks in one aggregation, for a graph and its bounds.

For each edge u -> v whose ends are on two ranks, either u's row crosses or a partial sum for v does. The rows that
cross from one rank to another thus cover the edges between them, and a minimum vertex cover of this bipartite graph
gives their least number. By Koenig's theorem it has as many vertices as a maximum matching has edges (Hopcroft and
Karp, SIAM J. Comput. 2, 1973). A transfer of rows alone sends each distinct source: the halo.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching

from ...data.store import open_graph
from ...plan.ranges import owner_of


@dataclass(frozen=True)
class Crossing:
    """Numbers of rows that cross from rank q to rank p in one aggregation: each int64 [P, P], at [p, q].

    edges: a row for each edge. halo: each distinct row once. least: rows and partial sums together.
    """

    edges: NDArray[np.int64]
    halo: NDArray[np.int64]
    least: NDArray[np.int64]


def crossing(path: Path, bounds: NDArray[np.int64]) -> Crossing:
    """Count the rows that cross between all pairs of ranks.

    Raises InputError as `open_graph` does, and for bounds that do not fit the graph.
    """
    ranks = len(bounds) - 1
    edges, halo, least = (np.zeros((ranks, ranks), dtype=np.int64) for _ in range(3))
    with open_graph(path) as graph:
        for p in range(ranks):
            rows = graph.slice(int(bounds[p]), int(bounds[p + 1]), dense=False)
            destinations = np.repeat(np.arange(len(rows.ids)), np.diff(rows.indptr))
            owners = owner_of(bounds, rows.indices)
            order = np.argsort(owners, kind="stable")
            parts = np.split(order, np.searchsorted(owners, np.arange(1, ranks), sorter=order))
            for q, part in enumerate(parts):
                if q == p or not len(part):
                    continue
                sources = rows.indices[part].astype(np.int64) - bounds[q]
                edges[p, q] = len(part)
                halo[p, q] = len(np.unique(sources))
                shape = (int(bounds[q + 1] - bounds[q]), len(rows.ids))
                least[p, q] = _matched(sources, destinations[part], shape)
    return Crossing(edges, halo, least)


def _matched(sources: NDArray[np.int64], destinations: NDArray[np.int64], shape: tuple[int, int]) -> int:
    """Return the number of edges of a maximum matching."""
    matrix = coo_matrix((np.ones(len(sources), dtype=bool), (sources, destinations)), shape=shape).tocsr()
    return int(np.count_nonzero(maximum_bipartite_matching(matrix, perm_type="column") >= 0))
