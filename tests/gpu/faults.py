"""Faults that sanitizers must report, planted into our own kernels: one for each tool."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Fault:
    """What is wrong, and the operation of the table that runs into it.

    kernel, report: which kernel the tool must name, and of what kind its report must be. edits: of a source in cuda/,
    a text that is there once and what stands in its place.
    """

    what: str
    operation: str
    kernel: str
    report: str
    edits: tuple[tuple[str, str, str], ...]


EDGES, SUMS, ROWS = "gpu/edges/edges.cuh", "gpu/sums/aggregate.cuh", "gpu/row_worker.cuh"
FAULTS = {
    "memcheck": Fault(
        "edges beyond the last are read",
        "sddmm",
        "Sddmm",
        "Invalid __global__ read",
        ((EDGES, "end = edge + segment->count;", "end = edge + segment->count + 4;"),),
    ),
    "racecheck": Fault(
        "a row is copied to shared memory by one lane, and read by the others without waiting",
        "sum",
        "aggregate_direct",
        "Race reported|hazard",
        (
            (
                SUMS,
                "    device::expect_bulk(barrier(row), bytes);\n"
                "    device::copy_bulk(slot(row, 0), pack_of(from, 0), bytes, barrier(row));\n",
                "    for (int at = 0; at < bytes; at += 16)\n"
                "      *reinterpret_cast<device::Pack*>(slot(row, 0) + at) =\n"
                "          device::load_pack(pack_of(from, 0) + at);\n",
            ),
            (SUMS, "      await(row);\n", ""),
            (SUMS, "      have_read();\n", ""),
        ),
    ),
    "initcheck": Fault(
        "the sum of a hub's part is not stored before all parts are added",
        "sum",
        "aggregate_direct",
        "Uninitialized __global__ memory read",
        ((ROWS, "    store_partial(task.slot, sum);\n    if (!is_last(", "    if (!is_last("),),
    ),
    "synccheck": Fault(
        "a lane synchronises with lanes that do not count on it",
        "by head",
        "Weighted",
        "Barrier error",
        (
            (
                EDGES,
                "device::sync_lanes(worker.mask);  // what lane 0 may see now",
                "device::sync_lanes(worker.mask & ~(1u << (device::thread() % 32 | (edges.lanes - 1))));  //",
            ),
        ),
    ),
}


def edited(*faults: Fault) -> dict[str, str]:
    """Return the changed sources, by their names in cuda/. Raises ValueError where a text is not there once."""
    texts: dict[str, str] = {}
    for file, old, new in (edit for fault in faults for edit in fault.edits):
        text = texts.get(file, (ROOT / "cuda" / file).read_text())
        if text.count(old) != 1:
            raise ValueError(f"{file}: {old!r} is there {text.count(old)} times; expected once")
        texts[file] = text.replace(old, new)
    return texts


def plant(folder: Path) -> None:
    """Copy what CMake needs, with all faults. What is the same as in a copy of before keeps its time."""
    texts = {str(ROOT / "cuda" / file): text for file, text in edited(*FAULTS.values()).items()}

    def copy(source: str, target: str) -> None:
        content = texts[source].encode() if source in texts else Path(source).read_bytes()
        if not Path(target).exists() or Path(target).read_bytes() != content:
            Path(target).write_bytes(content)

    shutil.copytree(ROOT / "cuda", folder / "cuda", copy_function=copy, dirs_exist_ok=True)
    copy(str(ROOT / "CMakeLists.txt"), str(folder / "CMakeLists.txt"))
