"""Graphs like well-known ones: as many nodes and edges, degrees as skewed, labels that a GCN can learn."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from .. import native, schema
from ..graph import index_dtype
from ..streams import Imported, Rows
from .alias import Table, table_of
from .degrees import Degrees, Weights, fitted
from .drawn import MOST_NODES, Drawn, DrawnEdges, Ends, spans, split_rows
from .random_state import EDGES, ROWS, counter, generator, key_of
from .shapes import SHAPES, Shape

LEAST_NODES = 100
ROWS_DRAWN = 4096  # rows of features or labels that share a sequence of random numbers
SIGNAL = 2.0  # distance between the means of two classes, in standard deviations of a feature
NOISE = 0.1  # share of the labels of a node with several that do not follow from its community
ROOM = 8  # times as many nodes as a node has neighbours in the mean, at least
FILLED = 0.5  # share of its class that a node is joined to, at most in the mean


def draw_like(name: str, seed: int, *, scale: float = 1.0, features: int | None = None) -> Drawn:
    """Draw a graph like one of SHAPES.

    scale: this many times its nodes and edges, so that the mean degree stays. Degrees follow the distribution that
    ``Degrees`` fits to the published mean and what else is known; with a scale below 1 the largest is what the largest
    of fewer nodes is. Each edge's ends are drawn in proportion to weights (see ``degrees.fitted``). Nodes are of
    classes of equal size, whose degrees are distributed alike; a share of the edges joins nodes of one class, as far
    as a class has room for them. Features are standard normal about a mean of their class. A label is the class, or,
    where a node has several, each of them is given for each class by chance, and wrong in NOISE of the nodes.
    features: columns. [default: as many as the graph has] Raises InputError for a graph with no room for its edges.
    """
    if name not in SHAPES:
        raise InputError(f"there are no numbers for a graph '{name}'; expected one of {', '.join(SHAPES)}")
    if not (math.isfinite(scale) and scale > 0):
        raise InputError(f"a scale of {scale}; expected a number above 0")
    shape = SHAPES[name]
    if shape.nodes * scale > MOST_NODES:
        raise InputError(
            f"at a scale of {scale:g} a graph like {name} has more than 2**40 nodes; choose a smaller scale"
        )
    model = _Model(shape, round(shape.nodes * scale), seed, shape.features if features is None else features)
    if model.nodes < max(LEAST_NODES, 3 * shape.classes, ROOM * shape.mean):
        raise InputError(
            f"at a scale of {scale:g} a graph like {name} has {model.nodes:,} nodes, too few for "
            f"{shape.classes} classes and a mean degree of {shape.mean:,.0f}; choose a larger scale"
        )
    edges = DrawnEdges(f"like-{name}", model.nodes, model.total, model.edges)
    rows = model.rows()
    classes = shape.tasks or shape.classes
    imported = Imported(f"like-{name}", edges, rows, classes, multilabel=shape.tasks > 0)
    return Drawn(imported, symmetric=not shape.directed, most_edges=model.total)


@dataclass(frozen=True, eq=False)
class _Model:
    """A shape at a number of nodes. Node v has the rank ``places(v)``, and the class of the rank modulo the classes."""

    shape: Shape
    nodes: int
    seed: int
    features: int

    @cached_property
    def weights(self) -> list[Weights]:
        """Weights of both ends, or of sources and of destinations."""
        shape = self.shape
        ends = [Degrees(shape.nodes, shape.mean, shape.maximum, shape.median)]
        if shape.directed:
            ends.insert(0, Degrees(shape.nodes, shape.mean, shape.out_maximum))
        chance = 1 / shape.classes  # of edges among all nodes, to join nodes of one class
        return fitted(
            self.nodes,
            shape.classes,
            inside=(shape.homophily - chance) / (1 - chance),
            room=FILLED * self.nodes / shape.classes,
            mean=shape.mean,
            targets=[each.quantile for each in ends],
        )

    @property
    def drawn(self) -> tuple[float, float]:
        """Edges to draw within classes and among all nodes, so that as many as are wanted are left of them."""
        out, into = self.weights[0], self.weights[-1]
        ends = 1 if self.shape.directed else 2
        inside = math.sqrt(out.total_inside * into.total_inside) / ends
        return inside, math.sqrt(out.total_outside * into.total_outside) / ends

    @cached_property
    def total(self) -> int:
        """Edges to draw."""
        return round(sum(self.drawn))

    @cached_property
    def tables(self) -> list[Table]:
        """Tables that nodes are drawn from, for both ends or for each."""
        return [table_of(self.nodes, self.shape.classes, weights) for weights in self.weights]

    def edges(self, low: int, high: int) -> Ends:
        """Draw edges low .. high - 1."""
        sources, destinations = np.empty((2, high - low), index_dtype(self.nodes))
        inside = round(self.drawn[0] / sum(self.drawn) * 2**32)
        where = (
            key_of(self.seed),
            counter(EDGES),
            low,
            self.nodes,
            self.shape.classes,
            inside,
            key_of(self.seed),
        )
        native.load().class_edges(*where, self.tables, sources, destinations)
        return sources, destinations

    def rows(self) -> dict[str, Rows]:
        """Return the datasets of nodes by their paths."""
        shape, nodes = self.shape, self.nodes
        rows = {schema.Y: Rows(schema.Layout(schema.INT64, (nodes,)), self._labels)}
        if shape.tasks:
            rows[schema.Y] = Rows(schema.Layout(schema.FLOAT32, (nodes, shape.tasks)), self._several_labels)
        if self.features:
            rows[schema.X] = Rows(schema.Layout(schema.FLOAT32, (nodes, self.features)), self._features)
        return rows | split_rows(nodes, self._parts)

    def _class_of(self, low: int, high: int) -> NDArray[np.int64]:
        """Return the classes of nodes low .. high - 1."""
        return self._places(low, high, int(key_of(self.seed)[0])) % self.shape.classes

    def _parts(self, low: int, high: int) -> NDArray[np.int64]:
        """Return 0, 1, 2 for the nodes of training, validation and test among low .. high - 1, 3 for the others."""
        share = self.nodes / self.shape.nodes
        split = self.shape.split or tuple(self.shape.nodes * part / 4 for part in (2, 1, 1))
        bounds = np.minimum(np.rint(np.cumsum(split) * share), self.nodes)
        place = self._places(
            low, high, int(key_of(self.seed)[1]) ^ 1
        )  # in an order apart from that of the edges
        return np.searchsorted(bounds, place, side="right")

    def _places(self, low: int, high: int, key: int) -> NDArray[np.int64]:
        places = np.empty(high - low, np.int64)
        native.load().places(self.nodes, key, low, places)
        return places

    def _labels(self) -> Iterator[NDArray[Any]]:
        for low, high in spans(self.nodes, 8):
            yield np.where(self._parts(low, high) < 3, self._class_of(low, high), -1)

    def _several_labels(self) -> Iterator[NDArray[Any]]:
        shape = self.shape
        given = generator(self.seed, ROWS, 0).random((shape.classes, shape.tasks)) < 0.5
        for rng, low, high in self._sequences(1):
            wrong = rng.random((high - low, shape.tasks), dtype=np.float32) < NOISE
            yield (given[self._class_of(low, high)] ^ wrong).astype(np.float32)

    def _features(self) -> Iterator[NDArray[Any]]:
        shape = (self.shape.classes, self.features)
        means = generator(self.seed, ROWS, 1).standard_normal(shape, dtype=np.float32)
        means *= np.float32(SIGNAL / math.sqrt(2 * self.features))
        for rng, low, high in self._sequences(2):
            piece = rng.standard_normal((high - low, self.features), dtype=np.float32)
            piece += means[self._class_of(low, high)]
            yield piece

    def _sequences(self, purpose: int) -> Iterator[tuple[np.random.Generator, int, int]]:
        """Yield a generator for each ROWS_DRAWN nodes, and which nodes these are. purpose: apart from other ones."""
        for low in range(0, self.nodes, ROWS_DRAWN):
            rng = generator(self.seed, ROWS + purpose, low // ROWS_DRAWN)
            yield rng, low, min(low + ROWS_DRAWN, self.nodes)
