"""The least number of rows that must cross between ranks in one aggregation, for a graph and its bounds.

For each edge u -> v whose ends are on two ranks, either u's row crosses or a partial sum for v does. The rows that
cross from one rank to another thus cover the edges between them, and a minimum vertex cover of this bipartite graph
gives their least number. By Koenig's theorem it has as many vertices as a maximum matching has edges (Hopcroft and
Karp, SIAM J. Comput. 2, 1973). A transfer of rows alone sends each distinct source: the halo.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching

from ...data.store import open_graph


class Crossing(NamedTuple):
    """Numbers of rows that cross from rank q to rank p in one aggregation: each int64 [P, P], at [p, q].

    edges: a row for each edge. halo: each distinct row once. least: rows and partial sums together.
    """

    edges: NDArray[np.int64]
    halo: NDArray[np.int64]
    least: NDArray[np.int64]


def crossing(path: Path, bounds: NDArray[np.int64]) -> Crossing:
    """Count the rows that cross between all pairs of ranks.

    Raises InputError as `open_graph` does, and ValueError for bounds that do not fit the graph.
    """
    ranks = len(bounds) - 1
    found = Crossing(*np.zeros((3, ranks, ranks), dtype=np.int64))
    with open_graph(path) as graph:
        for p in range(ranks):
            rows = graph.slice(int(bounds[p]), int(bounds[p + 1]), dense=False)
            ones, shape = np.ones(len(rows.indices), dtype=bool), (len(rows.ids), graph.nodes)
            columns = csr_matrix(
                (ones, rows.indices, rows.indptr), shape=shape
            ).tocsc()  # keeps parallel edges
            for q in set(range(ranks)) - {p}:
                block = columns[:, bounds[q] : bounds[q + 1]]
                found.edges[p, q], found.halo[p, q] = block.nnz, np.count_nonzero(np.diff(block.indptr))
                matched = maximum_bipartite_matching(block.tocsr(), perm_type="column")
                found.least[p, q] = np.count_nonzero(matched >= 0)
    return found
