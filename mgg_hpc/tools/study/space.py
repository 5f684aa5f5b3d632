"""The study of the design space on CPUs: times over (ps, dist) and (wpb, dist), and the search's path through them.

As in OSDI '23, figure 11: the first map has the wpb that the search begins with, the second one the ps that it ends
with. A thread claims ps x wpb edges at once, and rows are fetched dist edges ahead.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ...errors import InputError
from ...plan.tune import Knob, Search, search
from ...runtime import exit_code, mpi
from ...runtime.backends.arguments import Geometry, rows_ahead
from ...runtime.turns import take_turns
from ..bench.harness import graphs, plots, timing
from ..bench.overlap.cpu import Subject
from . import maps
from .cpu import Request, conditions
from .table import Table

KNOBS = {
    "ps": (64, 128, 256, 512, 1024, 2048),
    "dist": (0, 8, 16, 32, 64, 128, 256),
    "wpb": (1, 4, 8, 16, 32, 64),
}
START = {"ps": 256, "wpb": 16}  # and the dist that suits the width
TRANSFERS = ("direct", "get", "halo")
SHOWN = ("ps_edges", "dist_edges", "wpb_partitions", "median_ms", "min_ms", "max_ms", "times_first", "step")

MAP = "map"  # the variant of rows that are not the search's

Setting = tuple[int, ...]


def run(request: Request, transfer: str) -> int:
    """Search and measure on all ranks, which must all call this; rank 0 prints and writes. Raises InputError."""
    comm = mpi.world()
    with mpi.agree(comm):
        request.files.check()
        graph = graphs.read(request.graph)
        if transfer not in TRANSFERS:
            raise InputError(f"--transfer {transfer}: expected one of {', '.join(TRANSFERS)}")
    (width,) = request.widths
    subject = Subject(comm, graph, width, request.backend, request.threads or mpi.threads_share(comm))
    with mpi.agree(comm):
        if transfer == "direct" and not subject.backend.capabilities.reaches_peers:
            raise InputError("--transfer direct: no pointer reaches the other ranks' rows; take get or halo")
    measured = Measured(subject, transfer)
    knobs = [Knob(name, values) for name, values in KNOBS.items()]
    start = (START["ps"], nearest_dist(subject.format.row_bytes), START["wpb"])
    found = search(knobs, lambda setting: measured.seconds(setting, request.turns), start)
    grid = settings_of_maps(KNOBS, start, found.best)
    ms = measured.in_turns(grid, request.turns)
    table = Table("design-space", conditions(subject, graph, subject.backend.options.threads))
    table.same["transfer"] = transfer
    for setting, taken in ms.items():
        over = timing.ratios(taken, ms[start])["median"]
        table.add(MAP, timing.spread(taken), len(taken), over, **columns(setting))
    add_steps(table, found)
    subject.backend.memory.close()
    if comm.rank == 0:
        table.finish(request.files, partial(maps.draw, search=found, knobs=KNOBS), SHOWN)
    exit_code.record(0)
    return 0


def nearest_dist(row_bytes: int) -> int:
    """Return the value of dist that is nearest to what the backend itself would take."""
    return min(KNOBS["dist"], key=lambda dist: abs(dist - rows_ahead(row_bytes)))


def settings_of_maps(knobs: Mapping[str, Sequence[int]], start: Setting, best: Setting) -> list[Setting]:
    """Return the settings (ps, dist, wpb) of both maps."""
    left = [(ps, dist, start[2]) for ps in knobs["ps"] for dist in knobs["dist"]]
    right = [(best[0], dist, wpb) for wpb in knobs["wpb"] for dist in knobs["dist"]]
    return list(dict.fromkeys([*left, *right, start, best]))


def columns(setting: Setting) -> dict[str, Any]:
    """Return the columns of a setting's knobs."""
    return dict(zip(("ps_edges", "dist_edges", "wpb_partitions"), setting, strict=True))


def add_steps(table: Table, found: Search) -> None:
    """Add a row for each step of a search."""
    for number, step in enumerate(found.steps):
        once = plots.constant(1e3 * step.seconds)
        table.add(f"search: {step.knob}", once, 1, **columns(step.setting), step=number)


class Measured:
    """An aggregation over one plan, timed at any setting."""

    def __init__(self, subject: Subject, transfer: str) -> None:
        self.subject, self.transfer = subject, transfer
        halo = transfer == "halo"
        self.plan: Any = subject.rounds if halo else replace(subject.plan, transfer=transfer)
        self.rows = subject.own if halo else subject.shared

    def cut(self, setting: Setting) -> None:
        """Cut the aggregation by a setting, and call it once, which makes its schedule. Collective."""
        self.subject.backend.retune(self.plan, self.subject.format, Geometry(*setting))
        self.call()

    def call(self) -> None:
        """Aggregate once. Collective."""
        if self.transfer != "halo":
            self.subject.backend.publish(self.rows)
        self.subject.backend.aggregate(self.plan, "copy", "sum", self.rows, self.subject.out)

    def ms(self, setting: Setting) -> float:
        """Return the slowest rank's ms of one call. Collective."""
        self.cut(setting)
        return self.subject.timed(self.call)[0]

    def seconds(self, setting: Setting, calls: int) -> float:
        """Return the median seconds of so many calls. Collective."""
        self.cut(setting)
        return statistics.median(self.subject.timed(self.call)[0] for _ in range(calls)) / 1e3

    def in_turns(self, settings: Sequence[Setting], turns: int) -> dict[Setting, list[float]]:
        """Return the ms of each setting in each turn. Collective."""
        return take_turns({setting: partial(self.ms, setting) for setting in settings}, turns)
