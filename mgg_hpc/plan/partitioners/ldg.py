"""Linear deterministic greedy in several passes: a partitioner that reads rows one after another.

Stanton and Kliot (KDD 2012), restreamed as Nishimura and Ugander (KDD 2013) do. It begins twice, with edge-balanced
ranges and with empty parts, and goes on with what kept more edges after TRIED passes: a numbering that is good already
is not lost, and one that says nothing does not hold rows where they are. Rows of the halos, 4 parts, 10 passes:

- a web graph as crawled (cnr-2000; ranges have 30,000): 12,600 from ranges, 58,900 from empty parts;
- a block model of 50,000 nodes (ranges have 149,000): 135,000 from ranges, 95,800 from empty parts.

Fennel (Tsourakakis et al., WSDM 2014), its price of load raised from pass to pass, gave 13,000 to 18,300 and 95,700.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...data import native
from .pattern import Pattern

TRIED = 2  # passes from each start
PASSES = 10  # at most, of the better start; more were measured to change next to nothing
SETTLED = 1000  # with fewer than one row of so many moved by a pass, it was the last
SLACK = 0.05  # of the mean load, by which a part may be larger


def assign(pattern: Pattern, parts: int) -> NDArray[np.int32]:
    """Return the part of each row, int32 [N].

    A part's weight is at most 1 + SLACK times the mean, or the mean and the largest row where that is more.
    """
    stream = _Stream(pattern, parts)
    starts = pattern.ranges(parts), np.full(pattern.nodes, -1, np.int32)
    kept = [[stream.once(part_of) for _ in range(TRIED)][-1][1] for part_of in starts]
    part_of = starts[int(np.argmax(kept))]
    for _ in range(PASSES - TRIED):
        if stream.once(part_of)[0] * SETTLED < pattern.nodes:
            break
    return part_of


class _Stream:
    """Passes over all rows of a pattern."""

    def __init__(self, pattern: Pattern, parts: int) -> None:
        self._pattern, self._parts = pattern, parts
        self._capacity = int((1 + SLACK) * pattern.weight.sum() / parts) + 1
        self._place = native.load().stream_rows

    def once(self, part_of: NDArray[np.int32]) -> tuple[int, int]:
        """Place each row anew, in part_of; return how many rows moved, and how many edges their parts kept."""
        weight = self._pattern.weight
        held = part_of >= 0
        load = np.bincount(part_of[held], weight[held], minlength=self._parts).astype(np.int64)
        moved = kept = 0
        for first, indptr, indices in self._pattern.slices():
            of_rows = weight[first : first + len(indptr) - 1]
            found = self._place(first, indptr, indices, of_rows, self._capacity, load, part_of)
            moved, kept = moved + found[0], kept + found[1]
        return moved, kept


def memory(nodes: int, edges: int) -> int:
    """Return about how many bytes it takes: for each node its part, weight and offset, and a slice of rows."""
    return 48 * nodes + (128 << 20)
