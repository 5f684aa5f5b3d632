"""Check results of traversals by another route than they were found; nothing here shares code with the kernels.

Each check raises WrongResultError, the same on all ranks, that names the first node that is wrong. All are collective.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..data import native
from ..runtime.backends.traversal import Source
from .part import Part

RANK_ERROR = 1e-3  # of a sum of ranks that were rounded to float32, at most


class WrongResultError(RuntimeError):
    """A result of a traversal is wrong: an error of this program, or of the machine."""


def bfs(part: Part, source: Source, parent: NDArray[np.int32], depth: NDArray[np.int32]) -> None:
    """Check a tree by Graph500's rules (its specification, section 8).

    A parent is one level up and has an edge to its child; no edge skips a level, and none leads from what was reached
    to what was not.
    """
    kernels, graph = native.load(), part.graph
    depths = part.halo_of(depth)
    edges = graph.indptr, graph.indices, graph.slot
    _agree(part, kernels.wrong_parent(*edges, parent, depths, source.row), "is no child of its parent")
    _agree(part, kernels.skipped_level(*edges, depths), "has an edge from a node more than one level up")


def sssp(part: Part, source: Source, lengths: NDArray[np.float32], distance: NDArray[np.float32]) -> None:
    """Check distances by relaxing each edge once: none gets shorter, and each is that of some edge.

    lengths: [E], in the order of ``graph.indices``.
    """
    kernels, graph = native.load(), part.graph
    distances = part.halo_of(distance)
    found = kernels.wrong_distance(graph.indptr, graph.indices, graph.slot, lengths, distances, source.row)
    _agree(part, found, "has a distance that is not the least of its edges'")


def components(part: Part, label: NDArray[np.int64]) -> None:
    """Check components by propagating from the node that each is named after.

    Both ends of each edge have the same label, and every node is reached from the one whose id is its label.
    """
    kernels, graph = native.load(), part.graph
    labels = part.halo_of(label)
    edges = graph.indptr, graph.indices, graph.slot
    _agree(part, kernels.differing_label(*edges, labels), "has an edge from another component")
    reached = np.zeros(graph.sources, np.uint8)
    fresh = np.flatnonzero(labels == part.names).astype(np.int32)
    while True:
        kernels.spread(graph.out_indptr, graph.out_indices, graph.slot, fresh, reached)
        arrived = part.engine.exchange(reached[graph.slot].astype(np.int32))
        fresh = graph.halo[(arrived > 0) & (reached[graph.halo] == 0)]
        if not _any(part, len(fresh) > 0):
            break
    missed = np.flatnonzero(reached[graph.slot] == 0)
    _agree(part, int(missed[0]) if len(missed) else -1, "is not reached from the node of its label")


def pagerank(part: Part, rank: NDArray[np.floating], damping: float, tolerance: float) -> None:
    """Check ranks by pushing them once along all edges, in float64.

    They change by less than ``tolerance``, and sum to 1.
    """
    graph = part.graph
    own = rank.astype(np.float64)
    dangling = _sum(part, float(own[graph.out_degree == 0].sum()))
    value = part.halo_of(np.where(graph.out_degree > 0, own / np.maximum(graph.out_degree, 1), 0.0))
    pushed = np.zeros(graph.rows)
    native.load().push(graph.out_indptr, graph.out_indices, value, pushed)
    new = (1 - damping + damping * dangling) / graph.total + damping * pushed
    change, total = _sum(part, float(np.abs(new - own).sum())), _sum(part, float(own.sum()))
    rounded = 0.0 if rank.dtype == np.float64 else 1e-6
    if change > tolerance + rounded:
        raise WrongResultError(f"PageRank: a step changes the ranks by {change:.3g}, more than {tolerance:g}")
    if abs(total - 1) > (1e-9 if rank.dtype == np.float64 else RANK_ERROR):
        raise WrongResultError(f"PageRank: ranks sum to {total:.9g}, and not to 1")


def _agree(part: Part, row: int, what: str) -> None:
    """Raise WrongResultError on all ranks where a rank has a row that is wrong; name that of the first such rank."""
    mine = int(part.ids[row]) if row >= 0 else None
    wrong = [node for node in part.comm.allgather(mine) if node is not None]
    if wrong:
        raise WrongResultError(f"node {wrong[0]} {what}")


def _any(part: Part, mine: bool) -> bool:
    return any(part.comm.allgather(mine))


def _sum(part: Part, mine: float) -> float:
    return sum(part.comm.allgather(mine))
