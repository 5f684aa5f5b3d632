"""`mgg bench sweep --device cuda`: our kernels over a grid of (ps, dist, wpb), beside what the model says of each.

`mgg study design-space --device cuda` has a `Sweep` measure its two maps, and adds the search.

Settings of one ps and dist take turns, with the default one of each transfer among them, whose time each one's is
divided by, turn by turn: groups are measured one after another, and so compare. First comes every other value of each
knob, then the neighbours of the best until it has no better one, then what is left: a run that ends early has a whole
coarse map. Each setting's sums of drawn rows, and of the largest hub, are compared with SciPy's before it is timed; all
others must have been written. With a share of rows that is far away, a second PE owns them, as in `mgg bench overlap`.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ....data.graph import Graph
from ....errors import InputError
from ....plan.layout import RowFormat
from ....runtime.turns import take_turns
from ..harness import document, gpu, graphs, plots, sums, timing, watch
from ..harness.document import Sheet, cell
from ..harness.gpu import Device
from ..harness.options import BenchOptions, numbers_of, words_of
from . import plot
from .settings import Run, Runs, Setting, runs_of

KNOBS = ("ps", "dist", "wpb")
TRANSFERS = ("direct", "get", "halo")
SHOWN = 5  # best settings of each transfer, in tables
LARGEST_KNOB = 1024

Step = Callable[[], None]


@contextmanager
def progress(what: str, total: int) -> Iterator[Step]:
    """Show a bar on stderr, where that is a terminal; yield the step to call after each of ``total``."""
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


def nothing(_: Sweep) -> None:
    """Do nothing after a group."""


@dataclass
class Sweep:
    """The runs of a sweep, and their results: cells[s] as in the JSON, "refused" where the GPU cannot hold it.

    picked: rows whose sums are compared. expected, limit: [picked, dim], reference sums and their error bounds.
    after: is called after each group.
    """

    runs: Runs
    transfers: Sequence[str]
    knobs: Mapping[str, Sequence[int]]
    turns: int
    deadline: float
    picked: NDArray[np.int64]
    expected: NDArray[np.float32]
    limit: NDArray[np.float32]
    after: Callable[[Sweep], None] = nothing
    cells: dict[Setting, dict[str, Any]] = field(default_factory=dict)
    defaults: dict[str, Run] = field(default_factory=dict)
    default_ms: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def over(
        cls,
        runs: Runs,
        graph: Graph,
        transfers: Sequence[str],
        knobs: Mapping[str, Sequence[int]],
        turns: int,
        deadline: float = math.inf,
        after: Callable[[Sweep], None] = nothing,
    ) -> Sweep:
        """Return a sweep of a graph that has measured nothing yet, with SciPy's sums of some rows."""
        picked = sums.sample(graph.indptr[: runs.ranks.destinations + 1])
        expected = sums.product(graph, runs.ranks.x.astype(np.float32), picked=picked)
        limit = sums.allowed(graph, runs.ranks.x, picked=picked)
        return cls(runs, transfers, knobs, turns, deadline, picked, expected, limit, after)

    def on(self, transfer: str, *values: Sequence[int]) -> list[Setting]:
        """Return the settings of a transfer with these values of ps, dist and wpb."""
        return [Setting(transfer, *knobs) for knobs in itertools.product(*values)]

    @property
    def late(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() > self.deadline

    def checked(self, setting: Setting) -> Run:
        """Return a run whose sums are SciPy's where they are compared, and there elsewhere.

        Raises InputError for too large a block, AssertionError for other sums, or none.
        """
        with watch.cell(setting):
            run = self.runs.run(setting)
            run.out[:] = float("nan")
            self.runs.device.clock.ms(run.calls)
        if count := int((run.out != run.out).any(1).sum()):  # NaN
            raise AssertionError(f"{setting}: {count} rows were not summed")
        found = sums.rows_of(run.out, self.picked)
        if count := int((~(np.abs(found - self.expected) <= self.limit)).sum()):
            raise AssertionError(f"{setting}: {count} sums differ from SciPy's")
        return run

    def begin(self) -> None:
        """Make the default runs, with which all others are compared."""
        for transfer in self.transfers:
            self.defaults[transfer] = self.checked(self.runs.default(transfer))
            self.default_ms[transfer] = []

    def measure(self, what: str, settings: Sequence[Setting], *, whole: bool = False) -> None:
        """Measure the settings not measured yet. whole: a turn of each at least, even past the deadline."""
        left = self.unknown(settings)
        groups: dict[tuple[int, int], list[Setting]] = {}
        for setting in left:
            groups.setdefault((setting.ps, setting.dist), []).append(setting)
        with progress(what, len(left)) as step:
            for group in groups.values():
                if self.late and not whole:
                    return
                self._take_turns(group, step)

    def _take_turns(self, group: Sequence[Setting], step: Step) -> None:
        there = []
        for setting in group:
            try:
                there.append(self.checked(setting))
            except InputError as error:
                self.cells[setting] = {"refused": str(error)}
                step()
        if there:
            runs = {run.setting: run for run in (*self.defaults.values(), *there)}
            clocks = {setting: partial(self.runs.device.clock.ms, run.calls) for setting, run in runs.items()}
            with watch.cell("turns", *runs):
                ms = take_turns(clocks, self.turns, deadline=self.deadline)
            for transfer, default in self.defaults.items():
                self.default_ms[transfer] += ms[default.setting]
            for run in there:
                taken = ms[run.setting]
                over = timing.ratios(taken, ms[self.defaults[run.setting.transfer].setting])
                self.cells[run.setting] = self.cell(run, taken, over)
                step()
        self.runs.drop({run.setting.cut for run in self.defaults.values()})
        gpu.release()
        self.after(self)

    def cell(self, run: Run, ms: Sequence[float], over_default: dict[str, float]) -> dict[str, Any]:
        """Return the result that is kept of a setting."""
        launched = {name: getattr(run.launched, name) for name in ("blocks", "resident")}
        model = self.runs.model(run.setting)
        return {"ms": timing.spread(ms), "over_default": over_default, "model": model, "launched": launched}

    def finish(self) -> None:
        """Add the results of the default settings."""
        for transfer, run in self.defaults.items():
            ms = self.default_ms[transfer] or [self.runs.device.clock.ms(run.calls)]
            self.cells[run.setting] = self.cell(run, ms, plots.constant(1.0))

    def over_default(self, transfer: str) -> dict[Setting, float]:
        """Return the ratios of a transfer's settings so far to its default, which need not lie on the grid."""
        found = {s: c["over_default"]["median"] for s, c in self.cells.items() if "ms" in c}
        found |= {run.setting: 1.0 for run in self.defaults.values()}
        return {setting: times for setting, times in found.items() if setting.transfer == transfer}

    def fastest(self, transfer: str) -> Setting:
        """Return the fastest setting so far, the default among them."""
        found = self.over_default(transfer)
        return min(found, key=found.__getitem__)

    def best(self, transfer: str) -> Setting | None:
        """Return the fastest setting of the grid so far, whose neighbours are measured next."""
        found = self.over_default(transfer)
        return min(filter(self.inside, found), key=found.__getitem__, default=None)

    def inside(self, setting: Setting) -> bool:
        """Return whether a setting lies on the grid; the default need not."""
        return all(getattr(setting, name) in values for name, values in self.knobs.items())

    def unknown(self, settings: Sequence[Setting]) -> list[Setting]:
        """Return the settings that have not been measured yet."""
        default = {run.setting for run in self.defaults.values()}
        return [each for each in settings if each not in self.cells and each not in default]

    def coarse(self) -> list[Setting]:
        """Return the settings of every other value of each knob."""
        values = [values[::2] for values in self.knobs.values()]
        return [setting for transfer in self.transfers for setting in self.on(transfer, *values)]

    def beside_best(self) -> list[Setting]:
        """Return the neighbours of each transfer's best setting that have not been measured yet."""
        found = []
        for transfer in self.transfers:
            if (best := self.best(transfer)) is None:
                continue
            near = []
            for name, values in self.knobs.items():
                at = values.index(getattr(best, name))
                near.append(values[max(0, at - 1) : at + 2])
            found += self.unknown(self.on(transfer, *near))
        return found

    def run(self) -> None:
        """Measure all settings, or as many as there is time for."""
        self.begin()
        self.measure("coarse", self.coarse(), whole=True)
        while not self.late and (beside := self.beside_best()):
            self.measure("around the best", beside)
        everything = [s for transfer in self.transfers for s in self.on(transfer, *self.knobs.values())]
        self.measure("the rest", everything)


def run_sweep(
    graph: str, *, width: int, dtype: str, transfer: str, share: float, seconds: float, **others: Any
) -> int:
    """Measure for about so many seconds, print and write. Raises InputError for an option that cannot be."""
    knobs = {name: sorted(set(numbers_of(name, others.pop(name), LARGEST_KNOB))) for name in KNOBS}
    transfers = words_of("transfer", transfer, TRANSFERS)
    format, options = RowFormat(np.dtype(dtype), width), BenchOptions(**others)
    options.check(graph)
    device, read = Device.current(), graphs.read(graph)
    found = document.begin("sweep", options, device) | document.about(read)
    found |= {"dtype": dtype, "width": width, "share": share, "seconds": seconds}
    found["knobs"] = knobs

    def write(sweep: Sweep) -> None:
        found.update(record(sweep))
        document.write(found, sheets(found), options)  # what is measured stays, whatever ends the rest

    sweep = swept(device, read, format, transfers, knobs, share, seconds, options.turns, write)
    found |= record(sweep)
    size = int(np.prod([len(values) for values in knobs.values()]))
    for name, of in found["transfers"].items():
        if (known := of["measured"] + of["refused"]) < size:
            found["notes"].append(f"{name}: the time was up after {known} of {size} settings")
    document.finish(found, sheets(found), options, plot.draw)
    return 0


def record(sweep: Sweep) -> dict[str, Any]:
    """Return what a document has of a sweep so far: cells, and the best and the default setting of each transfer."""
    sweep.finish()
    cells = [asdict(setting) | sweep.cells[setting] for setting in sorted(sweep.cells)]
    made: dict[str, Any] = {"cells": cells, "transfers": {}}
    for name in sweep.transfers:
        grid = [each for each in sweep.cells if each.transfer == name and sweep.inside(each)]
        refused = sum("refused" in sweep.cells[each] for each in grid)
        made["transfers"][name] = {
            "best": asdict(sweep.fastest(name)),
            "default": asdict(sweep.defaults[name].setting),
            "measured": len(grid) - refused,
            "refused": refused,
        }
    return made


def swept(
    device: Device,
    graph: Graph,
    format: RowFormat,
    transfers: Sequence[str],
    knobs: Mapping[str, Sequence[int]],
    share: float,
    seconds: float,
    turns: int,
    after: Callable[[Sweep], None] = nothing,
) -> Sweep:
    """Measure the sweep, and return its result. after: is called after each group."""
    deadline = time.monotonic() + seconds
    runs = runs_of(device, graph, format, share)
    sweep = Sweep.over(runs, graph, transfers, knobs, turns, deadline, after)
    sweep.run()
    return sweep


def sheets(found: dict[str, Any]) -> list[Sheet]:
    """Return the tables of the best settings beside the default ones, and of settings that the GPU cannot hold."""
    cells, best = found["cells"], []
    refused: dict[tuple[str, str], list[str]] = {}
    for transfer, of in found["transfers"].items():
        mine = [each for each in cells if each["transfer"] == transfer]
        there = sorted((c for c in mine if "ms" in c), key=lambda c: c["over_default"]["median"])
        default = next(c for c in there if of["default"].items() <= c.items())
        shown = there[:SHOWN] + ([default] if default not in there[:SHOWN] else [])
        for each in shown:
            model = each["model"]
            best.append(
                [
                    transfer + (" (default)" if each is default else ""),
                    f"{each['ps']}, {each['dist']}, {each['wpb']}",
                    cell(each["ms"], 3),
                    cell(each["over_default"], 2),
                    f"{model['warps']:,}",
                    f"{model['blocks_per_multiprocessor']:,.1f}",
                    f"{model['shared_bytes']:,}",
                    f"{model['resident']}, {each['launched']['resident']}",
                ]
            )
        for each in mine:
            if "refused" in each:
                knob = each["refused"].partition(" = ")[0]
                refused.setdefault((transfer, knob), []).append(each["refused"])
    title = f"{found['graph']}, {found['dtype']} x {found['width']}, a share of {found['share']:g} far away: "
    sizes = ["warps", "blocks per SM", "shared bytes", "resident"]
    columns = ["", "ps, dist, wpb", "ms", "over the default", *sizes]
    made = [Sheet(f"{title}the best settings; resident: by the model, and with registers", columns, best)]
    if refused:
        rows = [[transfer, str(len(why)), why[0]] for (transfer, _), why in refused.items()]
        made.append(Sheet("what the GPU cannot hold", ["", "settings", "the first of them"], rows))
    return made
