"""Cut rows into intervals that fit into memory, so that a pass over a grid takes the least time (grid.py)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ROWS = 64  # intervals are multiples of so many rows
LOADED = 4  # time of a byte that is loaded, in bytes of sums that are read or written
SLOTS = (2, 3, 4, 8)  # numbers of chunks in memory that are tried


def intervals(rows: int, most: int) -> NDArray[np.int64]:
    """Return bounds, int64 [K + 1], of intervals of 0 .. rows - 1 of the same size, at most ``most`` rows each."""
    size, count = _evenly(rows, most)
    return np.minimum(np.arange(count + 1, dtype=np.int64) * size, rows)


def _evenly(rows: int, most: int) -> tuple[int, int]:
    """Return the size of all intervals of `intervals` but the last, and their number."""
    size = max(ROWS, most // ROWS * ROWS)
    even = -(-rows // max(1, -(-rows // size)))
    size = -(-even // ROWS) * ROWS
    return size, -(-rows // size) if rows else 1


@dataclass(frozen=True)
class RowBytes:
    """Bytes of memory that each row takes.

    source: of a row that streams past; 0 where sources are read in place, as one chunk. target: that a destination
    keeps while its interval is worked on. cell: of plans for each destination and chunk, where each chunk has a plan.
    """

    source: int
    target: int
    cell: int = 0


@dataclass(frozen=True, eq=False)
class Division:
    """How rows are cut.

    targets: int64 [J + 1], bounds of the destination intervals. sources: int64 [K + 1], bounds of the chunks. slots:
    number of chunks that are held at a time.
    """

    targets: NDArray[np.int64]
    sources: NDArray[np.int64]
    slots: int


def divided(
    nbytes: int, rows: int, all_rows: int, edges: int, each: RowBytes, *, turned: bool = False
) -> Division | None:
    """Return the intervals that take the least time in ``nbytes`` of memory; None where nothing fits.

    rows: number of this rank's destinations. all_rows: number of sources. edges: number of edges between them. turned:
    for the destination order, where each chunk goes into all destination intervals before the next one is loaded.
    """
    if not each.source:
        most = nbytes // max(1, each.target)
        whole = np.array([0, all_rows], np.int64)
        return Division(intervals(rows, most), whole, 2) if most >= ROWS else None
    if turned:
        return _turned(nbytes, rows, all_rows, each)
    if nbytes < min(rows, ROWS) * each.target + 2 * ROWS * each.source:
        return None
    best: tuple[float, int, int, int] | None = None  # time, rows of an interval and of a chunk, slots
    calls_of_best = 1
    count = 1  # of intervals that are asked for
    while best is None or count <= 4 * calls_of_best + 1:
        most = -(-rows // count)
        size, calls = _evenly(rows, most)
        left = nbytes - min(size, rows) * each.target
        for slots in SLOTS if left >= 2 * ROWS * each.source else ():
            found = _chunks(left, all_rows, slots * each.source, rows * each.cell)
            if found is None:
                continue
            longest, chunks = found
            cost = _time(rows, all_rows, edges, each, calls, chunks, slots)
            if best is None or cost < best[0]:
                best, calls_of_best = (cost, size, longest, min(slots, max(2, chunks))), calls
        if most < 2 * ROWS:
            break
        count = -(-rows // (most // ROWS * ROWS - 1))  # the next one whose intervals are smaller
    if best is None:
        return None
    _, size, longest, slots = best
    return Division(intervals(rows, size), intervals(all_rows, longest), slots)


def _time(rows: int, all_rows: int, edges: int, each: RowBytes, calls: int, chunks: int, slots: int) -> float:
    """Return the time of a pass, in bytes of sums that are read or written.

    Each destination interval loads the chunks that are not held from the one before. And a destination's sum is read
    and written again for each chunk that it has edges from.
    """
    held = min(slots, chunks)
    loads = chunks + (calls - 1) * (chunks - held + (held < chunks))
    mean = edges / max(1, rows)
    meets = chunks * (1 - (1 - 1 / chunks) ** mean) if mean else 0
    loaded = loads / chunks * all_rows * each.source
    return LOADED * loaded + 2 * rows * max(0.0, meets - 1) * each.target


def _turned(nbytes: int, rows: int, all_rows: int, each: RowBytes) -> Division | None:
    """Return the intervals of the destination order.

    Two chunks are as large as fit beside a quarter of the memory, since the sums of all destinations are read and
    written for each. That quarter has the sums of one destination interval twice: of the call that is made, and of
    those before.
    """
    kept = max(nbytes // 4, 2 * ROWS * each.target)
    found = _chunks(nbytes - kept, all_rows, 2 * each.source, rows * each.cell)
    if found is None:
        return None
    return Division(intervals(rows, kept // max(1, 2 * each.target)), intervals(all_rows, found[0]), 2)


def _chunks(nbytes: int, rows: int, row_bytes: int, each: int) -> tuple[int, int] | None:
    """Return the size and the number of the largest chunks of rows that fit, at ``row_bytes``; None where none do.

    each: bytes that every chunk takes beside its rows.
    """
    count = 1
    while count * each < nbytes:
        size, chunks = _evenly(rows, (nbytes - count * each) // row_bytes)
        if min(size, rows) * row_bytes + chunks * each <= nbytes:
            return size, chunks
        if size == ROWS:
            return None
        count = max(count + 1, chunks)
    return None
