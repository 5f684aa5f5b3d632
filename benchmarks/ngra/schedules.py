"""Schedules of graphs that stream, and streaming on and off (NGra, figure 14 and section 6.2), from slow stores.

All rows of a step come from and go to stores of one rate. The time that its bytes take at this rate stands beside what
is measured, as does the time of a step whose stores are as fast as memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from mgg_hpc.nn.streaming.graph import SCHEDULES, Streaming
from mgg_hpc.runtime.turns import take_turns
from mgg_hpc.tools.bench.harness import document, timing
from mgg_hpc.tools.bench.harness.document import Sheet

from .streaming import Case, Net

RATE = 1.0  # GB/s of slow stores
AHEAD, OFF = "ahead", "when wanted"
WARM_UP = 2


def step_ms(net: Net) -> float:
    """Return the milliseconds of a step."""
    net.graph.backend.stream.meter.taken()
    began = time.perf_counter()
    net.step()
    return 1e3 * (time.perf_counter() - began)


def by_schedule(case: Case, turns: int, rate: float) -> dict[str, Any]:
    """Return the row of all schedules. rate: GB/s of the stores, or 0 for RATE."""
    rate = rate or RATE
    chosen = Streaming(case.limit, copies=True, rate=rate * 1e9)
    return _row(case, {name: replace(chosen, schedule=name) for name in SCHEDULES}, turns, rate)


def by_overlap(case: Case, turns: int, rate: float) -> dict[str, Any]:
    """Return the row of chunks that load ahead, and that load when they are waited for.

    rate: GB/s, or 0 for the one at which all bytes take as long as a step that does not wait for stores.
    """
    computing, nbytes = _apart(case, turns)
    rate = rate or nbytes / computing / 1e6
    chosen = Streaming(case.limit, copies=True, rate=rate * 1e9)
    row = _row(case, {AHEAD: chosen, OFF: replace(chosen, ahead=False)}, turns, rate)
    return row | {"computing_ms": computing, "moving_ms": nbytes / rate / 1e6}


def _apart(case: Case, turns: int) -> tuple[float, int]:
    """Return the ms of a step whose stores are memory, nothing of which overlaps, and the bytes that it moves."""
    with case.opened(Streaming(case.limit, copies=True, ahead=False)) as net:
        take_turns({"": partial(step_ms, net)}, WARM_UP)
        taken = take_turns({"": partial(step_ms, net)}, turns)[""]
        return timing.spread(taken)["median"], net.moved().all


def _row(case: Case, ways: Mapping[str, Streaming], turns: int, rate: float) -> dict[str, Any]:
    with case.all_opened(ways) as nets:
        runs: dict[str, Callable[[], float]] = {name: partial(step_ms, net) for name, net in nets.items()}
        take_turns(runs, WARM_UP)
        ms = take_turns(runs, turns)
        moved = {name: asdict(net.moved()) for name, net in nets.items()}
    row = {"program": case.program, "width": case.hidden, "rate": rate, "moved": moved, "limit": case.limit}
    return case.graph | row | timing.compared(ms, ours=next(iter(ways)))


def by_bytes(row: Mapping[str, Any], name: str) -> float:
    """Return a way's bytes over those of the first."""
    first = next(iter(row["moved"].values()))
    return sum(row["moved"][name].values()) / sum(first.values())


def sheet(rows: Sequence[dict[str, Any]]) -> Sheet:
    """Return the table of schedules: times, and the bytes that explain them."""
    columns = ["", "ms a step", "of the first's", "by bytes", "MB of chunks", "MB of sums", "MB of others"]
    cells = []
    for row in rows:
        for name, spread in row["ms"].items():
            line = [f"{row['graph']}, {row['program']}, {name}", document.cell(spread, 0)]
            line += [f"{times_first(row, name):.2f}", f"{by_bytes(row, name):.2f}"]
            cells.append([*line, *(f"{nbytes / 1e6:,.0f}" for nbytes in row["moved"][name].values())])
    return Sheet(f"schedules, stores of {rows[0]['rate']:g} GB/s", columns, cells)


def overlap_sheet(rows: Sequence[dict[str, Any]]) -> Sheet:
    """Return the table of streaming on and off."""
    columns = ["", "GB/s", "ms a step", "of the first's", "ms of bytes", "ms of the rest", "MB"]
    cells = []
    for row in rows:
        for name, spread in row["ms"].items():
            line = [
                f"{row['graph']}, {row['program']}, {name}",
                f"{row['rate']:.2f}",
                document.cell(spread, 0),
            ]
            line += [f"{times_first(row, name):.2f}", f"{row['moving_ms']:.0f}", f"{row['computing_ms']:.0f}"]
            cells.append([*line, f"{sum(row['moved'][name].values()) / 1e6:,.0f}"])
    return Sheet("chunks loaded ahead, and when they are wanted", columns, cells)


def times_first(row: Mapping[str, Any], name: str) -> float:
    """Return a way's time over the first's, the median over turns."""
    return float(row["speedup"].get(name, {"median": 1.0})["median"])
