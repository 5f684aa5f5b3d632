"""Run traversals, from one source after another, and time and check each run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data import native
from ..errors import InputError
from ..runtime import mpi
from . import checks
from .part import Part

LEAST_TOLERANCE = 1e-7  # of PageRank in float32; its rounding alone changes ranks by about as much


@dataclass(frozen=True)
class Run:
    """The results and costs of one traversal.

    source: original id, or -1 for a traversal without a source. arrays: results by name, with a value for each
    of this rank's rows. seconds: time of the slowest rank. edges: number of stored edges whose source was
    reached, on all ranks. moved: bytes sent between all ranks. reached: number of nodes that were reached, on
    all ranks. steps: number of levels (bfs), buckets (sssp), exchanges (components) or iterations (pagerank).
    """

    source: int
    arrays: dict[str, NDArray[Any]]
    seconds: float
    edges: int
    moved: int
    reached: int
    steps: int


def draw_sources(part: Part, count: int, seed: int) -> list[int]:
    """Return original ids of ``count`` different nodes with out-edges, drawn uniformly; fewer if the graph has fewer.

    Collective. The result does not depend on the number of ranks and the order of rows. Raises InputError for a
    graph without edges.
    """
    found = part.comm.gather(part.ids[part.graph.out_degree > 0])
    drawn: list[int] = []
    if part.comm.rank == 0:
        candidates = np.sort(np.concatenate(found))
        rng = np.random.default_rng(seed)
        drawn = rng.choice(candidates, min(count, len(candidates)), replace=False).tolist()
    drawn = part.comm.bcast(drawn)
    if not drawn:
        raise InputError(f"{part.name}: no node has an edge to begin with")
    return drawn


def bfs(part: Part, nodes: list[int], *, check: bool = True) -> Iterator[Run]:
    """Search breadth-first from each of ``nodes``, given by original id; yield a run for each. Collective.

    Arrays of a run: parent, int64, the original id of a node's parent in the search tree, which is the node
    itself at the source; depth, int32. Both are -1 for nodes that are not reached. check: verify each result.
    """
    _prepare(part, "bfs")
    parent, depth = np.empty(part.graph.rows, np.int32), np.empty(part.graph.rows, np.int32)
    for node in nodes:
        source = part.find(node)
        seconds, moved, levels = _timed(part, partial(part.engine.bfs, source, parent, depth))
        if check:
            checks.bfs(part, source, parent, depth)
        reached = depth >= 0
        above = np.where(reached, part.names[np.maximum(parent, 0)], -1)
        yield _run(part, node, {"parent": above, "depth": depth.copy()}, reached, seconds, moved, levels)


def sssp(
    part: Part,
    nodes: list[int],
    *,
    width: float | None = None,
    random_lengths: bool = False,
    seed: int = 0,
    check: bool = True,
) -> Iterator[Run]:
    """Find shortest paths from each of ``nodes``, given by original id; yield a run for each. Collective.

    Array of a run: distance, float32, inf for nodes that are not reached. Lengths of edges are the part's
    weights, or 1 if it has none. width: range of distances of a bucket (delta of delta-stepping). [default: the
    mean length] random_lengths: draw lengths by ``seed`` instead, integers from 8 to 72. check: verify each
    result. Raises InputError for a negative weight, and for a distance that float32 cannot represent.
    """
    lengths = _lengths(part, seed if random_lengths else None)
    sums = part.comm.allgather((float(lengths.sum(dtype=np.float64)), len(lengths)))
    total, count = map(sum, zip(*sums, strict=True))
    part.engine.set_lengths(part.out_order(lengths), width or total / max(1, count) or 1.0)
    _prepare(part, "sssp")
    distance = np.empty(part.graph.rows, np.float32)
    for node in nodes:
        source = part.find(node)
        seconds, moved, steps = _timed(part, partial(part.engine.sssp, source, distance))
        _check_range(part, node, lengths, distance)
        if check:
            checks.sssp(part, source, lengths, distance)
        arrays = {"distance": distance.copy()}
        yield _run(part, node, arrays, np.isfinite(distance), seconds, moved, steps)


def components(part: Part, *, repeats: int = 1, check: bool = True) -> Iterator[Run]:
    """Find connected components, ``repeats`` times; yield a run for each. Collective.

    Array of a run: component, int64, the smallest original id in a node's component. check: verify each result.
    Raises InputError for a directed graph.
    """
    check_undirected(part.name, directed=part.directed)
    _prepare(part, "components")
    label = np.empty(part.graph.rows, np.int64)
    for _ in range(repeats):
        seconds, moved, steps = _timed(part, lambda: part.engine.components(part.names, label))
        if check:
            checks.components(part, label)
        yield _run(part, -1, {"component": label.copy()}, np.ones(len(label), bool), seconds, moved, steps)


def pagerank(
    part: Part,
    *,
    damping: float = 0.85,
    tolerance: float = 1e-6,
    iterations: int = 1000,
    dtype: str = "float32",
    repeats: int = 1,
    check: bool = True,
) -> Iterator[Run]:
    """Compute PageRank, ``repeats`` times; yield a run for each. Collective.

    Array of a run: rank, of ``dtype``, which sums to 1 over all nodes. A node's rank is divided among its
    out-edges in proportion to the part's weights, or evenly if it has none. tolerance: iterations end when the
    sum of |new - old| over all nodes is less. iterations: their maximum. check: verify each result. Raises
    InputError if the tolerance is not reached, if float32 cannot resolve it, and for a negative weight.
    """
    check_tolerance(tolerance, dtype)
    _prepare(part, "pagerank")
    if (weight := _weights(part, "PageRank takes")) is not None:
        of_row = part.out_weight(weight)
        of_edge = part.halo_of(of_row)[part.graph.indices]
        shares = np.divide(
            weight, of_edge, out=np.zeros(len(weight), dtype), where=of_edge > 0, casting="same_kind"
        )
        part.engine.set_shares(shares, (of_row > 0).astype(np.int32))
    rank = np.empty(part.graph.rows, np.dtype(dtype))
    call = partial(part.engine.pagerank, rank, damping, tolerance, iterations)
    for _ in range(repeats):
        seconds, moved, (done, change) = _timed(part, call)
        if change >= tolerance:
            raise InputError(
                f"PageRank: after {done} iterations ranks still change by {change:.3g}, and --tolerance is "
                f"{tolerance:g}; allow more --iterations, or a larger tolerance"
            )
        if check:
            checks.pagerank(part, rank, damping, tolerance)
        yield _run(part, -1, {"rank": rank.copy()}, np.ones(len(rank), bool), seconds, moved, done)


def check_undirected(name: str, *, directed: bool) -> None:
    """Raise InputError if the graph ``name`` is directed."""
    if directed:
        raise InputError(
            f"{name}: components are those of undirected graphs, and this one is directed; import it with --symmetric"
        )


def check_tolerance(tolerance: float, dtype: str) -> None:
    """Raise InputError for a tolerance of PageRank that is too small for the rounding errors of ``dtype``."""
    if dtype == "float32" and tolerance < LEAST_TOLERANCE:
        raise InputError(
            f"--tolerance {tolerance:g} is less than float32 resolves ({LEAST_TOLERANCE:g}); take --dtype float64"
        )


def _weights(part: Part, taking: str) -> NDArray[np.float32] | None:
    """Return the part's weights, or None if it has none. Collective. Raises InputError for a negative weight.

    taking: beginning of the error message, such as "PageRank takes".
    """
    if part.weight is None:
        return None
    least = min(part.comm.allgather(float(part.weight.min(initial=np.inf))))
    if least < 0:
        raise InputError(f"{part.name}: {taking} weights of at least 0, and one is {least:g}")
    return part.weight


def _lengths(part: Part, seed: int | None) -> NDArray[np.float32]:
    """Return the lengths of edges, [E], in the order of ``graph.indices``.

    They are drawn by ``seed``; if it is None, they are the part's weights, or 1 without weights. Collective.
    """
    graph = part.graph
    if seed is None:
        weight = _weights(part, "shortest paths take")
        return np.ones(len(graph.indices), np.float32) if weight is None else weight
    lengths = np.empty(len(graph.indices), np.float32)
    native.load().lengths(graph.indptr, graph.indices, part.ids, part.names, part.directed, seed, lengths)
    return lengths


def _check_range(part: Part, node: int, lengths: NDArray[np.float32], distance: NDArray[np.float32]) -> None:
    """Raise InputError if a path from ``node`` is longer than float32 can represent. Collective.

    The end of such a path has the distance inf, as if it were not reached. lengths: [E], in the order of
    ``graph.indices``. distance: [n], the result.
    """
    graph, largest = part.graph, float(np.finfo(np.float32).max)
    mine = float(distance.max(initial=0, where=np.isfinite(distance))), float(lengths.max(initial=0))
    if sum(map(max, *part.comm.allgather(mine), (0.0, 0.0))) <= largest:
        return
    # Edges from a reached node to one that seems not.
    beyond = np.repeat(np.isinf(distance), np.diff(graph.indptr))
    beyond &= np.isfinite(part.halo_of(distance))[graph.indices]
    with mpi.agree(part.comm):
        if beyond.any():
            row = np.searchsorted(graph.indptr, int(beyond.argmax()), side="right") - 1
            raise InputError(
                f"{part.name}: the paths from node {node} to node {part.ids[row]} are longer than float32 holds "
                f"({largest:.3g}); divide the weights by a constant"
            )


def _prepare(part: Part, kind: str) -> None:
    with mpi.agree(part.comm):
        part.engine.prepare(kind)


def _timed(part: Part, call: Callable[[], Any]) -> tuple[float, int, Any]:
    """Run a collective call; return the slowest rank's seconds, the bytes sent by all ranks, and the result."""
    part.engine.moved = 0
    part.comm.Barrier()
    began = time.perf_counter()
    found = call()
    took = time.perf_counter() - began
    return max(part.comm.allgather(took)), sum(part.comm.allgather(part.engine.moved)), found


def _run(
    part: Part,
    source: int,
    arrays: dict[str, NDArray[Any]],
    reached: NDArray[np.bool_],
    seconds: float,
    moved: int,
    steps: int,
) -> Run:
    edges = int(part.graph.out_degree[reached].sum(dtype=np.int64))
    edges, nodes = (sum(part.comm.allgather(each)) for each in (edges, int(reached.sum())))
    return Run(source, arrays, seconds, edges, moved, nodes, steps)
