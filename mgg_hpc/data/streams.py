"""Graphs that come piece by piece: what readers and generators give, and `assembly.build_graph` makes files of."""

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
    """A run of edges of a stream, k of them.

    sources, destinations: unsigned or signed integers [k], of 32 or 64 bits. weight: float32 [k] or None, in all blocks
    of a stream alike; data: further arrays [k, ...] by name, which all blocks have alike. mark: a position behind the
    block, ready for JSON, from which `EdgeStream.blocks` goes on; None where only the whole stream can be read again.
    """

    sources: NDArray[Any]
    destinations: NDArray[Any]
    weight: NDArray[np.float32] | None = None
    data: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    mark: Any = None

    def __len__(self) -> int:
        return len(self.sources)


class EdgeStream(Protocol):
    """Edges in their order. where: what errors name. nodes: their number, or None: the largest id plus one.

    total: units of work that ``blocks`` reports by ``progress``, bytes or edges; 0 where that is unknown.
    """

    where: str
    nodes: int | None
    total: int

    def blocks(self, mark: Any = None, progress: Callable[[int], None] | None = None) -> Iterator[EdgeBlock]:
        """Yield the edges from the beginning, or from a block's mark on, in blocks of some million edges at most.

        ``progress(done)`` is called with the units that are done, of ``total``. Raises InputError that names the file
        and the line, row or byte of what is wrong.
        """
        ...


@dataclass(frozen=True, eq=False)
class Rows:
    """A dataset [N, ...] whose rows come in order. layout: dtype and shape. pieces: starts a pass over its arrays.

    Pieces are of that dtype, [rows, ...], of some megabytes each. Where values are out of place, a pass raises
    InputError that names file and row. Whoever writes pieces checks that they are finite.
    """

    layout: Layout
    pieces: Callable[[], Iterator[NDArray[Any]]]


@dataclass(frozen=True, eq=False)
class Imported:
    """A graph from a reader or a generator: edges as a stream, and datasets of the nodes.

    directed: False where each edge's reverse is known to be there; None: undirected if it is, which the build finds
    out. rows: datasets of nodes by their paths in the file (schema.X, or the three of sparse features; schema.Y;
    schema.MASKS; schema.NODE_ID or the two of names), or a function that gives them once all edges were read.
    sparse_shape: of sparse features, as in `schema.Contents`.
    """

    name: str
    edges: EdgeStream
    rows: Mapping[str, Rows] | Callable[[], Mapping[str, Rows]] = field(default_factory=dict)
    classes: int = 0
    multilabel: bool = False
    sparse_shape: tuple[int, int] | None = None
    directed: bool | None = True


Source = Imported | Graph  # a small graph may come whole
