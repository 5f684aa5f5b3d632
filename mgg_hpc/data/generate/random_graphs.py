"""R-MAT graphs, uniform random graphs, and meshes; their features and labels are independent of the edges."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from .. import native
from ..edge_stream import Imported
from ..graph import index_dtype
from .drawn import (
    DRAWN_AT_ONCE,
    EDGES,
    MOST_NODES,
    Drawn,
    DrawnEdges,
    Ends,
    advanced,
    counter,
    key_of,
    random_rows,
    split_bytes,
)


def draw_rmat(
    scale: int,
    edge_factor: int,
    seed: int,
    *,
    a: float = 0.57,
    b: float = 0.19,
    c: float = 0.19,
    symmetric: bool = True,
    features: int = 0,
    classes: int = 0,
) -> Drawn:
    """Draw a recursive-matrix graph (Chakrabarti, Zhan and Faloutsos, SDM '04) with Graph500's probabilities.

    It has 2**scale nodes. The ends of ``edge_factor`` * 2**scale drawn edges are chosen bit by bit: both bits 0 with
    probability ``a``, the destination's 1 with ``b``, the source's 1 with ``c``, both 1 otherwise. Then ids are
    shuffled, self loops and duplicates dropped, and reverses added if ``symmetric``. Features and labels as in
    `random_rows`.
    """
    if not all(each >= 0 for each in (a, b, c, 1.0 - a - b - c)):  # which is False for NaN, too
        raise InputError(f"the probabilities a={a}, b={b}, c={c} must not be negative nor sum to more than 1")
    if not 0 <= scale <= 40 or edge_factor < 0:
        raise InputError(f"scale {scale} and edge factor {edge_factor}: expected 0 .. 40, and 0 or more")
    ends = [a, a + b, a + b + c]
    nodes, total = 2**scale, edge_factor * 2**scale
    draws, rows = random_rows(
        advanced(seed, total * scale),
        nodes,
        features=features,
        classes=classes,
        before=[partial(_ids, nodes)],
    )
    ids = cache(lambda: np.concatenate(list(draws.pieces(0))))
    edges = DrawnEdges(f"rmat{scale}", nodes, total, partial(_rmat_edges, seed, ends, scale, ids))
    held = nodes * index_dtype(nodes)().itemsize + split_bytes(nodes, classes)
    return Drawn(Imported(f"rmat{scale}", edges, rows, classes, directed=True), symmetric, total, held)


def _ids(nodes: int, rng: np.random.Generator) -> Iterator[NDArray[Any]]:
    """Draw the id of each node, int32 or int64 [nodes]: the values of ``rng.permutation``, in half its memory."""
    ids = np.arange(nodes, dtype=index_dtype(nodes))
    rng.shuffle(ids)
    yield ids


def _rmat_edges(
    seed: int, ends: Sequence[float], levels: int, ids: Callable[[], NDArray[Any]], low: int, high: int
) -> Ends:
    """Draw edges low .. high - 1 from one double for each level of each edge, level by level.

    These are the doubles that a generator of Philox(seed) gives, so that a block begins after those before it.
    """
    state = np.random.Philox(seed).state["state"]
    bounds = np.array([math.ceil(min(end, 1.0) * 2**53) for end in ends], dtype=np.uint64)
    id_of = ids()
    sources, destinations = np.empty((2, high - low), id_of.dtype)
    native.load().rmat_edges(
        state["key"], state["counter"], low * levels, levels, bounds, id_of, sources, destinations
    )
    return sources, destinations


def draw_uniform(
    nodes: int, edges: int, seed: int, *, symmetric: bool = True, features: int = 0, classes: int = 0
) -> Drawn:
    """Draw a uniform random graph: each end of ``edges`` drawn edges is any node with the same probability.

    Self loops and duplicates are dropped, so that this is not quite G(n, m) of Erdos and Renyi, and reverses are added
    if ``symmetric``. Features and labels as in `random_rows`.
    """
    if not 1 <= nodes <= MOST_NODES or edges < 0:
        raise InputError(f"{nodes} nodes and {edges} edges: expected 1 .. 2**40 nodes, and 0 edges or more")

    def draw(low: int, high: int) -> Ends:
        sources, destinations = np.empty((2, high - low), index_dtype(nodes))
        native.load().uniform_edges(key_of(seed), counter(EDGES), low, nodes, sources, destinations)
        return sources, destinations

    _, rows = random_rows(advanced(seed, 0), nodes, features=features, classes=classes)
    stream = DrawnEdges("uniform", nodes, edges, draw)
    return Drawn(
        Imported("uniform", stream, rows, classes, directed=True),
        symmetric,
        edges,
        split_bytes(nodes, classes),
    )


def draw_grid(
    sides: Sequence[int], seed: int, *, periodic: bool = False, features: int = 0, classes: int = 0
) -> Drawn:
    """Return an undirected mesh, in which each node is joined to the next one along each axis.

    Args:
        sides: number of nodes along each axis; numbers of nodes are in row-major order.
        seed: seed of features and labels, which are drawn as in `random_rows`.
        periodic: join the last node along an axis to the first one.
    """
    nodes = math.prod(sides)
    if not sides or min(sides) < 1 or nodes > MOST_NODES:
        raise InputError(
            f"a mesh of {' x '.join(map(str, sides))} nodes: expected 1 or more each, 2**40 at most in all"
        )
    name = "grid" + "x".join(map(str, sides))
    # The stream counts nodes: each has an edge at most along each axis.
    block = max(1, DRAWN_AT_ONCE // len(sides))
    edges = DrawnEdges(name, nodes, nodes, partial(_grid_edges, tuple(sides), periodic), block)
    _, rows = random_rows(advanced(seed, 0), nodes, features=features, classes=classes)
    return Drawn(
        Imported(name, edges, rows, classes, directed=True),
        True,
        len(sides) * nodes,
        split_bytes(nodes, classes),
    )


def _grid_edges(sides: Sequence[int], periodic: bool, low: int, high: int) -> Ends:
    """Return the edges from nodes low .. high - 1 to the next node along each axis."""
    nodes = np.arange(low, high, dtype=index_dtype(math.prod(sides)))
    ends: list[tuple[NDArray[Any], NDArray[Any]]] = []
    step = 1  # difference of the numbers of neighbours along the axis
    for side in reversed(sides):
        last = nodes // step % side == side - 1
        ends.append((nodes[~last], nodes[~last] + step))
        if periodic:
            ends.append((nodes[last], nodes[last] - step * (side - 1)))
        step *= side
    sources, destinations = (np.concatenate(each) for each in zip(*ends, strict=True))
    return sources, destinations
