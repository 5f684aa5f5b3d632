"""The studies on a GPU, where one process plays two PEs."""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

import numpy as np

from ...data.graph import Graph
from ...errors import InputError
from ...plan.layout import RowFormat
from ...plan.tune import Knob, search
from ...runtime.turns import take_turns
from ..bench.harness import gpu, graphs, sums, timing, watch
from ..bench.harness.gpu import Device
from ..bench.harness.options import BenchOptions, numbers_of
from ..bench.overlap import gpu as overlap
from . import maps, plot, space
from .names import ON_GPU
from .settings import Run, Runs, Setting, runs_of
from .table import Files, Table

GRAPH = overlap.GRAPH
# The ways of bench/overlap that each study compares; the first is MGG's.
WAYS = {
    "neighbour-partitioning": ("get", "get-whole"),
    "interleaving": ("get", "get-late", "get-separate", "halo", "bulk"),
    "primitives": ("get", "get-thread", "get-block", "direct"),
    "transfers": ("halo", "get", "bulk", "direct", "ring", "get-plain", "managed"),
}
PARTS = ("sum", "halo moves", "get moves")  # in the study of transfers
KNOBS = {"ps": (1, 2, 4, 8, 16, 32), "dist": (1, 2, 4, 8, 16), "wpb": (1, 2, 4, 8, 16)}
SHOWN = ("variant", "width_values", "median_ms", "min_ms", "max_ms", "times_first", "crossing_bytes")


def run(
    study: str, graph: str | None, files: Files, *, widths: str, share: float, turns: int, **others: Any
) -> int:
    """Measure a study, print and write. Raises InputError, also where there is no GPU."""
    name, dims = graph or GRAPH, numbers_of("widths", widths)
    BenchOptions().check(name)
    device = Device.current()
    read = graphs.read(name)
    table = Table(study, {})
    if study == "design-space":
        (dim,) = dims
        draw = design_space(table, device, read, dim, share, others["transfer"], turns)
        table.finish(files, draw, space.SHOWN)
        return 0
    for dim in dims:
        table.same = conditions(device, read, dim, share)
        add(table, device, read, turns)
    if len(dims) > 1:
        del table.same["width_values"]
    table.finish(files, plot.DRAWN[study], SHOWN)
    return 0


def conditions(device: Device, graph: Graph, width: int, share: float) -> dict[str, Any]:
    """Return the columns that all rows of a width have."""
    about = {"graph": graph.name, "nodes": graph.nodes, "edges": graph.edges}
    where = {"device": device.module.limits()["name"], "remote_share": share, "width_values": width}
    return about | where


def add(table: Table, device: Device, graph: Graph, turns: int) -> None:
    """Measure one width, and add its rows."""
    width, share = table.same["width_values"], table.same["remote_share"]
    format = RowFormat(np.dtype(np.float32), width)
    with watch.cell(graph.name, f"width {width}", f"share {share:.3g}"):
        case = overlap.measure(device, graph, share, format, WAYS[table.study], turns)
    counts = {name: case[name] for name in ("local_edges", "remote_edges", "halo_rows")}
    parts = [part for part in PARTS if part in case["ms"]] if table.study == "transfers" else []
    first = case["ms"][WAYS[table.study][0]]["median"]
    for name in (*WAYS[table.study], *parts):
        spread = case["ms"][name]
        crossing = format.row_bytes * rows_moved(name, case, graph.nodes)
        table.add(ON_GPU[name], spread, turns, spread["median"] / first, **counts, crossing_bytes=crossing)


def rows_moved(name: str, case: dict[str, Any], nodes: int) -> int:
    """Return the number of rows that cross from the second PE in one call of a way."""
    if name == "sum":
        return 0
    if name == "ring":
        return round(case["share"] * nodes)
    return int(case["halo_rows" if name.startswith(("halo", "bulk")) else "remote_edges"])


def design_space(
    table: Table, device: Device, graph: Graph, width: int, share: float, transfer: str, turns: int
) -> Any:
    """Search and measure the maps of a transfer, add their rows, and return what draws them.

    Each setting of the maps takes turns with the default one, to whose time its own is relative.
    """
    format = RowFormat(np.dtype(np.float32), width)
    runs = runs_of(device, graph, format, share)
    sure = Checked(runs, graph)
    start = runs.default(transfer)
    knobs = {name: tuple(sorted({*values, getattr(start, name)})) for name, values in KNOBS.items()}

    def fits(setting: space.Setting) -> bool:
        try:
            runs.run(Setting(transfer, *setting))
        except InputError:
            return False
        return True

    def seconds(setting: space.Setting) -> float:
        run = sure.run(Setting(transfer, *setting))
        return statistics.median(device.clock.ms(run.calls) for _ in range(turns)) / 1e3

    found = search(
        [Knob(name, values) for name, values in knobs.items()],
        seconds,
        (start.ps, start.dist, start.wpb),
        fits,
    )
    default = sure.run(start)
    table.same = conditions(device, graph, width, share) | {"transfer": transfer}
    for setting in space.settings_of_maps(knobs, found.start, found.best):
        if not fits(setting):
            continue
        with watch.cell(Setting(transfer, *setting)):
            run = sure.run(Setting(transfer, *setting))
            clocks = {each.setting: partial(device.clock.ms, each.calls) for each in (default, run)}
            ms = take_turns(clocks, turns)
        over = timing.ratios(ms[run.setting], ms[start])["median"]
        table.add(space.MAP, timing.spread(ms[run.setting]), turns, over, **space.columns(setting))
        runs.drop({start.cut})
        gpu.release()
    space.add_steps(table, found)
    return partial(maps.draw, search=found, knobs=knobs)


class Checked:
    """Runs of which each is compared with SciPy's sums of drawn rows and of the largest hub before it is timed."""

    def __init__(self, runs: Runs, graph: Graph) -> None:
        self._runs, x = runs, runs.ranks.x
        self._picked = sums.sample(graph.indptr[: runs.ranks.destinations + 1])
        self._expected = sums.product(graph, x.astype(np.float32), picked=self._picked)
        self._limit = sums.allowed(graph, x, picked=self._picked)

    def run(self, setting: Setting) -> Run:
        """Return a setting's run.

        Raises InputError for too large a block, AssertionError where a sum is not SciPy's, or a row has none.
        """
        run = self._runs.run(setting)
        run.out[:] = float("nan")
        self._runs.device.clock.ms(run.calls)
        if count := int((run.out != run.out).any(1).sum()):  # NaN
            raise AssertionError(f"{setting}: {count} rows were not summed")
        found = sums.rows_of(run.out, self._picked)
        if count := int((~(np.abs(found - self._expected) <= self._limit)).sum()):
            raise AssertionError(f"{setting}: {count} sums differ from SciPy's")
        return run
