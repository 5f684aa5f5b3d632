"""Edges as an array of NumPy (.npy): integers [2, E], sources and destinations, or [E, 2]."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ..streams import EdgeBlock, Imported
from . import npy

BLOCK_EDGES = 1 << 20


class ArrayEdges:
    """An `EdgeStream` over two arrays [E], in memory or mapped. Marks are edge numbers."""

    def __init__(
        self, where: str, sources: NDArray[Any], destinations: NDArray[Any], nodes: int | None
    ) -> None:
        self.where, self.nodes, self.total = where, nodes, len(sources)
        self._ends = sources, destinations

    def blocks(self, mark: Any = None, progress: Callable[[int], None] | None = None) -> Iterator[EdgeBlock]:
        for low in range(mark or 0, self.total, BLOCK_EDGES):
            high = min(low + BLOCK_EDGES, self.total)
            sources, destinations = (
                np.ascontiguousarray(end[low:high]).astype(np.int64) for end in self._ends
            )
            yield EdgeBlock(sources, destinations, mark=high)
            if progress:
                progress(high)


def open_edge_arrays(path: Path, *, nodes: int | None = None) -> Imported:
    """Open an array of edges, which is mapped and not read. nodes: their number. [default: the largest id plus one]

    Raises InputError for an array of another type or shape.
    """
    try:
        edges = npy.load(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    if edges.ndim != 2 or 2 not in edges.shape or edges.dtype.kind not in "iu":
        raise InputError(
            f"{path} is {edges.dtype} {list(edges.shape)}; expected integers [2, edges] or [edges, 2]"
        )
    sources, destinations = edges if edges.shape[0] == 2 else edges.T
    return Imported(
        path.name.removesuffix(".npy") or "graph", ArrayEdges(str(path), sources, destinations, nodes)
    )
