"""The design space as two heat maps, (ps, dist) and (wpb, dist), with the search's path drawn in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...plan.tune import Search
from ..bench.harness import plots
from .plot import finish
from .table import Table

SLOWEST = 2.0  # times the fastest: where shades end
SHADES = "cividis_r"
PATH, ENDS = "#D55E00", {"start": "o", "best": "*"}

Setting = tuple[int, ...]


def draw(table: Table, path: Path, *, search: Search, knobs: Mapping[str, Sequence[int]]) -> None:
    """Draw times over the fastest as shades, ms as numbers, and the settings that the search measured."""
    plt = plots.load()
    cells: dict[Setting, float] = {
        (row["ps_edges"], row["dist_edges"], row["wpb_partitions"]): row["median_ms"]
        for row in table.rows
        if row["variant"] == "map"
    }
    fastest = min(cells.values())
    scale = plt.matplotlib.colors.LogNorm(1, SLOWEST)
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 5.2), layout="constrained")
    steps = [step.setting for step in search.steps if step.knob != "compare"]
    for axes, knob, fixed, value in ((left, "ps", 2, search.start[2]), (right, "wpb", 0, search.best[0])):
        here = {setting: ms for setting, ms in cells.items() if setting[fixed] == value}
        _map(axes, {_place(setting, knob): ms for setting, ms in here.items()}, knob, knobs, fastest, scale)
        _path(axes, [step for step in steps if step[fixed] == value], knob, knobs)
        for name, setting in (("start", search.start), ("best", search.best)):
            if setting[fixed] == value:
                _mark(axes, _place(setting, knob), knob, knobs, name)
        other = "wpb" if fixed == 2 else "ps"
        axes.set_title(f"{knob} and dist, at {other} = {value}", fontsize=9)
    bar = figure.colorbar(plt.cm.ScalarMappable(scale, SHADES), ax=[left, right], pad=0.01, extend="max")
    ticks = [1, 1.1, 1.25, 1.5, SLOWEST]
    bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks], minor=False)
    bar.minorticks_off()
    bar.set_label("time over the fastest; numbers: ms")
    handles = [
        plt.Line2D([], [], color=PATH, marker=".", linewidth=1.4, label="the search's path"),
        *(
            plt.Line2D(
                [],
                [],
                linestyle="",
                marker=mark,
                markersize=11,
                color="white",
                markeredgecolor="black",
                label=name,
            )
            for name, mark in ENDS.items()
        ),
    ]
    figure.legend(handles=handles, loc="outside lower right", ncols=3, frameon=False, fontsize=8)
    finish(figure, table, path)


def _place(setting: Setting, knob: str) -> tuple[int, int]:
    """Return the values of a map's knob and of dist."""
    return setting[0 if knob == "ps" else 2], setting[1]


def _map(
    axes: Any,
    cells: Mapping[tuple[int, int], float],
    knob: str,
    knobs: Mapping[str, Sequence[int]],
    fastest: float,
    scale: Any,
) -> None:
    down, across = knobs[knob], knobs["dist"]
    values = np.full((len(down), len(across)), np.nan)
    for (y, x), ms in cells.items():
        if y in down and x in across:
            at = down.index(y), across.index(x)
            values[at] = ms / fastest
            ink = "white" if scale(values[at]) > 0.5 else "black"
            axes.text(
                at[1] + 0.44, at[0] + 0.34, plots.label(ms), ha="right", va="center", fontsize=7, color=ink
            )
    axes.imshow(values, norm=scale, cmap=SHADES, aspect="auto", origin="lower")
    axes.set_xticks(range(len(across)), [str(each) for each in across])
    axes.set_yticks(range(len(down)), [str(each) for each in down])
    axes.set_xlabel("dist")
    axes.set_ylabel(knob)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _path(axes: Any, steps: Sequence[Setting], knob: str, knobs: Mapping[str, Sequence[int]]) -> None:
    places = [_at(_place(step, knob), knob, knobs) for step in steps]
    there = [place for place in places if place is not None]
    if there:
        axes.plot(*zip(*there, strict=True), color=PATH, linewidth=1.4, marker=".", markersize=7, zorder=3)


def _mark(
    axes: Any, place: tuple[int, int], knob: str, knobs: Mapping[str, Sequence[int]], name: str
) -> None:
    if (at := _at(place, knob, knobs)) is not None:
        axes.plot(
            *at,
            marker=ENDS[name],
            markersize=13 if name == "best" else 9,
            color="white",
            markeredgecolor="black",
            zorder=4,
        )


def _at(place: tuple[int, int], knob: str, knobs: Mapping[str, Sequence[int]]) -> tuple[int, int] | None:
    """Return where a setting lies on a map, or None beside it."""
    if place[0] not in knobs[knob] or place[1] not in knobs["dist"]:
        return None
    return knobs["dist"].index(place[1]), knobs[knob].index(place[0])
