"""Faults that sanitizers must report, planted into our own kernels: one for each tool."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpu.variants.edits import Edit, copy_sources, edited

if TYPE_CHECKING:
    from shim.build import Build


@dataclass(frozen=True)
class Fault:
    """What is wrong, the operation of the table that runs into it, and the object of tests/shim/build.py.

    kernel, report: which kernel the tool must name, and of what kind its report must be.
    """

    what: str
    operation: str
    shim_object: str
    kernel: str
    report: str
    edits: tuple[Edit, ...]


EDGES, SUMS = "gpu/edges/edges.cuh", "gpu/sums/aggregate.cuh"

FAULTS = {
    "memcheck": Fault(
        "edges beyond the last are read",
        "sddmm",
        "edges_float32",
        "Sddmm",
        "Invalid __global__ read",
        (Edit(EDGES, "end = edge + segment->count;", "end = edge + segment->count + 4;"),),
    ),
    "racecheck": Fault(
        "a row is copied to shared memory by one lane, and read by the others without waiting",
        "sum",
        "aggregate_float32",
        "aggregate_direct",
        "Race reported|hazard",
        (
            Edit(
                SUMS,
                "    device::expect_bulk(barrier(row), bytes);\n"
                "    device::copy_bulk(slot(row, 0), pack_of(from, 0), bytes, barrier(row));\n",
                "    for (int at = 0; at < bytes; at += 16)\n"
                "      *reinterpret_cast<device::Pack*>(slot(row, 0) + at) =\n"
                "          device::load_pack(pack_of(from, 0) + at);\n",
            ),
            Edit(SUMS, "      await(row);\n", ""),
            Edit(SUMS, "      have_read();\n", ""),
        ),
    ),
    "initcheck": Fault(
        "the sum of a hub's part is not stored before all parts are added",
        "sum",
        "aggregate_float32",
        "aggregate_direct",
        "Uninitialized __global__ memory read",
        (
            Edit(
                "gpu/row_worker.cuh",
                "    store_partial(task.slot, sum);\n    if (!is_last(counters, hub.slots, group, word)) return;\n",
                "    if (!is_last(counters, hub.slots, group, word)) return;\n",
            ),
        ),
    ),
    "synccheck": Fault(
        "a lane synchronises with lanes that do not count on it",
        "by head",
        "edges_float32",
        "Weighted",
        "Barrier error",
        (
            Edit(
                EDGES,
                "device::sync_lanes(worker.mask);  // what lane 0 may see now",
                "device::sync_lanes(worker.mask & ~(1u << (device::thread() % 32 | (edges.lanes - 1))));  //",
            ),
        ),
    ),
}


def plant(folder: Path) -> None:
    """A copy of the native sources with all faults, for CMake. Raises ValueError where a source has changed."""
    copy_sources(folder, edited(edit for fault in FAULTS.values() for edit in fault.edits))


def plant_shim(plain: Build, sanitized: Build, folder: Path) -> None:
    """TOOL/_cuda.so for each tool, of the shim: memcheck's with the address sanitizer."""
    for tool, fault in FAULTS.items():
        made = folder / tool
        made.mkdir(parents=True, exist_ok=True)
        build = sanitized if tool == "memcheck" else plain
        build.rewritten(edited(fault.edits), (fault.shim_object,), made)
