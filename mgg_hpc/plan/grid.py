"""A grid of chunks, for rows that do not fit in memory: destination intervals by source intervals (NGra, section 3.1).

Destination intervals are worked on one after another. The source intervals that have edges to one of them stream past,
each as a chunk of its plan, while the sums of the destination interval stay in memory. So every destination interval
costs one pass over the sources, and memory is best spent on large destination intervals, whose sums stay, with a few
small source intervals, which pass:

             sources 0 .. K-1
            +----+----+----+----+
    target  | -> | -> | -> | -> |   even intervals read ascending,
    0 ..    +----+----+----+----+
    J-1     | <- | <- | <- | <- |   odd ones descending, so that chunks that are still held are used again
            +----+----+----+----+

`divided` chooses the intervals, `grid_plan` and `cell_plans` make plans, `replacement` says which chunks are loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from . import workload
from .layout import CHUNK, OWNED, STREAMED
from .workload import Plan, held_plan, joined_segments

NEVER = np.iinfo(np.int64).max
ROWS = 64  # sizes of intervals are multiples of so many rows
LOAD_COST = 4  # time to load a byte, in times to read or write a byte of sums
SLOTS = (2, 3, 4, 8)  # numbers of chunks in memory that are tried


# ---- plans


def reading_order(target: int, sources: int) -> NDArray[np.int64]:
    """Return the order in which a destination interval reads the source intervals: ascending, or descending if odd."""
    order = np.arange(sources)
    return order if target % 2 == 0 else order[::-1].copy()


def grid_plan(
    sources: NDArray[np.int64],
    order: NDArray[np.int64],
    indptr: NDArray[np.int64],
    indices: NDArray[np.integer],
    *,
    keep_edges: bool = False,
) -> Plan:
    """Build the plan of one destination interval, whose sources come in chunks.

    sources: int64 [K + 1], bounds of the source intervals. order: int64 [K], order of the chunks. indptr: int64 [n + 1]
    and indices [E]: in-edge CSR of the interval's rows, sources in 0 .. sources[-1] - 1. Source intervals without edges
    to this interval are left out; `chunks_of` returns the others. keep_edges: keep each edge's position in the CSR.
    """
    parts = workload.split(0, sources, indptr, indices, keep_edges=keep_edges, finds_halo=False)
    held = {int(owner): i for i, owner in enumerate(parts.owners) if len(parts.runs[i][0])}
    present = [held[int(chunk)] for chunk in order if int(chunk) in held]
    place = np.concatenate(
        [np.zeros(0, np.int64), *(np.arange(*parts.edge_bounds[i : i + 2]) for i in present)]
    )
    chunks = np.zeros(1 + len(present), dtype=CHUNK)
    chunks["kind"], chunks["kind"][0] = STREAMED, OWNED
    chunks["pe"][1:], chunks["rows"][1:] = parts.owners[present], parts.rows[present]
    chunks["first_row"][1:] = sources[parts.owners[present]]
    nothing = np.zeros(0, np.int32)
    runs = [(nothing, nothing), *(parts.runs[i] for i in present)]
    return Plan(
        rank=0,
        destinations=parts.destinations,
        chunks=chunks,
        segments=joined_segments(chunks, runs, parts.empty),
        indices=parts.indices[place],
        edge=None if parts.edge is None else parts.edge[place],
        halo=np.zeros(0, np.int32),
        halo_bounds=np.zeros(2, np.int64),
        transfer="stream",
    )


def cell_plans(
    sources: NDArray[np.int64],
    indptr: NDArray[np.int64],
    indices: NDArray[np.integer],
    *,
    keep_edges: bool = False,
) -> list[Plan]:
    """Build a `grid_plan` of one destination interval for each source interval alone, in the order of the latter."""
    rows = len(indptr) - 1
    row = np.repeat(np.arange(rows), np.diff(indptr))
    chunk = np.searchsorted(sources, indices, side="right") - 1
    by_chunk = np.argsort(chunk, kind="stable")
    cuts = workload.prefix_sum(np.bincount(chunk, minlength=len(sources) - 1))
    plans = []
    for each in range(len(sources) - 1):
        mine = by_chunk[cuts[each] : cuts[each + 1]]
        starts = workload.prefix_sum(np.bincount(row[mine], minlength=rows))
        plan = grid_plan(sources, np.array([each]), starts, indices[mine], keep_edges=keep_edges)
        plans.append(plan if plan.edge is None else replace(plan, edge=mine[plan.edge]))
    return plans


def over_held_rows(plan: Plan, rank: int) -> Plan:
    """Return a plan of at most one streamed chunk, changed to read the chunk's rows in ``rank``'s memory."""
    segments = plan.segments[np.argsort(plan.segments["destination"], kind="stable")]
    segments["chunk"] = 0
    rows = int(plan.chunks["rows"].sum())
    return replace(
        held_plan(rank, segments, plan.indices, destinations=plan.destinations, rows=rows), edge=plan.edge
    )


def chunks_of(plan: Plan) -> NDArray[np.int64]:
    """Return the source intervals of a plan's chunks, in their order."""
    return plan.chunks["pe"][1:].astype(np.int64)


def with_chunks(plan: Plan, sources: NDArray[np.int64], order: NDArray[np.int64]) -> Plan:
    """Extend a plan of `grid_plan` to the chunks ``order``, which contain its own in the same order.

    It has no edges from the additional chunks, but loads them nevertheless, for other ranks. Raises ValueError
    if its own are not among them.
    """
    own = chunks_of(plan)
    place = np.flatnonzero(np.isin(order, own))
    if not np.array_equal(order[place], own):
        raise ValueError(f"a plan of chunks {own.tolist()} cannot have {order.tolist()}")
    number = np.append(0, 1 + place)  # of each chunk
    chunks = np.zeros(1 + len(order), dtype=CHUNK)
    chunks["kind"], chunks["kind"][0] = STREAMED, OWNED
    chunks["pe"][1:], chunks["rows"][1:] = order, np.diff(sources)[order]
    chunks["first_row"][1:] = sources[order]
    chunks["segments"][number] = plan.chunks["segments"]
    chunks["first_segment"] = workload.prefix_sum(chunks["segments"])[:-1]
    segments = plan.segments.copy()
    segments["chunk"] = number[plan.segments["chunk"]]
    return replace(plan, chunks=chunks, segments=segments)


# ---- calls, one for each plan


def cell_calls(targets: int, sources: int, *, turned: bool) -> list[tuple[int, int]]:
    """Return the (destination interval, source interval) of each call over cells, in NGra's orders (section 6).

    Calls are sorted by destination interval, or (turned: the destination order) by source interval: each source
    interval is added to all destination intervals, ascending and descending in turn, whose sums leave memory and
    return.
    """
    if turned:
        return [(target, source) for source, target in cell_calls(sources, targets, turned=False)]
    return [(target, int(source)) for target in range(targets) for source in reading_order(target, sources)]


@dataclass(frozen=True, eq=False)
class Swaps:
    """When partial sums of destination intervals are read and written, if memory holds those of one interval.

    Each field is bool [C], one entry per call. adds: the call has edges. reads: the interval's sums so far are
    read back before it. writes: they are written out after it. ends: they are complete after it. An interval
    without any edges ends at its last call, during which the sums of another one stay in memory.
    """

    adds: NDArray[np.bool_]
    reads: NDArray[np.bool_]
    writes: NDArray[np.bool_]
    ends: NDArray[np.bool_]


def swaps(target: Sequence[int], edges: Sequence[int], *, together: bool = False) -> Swaps:
    """Return the swaps of calls. target: destination interval of each call. edges: number of edges of each call.

    together: intervals end at their last calls, the same on all ranks, even if a rank has no edges in these: ranks that
    pass chunks on wait for each other, and so must not wait for other things in different calls.
    """
    interval, adds = np.array(target, np.int64), np.array(edges, np.int64) > 0
    intervals = np.unique(interval)
    if together:
        adds[[np.flatnonzero(interval == each)[-1] for each in intervals]] = True
    ends, reads, writes = np.zeros((3, len(interval)), np.bool_)
    for each in intervals:
        calls = np.flatnonzero(interval == each)
        adding = calls[adds[calls]]
        ends[adding[-1] if len(adding) else calls[-1]] = True
    made = np.flatnonzero(adds)
    # Whether the next call that adds is of the same interval.
    stays = np.append(interval[made][1:] == interval[made][:-1], False)[: len(made)]
    writes[made[~stays]] = True
    writes &= ~ends
    reads[made[~np.roll(stays, 1)]] = True
    reads[made[np.unique(interval[made], return_index=True)[1]]] = False
    return Swaps(adds, reads, writes, ends)


def joint_calls(calls: Sequence[Sequence[NDArray[np.int64]]]) -> list[NDArray[np.int64]]:
    """Return the chunks of each call of a joint pass of several ranks. calls: the chunks of each rank's calls.

    A rank with fewer destination intervals than others makes calls without destinations at the end.
    """
    found = []
    for target in range(max(map(len, calls))):
        chunks = np.unique(np.concatenate([of_rank[target] for of_rank in calls if target < len(of_rank)]))
        found.append(chunks[reading_order(target, len(chunks))])
    return found


# ---- loads


@dataclass(frozen=True, eq=False)
class Pass:
    """The loads of one pass over a grid, in S steps, a chunk each.

    sources: int64 [K + 1], bounds of the chunks' rows. chunk: int64 [S], the source interval of each step. slot: int64
    [S], the slot of memory in which it lies. loads: bool [S], whether it is loaded; otherwise it is held since an
    earlier step. calls: int64 [J + 1], the first step of each call. slots: number of slots.
    """

    sources: NDArray[np.int64]
    chunk: NDArray[np.int64]
    slot: NDArray[np.int64]
    loads: NDArray[np.bool_]
    calls: NDArray[np.int64]
    slots: int

    @property
    def capacity(self) -> int:
        """Number of rows of the largest chunk."""
        return int(np.diff(self.sources).max(initial=1))


def replacement(sources: NDArray[np.int64], calls: Sequence[NDArray[np.int64]], slots: int) -> Pass:
    """Return the pass over calls that read these chunks, with at least two slots.

    A chunk is kept as long as Belady's optimal replacement keeps it (IBM Systems Journal, 1966): of the chunks that are
    held, the one that is read again last is replaced, and among equals the one in the lowest slot. The chunk that is
    being read is never replaced, since the next one is loaded meanwhile. Raises ValueError for fewer than two slots.
    """
    if slots < 2:
        raise ValueError(f"a pass needs at least two slots, and there are {slots}")
    chunk = np.concatenate([np.zeros(0, np.int64), *calls])
    steps = np.argsort(chunk, kind="stable")  # of each chunk, ascending
    following = np.full(len(chunk), NEVER)  # the next step that reads the same chunk
    again = chunk[steps[:-1]] == chunk[steps[1:]]
    following[steps[:-1][again]] = steps[1:][again]
    slot, loads = np.zeros(len(chunk), np.int64), np.zeros(len(chunk), np.bool_)
    held: dict[int, int] = {}  # slot of each chunk
    next_read = np.full(slots, NEVER)  # of the chunk in each slot
    owner = np.full(slots, -1)
    last = -1
    for step, each in enumerate(chunk.tolist()):
        if each not in held:
            loads[step] = True
            free = np.flatnonzero(owner < 0)
            candidates = next_read.copy()
            if last >= 0:  # the slot of the step before is in use
                candidates[last] = -1
            chosen = int(free[0]) if len(free) else int(np.argmax(candidates))
            if owner[chosen] >= 0:
                del held[int(owner[chosen])]
            owner[chosen], held[each] = each, chosen
        last = held[each]
        slot[step], next_read[last] = last, following[step]
    first = workload.prefix_sum(np.array([len(call) for call in calls], np.int64))
    return Pass(sources, chunk, slot, loads, first, slots)


# ---- intervals


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

    source: bytes of a streamed source row; 0 if sources are read in place, as one chunk. target: bytes of a
    destination row, while its interval is worked on. cell: bytes of plans per destination and chunk, if each
    chunk has a plan.
    """

    source: int
    target: int
    cell: int = 0


@dataclass(frozen=True, eq=False)
class Division:
    """Intervals of a grid.

    targets: int64 [J + 1], bounds of the destination intervals. sources: int64 [K + 1], bounds of the chunks. slots:
    number of chunks that are held at a time.
    """

    targets: NDArray[np.int64]
    sources: NDArray[np.int64]
    slots: int


def divided(
    nbytes: int, rows: int, all_rows: int, edges: int, each: RowBytes, *, turned: bool = False
) -> Division | None:
    """Return the intervals that take the least time in ``nbytes`` of memory, or None if none fit.

    rows: number of this rank's destinations. all_rows: number of sources. edges: number of edges between them. turned:
    for the destination order (`cell_calls`), in which each chunk is added to all destination intervals before the next
    one is loaded.
    """
    if not each.source:
        most = nbytes // max(1, each.target)
        whole = np.array([0, all_rows], np.int64)
        return Division(intervals(rows, most), whole, 2) if most >= ROWS else None
    if turned:
        # Two chunks are as large as three quarters of the memory allow, since the sums of all destinations are read and
        # written for each. The rest has the sums of one destination interval twice: of this call, and of earlier ones.
        kept = max(nbytes // 4, 2 * ROWS * each.target)
        found = _chunks(nbytes - kept, all_rows, 2 * each.source, rows * each.cell)
        if found is None:
            return None
        return Division(intervals(rows, kept // max(1, 2 * each.target)), intervals(all_rows, found[0]), 2)
    if nbytes < min(rows, ROWS) * each.target + 2 * ROWS * each.source:
        return None
    best: tuple[float, int, int, int] | None = None  # time, rows of an interval and of a chunk, slots
    calls_of_best = 1
    count = 1  # of intervals; they may be fewer after rounding
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
    """Return the time of a pass, in times to read or write a byte of sums.

    Each destination interval loads the chunks that are not held since the one before. The sum of a destination is read
    and written again for each further chunk from which it has edges.
    """
    held = min(slots, chunks)
    loads = chunks + (calls - 1) * (chunks - held + (held < chunks))
    mean = edges / max(1, rows)
    meets = chunks * (1 - (1 - 1 / chunks) ** mean) if mean else 0
    loaded = loads / chunks * all_rows * each.source
    return LOAD_COST * loaded + 2 * rows * max(0.0, meets - 1) * each.target


def _chunks(nbytes: int, rows: int, row_bytes: int, each: int) -> tuple[int, int] | None:
    """Return the size and the number of the largest chunks of rows of ``row_bytes`` that fit, or None if none do.

    each: further bytes of every chunk.
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
