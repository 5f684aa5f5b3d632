"""The output of generators: edges that are drawn block by block, and rows of nodes that are drawn in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import schema
from ..graph import Graph, from_edges, index_dtype
from ..streams import EdgeBlock, Imported, Rows

DRAWN_AT_ONCE = 1 << 20  # edges of a block, which limits the memory of what is drawn
MOST_NODES = 1 << 40

Ends = tuple[NDArray[Any], NDArray[Any]]
Step = Callable[[np.random.Generator], Iterator[NDArray[Any]]]


@dataclass(eq=False)
class DrawnEdges:
    """An edge stream (`streams.EdgeStream`) that is drawn again in every pass.

    draw: returns (sources, destinations), int32 or int64 [high - low], of edges low .. high - 1. A block's mark is the
    number of edges up to its end.
    """

    where: str
    nodes: int | None
    total: int
    draw: Callable[[int, int], Ends]
    block: int = DRAWN_AT_ONCE

    def blocks(self, mark: Any = None, progress: Callable[[int], None] | None = None) -> Iterator[EdgeBlock]:
        """Yield the edges, from a block's mark on."""
        for low in range(mark or 0, self.total, self.block):
            high = min(low + self.block, self.total)
            sources, destinations = self.draw(low, high)
            yield EdgeBlock(sources, destinations, mark=high)
            if progress is not None:
                progress(high)


@dataclass(frozen=True, eq=False)
class Drawn:
    """A drawn graph, piece by piece.

    symmetric: each edge's reverse belongs to it. Self loops and duplicates do not. most_edges: edges of the stream, or
    a bound. held: bytes that drawing holds in memory, for each node some.
    """

    imported: Imported
    symmetric: bool
    most_edges: int
    held: int = 0

    def graph(self) -> Graph:
        """Return the graph in memory."""
        edges, rows = self.imported.edges, self.imported.rows
        assert edges.nodes is not None and not callable(rows)
        ends = np.empty((2, self.most_edges), index_dtype(edges.nodes))
        at = 0
        for block in edges.blocks():
            ends[0, at : at + len(block)] = block.sources
            ends[1, at : at + len(block)] = block.destinations
            at += len(block)
        fields: dict[str, Any] = {
            path.rpartition("/")[2]: np.concatenate(list(each.pieces())) for path, each in rows.items()
        }
        return from_edges(
            ends[0, :at],
            ends[1, :at],
            edges.nodes,
            name=self.imported.name,
            symmetric=self.symmetric,
            drop_duplicates=True,
            drop_self_loops=True,
            classes=self.imported.classes,
            **fields,
        )


class Draws:
    """Values of one generator in a fixed order, of which any can be drawn again from where it begins.

    steps: draw something each, in their order, in pieces.
    """

    def __init__(self, rng: np.random.Generator, steps: Sequence[Step]) -> None:
        self._kind, self._steps = type(rng.bit_generator), steps
        self._states = [rng.bit_generator.state]

    def pieces(self, step: int) -> Iterator[NDArray[Any]]:
        """Yield what a step draws. Steps before it that were not drawn to their end are drawn first."""
        while len(self._states) <= step:
            for _ in self.pieces(len(self._states) - 1):
                pass
        rng = np.random.Generator(self._kind())
        rng.bit_generator.state = self._states[step]
        yield from self._steps[step](rng)
        if len(self._states) == step + 1:
            self._states.append(rng.bit_generator.state)


def spans(rows: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the first row and the row behind the last one of pieces of about 4 MiB."""
    step = max(1, (4 << 20) // max(1, row_bytes))
    for low in range(0, rows, step):
        yield low, min(low + step, rows)


def split_rows(nodes: int, part: Callable[[int, int], NDArray[Any]]) -> dict[str, Rows]:
    """Return the three masks by their paths. part: gives 0, 1, 2 for training, validation and test, else another."""

    def pieces(number: int) -> Callable[[], Iterator[NDArray[Any]]]:
        return lambda: (part(low, high) == number for low, high in spans(nodes, 1))

    layout = schema.Layout(schema.BOOL, (nodes,))
    return {path: Rows(layout, pieces(number)) for number, path in enumerate(schema.MASKS)}
