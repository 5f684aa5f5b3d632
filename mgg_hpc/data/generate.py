"""Synthetic graphs, seeded: the same seed gives the same graph on every machine."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import InputError
from .graph import Graph, from_edges, masks, split_per_class

DRAWN_AT_ONCE = 1 << 20  # edges drawn at a time, which limits the memory of random numbers


def rmat(
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
) -> Graph:
    """Return a recursive-matrix graph (Chakrabarti, Zhan and Faloutsos, SDM '04) with Graph500's probabilities.

    2**scale nodes and ``edge_factor`` times as many drawn edges, whose ends choose a half of the ids bit
    by bit: both low with probability ``a``, a high destination ``b``, a high source ``c``, both high the
    rest. Ids are then shuffled, self loops and duplicates dropped, and reverses added if ``symmetric``.
    ``features`` columns are standard normal float32; labels of ``classes`` classes are uniform, split in
    halves and quarters.
    """
    rest = 1.0 - a - b - c
    if min(a, b, c, rest) < 0:
        raise InputError(f"the probabilities a={a}, b={b}, c={c} must not be negative nor sum to more than 1")
    if not 0 <= scale <= 40 or edge_factor < 0:
        raise InputError(f"scale {scale} and edge factor {edge_factor}: expected 0 .. 40, and 0 or more")
    rng = np.random.Generator(np.random.Philox(seed))
    nodes, drawn = 1 << scale, edge_factor << scale
    sources, destinations = np.empty(drawn, np.int64), np.empty(drawn, np.int64)
    for lo in range(0, drawn, DRAWN_AT_ONCE):
        hi = min(lo + DRAWN_AT_ONCE, drawn)
        sources[lo:hi], destinations[lo:hi] = _rmat_edges(rng, scale, hi - lo, (a, b, c))
    shuffled = rng.permutation(nodes)
    fields: dict[str, Any] = {}
    if features:
        fields["x"] = rng.standard_normal((nodes, features), dtype=np.float32)
    if classes:
        fields |= masks(nodes, np.split(rng.permutation(nodes), [nodes // 2, 3 * nodes // 4]))
        fields |= {"y": rng.integers(classes, size=nodes), "classes": classes}
    return from_edges(
        shuffled[sources],
        shuffled[destinations],
        nodes,
        name=f"rmat{scale}",
        symmetric=symmetric,
        drop_duplicates=True,
        drop_self_loops=True,
        **fields,
    )


def _rmat_edges(
    rng: np.random.Generator, scale: int, count: int, probabilities: tuple[float, float, float]
) -> tuple[np.ndarray, np.ndarray]:
    """Draw ``count`` edges: (sources, destinations), int64 each."""
    a, b, c = probabilities
    sources, destinations = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for _ in range(scale):
        drawn = rng.random(count)
        # The unit interval is divided into a | b | c | d; c and d have a high source, b and d a high destination.
        high_destination = (drawn >= a) & (drawn < a + b) | (drawn >= a + b + c)
        sources = 2 * sources + (drawn >= a + b)
        destinations = 2 * destinations + high_destination
    return sources, destinations


def sbm(nodes: int, *, classes: int, features: int, degree: float, homophily: float, seed: int) -> Graph:
    """Return a stochastic block model: undirected, with labels, features and masks that a GCN can learn from.

    ``nodes * degree / 2`` edges are drawn; an edge joins two nodes of one class with probability
    ``homophily``. Classes are of equal size. Features float32 [nodes, features] are standard normal about
    a mean of their class, which is normal too. Of each class 20 nodes are for training and 30 for
    validation, or a third each of a class that is smaller than 60; the rest for testing.
    """
    if not classes >= 1 or nodes < 3 * classes:
        raise InputError(
            f"{nodes} nodes of {classes} classes: expected 1 class or more, of 3 nodes or more each"
        )
    if not 0 <= homophily <= 1 or degree < 0 or features < 0:
        raise InputError(
            f"homophily {homophily}, degree {degree}, {features} features: "
            "expected a homophily of 0 .. 1 and nothing negative"
        )
    rng = np.random.Generator(np.random.Philox(seed))
    y = rng.permutation(np.arange(nodes) % classes)
    sources = rng.integers(nodes, size=round(nodes * degree / 2))
    destinations = _partners(rng, y, classes, sources, homophily)
    x = None
    if features:
        x = rng.standard_normal((nodes, features), dtype=np.float32)
        x += rng.standard_normal((classes, features), dtype=np.float32)[y]
    third = nodes // classes // 3  # a third of the smallest class
    split = split_per_class(y, classes, rng, train=min(20, third), val=min(30, third))
    return from_edges(
        sources,
        destinations,
        nodes,
        name="sbm",
        symmetric=True,
        drop_self_loops=True,
        x=x,
        y=y,
        classes=classes,
        **split,
    )


def _partners(
    rng: np.random.Generator, y: np.ndarray, classes: int, ends: np.ndarray, homophily: float
) -> np.ndarray:
    """Draw for each node in ``ends`` one of its class with probability ``homophily``, else one of another class."""
    by_class = np.argsort(y, kind="stable")
    sizes = np.bincount(y, minlength=classes)
    starts = np.cumsum(sizes) - sizes
    size, start = sizes[y[ends]], starts[y[ends]]
    same = rng.random(len(ends)) < homophily
    same |= size == len(y)  # there is no other class
    draw = rng.random(len(ends))
    inside = start + (draw * size).astype(np.int64)
    # Count through the nodes of the other classes: those before this class, then, past it, those after.
    outside = (draw * (len(y) - size)).astype(np.int64)
    outside += np.where(outside >= start, size, 0)
    return by_class[np.where(same, inside, outside)]
