"""The design space as two heat maps, (ps, dist) and (wpb, dist), with the search's path (OSDI '23, figure 11).

    python benchmarks/studies/design_space.py rmat:17 --ranks 1 --threads 2 -o space.csv -o space.png
    python benchmarks/studies/design_space.py --device cuda --transfer get --share 0.2

The first map has the wpb that the search begins with, the second one the ps that it ends with. On CPUs a thread claims
ps x wpb edges at once, and rows are fetched dist edges ahead. Each setting takes turns with the default one, to whose
time ``times_first`` is relative. Rows of the search's steps follow.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness import command, run
from harness.plots import load, titled
from harness.ranks import Subject
from harness.study import (
    ON_CPU,
    ON_GPU,
    conditions,
    finish,
    on_gpus,
    on_ranks,
    read,
    start,
    subject_of,
    through_pointers,
)

from mgg_hpc.errors import InputError
from mgg_hpc.plan.tune import Knob, Search, search
from mgg_hpc.runtime import mpi
from mgg_hpc.runtime.backends.arguments import Geometry, rows_ahead
from mgg_hpc.tools.bench import graphs
from mgg_hpc.tools.bench.results import Results, Row, text

Setting = tuple[int, ...]  # ps, dist, wpb
Knobs = Mapping[str, Sequence[int]]

CPU_KNOBS = {
    "ps": (64, 128, 256, 512, 1024, 2048),
    "dist": (0, 8, 16, 32, 64, 128, 256),
    "wpb": (1, 4, 8, 16, 32, 64),
}
GPU_KNOBS = {"ps": (1, 2, 4, 8, 16, 32), "dist": (1, 2, 4, 8, 16), "wpb": (1, 2, 4, 8, 16)}
SHOWN = ("variant", "ps", "dist", "wpb", "median_ms", "min_ms", "max_ms", "times_first", "step")
SLOWEST = 2.0  # times the fastest: where shades end
SHADES, PATH, ENDS = "cividis_r", "#D55E00", {"start": "o", "best": "*"}


@command(__doc__)
@click.argument("graph", required=False)
@click.option(
    "--width", type=click.IntRange(1, 65536), default=64, show_default=True, help="Columns of rows."
)
@click.option("--transfer", type=click.Choice(["direct", "get", "halo"]), default="direct", show_default=True)
@on_gpus()
@on_ranks(turns=5)
def main(
    graph: str | None,
    width: int,
    transfer: str,
    ranks: int,
    turns: int,
    files: tuple[Path, ...],
    device: str,
    **launch_options: Any,
) -> int | None:
    chosen = graph or (ON_GPU if device == "cuda" else ON_CPU)
    graphs.check(chosen)
    if (code := start(ranks, device)) is not None:
        return code
    whole = read(chosen)
    subject = subject_of(whole, width, device=device, **launch_options)
    with mpi.agree(mpi.world()):
        if transfer == "direct" and not through_pointers(subject):
            raise InputError("--transfer direct: no pointer reaches the other ranks' rows; take get or halo")
    results = Results("design space", **conditions(whole, subject)[0], width=width, transfer=transfer)
    space = Space(subject, transfer, turns)
    found = space.search()
    space.measure(results, settings_of_maps(space.knobs, found.start, found.best), found.start)
    for number, step in enumerate(found.steps):
        row = results.add(f"search: {step.knob}", [1e3 * step.seconds], **columns(step.setting))
        row["step"] = number
    subject.close()
    finish(results, files, partial(draw, found=found, knobs=space.knobs), SHOWN)
    return None


class Space:
    """The settings of an aggregation by one transfer. Collective."""

    def __init__(self, subject: Any, transfer: str, turns: int) -> None:
        self.subject, self.transfer, self.turns = subject, transfer, turns
        usual, given = subject.geometry, CPU_KNOBS if isinstance(subject, Subject) else GPU_KNOBS
        dist = usual.dist
        if dist < 0:  # by the width of rows: the value that is nearest
            dist = min(given["dist"], key=lambda each: abs(each - rows_ahead(subject.format.row_bytes)))
        self.start: Setting = (usual.ps, dist, usual.wpb)
        pairs = zip(given.items(), self.start, strict=True)
        self.knobs = {name: tuple(sorted({*values, value})) for (name, values), value in pairs}
        self.cut = lru_cache(maxsize=1)(self._cut)  # a setting is checked, and then measured

    def _cut(self, setting: Setting) -> Any:
        """Return the aggregation at a setting; None where a GPU cannot hold a block."""
        try:
            return self.subject.cut(self.transfer, Geometry(*setting))
        except InputError:
            return None

    def search(self) -> Search:
        """Search as a training does, and return the search."""

        def seconds(setting: Setting) -> float:
            ms, _ = self.subject.measure({"setting": self.cut(setting)}, self.turns)
            return median(ms["setting"]) / 1e3

        knobs = [Knob(name, values) for name, values in self.knobs.items()]
        return search(knobs, seconds, self.start, lambda setting: self.cut(setting) is not None)

    def measure(self, results: Results, settings: Sequence[Setting], start: Setting) -> None:
        """Add a row for each setting that fits, measured in turns with the start."""
        first = self._cut(start)
        for setting in settings:
            if (call := self.cut(setting)) is not None:
                ms, _ = self.subject.measure({"start": first, "setting": call}, self.turns)
                both = min(map(len, ms.values()))  # the slow have fewer turns
                results.add("map", ms["setting"][:both], ms["start"][:both], **columns(setting))


def settings_of_maps(knobs: Knobs, start: Setting, best: Setting) -> list[Setting]:
    """Return the settings of both maps."""
    left = [(ps, dist, start[2]) for ps in knobs["ps"] for dist in knobs["dist"]]
    right = [(best[0], dist, wpb) for wpb in knobs["wpb"] for dist in knobs["dist"]]
    return list(dict.fromkeys([*left, *right, start, best]))


def columns(setting: Setting) -> dict[str, int]:
    """Return the columns of a setting."""
    return dict(zip(("ps", "dist", "wpb"), setting, strict=True))


def draw(results: Results, *, found: Search, knobs: Knobs) -> Any:
    """Draw times over the fastest as shades, ms as numbers, and the settings that the search measured."""
    plt = load()
    rows = [row for row in results.rows if row["variant"] == "map"]
    fastest = min(row["times_first"] for row in rows)
    scale = plt.matplotlib.colors.LogNorm(1, SLOWEST)
    figure, both = plt.subplots(1, 2, figsize=(11, 5.2), layout="constrained")
    steps = [columns(step.setting) for step in found.steps if step.knob != "compare"]
    for axes, knob, other, at in (
        (both[0], "ps", "wpb", found.start[2]),
        (both[1], "wpb", "ps", found.best[0]),
    ):
        _shade(axes, [row for row in rows if row[other] == at], knob, knobs, fastest, scale)
        axes.set_title(f"{knob} and dist, at {other} = {at}", fontsize=9)
        axis = [
            (knobs["dist"].index(step["dist"]), knobs[knob].index(step[knob]), step[other]) for step in steps
        ]
        path = [(x, y) for x, y, value in axis if value == at]
        if path:
            axes.plot(*zip(*path, strict=True), color=PATH, linewidth=1.4, marker=".", markersize=7, zorder=3)
        for name, end in (("start", columns(found.start)), ("best", columns(found.best))):
            if end[other] == at:
                x, y = knobs["dist"].index(end["dist"]), knobs[knob].index(end[knob])
                axes.plot(x, y, **_mark(name), zorder=4)
    bar = figure.colorbar(plt.cm.ScalarMappable(scale, SHADES), ax=both, pad=0.01, extend="max")
    ticks = [1, 1.1, 1.25, 1.5, SLOWEST]
    bar.set_ticks(ticks, labels=[text(tick) for tick in ticks], minor=False)
    bar.minorticks_off()
    bar.set_label("time over the fastest; numbers: ms")
    line = plt.Line2D([], [], color=PATH, marker=".", linewidth=1.4, label="the search's path")
    ends = [plt.Line2D([], [], linestyle="", label=name, **_mark(name)) for name in ENDS]
    figure.legend(handles=[line, *ends], loc="outside lower right", ncols=3, frameon=False, fontsize=8)
    return titled(figure, results)


def _mark(name: str) -> dict[str, Any]:
    return {"marker": ENDS[name], "markersize": 11, "color": "white", "markeredgecolor": "black"}


def _shade(axes: Any, rows: Sequence[Row], knob: str, knobs: Knobs, fastest: float, scale: Any) -> None:
    """Draw the rows of one map. fastest: ``times_first`` of the fastest row of both maps."""
    down, across = knobs[knob], knobs["dist"]
    values = np.full((len(down), len(across)), np.nan)
    for row in rows:
        y, x = down.index(row[knob]), across.index(row["dist"])
        values[y, x] = row["times_first"] / fastest
        ink = "white" if scale(values[y, x]) > 0.5 else "black"
        said = text(float(row["median_ms"]))
        axes.text(x + 0.44, y + 0.34, said, ha="right", va="center", fontsize=7, color=ink)
    axes.imshow(values, norm=scale, cmap=SHADES, aspect="auto", origin="lower")
    axes.set_xticks(range(len(across)), [str(each) for each in across])
    axes.set_yticks(range(len(down)), [str(each) for each in down])
    axes.set_xlabel("dist")
    axes.set_ylabel(knob)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


if __name__ == "__main__":
    run(main)
