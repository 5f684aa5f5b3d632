"""Check results of traversals by other algorithms than the kernels', with which they share no code.

Each check raises WrongResultError, the same on all ranks, that names the first wrong node. All are collective.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..data import native
from ..runtime.backends.traversal import Source
from .part import Part

RANK_ERROR = 1e-3  # largest error of a sum of ranks in float32


class WrongResultError(RuntimeError):
    """A result of a traversal is wrong, by an error of this program or of the machine."""


def bfs(part: Part, source: Source, parent: NDArray[np.int32], depth: NDArray[np.int32]) -> None:
    """Check a tree by Graph500's rules (its specification, section 8).

    A parent is one level up and has an edge to its child; no edge skips a level, or leads from a reached node to one
    that is not.
    """
    kernels, graph = native.load(), part.graph
    depths = part.halo_of(depth)
    edges = graph.indptr, graph.indices, graph.slot
    _agree(part, kernels.wrong_parent(*edges, parent, depths, source.row), "is no child of its parent")
    _agree(part, kernels.skipped_level(*edges, depths), "has an edge from a node more than one level up")


def sssp(part: Part, source: Source, lengths: NDArray[np.float32], distance: NDArray[np.float32]) -> None:
    """Check distances: no edge makes one shorter, and for each there is a path from the source of that length.

    lengths: [E], in the order of ``graph.indices``.
    """
    graph = part.graph
    distances = part.halo_of(distance)
    edges = graph.indptr, graph.indices, graph.slot
    _agree(
        part,
        native.load().longer_distance(*edges, lengths, distances),
        "has a distance that is longer than a path",
    )
    begin = np.array([source.slot] if source.slot >= 0 else [], np.int32)
    reached = _spread(part, begin, part.out_order(lengths), distances)
    wrong = np.flatnonzero((reached == 0) & (distance != np.inf))
    _agree(part, int(wrong[0]) if len(wrong) else -1, "has a distance that is no path's")
    at_source = source.row if source.row >= 0 and distance[source.row] != 0 else -1
    _agree(part, at_source, "is the source, and its distance is not 0")


def components(part: Part, label: NDArray[np.int64]) -> None:
    """Check components by propagation from the node whose id is the label.

    Both ends of each edge have the same label, no label is larger than the node's own id, and every node is reached
    from the node whose id is its label.
    """
    kernels, graph = native.load(), part.graph
    labels = part.halo_of(label)
    edges = graph.indptr, graph.indices, graph.slot
    _agree(part, kernels.differing_label(*edges, labels), "has an edge from another component")
    larger = np.flatnonzero(label > part.ids)
    _agree(part, int(larger[0]) if len(larger) else -1, "is less than the label of its component")
    reached = _spread(part, np.flatnonzero(labels == part.names).astype(np.int32))
    missed = np.flatnonzero(reached == 0)
    _agree(part, int(missed[0]) if len(missed) else -1, "is not reached from the node of its label")


def _spread(
    part: Part,
    begin: NDArray[np.int32],
    lengths: NDArray[np.float32] | None = None,
    distances: NDArray[np.float32] | None = None,
) -> NDArray[np.uint8]:
    """Return 1 for each of this rank's rows that can be reached from sources, uint8 [n]. Collective.

    begin: int32, sources. lengths: [E], in the order of ``graph.out_indices``, and distances, [S], to follow only edges
    whose length is the difference of the distances of their ends.
    """
    graph, nothing = part.graph, np.zeros(0, np.float32)
    along = (nothing, nothing) if lengths is None or distances is None else (lengths, distances)
    reached = np.zeros(graph.sources, np.uint8)
    while True:
        native.load().spread(graph.out_indptr, graph.out_indices, graph.slot, *along, begin, reached)
        arrived = part.engine.exchange(reached[graph.slot].astype(np.int32))
        begin = graph.halo[(arrived > 0) & (reached[graph.halo] == 0)]
        if not any(part.comm.allgather(len(begin) > 0)):
            return reached[graph.slot]


def pagerank(part: Part, rank: NDArray[np.floating], damping: float, tolerance: float) -> None:
    """Check ranks by one iteration that pushes along out-edges, by the part's weights if it has any, in float64.

    They change by less than ``tolerance``, and sum to 1.
    """
    graph, weight = part.graph, part.weight
    own = rank.astype(np.float64)
    out = graph.out_degree if weight is None else part.out_weight(weight)
    dangling = _sum(part, float(own[out == 0].sum()))
    value = part.halo_of(np.divide(own, out, out=np.zeros(len(own)), where=out > 0))
    pushed, along = (
        np.zeros(graph.rows),
        np.zeros(0, np.float32) if weight is None else part.out_order(weight),
    )
    native.load().push(graph.out_indptr, graph.out_indices, along, value, pushed)
    new = (1 - damping + damping * dangling) / graph.total + damping * pushed
    change, total = _sum(part, float(np.abs(new - own).sum())), _sum(part, float(own.sum()))
    rounded = 0.0 if rank.dtype == np.float64 else 1e-6
    if change > tolerance + rounded:
        raise WrongResultError(f"PageRank: a step changes the ranks by {change:.3g}, more than {tolerance:g}")
    if abs(total - 1) > (1e-9 if rank.dtype == np.float64 else RANK_ERROR):
        raise WrongResultError(f"PageRank: ranks sum to {total:.9g}, and not to 1")


def _agree(part: Part, row: int, error: str) -> None:
    """Raise WrongResultError on all ranks if any has a wrong row (not -1); name the node of the first such rank."""
    mine = int(part.ids[row]) if row >= 0 else None
    wrong = [node for node in part.comm.allgather(mine) if node is not None]
    if wrong:
        raise WrongResultError(f"node {wrong[0]} {error}")


def _sum(part: Part, mine: float) -> float:
    return sum(part.comm.allgather(mine))
