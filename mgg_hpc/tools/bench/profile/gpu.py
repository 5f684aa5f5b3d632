"""`mgg bench profile --device cuda`: what the hot kernels do, by the GPU's own counters, beside what they should do.

A child process launches them (launches.py) under Nsight Compute (ncu.py). Bytes that must move, and launches by
MGG's equations (plan/launch.py), stand beside bytes that did, and the times.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ....errors import InputError
from ....runtime.backends.cuda import module
from ..harness import document, graphs
from ..harness.document import Options, Sheet
from . import ncu
from .launches import FUNCTIONS
from .ncu import Profiled

GRAPH = "rmat:20:16"
STALLS = 3  # shown of each kernel
CHILD = (sys.executable, "-m", "mgg_hpc.tools.bench.profile.launches")


def matched(cases: Sequence[dict[str, Any]], found: Sequence[Profiled], wrong: str) -> list[Profiled]:
    """The launch of each case. Raises InputError that names a kernel which the report does not have.

    wrong: what ncu had to say beside.
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
    """Whether a launch may be this case's: by name, and its grid where that is known."""
    if case["function"] not in launch.function:
        return False
    grid = [launch.values.get(ncu.BLOCKS), launch.values.get(ncu.THREADS)]
    return case["grid"] is None or grid == case["grid"]


def measured(launch: Profiled) -> dict[str, Any]:
    """What counters say of a launch; None where the GPU has no such counter. Shares are of 1."""
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
    """A case with what was measured, and how many times what it should be that is."""
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


def run_profile(
    graph: str | None, *, widths: str, transfers: str, json: Path | None, table: Path | None
) -> int:
    """Check what was named on the command line, and measure. Raises InputError."""
    columns = document.widths_of(widths)
    chosen = document.words_of("transfers", transfers, tuple(FUNCTIONS))
    options = Options("none", None, 0, 0, "", json, table, None)
    name = graph or GRAPH
    options.check()
    document.refuse_ranks()
    graphs.check(name)
    ncu.program()
    module.need_device(module.load())
    process_profile(name, columns, chosen, options)
    return 0


def process_profile(
    graph: str,
    widths: Sequence[int],
    transfers: Sequence[str],
    options: Options,
    child: Sequence[str] = CHILD,
) -> None:
    """Measure, print and write. Raises InputError where ncu cannot, and for a kernel that its report lacks."""
    found = document.begin("profile", options.threads, options.turns)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "launched.json"
        request = {"graph": graph, "widths": widths, "transfers": transfers, "file": str(file)}
        functions = sorted({FUNCTIONS[name] for name in transfers})
        seen, wrong = ncu.profile(functions, [*child, json.dumps(request)])
        if not file.exists():
            raise InputError(f"the program that ncu was to run has ended early: {wrong or 'it said nothing'}")
        found |= json.loads(file.read_text())
    if "failed" in found:
        raise InputError(found["failed"])
    copy = found["copy_gb_per_s"]
    found["cases"] = [
        compared(case, launch, copy)
        for case, launch in zip(found["cases"], matched(found["cases"], seen, wrong), strict=True)
    ]
    absent = [name for name in ncu.METRICS if not any(name in launch.values for launch in seen)]
    if absent or not any(launch.stalls for launch in seen):
        absent += [] if any(launch.stalls for launch in seen) else [f"why warps wait (section {ncu.SECTION})"]
        found["notes"].append(f"ncu gave no {', '.join(absent)}")
    found["notes"].append(
        f"{found['graph']}, float32; for direct, get and halo a second PE owns {found['share']:.1f} of the rows, "
        "and has pushed a halo's before its kernel begins; caches are empty at first; megabytes are 1e6 bytes"
    )
    document.finish(found, sheets(found), options)


def shown(value: float | None, format: Callable[[float], str]) -> str:
    """A cell."""
    return "-" if value is None else format(value)


def megabytes(value: float) -> str:
    """Bytes in 1e6."""
    return f"{value / 1e6:,.1f}"


def percent(value: float) -> str:
    """A share."""
    return f"{100 * value:.0f} %"


def times(value: float) -> str:
    """How many times as much."""
    return f"{value:.2f}"


def sheets(found: dict[str, Any]) -> list[Sheet]:
    """What was measured, and beside it what should be."""
    counters, says, launched = [], [], []
    for case in found["cases"]:
        head, got, over, model = (
            [f"{case['name']} x {case['width']}"],
            case["measured"],
            case["over"],
            case["bytes"],
        )
        stalls = [f"{name} {value:.1f}" for name, value in list(got["stalls"].items())[:STALLS]]
        counters.append(
            [
                *head,
                shown(got["ms"], lambda ms: f"{ms:.3f}"),
                shown(got["memory_read_bytes"], megabytes),
                shown(got["memory_written_bytes"], megabytes),
                shown(got["second_cache_bytes"], megabytes),
                shown(got["first_cache_hits"], percent),
                shown(got["second_cache_hits"], percent),
                ", ".join(stalls) or "-",
            ]
        )
        says.append(
            [
                *head,
                f"{case['floor_ms']:.3f}",
                shown(over["ms"], times),
                megabytes(model["memory_least"]),
                megabytes(model["memory_most"]),
                shown(over["memory"], times),
                megabytes(model["second_cache"]),
                shown(over["second_cache"], times),
            ]
        )
        launched.append([*head, *launch_cells(case)])
    copy = f"ms at {found['copy_gb_per_s']:,.0f} GB/s"
    memory = ["memory, MB: least", "most", "measured / least", "L2, MB", "measured / this"]
    return [
        Sheet(
            "counters",
            [
                "kernel",
                "ms",
                "read, MB",
                "written, MB",
                "L2, MB",
                "L1 hits",
                "L2 hits",
                "warps waiting",
            ],
            counters,
        ),
        Sheet("beside what must move", ["kernel", copy, "measured / this", *memory], says),
        Sheet(
            "launches",
            [
                "kernel",
                "values a warp",
                "warps",
                "blocks",
                "blocks / multiprocessor",
                "at once",
                "occupancy",
                "most",
                "registers",
            ],
            launched,
        ),
    ]


def launch_cells(case: dict[str, Any]) -> list[str]:
    """MGG's WPW, numWarps, numBlocks, blocksPerSM; blocks at once; occupancy as measured and possible; registers."""
    launch, got = case["launch"], case["measured"]
    model = ["-"] * 5
    if launch:
        model = [f"{launch[key]:,}" for key in ("work_per_warp", "warps", "blocks")]
        model += [f"{launch['blocks_per_multiprocessor']:.1f}", str(launch["resident"])]
    possible = case["occupancy"] if case["occupancy"] is not None else got["most_occupancy"]
    return [
        *model,
        shown(got["occupancy"], percent),
        shown(possible, percent),
        shown(got["registers"], lambda count: f"{count:.0f}"),
    ]
