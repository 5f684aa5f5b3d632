"""Graphs as streams: readers and generators return them, and `assembly.build_graph` writes them to files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .graph import Graph
from .schema import Layout


@dataclass(frozen=True, eq=False)
class EdgeBlock:
    """A block of k edges of a stream.

    Attributes:
        sources, destinations: signed or unsigned integers [k] of 32 or 64 bits.
        weight: float32 [k], in all blocks of a stream or in none.
        data: further edge data [k, ...] by name, the same names in all blocks.
        mark: position after the block, as JSON, from which `EdgeStream.blocks` can continue; None if it cannot.
        rounded: numbers of whole weights and data, by name ("weight" for weights), that their type does not hold.
    """

    sources: NDArray[Any]
    destinations: NDArray[Any]
    weight: NDArray[np.float32] | None = None
    data: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    mark: Any = None
    rounded: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.sources)


class EdgeStream(Protocol):
    """Edges in a fixed order.

    Attributes:
        where: name of the stream in messages.
        nodes: number of nodes, or None for the largest id plus one.
        total: number of units that ``progress`` counts (bytes or edges), 0 if it is unknown.
    """

    where: str
    nodes: int | None
    total: int

    def blocks(self, mark: Any = None, progress: Callable[[int], None] | None = None) -> Iterator[EdgeBlock]:
        """Yield all edges, or the edges after a block's mark, in blocks of some million edges at most.

        progress: called with the number of units that are done. Raises InputError that names the file and the line,
        row or byte of an error.
        """
        ...


@dataclass(frozen=True, eq=False)
class Rows:
    """A dataset [N, ...] that comes in pieces of consecutive rows.

    layout: dtype and shape of the dataset. pieces: starts a pass over the dataset, and yields arrays [rows, ...] of
    some megabytes. A pass raises InputError, naming file and row, for a value that is out of range; whether numbers are
    finite is checked by the code that writes them. place: returns where a row is, for messages: its number, or its
    line.
    """

    layout: Layout
    pieces: Callable[[], Iterator[NDArray[Any]]]
    place: Callable[[int], str] = "row {}".format


@dataclass(frozen=True, eq=False)
class Imported:
    """A graph from a reader or a generator.

    Attributes:
        rows: node datasets by path (schema.X or its three parts if sparse, schema.Y, schema.MASKS, schema.NODE_ID or
            the two of names), or a function that returns them once all edges were read.
        sparse_shape, types: as in `schema.Contents`.
        directed: True or False (the reverse of each edge is there) where it is known; None if the build is to find out.
        direction: line that an import prints where the graph is directed.
        from_one: line that an import prints where ids seem to begin at 1: node 0 has no edge, most others have.
        first: number of the first node in the source, for messages.
        notes: lines about what was left out or taken for something, to print once all was read.
    """

    name: str
    edges: EdgeStream
    rows: Mapping[str, Rows] | Callable[[], Mapping[str, Rows]] = field(default_factory=dict)
    classes: int = 0
    multilabel: bool = False
    sparse_shape: tuple[int, int] | None = None
    types: str = ""
    directed: bool | None = None
    direction: str = ""
    from_one: str = ""
    first: int = 0
    notes: list[str] = field(default_factory=list)


Source = Imported | Graph  # a small graph may be in memory
