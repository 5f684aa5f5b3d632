"""Drawn graphs: edges that are drawn block by block, node data that is drawn in pieces, and random number generators.

Generators are counter-based (Philox), so that native code can draw any part of a sequence alone.
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

DRAWN_AT_ONCE = 1 << 20  # edges of a block, which bounds the memory of drawn values
MOST_NODES = 1 << 40
# Purposes of random sequences: the last word of the counter. NumPy's generator of a seed has 0 there.
EDGES, ROWS = 1, 2

Ends = tuple[NDArray[Any], NDArray[Any]]  # sources, destinations
Step = Callable[[np.random.Generator], Iterator[NDArray[Any]]]
Words = NDArray[np.uint64]


@dataclass(eq=False)
class DrawnEdges:
    """An edge stream (`edge_stream.EdgeStream`) that is drawn again in every pass.

    draw: returns sources and destinations, int32 or int64 [high - low], of edges low .. high - 1. The mark of a block
    is the number of edges up to its end.
    """

    where: str
    nodes: int | None
    total: int
    draw: Callable[[int, int], Ends]
    block: int = DRAWN_AT_ONCE

    def blocks(self, mark: Any = None, progress: Callable[[int], None] | None = None) -> Iterator[EdgeBlock]:
        """Yield the edges after a block's mark, or all."""
        for low in range(mark or 0, self.total, self.block):
            high = min(low + self.block, self.total)
            sources, destinations = self.draw(low, high)
            yield EdgeBlock(sources, destinations, mark=high)
            if progress is not None:
                progress(high)


@dataclass(frozen=True, eq=False)
class Drawn:
    """A drawn graph as a stream; self loops and duplicates are to be dropped.

    symmetric: the reverse of each edge is to be added. most_edges: number of edges of the stream, or an upper bound.
    held: bytes of memory that drawing needs, in proportion to the nodes.
    """

    imported: Imported
    symmetric: bool
    most_edges: int
    held: int = 0

    def graph(self) -> Graph:
        """Return the graph in memory."""
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
    """Draws of one generator in a fixed sequence of steps, each of which can be repeated.

    steps: functions that draw from a generator and yield arrays.
    """

    def __init__(self, rng: np.random.Generator, steps: Sequence[Step]) -> None:
        self._kind, self._steps = type(rng.bit_generator), steps
        self._states = [rng.bit_generator.state]  # at the beginning of each step that was reached

    def pieces(self, step: int) -> Iterator[NDArray[Any]]:
        """Yield the draws of a step. Earlier steps that were not drawn to their end are drawn first."""
        while len(self._states) <= step:
            for _ in self.pieces(len(self._states) - 1):
                pass
        rng = np.random.Generator(self._kind())
        rng.bit_generator.state = self._states[step]
        yield from self._steps[step](rng)
        if len(self._states) == step + 1:
            self._states.append(rng.bit_generator.state)


def spans(rows: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield (first row, last row + 1) of pieces of about 4 MiB."""
    step = max(1, (4 << 20) // max(1, row_bytes))
    for low in range(0, rows, step):
        yield low, min(low + step, rows)


def split_rows(nodes: int, part: Callable[[int, int], NDArray[Any]]) -> dict[str, Rows]:
    """Return the three masks by their paths. part(low, high): 0, 1, 2 for training, validation, test; else other."""

    def pieces(number: int) -> Callable[[], Iterator[NDArray[Any]]]:
        return lambda: (part(low, high) == number for low, high in spans(nodes, 1))

    layout = schema.Layout(schema.BOOL, (nodes,))
    return {path: Rows(layout, pieces(number)) for number, path in enumerate(schema.MASKS)}


def random_rows(
    rng: np.random.Generator, nodes: int, *, features: int, classes: int, before: Sequence[Step] = ()
) -> tuple[Draws, dict[str, Rows]]:
    """Return draws of features and labels that are independent of the edges, and their datasets by path.

    Features are standard normal, float32 [nodes, features]. Labels are uniform; half of the nodes are for training, a
    quarter for validation, the rest for testing. before: steps of the same generator that come first.
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
    """Return the bytes of memory that `random_rows` needs for the split."""
    return nodes * (index_dtype(nodes)().itemsize + 1) if classes else 0


# --- states of counter-based generators


def key_of(seed: int) -> Words:
    """Return the key, uint64 [2], that numpy.random.Philox has for a seed."""
    key: Words = np.random.Philox(seed).state["state"]["key"]
    return key


def counter(purpose: int, number: int = 0) -> Words:
    """Return the counter, uint64 [4], at which the sequence ``number`` for a purpose begins."""
    return np.array([0, 0, number, purpose], dtype=np.uint64)


def generator(seed: int, purpose: int, number: int) -> np.random.Generator:
    """Return a generator of the sequence ``number`` for a purpose."""
    return np.random.Generator(np.random.Philox(key=key_of(seed), counter=counter(purpose, number)))


def advanced(seed: int, words: int) -> np.random.Generator:
    """Return the generator of a seed after it has drawn this many 64-bit words."""
    bits = np.random.Philox(seed)
    bits.advance(words // 4)  # in steps of the counter, each of which gives four words
    later = np.random.Generator(bits)
    later.random(words % 4)
    return later
