"""The input of partitioners: which rows of a graph are joined, and the cost of each row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..ranges import edge_balanced


class SliceOfRows(NamedTuple):
    """A run of rows from ``first`` on.

    indptr: int64 [n + 1] from 0. indices: int32 or int64 [E], ascending in each row.
    """

    first: int
    indptr: NDArray[np.int64]
    indices: NDArray[Any]


@dataclass(frozen=True, eq=False)
class Pattern:
    """A symmetric pattern of edges, given in slices of rows. edges: their number, both directions of each.

    weight: int64 [N], what parts are balanced by: 1 and the in-edges of each row. slices: starts a pass over all rows.
    """

    edges: int
    weight: NDArray[np.int64]
    slices: Callable[[], Iterator[SliceOfRows]]

    @property
    def nodes(self) -> int:
        """Number of rows."""
        return len(self.weight)

    def whole(self, dtype: type[np.signedinteger]) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Return the whole CSR: indptr int64 [N + 1], indices [E] of a type."""
        indptr, indices = np.zeros(self.nodes + 1, np.int64), np.empty(self.edges, dtype)
        for first, offsets, ends in self.slices():
            begin = indptr[first]
            indptr[first + 1 : first + len(offsets)] = begin + offsets[1:]
            indices[begin : begin + len(ends)] = ends
        return indptr, indices

    def ranges(self, parts: int) -> NDArray[np.int32]:
        """Return the assignment to contiguous ranges of equal weight, int32 [N]."""
        offsets = np.zeros(self.nodes + 1, np.int64)
        np.cumsum(self.weight, out=offsets[1:])
        return np.repeat(np.arange(parts, dtype=np.int32), np.diff(edge_balanced(offsets, parts)))
