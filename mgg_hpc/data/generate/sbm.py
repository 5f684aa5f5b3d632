"""Stochastic block models: communities with features and labels to learn."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from .. import schema
from ..edge_stream import Imported, Rows
from ..graph import SPLITS, index_dtype, split_per_class
from .drawn import DRAWN_AT_ONCE, Drawn, DrawnEdges, Draws, Ends, spans, split_rows

MOST_EDGES = 1 << 63
BYTES_HELD = 40  # a node: labels, nodes by class, the split, and their sorting
# Steps, in the order in which they are drawn.
LABELS, SOURCES, COINS, POSITIONS, NOISE, MEANS, SPLIT = range(7)


def draw_sbm(nodes: int, *, classes: int, features: int, degree: float, homophily: float, seed: int) -> Drawn:
    """Draw a stochastic block model: undirected, with labels, features and masks that a GCN can learn from.

    ``nodes * degree / 2`` edges are drawn; an edge joins two nodes of one class with probability ``homophily``. Classes
    are of equal size. Features, float32 [nodes, features], are standard normal about a mean of their class, which is
    standard normal, too. Of each class 20 nodes are for training and 30 for validation, a third each if classes are
    smaller than 60; the others are for testing.
    """
    if not classes >= 1 or nodes < 3 * classes:
        raise InputError(
            f"{nodes} nodes of {classes} classes: expected 1 class or more, of 3 nodes or more each"
        )
    if not (0 <= homophily <= 1 and degree >= 0 and nodes * degree < MOST_EDGES and features >= 0):
        raise InputError(
            f"homophily {homophily}, degree {degree}, {features} features: "
            "expected a homophily of 0 .. 1, nothing negative, and fewer than 2**63 edges"
        )
    total = round(nodes * degree / 2)

    def draw_labels(rng: np.random.Generator) -> Iterator[NDArray[Any]]:
        yield rng.permutation(np.arange(nodes) % classes)

    def draw_sources(rng: np.random.Generator) -> Iterator[NDArray[Any]]:
        for low in range(0, total, DRAWN_AT_ONCE):
            yield rng.integers(nodes, size=min(DRAWN_AT_ONCE, total - low))

    def draw_doubles(rng: np.random.Generator) -> Iterator[NDArray[Any]]:
        for low in range(0, total, DRAWN_AT_ONCE):
            yield rng.random(min(DRAWN_AT_ONCE, total - low))

    def draw_noise(rng: np.random.Generator) -> Iterator[NDArray[Any]]:
        for low, high in spans(nodes, 4 * features):
            yield rng.standard_normal((high - low, features), dtype=np.float32)

    def draw_means(rng: np.random.Generator) -> Iterator[NDArray[Any]]:
        yield rng.standard_normal((classes, features), dtype=np.float32)

    def draw_split(rng: np.random.Generator) -> Iterator[NDArray[Any]]:
        third = nodes // classes // 3  # of the smallest class
        masks = split_per_class(labels(), classes, rng, train=min(20, third), val=min(30, third))
        yield sum(np.uint8(number) * masks[name] for number, name in enumerate(SPLITS))

    steps = draw_labels, draw_sources, draw_doubles, draw_doubles, draw_noise, draw_means, draw_split
    draws = Draws(np.random.Generator(np.random.Philox(seed)), steps)
    labels = cache(lambda: next(draws.pieces(LABELS)))
    parts = cache(lambda: next(draws.pieces(SPLIT)))

    def x() -> Iterator[NDArray[np.float32]]:
        means, low = next(draws.pieces(MEANS)), 0
        for piece in draws.pieces(NOISE):
            yield piece + means[labels()[low : low + len(piece)]]
            low += len(piece)

    def all_edges() -> Iterator[Ends]:
        by_class = np.argsort(labels(), kind="stable").astype(index_dtype(nodes))
        for sources, coins, positions in zip(*map(draws.pieces, (SOURCES, COINS, POSITIONS)), strict=True):
            yield sources, _partners(labels(), by_class, sources, coins < homophily, positions)

    blocks, reached = all_edges(), 0

    def edges(low: int, high: int) -> Ends:
        """Draw a block. Since sources are drawn with rejections, the blocks before it are drawn first."""
        nonlocal blocks, reached
        if low < reached:
            blocks, reached = all_edges(), 0
        while reached < high:
            block = next(blocks)
            reached += len(block[0])
        return block

    rows = {schema.Y: Rows(schema.Layout(schema.INT64, (nodes,)), lambda: iter([labels()]))}
    rows |= split_rows(nodes, lambda low, high: parts()[low:high])
    if features:
        rows[schema.X] = Rows(schema.Layout(schema.FLOAT32, (nodes, features)), x)
    stream = DrawnEdges("sbm", nodes, total, edges)
    return Drawn(Imported("sbm", stream, rows, classes, directed=True), True, total, held=nodes * BYTES_HELD)


def _partners(
    y: NDArray[Any],
    by_class: NDArray[Any],
    ends: NDArray[Any],
    same: NDArray[np.bool_],
    position: NDArray[np.float64],
) -> NDArray[Any]:
    """Return for each end a node of its class if ``same``, else a node of another class.

    y: class of each node. by_class: nodes sorted by class. position: numbers in [0, 1) that choose among the nodes.
    """
    sizes = np.bincount(y)
    starts = np.cumsum(sizes) - sizes
    size, start = sizes[y[ends]], starts[y[ends]]
    same |= size == len(y)  # there is no other class
    inside = start + (position * size).astype(np.int64)
    # An index into the nodes of other classes: classes before this one, then classes after it.
    outside = (position * (len(y) - size)).astype(np.int64)
    outside += np.where(outside >= start, size, 0)
    return by_class[np.where(same, inside, outside)]
