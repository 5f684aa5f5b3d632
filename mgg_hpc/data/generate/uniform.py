"""Uniform random graphs, and meshes: degrees that hardly differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from .. import native
from ..graph import index_dtype
from ..streams import Imported
from .drawn import DRAWN_AT_ONCE, MOST_NODES, Drawn, DrawnEdges, Ends
from .random_rows import held_for, random_rows
from .random_state import EDGES, behind, counter, key_of


def draw_uniform(
    nodes: int, edges: int, seed: int, *, symmetric: bool = True, features: int = 0, classes: int = 0
) -> Drawn:
    """Draw a uniform random graph: each end of ``edges`` drawn edges is any node with the same probability.

    Self loops and duplicates are dropped, and reverses added if ``symmetric``. Features and labels are as with
    ``draw_rmat``. (Erdos and Renyi's G(n, m), but for the edges that are dropped.)
    """
    if not 1 <= nodes <= MOST_NODES or edges < 0:
        raise InputError(f"{nodes} nodes and {edges} edges: expected 1 .. 2**40 nodes, and 0 edges or more")

    def draw(low: int, high: int) -> Ends:
        sources, destinations = np.empty((2, high - low), index_dtype(nodes))
        native.load().uniform_edges(key_of(seed), counter(EDGES), low, nodes, sources, destinations)
        return sources, destinations

    _, rows = random_rows(behind(seed, 0), nodes, features=features, classes=classes)
    stream = DrawnEdges("uniform", nodes, edges, draw)
    return Drawn(Imported("uniform", stream, rows, classes), symmetric, edges, held_for(nodes, classes))


def draw_grid(
    sides: Sequence[int], seed: int, *, periodic: bool = False, features: int = 0, classes: int = 0
) -> Drawn:
    """Draw an undirected mesh: each node is joined to the next one along each axis.

    sides: the nodes along each axis, the last one varying fastest in the nodes' numbers. periodic: the last node along
    an axis is joined to the first one too. ``seed`` is for features and labels, which are as with ``draw_rmat``.
    """
    nodes = math.prod(sides)
    if not sides or min(sides) < 1 or nodes > MOST_NODES:
        raise InputError(
            f"a mesh of {' x '.join(map(str, sides))} nodes: expected 1 or more each, 2**40 at most in all"
        )
    name = "grid" + "x".join(map(str, sides))
    # The stream's units are nodes: each has an edge at most along each axis.
    block = max(1, DRAWN_AT_ONCE // len(sides))
    edges = DrawnEdges(name, nodes, nodes, partial(_mesh, tuple(sides), periodic), block)
    _, rows = random_rows(behind(seed, 0), nodes, features=features, classes=classes)
    imported = Imported(name, edges, rows, classes)
    return Drawn(imported, symmetric=True, most_edges=len(sides) * nodes, held=held_for(nodes, classes))


def _mesh(sides: Sequence[int], periodic: bool, low: int, high: int) -> Ends:
    """Return the edges from nodes low .. high - 1 to the next node along each axis."""
    nodes = np.arange(low, high, dtype=index_dtype(math.prod(sides)))
    ends: list[tuple[NDArray[Any], NDArray[Any]]] = []
    step = 1  # from a node's number to the next one's along the axis
    for side in reversed(sides):
        last = nodes // step % side == side - 1
        ends.append((nodes[~last], nodes[~last] + step))
        if periodic:
            ends.append((nodes[last], nodes[last] - step * (side - 1)))
        step *= side
    sources, destinations = (np.concatenate(each) for each in zip(*ends, strict=True))
    return sources, destinations
