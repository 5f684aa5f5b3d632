"""`mgg bench profile --device cuda`: what the hot kernels do, by the GPU's own counters, beside what they should do.

A child process launches them (launches.py) under Nsight Compute (ncu.py). Bytes that must move, and launches by
MGG's equations (plan/launch.py), stand beside bytes that did, and the times.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ....errors import InputError
from ....runtime.backends.cuda import module
from ..harness import document, watch
from ..harness.document import Sheet
from ..harness.options import BenchOptions, numbers_of, words_of
from . import ncu
from .launches import FUNCTIONS
from .ncu import Profiled

STALLS = 3  # shown of each kernel
CHILD = (sys.executable, "-m", "mgg_hpc.tools.bench.profile.launches")


def matched(cases: Sequence[dict[str, Any]], found: Sequence[Profiled], wrong: str) -> list[Profiled]:
    """Return the launch of each case. Raises InputError that names a kernel which the report does not have.

    wrong: an error that ncu reported, or nothing.
    """
    left, made = list(found), []
    for case in cases:
        at = next((at for at, each in enumerate(left) if is_of(case, each)), None)
        if at is None:
            reason = f": {wrong}" if wrong else ""
            raise InputError(
                f"{case['function']} ({case['name']}, width {case['width']}) is not in ncu's report{reason}"
            )
        made.append(left[at])
        left = left[at + 1 :]
    return made


def is_of(case: dict[str, Any], launch: Profiled) -> bool:
    """Return whether a launch may be this case's: by name, and its grid where that is known."""
    if case["function"] not in launch.function:
        return False
    grid = [launch.values.get(ncu.BLOCKS), launch.values.get(ncu.THREADS)]
    return case["grid"] is None or grid == case["grid"]


def measured(launch: Profiled) -> dict[str, Any]:
    """Return the counters of a launch; None where the GPU has no such counter. Shares are of 1."""
    values = launch.values

    def share(name: str) -> float | None:
        return values[name] / 100 if name in values else None

    sectors = values.get(ncu.SECTORS)
    return {
        "kernel": launch.function,
        "ms": values.get(ncu.TIME),
        "memory_read_bytes": values.get(ncu.READ),
        "memory_written_bytes": values.get(ncu.WRITTEN),
        "second_cache_bytes": None if sectors is None else sectors * ncu.SECTOR_BYTES,
        "first_cache_hits": share(ncu.HITS_1),
        "second_cache_hits": share(ncu.HITS_2),
        "occupancy": share(ncu.OCCUPANCY),
        "most_occupancy": share(ncu.MOST_OCCUPANCY),
        "registers": values.get(ncu.REGISTERS),
        "grid": [values.get(ncu.BLOCKS), values.get(ncu.THREADS)],
        "stalls": launch.stalls,
    }


def compared(case: dict[str, Any], launch: Profiled, copy: float) -> dict[str, Any]:
    """Return a case with its measured values, and their ratios to the expected ones."""
    found, model = measured(launch), case["bytes"]
    floor_ms = model["memory_least"] / copy / 1e6
    halves = (found["memory_read_bytes"], found["memory_written_bytes"])
    memory = None if None in halves else sum(halves)

    def over(value: float | None, least: float) -> float | None:
        return None if value is None else value / least

    return case | {
        "measured": found,
        "floor_ms": floor_ms,
        "over": {
            "ms": over(found["ms"], floor_ms),
            "memory": over(memory, model["memory_least"]),
            "second_cache": over(found["second_cache_bytes"], model["second_cache"]),
        },
    }


def run_profile(graph: str, *, widths: str, transfers: str, **files: Any) -> int:
    """Measure, print and write. Raises InputError where ncu cannot, and for a kernel that its report lacks."""
    columns, chosen = numbers_of("widths", widths), words_of("transfers", transfers, FUNCTIONS)
    options = BenchOptions(**files)
    options.check(graph)
    ncu.program()
    module.need_device(module.load())
    found, cases, seen = document.begin("profile", options), [], []
    for width in columns:  # a run of ncu each: what is measured stays, whatever ends the rest
        launched, profiled, wrong = launched_under_ncu(graph, width, chosen)
        copy = found.setdefault("copy_gb_per_s", launched["copy_gb_per_s"])
        found |= launched | {"copy_gb_per_s": copy}
        pairs = zip(launched["cases"], matched(launched["cases"], profiled, wrong), strict=True)
        cases += [compared(case, launch, copy) for case, launch in pairs]
        seen += profiled
        found["cases"] = cases
        document.write(found, sheets(found), options)
    absent = [name for name in ncu.METRICS if not any(name in launch.values for launch in seen)]
    if absent or not any(launch.stalls for launch in seen):
        absent += [] if any(launch.stalls for launch in seen) else [f"why warps wait (section {ncu.SECTION})"]
        found["notes"].append(f"ncu gave no {', '.join(absent)}")
    found["notes"].append(
        f"{found['graph']}, float32; for direct, get and halo a second PE owns {found['share']:.1f} of the rows, "
        "and has pushed a halo's before its kernel begins; caches are empty at first; megabytes are 1e6 bytes"
    )
    document.finish(found, sheets(found), options)
    return 0


def launched_under_ncu(
    graph: str, width: int, transfers: Sequence[str]
) -> tuple[dict[str, Any], list[Profiled], str]:
    """Return what the child process launched, what ncu saw of it, and an error that ncu reported, or nothing.

    Raises InputError where the child has ended early.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "launched.json"
        request = {"graph": graph, "widths": [width], "transfers": transfers, "file": str(file)}
        functions = sorted({FUNCTIONS[name] for name in transfers})
        with watch.cell(graph, f"width {width}", "under ncu"):
            seen, wrong = ncu.profile(functions, [*CHILD, json.dumps(request)])
        if not file.exists():
            raise InputError(f"the program that ncu was to run has ended early: {wrong or 'it said nothing'}")
        found = json.loads(file.read_text())
    if "failed" in found:
        raise InputError(found["failed"])
    return found, seen, wrong


def shown(value: float | None, format: str = ".2f", scale: float = 1.0) -> str:
    """Return a cell; "-" where the GPU has no such counter."""
    return "-" if value is None else f"{value * scale:{format}}"


def megabytes(value: float | None) -> str:
    """Return bytes in 1e6."""
    return shown(value, ",.1f", 1e-6)


def sheets(found: dict[str, Any]) -> list[Sheet]:
    """Return the tables of measured values beside expected ones."""
    counters, says, launched = [], [], []
    for case in found["cases"]:
        head = f"{case['name']} x {case['width']}"
        got, over, model = case["measured"], case["over"], case["bytes"]
        stalls = [f"{name} {value:.1f}" for name, value in list(got["stalls"].items())[:STALLS]]
        moved = [
            megabytes(got[f"{name}_bytes"]) for name in ("memory_read", "memory_written", "second_cache")
        ]
        hits = [shown(got[f"{name}_cache_hits"], ".0%") for name in ("first", "second")]
        counters.append([head, shown(got["ms"], ".3f"), *moved, *hits, ", ".join(stalls) or "-"])
        least = [megabytes(model["memory_least"]), megabytes(model["memory_most"]), shown(over["memory"])]
        second = [megabytes(model["second_cache"]), shown(over["second_cache"])]
        says.append([head, f"{case['floor_ms']:.3f}", shown(over["ms"]), *least, *second])
        launched.append([head, *launch_cells(case)])
    copy = f"ms at {found['copy_gb_per_s']:,.0f} GB/s"
    memory = ["memory, MB: least", "most", "measured / least", "L2, MB", "measured / this"]
    moved = ["read, MB", "written, MB", "L2, MB"]
    model = ["values a warp", "warps", "blocks", "blocks / multiprocessor", "at once"]
    return [
        Sheet("counters", ["kernel", "ms", *moved, "L1 hits", "L2 hits", "warps waiting"], counters),
        Sheet("beside what must move", ["kernel", copy, "measured / this", *memory], says),
        Sheet("launches", ["kernel", *model, "occupancy", "most", "registers"], launched),
    ]


def launch_cells(case: dict[str, Any]) -> list[str]:
    """Return MGG's WPW, numWarps, numBlocks, blocksPerSM; blocks at once; occupancy (measured, possible); registers."""
    launch, got = case["launch"], case["measured"]
    model = ["-"] * 5
    if launch:
        model = [f"{launch[key]:,}" for key in ("work_per_warp", "warps", "blocks")]
        model += [f"{launch['blocks_per_multiprocessor']:.1f}", str(launch["resident"])]
    possible = case["occupancy"] if case["occupancy"] is not None else got["most_occupancy"]
    return [*model, shown(got["occupancy"], ".0%"), shown(possible, ".0%"), shown(got["registers"], ".0f")]
