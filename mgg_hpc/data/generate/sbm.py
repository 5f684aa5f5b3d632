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
    model = _BlockModel(nodes, classes, features, round(nodes * degree / 2), homophily, seed)
    rows = {schema.Y: Rows(schema.Layout(schema.INT64, (nodes,)), lambda: iter([model.labels()]))}
    rows |= split_rows(nodes, lambda low, high: model.parts()[low:high])
    if features:
        rows[schema.X] = Rows(schema.Layout(schema.FLOAT32, (nodes, features)), model.x)
    edges = DrawnEdges("sbm", nodes, model.total, model.edges)
    return Drawn(Imported("sbm", edges, rows, classes), True, model.total, held=nodes * BYTES_HELD)


class _BlockModel:
    """A block model. Its draws, in order: labels, sources, two doubles for each edge, features, means, split.

    Sources are drawn with rejections, so that a block of edges can only be drawn after those before it.
    """

    def __init__(
        self, nodes: int, classes: int, features: int, total: int, homophily: float, seed: int
    ) -> None:
        self.nodes, self.classes, self.features = nodes, classes, features
        self.total, self.homophily = total, homophily
        steps = (
            self._labels,
            self._sources,
            self._doubles,
            self._doubles,
            self._normals,
            self._means,
            self._split,
        )
        self._draws = Draws(np.random.Generator(np.random.Philox(seed)), steps)
        self.labels = cache(lambda: next(self._draws.pieces(0)))
        self.parts = cache(lambda: next(self._draws.pieces(6)))
        self._blocks: Iterator[Ends] = iter(())
        self._next = 0  # first edge of the next block

    def edges(self, low: int, high: int) -> Ends:
        """Draw the block of edges low .. high - 1."""
        if low < self._next or low == 0:
            self._blocks, self._next = self._all_edges(), 0
        while self._next < high:
            block = next(self._blocks)
            self._next += len(block[0])
        return block

    def _all_edges(self) -> Iterator[Ends]:
        y = self.labels()
        by_class = np.argsort(y, kind="stable").astype(index_dtype(self.nodes))
        for sources, coin, place in zip(*map(self._draws.pieces, (1, 2, 3)), strict=True):
            yield sources, self._partners(y, by_class, sources, coin, place)

    def x(self) -> Iterator[NDArray[np.float32]]:
        """Draw the features in pieces."""
        means, y = next(self._draws.pieces(5)), self.labels()
        low = 0
        for piece in self._draws.pieces(4):
            yield piece + means[y[low : low + len(piece)]]
            low += len(piece)

    def _labels(self, rng: np.random.Generator) -> Iterator[NDArray[Any]]:
        yield rng.permutation(np.arange(self.nodes) % self.classes)

    def _sources(self, rng: np.random.Generator) -> Iterator[NDArray[Any]]:
        for low in range(0, self.total, DRAWN_AT_ONCE):
            yield rng.integers(self.nodes, size=min(DRAWN_AT_ONCE, self.total - low))

    def _doubles(self, rng: np.random.Generator) -> Iterator[NDArray[Any]]:
        for low in range(0, self.total, DRAWN_AT_ONCE):
            yield rng.random(min(DRAWN_AT_ONCE, self.total - low))

    def _normals(self, rng: np.random.Generator) -> Iterator[NDArray[Any]]:
        if self.features:
            for low, high in spans(self.nodes, 4 * self.features):
                yield rng.standard_normal((high - low, self.features), dtype=np.float32)

    def _means(self, rng: np.random.Generator) -> Iterator[NDArray[Any]]:
        if self.features:
            yield rng.standard_normal((self.classes, self.features), dtype=np.float32)

    def _split(self, rng: np.random.Generator) -> Iterator[NDArray[Any]]:
        third = self.nodes // self.classes // 3  # a third of the smallest class
        masks = split_per_class(self.labels(), self.classes, rng, train=min(20, third), val=min(30, third))
        yield sum(np.uint8(number) * masks[name] for number, name in enumerate(SPLITS))

    def _partners(
        self,
        y: NDArray[Any],
        by_class: NDArray[Any],
        ends: NDArray[Any],
        coin: NDArray[Any],
        place: NDArray[Any],
    ) -> NDArray[Any]:
        """Return for each end a node of its class with probability ``homophily``, else one of another class.

        y: class of each node. by_class: nodes sorted by class. coin, place: doubles in [0, 1) that decide whether the
        node is of the same class, and which one it is.
        """
        sizes = np.bincount(y, minlength=self.classes)
        starts = np.cumsum(sizes) - sizes
        size, start = sizes[y[ends]], starts[y[ends]]
        same = coin < self.homophily
        same |= size == len(y)  # there is no other class
        inside = start + (place * size).astype(np.int64)
        # An index into the nodes of other classes: classes before this one, then classes after it.
        outside = (place * (len(y) - size)).astype(np.int64)
        outside += np.where(outside >= start, size, 0)
        return by_class[np.where(same, inside, outside)]
