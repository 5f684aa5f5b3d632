"""Faults that sanitizers must report, planted into our own kernels: one for each tool."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shim.build import Build

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Edit:
    """A text of a source in cuda/, which is there once, and what stands in its place."""

    file: str
    old: str
    new: str

    def applied(self, text: str) -> str:
        """The source with the fault. Raises ValueError where the source has changed."""
        if text.count(self.old) != 1:
            count = text.count(self.old)
            raise ValueError(f"{self.file}: {self.old!r} is there {count} times; expected once")
        return text.replace(self.old, self.new)


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
                "    store_partial(task.slot, sum);\n    worker.sync();\n",
                "    worker.sync();\n",
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


def texts(faults: Iterable[Fault]) -> dict[str, str]:
    """The sources with these faults, by their names. Raises ValueError where one has changed."""
    found: dict[str, str] = {}
    for fault in faults:
        for edit in fault.edits:
            found[edit.file] = edit.applied(found.get(edit.file, (ROOT / "cuda" / edit.file).read_text()))
    return found


def plant(folder: Path) -> None:
    """A copy of the native sources with all faults, for CMake. Raises ValueError where a source has changed."""
    faulty = {Path("cuda", file): text for file, text in texts(FAULTS.values()).items()}
    wanted = {path.relative_to(ROOT): path for path in (ROOT / "CMakeLists.txt", *(ROOT / "cuda").rglob("*"))}
    for name, path in wanted.items():
        if path.is_dir():
            continue
        text = faulty.get(name, path.read_text())
        copy = folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        # What has not changed keeps its time, and is not compiled again.
        if not copy.exists() or copy.read_text() != text:
            copy.write_text(text)
    for path in (folder / "cuda").rglob("*"):
        if path.relative_to(folder) not in wanted:
            path.unlink()


def plant_shim(plain: Build, sanitized: Build, folder: Path) -> None:
    """TOOL/_cuda.so for each tool, of the shim: memcheck's with the address sanitizer."""
    for tool, fault in FAULTS.items():
        made = folder / tool
        made.mkdir(parents=True, exist_ok=True)
        build = sanitized if tool == "memcheck" else plain
        build.rewritten(texts([fault]), (fault.shim_object,), made)
