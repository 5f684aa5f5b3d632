"""A grid of chunks, for rows that do not fit in memory: destination intervals by source intervals (NGra, section 3.1).

Destination intervals are worked on one after another. For each of them the source intervals that it has edges from
stream past, each as a chunk of its plan, while the sums of the destination interval stay in memory. So every
destination interval costs one pass over the sources, and memory is best spent on large destination intervals, whose
sums stay, with a few small source intervals, which pass:

             sources 0 .. K-1
            +----+----+----+----+
    target  | -> | -> | -> | -> |   even intervals read ascending,
    0 ..    +----+----+----+----+
    J-1     | <- | <- | <- | <- |   odd ones descending, so that what is held at the turn is used again
            +----+----+----+----+
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .. import workload
from ..layout import CHUNK, OWNED, STREAMED
from ..workload import Plan, joined_segments

NEVER = np.iinfo(np.int64).max


def turned(target: int, sources: int) -> NDArray[np.int64]:
    """Return the order in which a destination interval reads the source intervals: there, and back for the next one."""
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

    sources: int64 [K + 1], bounds of the source intervals. order: that of the chunks, of all K. indptr: int64 [n + 1]
    and indices [E]: in-edge CSR of the interval's rows, sources in 0 .. sources[-1] - 1. Source intervals without edges
    into this one are left out; `chunks_of` says which are there. keep_edges: remember each edge's place in the CSR.
    """
    parts = workload.split(0, sources, indptr, indices, keep_edges=keep_edges, finds_halo=False)
    held = {int(owner): i for i, owner in enumerate(parts.owners) if len(parts.runs[i][0])}
    present = [held[int(chunk)] for chunk in order if int(chunk) in held]
    counts = [int(count.sum(dtype=np.int64)) for _, count in parts.runs]
    starts = workload.prefix_sum(np.array(counts, np.int64))
    places = [np.arange(starts[i], starts[i + 1]) for i in present]
    place = np.concatenate([np.zeros(0, np.int64), *places])
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
    """Build the plans of one destination interval with each source interval alone (`grid_plan`), in their order."""
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
    """Return a plan of at most one chunk as a plan of rows that ``rank`` holds: those of the chunk."""
    chunks = plan.chunks[:1].copy()
    chunks["kind"], chunks["pe"], chunks["first_row"], chunks["first_segment"] = OWNED, rank, 0, 0
    chunks["rows"], chunks["segments"] = plan.chunks["rows"].sum(), len(plan.segments)
    segments = plan.segments[np.argsort(plan.segments["destination"], kind="stable")]
    segments["chunk"] = 0
    return replace(plan, rank=rank, chunks=chunks, segments=segments, transfer="none")


def by_targets(targets: int, sources: int) -> list[tuple[int, int]]:
    """Return the destination interval and the source interval of each call, a cell each, of NGra's order."""
    return [(target, int(source)) for target in range(targets) for source in turned(target, sources)]


def by_sources(targets: int, sources: int) -> list[tuple[int, int]]:
    """Return the destination interval and the source interval of each call of the grid turned by 90 degrees.

    Source interval after source interval goes into all destination intervals, there, and back for the next one: NGra's
    destination order (section 6.2), for which the sums of destinations leave memory and return.
    """
    return [(int(target), source) for source in range(sources) for target in turned(source, targets)]


@dataclass(frozen=True, eq=False)
class Swaps:
    """When sums of destination intervals leave memory and return, where those of one interval fit.

    adds: bool [C], the calls with edges. reads: bool [C], those before which the sums so far return. writes: bool [C],
    those after which they leave. ends: bool [C], those after which an interval's sums are complete: without any edges,
    its last one, for which the sums of another stay.
    """

    adds: NDArray[np.bool_]
    reads: NDArray[np.bool_]
    writes: NDArray[np.bool_]
    ends: NDArray[np.bool_]


def swaps(target: Sequence[int], edges: Sequence[int], *, together: bool = False) -> Swaps:
    """Return the swaps of calls, of which each has a destination interval and a number of edges.

    together: intervals end at their last calls, the same on all ranks, even where these add nothing: ranks that pass
    chunks on wait for each other, and so may not wait elsewhere in different calls.
    """
    of, adds = np.array(target, np.int64), np.array(edges, np.int64) > 0
    if together:
        adds[[np.flatnonzero(of == each)[-1] for each in np.unique(of)]] = True
    ends = np.zeros(len(of), np.bool_)
    for each in np.unique(of):
        mine = np.flatnonzero(of == each)
        there = mine[adds[mine]]
        ends[there[-1] if len(there) else mine[-1]] = True
    made = np.flatnonzero(adds)
    stays, stayed = np.zeros(
        (2, len(made)), np.bool_
    )  # where the next call, and the one before, has the same interval
    stays[:-1] = stayed[1:] = of[made][1:] == of[made][:-1]
    reads, writes = np.zeros(len(of), np.bool_), np.zeros(len(of), np.bool_)
    writes[made[~stays]] = True
    writes &= ~ends
    reads[made[~stayed]] = True
    reads[made[np.unique(of[made], return_index=True)[1]]] = False
    return Swaps(adds, reads, writes, ends)


def chunks_of(plan: Plan) -> NDArray[np.int64]:
    """Return the source intervals of a plan's chunks, in their order."""
    return plan.chunks["pe"][1:].astype(np.int64)


def together(calls: Sequence[Sequence[NDArray[np.int64]]]) -> list[NDArray[np.int64]]:
    """Return the chunks of each call of a pass that several ranks make together, from those of each rank's calls.

    A rank with fewer destination intervals makes calls without destinations in the end.
    """
    count = max(len(of_rank) for of_rank in calls)
    found = []
    for target in range(count):
        chunks = np.unique(np.concatenate([of_rank[target] for of_rank in calls if target < len(of_rank)]))
        found.append(chunks[turned(target, len(chunks))])
    return found


def with_chunks(plan: Plan, sources: NDArray[np.int64], order: NDArray[np.int64]) -> Plan:
    """Return a plan of `grid_plan` with the chunks ``order``, its own among them and in its order.

    From the others it has no edges; they are loaded all the same, for other ranks. Raises ValueError where its own are
    not among them.
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


@dataclass(frozen=True, eq=False)
class Pass:
    """What is loaded in one pass over a grid, in S steps, a chunk each.

    sources: int64 [K + 1], bounds of the chunks' rows. chunk: int64 [S], the source interval of each step. slot: int64
    [S], where it lies. loads: bool [S], whether it is loaded, or still there. calls: int64 [J + 1], the first step of
    each destination interval. slots: their number.
    """

    sources: NDArray[np.int64]
    chunk: NDArray[np.int64]
    slot: NDArray[np.int64]
    loads: NDArray[np.bool_]
    calls: NDArray[np.int64]
    slots: int

    @property
    def capacity(self) -> int:
        """Rows of the largest chunk."""
        return int(np.diff(self.sources).max(initial=1))


def passed(sources: NDArray[np.int64], calls: Sequence[NDArray[np.int64]], slots: int) -> Pass:
    """Return the pass over destination intervals that read these chunks, with at least two slots.

    A chunk is kept as long as Belady's optimal replacement keeps it (IBM Systems Journal, 1966): of those that are
    held, the one that is read again last goes. The chunk that is read is never replaced, since the next one is loaded
    meanwhile. Raises ValueError for fewer than two slots.
    """
    if slots < 2:
        raise ValueError(f"a pass needs at least two slots, and there are {slots}")
    chunk = np.concatenate([np.zeros(0, np.int64), *calls])
    slot, loads = _optimal(chunk, slots)
    first = workload.prefix_sum(np.array([len(call) for call in calls], np.int64))
    return Pass(sources, chunk, slot, loads, first, slots)


def _optimal(chunk: NDArray[np.int64], slots: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the slot of each step, and whether it loads; of equal candidates the lowest slot goes."""
    following = _next_reads(chunk)
    slot, loads = np.zeros(len(chunk), np.int64), np.zeros(len(chunk), np.bool_)
    held: dict[int, int] = {}  # slot of each chunk
    again = np.full(slots, NEVER)  # when each slot is read again
    owner = np.full(slots, -1)
    last = -1
    for step, each in enumerate(chunk.tolist()):
        if each not in held:
            loads[step] = True
            free = np.flatnonzero(owner < 0)
            candidates = again.copy()
            if last >= 0:  # the slot of the step before is in use
                candidates[last] = -1
            chosen = int(free[0]) if len(free) else int(np.argmax(candidates))
            if owner[chosen] >= 0:
                del held[int(owner[chosen])]
            owner[chosen], held[each] = each, chosen
        last = held[each]
        slot[step], again[last] = last, following[step]
    return slot, loads


def _next_reads(chunk: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each step the next one that reads its chunk, or NEVER."""
    following = np.full(len(chunk), NEVER)
    seen: dict[int, int] = {}
    for step in range(len(chunk) - 1, -1, -1):
        each = int(chunk[step])
        following[step] = seen.get(each, NEVER)
        seen[each] = step
    return following
