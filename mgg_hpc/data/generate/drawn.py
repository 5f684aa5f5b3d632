"""Random graphs: edges that are drawn block by block, node data that is drawn in pieces, and their generators.

Random number generators are counter-based (Philox), so that native code can draw any part of a sequence by
itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import schema
from ..edge_stream import EdgeBlock, Imported, Rows
from ..graph import Graph, from_edges, index_dtype

DRAWN_AT_ONCE = 1 << 20  # edges per block, which bounds the memory of drawn values
MOST_NODES = 1 << 40
# What a random sequence is for: the last word of the counter. It is 0 in NumPy's own generators.
EDGES, ROWS = 1, 2

Ends = tuple[NDArray[Any], NDArray[Any]]  # sources, destinations
Step = Callable[[np.random.Generator], Iterator[NDArray[Any]]]
Words = NDArray[np.uint64]


@dataclass(eq=False)
class DrawnEdges:
    """An `EdgeStream` of random edges. Nothing is stored: each pass draws the same edges again.

    draw: function (low, high) that returns sources and destinations of edges low .. high - 1, int32 or int64
    [high - low]. total: number of edges. block: number of edges per block. The mark of a block, from which a
    pass can be continued, is the number of edges up to its end.
    """

    where: str
    nodes: int | None
    total: int
    draw: Callable[[int, int], Ends]
    block: int = DRAWN_AT_ONCE

    def blocks(self, mark: Any = None, progress: Callable[[int], None] | None = None) -> Iterator[EdgeBlock]:
        """Yield all edges, or those after a block's mark, as `EdgeStream.blocks`."""
        for low in range(mark or 0, self.total, self.block):
            high = min(low + self.block, self.total)
            sources, destinations = self.draw(low, high)
            yield EdgeBlock(sources, destinations, mark=high)
            if progress is not None:
                progress(high)


@dataclass(frozen=True, eq=False)
class Drawn:
    """A random graph as a stream, from which the build has to drop self loops and duplicate edges.

    symmetric: True if the build has to add the reverse of each edge. most_edges: upper bound of the number of
    edges in the stream. held: bytes of memory that drawing needs, which grow with the number of nodes.
    """

    imported: Imported
    symmetric: bool
    most_edges: int
    held: int = 0

    def graph(self) -> Graph:
        """Draw the whole graph, and return it as a `Graph` in memory."""
        edges, rows = self.imported.edges, self.imported.rows
        assert edges.nodes is not None and not callable(rows)
        blocks = [np.empty((2, 0), index_dtype(edges.nodes))]
        blocks += [np.stack([block.sources, block.destinations]) for block in edges.blocks()]
        sources, destinations = np.concatenate(blocks, axis=1)
        fields: dict[str, Any] = {
            path.rpartition("/")[2]: np.concatenate(list(each.pieces())) for path, each in rows.items()
        }
        return from_edges(
            sources,
            destinations,
            edges.nodes,
            name=self.imported.name,
            symmetric=self.symmetric,
            drop_duplicates=True,
            drop_self_loops=True,
            classes=self.imported.classes,
            **fields,
        )


class Draws:
    """Draws from one generator in a fixed sequence of steps.

    Each step can be repeated, and gives the same values. steps: functions that take a generator, draw from it,
    and yield arrays.
    """

    def __init__(self, rng: np.random.Generator, steps: Sequence[Step]) -> None:
        self._kind, self._steps = type(rng.bit_generator), steps
        self._states = [rng.bit_generator.state]  # at the beginning of each step that was reached

    def pieces(self, step: int) -> Iterator[NDArray[Any]]:
        """Yield the arrays of a step. Earlier steps that were not yet drawn to their end are drawn first."""
        while len(self._states) <= step:
            for _ in self.pieces(len(self._states) - 1):
                pass
        rng = np.random.Generator(self._kind())
        rng.bit_generator.state = self._states[step]
        yield from self._steps[step](rng)
        if len(self._states) == step + 1:
            self._states.append(rng.bit_generator.state)


def spans(rows: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds (first, last + 1) of consecutive pieces of ``rows`` rows, of about 4 MiB each."""
    step = max(1, (4 << 20) // max(1, row_bytes))
    for low in range(0, rows, step):
        yield low, min(low + step, rows)


def split_rows(nodes: int, part: Callable[[int, int], NDArray[Any]]) -> dict[str, Rows]:
    """Return the datasets of the three masks, train, val and test, by their paths in a graph file.

    part: function (low, high) that returns 0 for training, 1 for validation, 2 for test, or another number, for
    each of the nodes low .. high - 1.
    """

    def pieces(number: int) -> Callable[[], Iterator[NDArray[Any]]]:
        return lambda: (part(low, high) == number for low, high in spans(nodes, 1))

    layout = schema.Layout(schema.BOOL, (nodes,))
    return {path: Rows(layout, pieces(number)) for number, path in enumerate(schema.MASKS)}


def random_rows(
    rng: np.random.Generator, nodes: int, *, features: int, classes: int, before: Sequence[Step] = ()
) -> tuple[Draws, dict[str, Rows]]:
    """Return random features and labels, independent of the edges: their draws, and their datasets by path.

    Features are standard normal, float32 [nodes, features]. Labels are uniform over the classes; half of the
    nodes are for training, a quarter for validation, the rest for testing. features, classes: 0 for none.
    before: steps that draw from the same generator first.
    """

    def draw_features(rng: np.random.Generator) -> Iterator[NDArray[Any]]:
        for low, high in spans(nodes, 4 * features):
            yield rng.standard_normal((high - low, features), dtype=np.float32)

    def draw_split(rng: np.random.Generator) -> Iterator[NDArray[Any]]:
        parts = np.full(nodes, 2, np.uint8)
        order = np.arange(nodes, dtype=index_dtype(nodes))
        rng.shuffle(order)
        parts[order[: nodes // 2]], parts[order[nodes // 2 : 3 * nodes // 4]] = 0, 1
        yield parts

    def draw_labels(rng: np.random.Generator) -> Iterator[NDArray[Any]]:
        for low, high in spans(nodes, 8):
            yield rng.integers(classes, size=high - low)

    draws = Draws(rng, [*before, *([draw_features] if features else []), draw_split, draw_labels])
    split = len(before) + bool(features)
    rows = {}
    if features:
        layout = schema.Layout(schema.FLOAT32, (nodes, features))
        rows[schema.X] = Rows(layout, lambda: draws.pieces(split - 1))
    if classes:
        parts = functools.cache(lambda: np.concatenate(list(draws.pieces(split))))
        rows |= split_rows(nodes, lambda low, high: parts()[low:high])
        rows[schema.Y] = Rows(schema.Layout(schema.INT64, (nodes,)), lambda: draws.pieces(split + 1))
    return draws, rows


def split_bytes(nodes: int, classes: int) -> int:
    """Return the bytes of memory that `random_rows` needs to divide the nodes into the three masks."""
    return nodes * (index_dtype(nodes)().itemsize + 1) if classes else 0


# --- states of counter-based generators


def key_of(seed: int) -> Words:
    """Return the key, uint64 [2], that numpy.random.Philox has for a seed."""
    key: Words = np.random.Philox(seed).state["state"]["key"]
    return key


def counter(purpose: int, number: int = 0) -> Words:
    """Return the Philox counter, uint64 [4], at which a random sequence begins. purpose: EDGES or ROWS."""
    return np.array([0, 0, number, purpose], dtype=np.uint64)


def generator(seed: int, purpose: int, number: int) -> np.random.Generator:
    """Return a generator at the beginning of a random sequence (`counter`)."""
    return np.random.Generator(np.random.Philox(key=key_of(seed), counter=counter(purpose, number)))


def advanced(seed: int, words: int) -> np.random.Generator:
    """Return NumPy's Philox generator of a seed as it is after drawing ``words`` 64-bit words."""
    bits = np.random.Philox(seed)
    bits.advance(words // 4)  # in steps of the counter, each of which gives four words
    later = np.random.Generator(bits)
    later.random(words % 4)
    return later
