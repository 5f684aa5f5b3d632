"""The model of a sum's time on a GPU: counts of the graph and the launch, over what the GPU's data sheet says.

Each term is the time that one part of the GPU needs at least, and all overlap: the slowest is what is expected, and a
launch. The time of instructions rests on a count by reading the kernel (cuda/gpu/row_worker.cuh), that of the first
cache on a line of 128 bytes a clock and multiprocessor. No data sheet says what the second cache delivers. Measured
were 9.7 TB/s on an H200, whose chip is the H100's (github.com/te42kyfo/gpu-benches, gpu-l2-cache/h200.txt, 12 to 40
MB) and 6.9 on an H100 PCIe of 114 multiprocessors (h100_pcie.txt there); XLA's cost model has 6.65 for an H100. The
term takes the fastest, since all terms are times that are needed at least; the slowest stands beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....data.graph import Graph
from ....plan import launch
from ....plan.layout import SEGMENT, RowFormat
from ....runtime.backends.arguments import Geometry

SECTOR, LINE = 32, 128  # bytes of a transaction, and of a line of a cache
UNROLL = 4  # rows that a worker reads at once (cuda/gpu/row_worker.cuh)
ORDER_WINDOW = 1 << 14  # tasks, among which the longest comes first (cuda/gpu/schedule.h)
GROUP_SLOTS = 32  # parts of a hub that share a counter (cuda/gpu/hub_groups.h)
TASK_BYTES = 24  # of a Block (cuda/include/mgg/schedule.h)
DEGREE_BYTES = INDEX_BYTES = 4
SCHEDULERS = 4  # of a multiprocessor, an instruction of a warp each a clock
CACHE_GB_PER_S = (9700.0, 6650.0)  # of the second cache, the fastest and the slowest that was measured
LAUNCH_MS = 0.002  # from one kernel of a stream to the next
FAR_OFF = 1.5  # of a measured time over the expected one, or the other way round


@dataclass(frozen=True)
class DataSheet:
    """A GPU as its vendor describes it: 1e9 bytes/s of its memory, multiprocessors, second cache, 1e9 clocks/s."""

    name: str
    gb_per_s: float
    multiprocessors: int
    l2_bytes: int
    ghz: float


SHEETS = {
    "H100": DataSheet("H100 SXM", 3350.0, 132, 50 << 20, 1.98),
    "H200": DataSheet("H200", 4800.0, 132, 60 << 20, 1.98),
}


def sheet_of(device: str) -> DataSheet | None:
    """Return the data sheet of a GPU by the name that CUDA gives it; None for one without, as H100s on PCIe."""
    known = "PCIe" not in device and "NVL" not in device
    return next((sheet for name, sheet in SHEETS.items() if known and name in device.split()), None)


def bytes_of(edges: int, rows: int, row_bytes: int, beside: int) -> dict[str, int]:
    """Return the bytes that a kernel must move: ``edges`` of one row each, ``rows`` distinct ones, and ``beside``.

    second_cache: each edge's row and index, as multiprocessors read them if their own caches hold nothing.
    memory_least, memory_most: if the second cache holds everything once it was read, and nothing.
    """
    indices = edges * INDEX_BYTES + beside
    whole = edges * row_bytes + indices
    return {"second_cache": whole, "memory_least": rows * row_bytes + indices, "memory_most": whole}


def beside_rows(tasks: int, segments: int, destinations: int, row_bytes: int) -> int:
    """Return the bytes of a sum beside its edges: tasks, segments, and outputs with their degrees.

    tasks: those that are read. Of a plan without remote rows these are the parts of hubs alone (cuda/gpu/schedule.h).
    """
    return tasks * TASK_BYTES + segments * SEGMENT.itemsize + destinations * (row_bytes + DEGREE_BYTES)


class Reuse:
    """How soon rows are accessed again, from which follows what a cache of any size misses.

    A cache keeps the rows accessed last. The average number of distinct rows in a window of accesses tells how many
    accesses back it reaches (Xiang et al., HOTL, ASPLOS '13): linear in the accesses, where a simulation is not.
    """

    def __init__(self, rows: NDArray[Any]) -> None:
        count = len(rows)
        order = np.argsort(rows, kind="stable")
        same = rows[order][1:] == rows[order][:-1]
        self._times = np.diff(order)[same]  # from an access of a row to its next
        begins = np.concatenate([np.ones(min(1, count), bool), ~same])
        ends = np.concatenate([~same, np.ones(min(1, count), bool)])
        self.distinct = int(begins.sum())
        waits = np.zeros(count + 2)
        for each in (self._times, order[begins] + 1, count - order[ends]):
            waits += np.bincount(each, minlength=count + 2)
        window = np.arange(count + 2)
        longer = waits.sum() - np.cumsum(waits)  # waits that are longer than a window
        beyond = (waits * window).sum() - np.cumsum(waits * window) - window * longer
        self._held = self.distinct - beyond[:count] / (count + 1 - window[:count])

    def misses(self, capacity: int) -> int:
        """Return how many accesses, in order, a cache of ``capacity`` rows misses."""
        if self.distinct <= capacity:
            return self.distinct
        reach = int(np.searchsorted(self._held, capacity))
        return self.distinct + int((self._times > reach).sum())


def tasks_of(indptr: NDArray[Any], most: int) -> NDArray[np.int64]:
    """Return the edges of each task as a GPU takes them: a destination, or a part of one of more than ``most``."""
    degree = np.diff(indptr).astype(np.int64)
    parts = np.maximum(1, -(-degree // most))
    made = np.full(int(parts.sum()), most, np.int64)
    ends = np.cumsum(parts) - 1
    made[ends] = degree - (parts - 1) * most
    for first in range(0, len(made), ORDER_WINDOW):
        window = made[first : first + ORDER_WINDOW]
        window[:] = np.sort(window)[::-1]
    return made


def warp_steps(tasks: NDArray[np.int64], workers: int) -> tuple[int, int]:
    """Return the rows that workers add, and that they could have added in the time that their warps take.

    workers: of a warp, which take tasks that follow each other and wait for the longest.
    """
    steps = -(-tasks // UNROLL) * UNROLL
    padded = np.pad(steps, (0, -len(steps) % workers)).reshape(-1, workers)
    return int(tasks.sum()), int(padded.max(axis=1).sum()) * workers


def expect(
    graph: Graph,
    format: RowFormat,
    geometry: Geometry,
    sheet: DataSheet,
    *,
    weighted: bool = False,
    reuse: Reuse | None = None,
) -> dict[str, Any]:
    """Return the expected time of a sum of local rows by `direct`, its terms in ms, and the counts behind them.

    reuse: of the graph's indices, where several calls share it. bytes_an_edge: of memory, "no_reuse" of rows at all,
    and "cache", what the second cache leaves of that.
    """
    lanes, packs = launch.shape(format)
    passes = -(-format.row_bytes // (lanes * packs * launch.PACK))
    most = launch.part_edges(geometry.ps, geometry.dist)
    tasks, indices = tasks_of(graph.indptr, most), np.asarray(graph.indices)
    used, issued = warp_steps(tasks, launch.LANES // lanes)
    sectors, lines = (rows_units(indices, format.row_bytes, size) for size in (SECTOR, LINE))
    per_row = SECTOR * sectors / max(1, graph.edges)
    parts_of_hubs = len(tasks) - int(np.count_nonzero(np.diff(graph.indptr) <= most))
    beside = beside_rows(parts_of_hubs, len(tasks), graph.nodes, format.row_bytes)
    beside += 4 * graph.edges * weighted
    capacity = int(sheet.l2_bytes / max(1.0, per_row))
    missed = (reuse or Reuse(indices)).misses(capacity)
    moved = bytes_of(graph.edges, missed, round(per_row), beside)
    # A row of a worker: its index, addresses, its packs, and an addition (for halves, a conversion too) of each value.
    values = launch.PACK // format.dtype.itemsize
    of_a_row = 5 + weighted + packs * (1 + values * (1 if format.dtype.itemsize == 4 else 2))
    instructions = issued * lanes // launch.LANES * passes * of_a_row
    parts = int(np.max(-(-np.diff(graph.indptr) // most), initial=0))
    busiest = max(min(parts, GROUP_SLOTS), -(-parts // GROUP_SLOTS)) if parts > 1 else 0
    terms = {
        "memory": moved["memory_least"] / sheet.gb_per_s / 1e6,
        "second cache": moved["second_cache"] / CACHE_GB_PER_S[0] / 1e6,
        "first cache": lines / sheet.multiprocessors / sheet.ghz / 1e6,
        "instructions": instructions / (SCHEDULERS * sheet.multiprocessors * sheet.ghz) / 1e6,
        "atomics": busiest * passes / sheet.ghz / 1e6,  # on one of a hub's counters, one a clock
    }
    edges = max(1, graph.edges)
    return {
        "sheet": asdict(sheet),
        "ms": max(terms.values()) + LAUNCH_MS,
        "terms": terms,
        "second_cache_slowest_ms": moved["second_cache"] / CACHE_GB_PER_S[1] / 1e6,
        "no_reuse_ms": moved["memory_most"] / sheet.gb_per_s / 1e6 + LAUNCH_MS,
        "most_atomics": busiest,
        "lane_efficiency": used / max(1, issued),
        "sectors_an_edge": sectors / edges,
        "lines_an_edge": lines / edges,
        "bytes_an_edge": {"no_reuse": format.row_bytes + INDEX_BYTES, "cache": moved["memory_least"] / edges},
    }


def rows_units(indices: NDArray[Any], row_bytes: int, size: int) -> int:
    """Return the units of ``size`` bytes (sectors or lines) that reads of these rows touch, of a table that begins one.

    512 bytes of a row are read at once, by the 32 lanes of a warp.
    """
    first = np.asarray(indices, np.int64) * row_bytes
    units = 0
    for begin in range(0, row_bytes, 512):
        ends = first + min(begin + 512, row_bytes) - 1
        units += int((ends // size - (first + begin) // size + 1).sum())
    return units


def beside_measured(found: Mapping[str, Any], ms: float, floor_ms: float) -> dict[str, Any]:
    """Return what a measured time says of `expect`'s: their ratio, bytes an edge, and the suspect where they differ.

    floor_ms: of the gather floor, which makes the same reads and nothing else.
    """
    over = ms / found["ms"]
    made = {"over_expected": over}
    if 1 / FAR_OFF <= over <= FAR_OFF:
        return made
    return made | {"suspect": suspect(found, ms, floor_ms)}


def suspect(found: Mapping[str, Any], ms: float, floor_ms: float) -> str:
    """Return the term of a model that is likely to be wrong, for a time that is far off."""
    terms = found["terms"]
    largest = max(terms, key=lambda name: terms[name])
    if ms < found["ms"]:
        return f"{largest}: less of it than counted" if terms[largest] > LAUNCH_MS else "launch"
    if ms < 10 * LAUNCH_MS and largest != "memory":
        return "launch"
    if floor_ms * FAR_OFF < ms:  # reading alone is not what takes the time
        return "instructions: more of them, or lanes that wait"
    if ms <= FAR_OFF * found["no_reuse_ms"]:
        return "memory: rows are found in the second cache less often than simulated"
    return "second cache: reads wait for each other, or too few are under way"
