"""Graphs like well-known ones: as many nodes and edges, degrees as skewed, and labels that a GCN can learn."""

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
from ..edge_stream import Imported, Rows
from ..graph import index_dtype
from .degrees import Degrees, Table, Weights, fitted, table_of
from .drawn import (
    EDGES,
    MOST_NODES,
    ROWS,
    Drawn,
    DrawnEdges,
    Ends,
    counter,
    generator,
    key_of,
    spans,
    split_rows,
)

LEAST_NODES = 100
ROWS_DRAWN = 4096  # rows of features or labels that are drawn from one random sequence
SIGNAL = 2.0  # distance between the means of two classes, in standard deviations of a feature
NOISE = 0.1  # share of the labels of a multi-label graph that differ from those of the community
ROOM = 8  # least ratio of the number of nodes to the mean degree
FILLED = 0.5  # largest expected share of its class that a node is joined to


@dataclass(frozen=True)
class Shape:
    """Published and assumed numbers of a graph; see SHAPES.

    Attributes:
        edges: drawn edges; an undirected one is stored twice.
        classes: classes, or communities if there are tasks.
        maximum, median: of the in-degree.
        tasks: binary labels of a node of a multi-label graph.
        split: numbers of training, validation and test nodes; other nodes have no label.
        out_maximum: largest out-degree of a directed graph.
        homophily: share of edges that join nodes of one class.
    """

    nodes: int
    edges: int
    features: int
    classes: int
    maximum: float
    median: float | None = None
    tasks: int = 0
    directed: bool = False
    split: tuple[int, int, int] | None = None
    out_maximum: float = 0
    homophily: float = 0.8

    @property
    def mean(self) -> float:
        """Mean in-degree."""
        return self.edges * (1 if self.directed else 2) / self.nodes


# Published: nodes, edges, features, classes or tasks, splits, and as far as stated here degrees.
#
# reddit: Hamilton, Ying and Leskovec (NeurIPS 2017); 114,615,892 stored edges as DGL and PyG have them.
# products, proteins, papers100M: the Open Graph Benchmark (Hu et al., NeurIPS 2020; ogb.stanford.edu/docs/nodeprop).
#   proteins has no node features; commonly the 8 columns of its edge data are averaged at the nodes.
# orkut: com-Orkut of SNAP (Yang and Leskovec, ICDM 2012). Its largest degree of 33,313 is in the table of graphs of
#   github.com/DemerzelSun12/subgraph_matching, its median of 45 in GRAPE's report on the Network Repository's copy. It
#   has neither features nor labels; their numbers are from MGG's table (OSDI 2023, table 1).
# enwiki: enwiki-2013 of SNAP, 4,203,323 nodes and 101,311,613 links, which MGG stores in both directions (its table has
#   202,623,226 edges); the Laboratory for Web Algorithmics has 4,206,785 nodes and 101,355,853 arcs. Features and
#   classes as MGG has them.
#
# Assumed: all other largest degrees and medians, to which the degrees are fitted; homophily; the communities of
# proteins; for graphs without a published split, half of the nodes for training and a quarter for validation.
SHAPES = {
    "reddit": Shape(232_965, 57_307_946, 602, 41, 22_000, split=(153_431, 23_831, 55_703)),
    "products": Shape(2_449_029, 61_859_140, 100, 47, 17_000, split=(196_615, 39_323, 2_213_091)),
    "proteins": Shape(132_534, 39_561_252, 8, 16, 7_700, tasks=112, split=(86_619, 21_236, 24_679)),
    "orkut": Shape(3_072_441, 117_185_083, 128, 32, 33_313, 45),
    "enwiki": Shape(4_203_323, 101_311_613, 300, 12, 430_000, 20),
    "papers100M": Shape(
        111_059_956,
        1_615_685_872,
        128,
        172,
        250_000,
        4,
        directed=True,
        split=(1_207_179, 125_265, 214_338),
        out_maximum=5_000,
    ),
}


def draw_like(name: str, seed: int, *, scale: float = 1.0, features: int | None = None) -> Drawn:
    """Draw a graph like one of SHAPES.

    Degrees follow the distribution that `Degrees` fits to the known numbers; ends of edges are drawn in proportion to
    weights (see `degrees.fitted`). Classes are of equal size and have the same degrees; a share of the edges joins
    nodes of one class, as far as the class has room for them. Features are standard normal about a mean of their class.
    A label is the class; each of several labels is drawn once for each community, and differs for NOISE of the nodes.

    Args:
        scale: factor of the numbers of nodes and edges; the mean degree stays.
        features: feature columns. [default: as many as the graph has]

    Raises InputError for a graph that is too small for its edges.
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
    imported = Imported(f"like-{name}", edges, rows, classes, multilabel=shape.tasks > 0, directed=True)
    return Drawn(imported, symmetric=not shape.directed, most_edges=model.total)


@dataclass(frozen=True, eq=False)
class _Model:
    """A shape with a number of nodes. Node v has rank ``_ranks(v)``; its class is the rank modulo the classes."""

    shape: Shape
    nodes: int
    seed: int
    features: int

    @cached_property
    def weights(self) -> list[Weights]:
        """Weights for both ends, or for sources and for destinations."""
        shape = self.shape
        ends = [Degrees(shape.nodes, shape.mean, shape.maximum, shape.median)]
        if shape.directed:
            ends.insert(0, Degrees(shape.nodes, shape.mean, shape.out_maximum))
        chance = 1 / shape.classes  # that an edge among all nodes joins nodes of one class
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
        """Edges to draw within classes and among all nodes, duplicates included."""
        out, into = self.weights[0], self.weights[-1]
        ends = 1 if self.shape.directed else 2
        inside = math.sqrt(out.total_inside * into.total_inside) / ends
        return inside, math.sqrt(out.total_outside * into.total_outside) / ends

    @cached_property
    def total(self) -> int:
        """Number of edges to draw."""
        return round(sum(self.drawn))

    @cached_property
    def tables(self) -> list[Table]:
        """Tables to draw the ends of edges from: one for both ends, or one for sources and one for destinations."""
        return [table_of(self.nodes, self.shape.classes, weights) for weights in self.weights]

    def edges(self, low: int, high: int) -> Ends:
        """Draw edges low .. high - 1."""
        sources, destinations = np.empty((2, high - low), index_dtype(self.nodes))
        inside, key = round(self.drawn[0] / sum(self.drawn) * 2**32), key_of(self.seed)
        drawn = key, counter(EDGES), low, self.nodes, self.shape.classes, inside, key, self.tables
        native.load().class_edges(*drawn, sources, destinations)
        return sources, destinations

    def rows(self) -> dict[str, Rows]:
        """Return the node datasets by path."""
        shape, nodes = self.shape, self.nodes
        rows = {schema.Y: Rows(schema.Layout(schema.INT64, (nodes,)), self._labels)}
        if shape.tasks:
            rows[schema.Y] = Rows(schema.Layout(schema.FLOAT32, (nodes, shape.tasks)), self._several_labels)
        if self.features:
            rows[schema.X] = Rows(schema.Layout(schema.FLOAT32, (nodes, self.features)), self._features)
        return rows | split_rows(nodes, self._parts)

    def _class_of(self, low: int, high: int) -> NDArray[np.int64]:
        """Return the classes of nodes low .. high - 1."""
        return self._ranks(low, high, int(key_of(self.seed)[0])) % self.shape.classes

    def _parts(self, low: int, high: int) -> NDArray[np.int64]:
        """Return 0, 1, 2 for training, validation and test nodes among low .. high - 1, 3 for other nodes."""
        share = self.nodes / self.shape.nodes
        split = self.shape.split or tuple(self.shape.nodes * part / 4 for part in (2, 1, 1))
        bounds = np.minimum(np.rint(np.cumsum(split) * share), self.nodes)
        ranks = self._ranks(low, high, int(key_of(self.seed)[1]) ^ 1)  # independent of the ranks for edges
        return np.searchsorted(bounds, ranks, side="right")

    def _ranks(self, low: int, high: int, key: int) -> NDArray[np.int64]:
        """Return the images of low .. high - 1 under the pseudorandom permutation of the nodes with this key."""
        ranks = np.empty(high - low, np.int64)
        native.load().places(self.nodes, key, low, ranks)
        return ranks

    def _labels(self) -> Iterator[NDArray[Any]]:
        for low, high in spans(self.nodes, 8):
            yield np.where(self._parts(low, high) < 3, self._class_of(low, high), -1)

    def _several_labels(self) -> Iterator[NDArray[Any]]:
        shape = self.shape
        of_class = generator(self.seed, ROWS, 0).random((shape.classes, shape.tasks)) < 0.5
        for rng, low, high in self._sequences(1):
            wrong = rng.random((high - low, shape.tasks), dtype=np.float32) < NOISE
            yield (of_class[self._class_of(low, high)] ^ wrong).astype(np.float32)

    def _features(self) -> Iterator[NDArray[Any]]:
        shape = (self.shape.classes, self.features)
        means = generator(self.seed, ROWS, 1).standard_normal(shape, dtype=np.float32)
        means *= np.float32(SIGNAL / math.sqrt(2 * self.features))
        for rng, low, high in self._sequences(2):
            piece = rng.standard_normal((high - low, self.features), dtype=np.float32)
            piece += means[self._class_of(low, high)]
            yield piece

    def _sequences(self, purpose: int) -> Iterator[tuple[np.random.Generator, int, int]]:
        """Yield (generator, low, high) for each ROWS_DRAWN nodes. purpose: 1 for labels, 2 for features."""
        for low in range(0, self.nodes, ROWS_DRAWN):
            rng = generator(self.seed, ROWS + purpose, low // ROWS_DRAWN)
            yield rng, low, min(low + ROWS_DRAWN, self.nodes)
