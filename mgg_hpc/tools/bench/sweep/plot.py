"""`mgg bench sweep` as a picture: a row of heat maps for each transfer, a map of ps and dist for each wpb."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..harness import plots
from ..harness.plots import INK

SLOWEST = 3.0  # times the best: where colours end
COLOURS = "YlOrRd"
DARK = 0.6  # of the colours: numbers on what is darker are white
REFUSED, UNKNOWN = "#d9d9d9", "#ffffff"


def draw(found: dict[str, Any], path: Path) -> None:
    """Draw times over each transfer's best as colours, ms as numbers, and frames around the best and the default."""
    plt = plots.load()
    knobs, transfers = found["knobs"], found["transfers"]
    columns, rows = len(knobs["wpb"]), len(transfers)
    wide, high = 0.42 * len(knobs["dist"]) + 0.2, 0.3 * len(knobs["ps"]) + 0.6
    figure, grid = plt.subplots(
        rows,
        columns,
        figsize=(max(7.0, wide * columns + 1.4), high * rows + 1.1),
        squeeze=False,
        sharex=True,
        sharey=True,
        layout="constrained",
    )
    scale = plt.matplotlib.colors.LogNorm(1, SLOWEST)
    for (transfer, of), line in zip(transfers.items(), grid, strict=True):
        cells = {(c["ps"], c["dist"], c["wpb"]): c for c in found["cells"] if c["transfer"] == transfer}
        fastest = min(c["over_default"]["median"] for c in cells.values() if "ms" in c)
        for axes, wpb in zip(line, knobs["wpb"], strict=True):
            _map(axes, cells, fastest, wpb, knobs, scale)
            for name, style in (("default", "--"), ("best", "-")):
                _frame(axes, of[name], wpb, knobs, style)
        line[0].set_ylabel("ps")
        line[0].set_title(_said(transfer, of, cells), fontsize=8.5, loc="left")
    for axes, wpb in zip(grid[-1], knobs["wpb"], strict=True):
        axes.set_xlabel(f"dist\nwpb {wpb}")
    colours = plt.cm.ScalarMappable(scale, COLOURS)
    bar = figure.colorbar(colours, ax=grid, pad=0.01, aspect=40 * rows / 3, extend="max")
    ticks = [1, 1.2, 1.5, 2, SLOWEST]
    bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks], minor=False)
    bar.minorticks_off()
    bar.set_label("time over the transfer's best")
    handles = [
        plt.Line2D([], [], color=INK, linewidth=1.6, linestyle=style, label=label)
        for label, style in (("best", "-"), ("default", "--"))
    ]
    handles.append(
        plt.Rectangle((0, 0), 1, 1, facecolor=REFUSED, hatch="////", label="the GPU cannot hold it")
    )
    figure.legend(handles=handles, loc="outside lower right", ncols=3, frameon=False, fontsize=8)
    share = f", a share of {found['share']:g} far away" if found["share"] else ""
    title = (
        f"{found['graph']}: {found['edges']:,} edges, {found['dtype']} x {found['width']}{share}; numbers: ms"
    )
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    plots.save(figure, found, path, bottom=0.02, ranges=False)


def _said(transfer: str, of: Mapping[str, Any], cells: Mapping[tuple[int, int, int], Any]) -> str:
    """Return "get: best 8, 4, 8 in 1.23 ms; default 6, 4, 8 in 1.31 ms"."""
    parts = []
    for name in ("best", "default"):
        knobs = (of[name]["ps"], of[name]["dist"], of[name]["wpb"])
        ms = plots.label(cells[knobs]["ms"]["median"])
        parts.append(f"{name} {', '.join(map(str, knobs))} in {ms} ms")
    return f"{transfer}: {'; '.join(parts)}"


def _map(
    axes: Any,
    cells: Mapping[tuple[int, int, int], Any],
    fastest: float,
    wpb: int,
    knobs: Mapping[str, list[int]],
    scale: Any,
) -> None:
    values = np.full((len(knobs["ps"]), len(knobs["dist"])), np.nan)
    axes.set_facecolor(UNKNOWN)
    for y, ps in enumerate(knobs["ps"]):
        for x, dist in enumerate(knobs["dist"]):
            cell = cells.get((ps, dist, wpb))
            if cell is None:
                continue
            if "refused" in cell:
                axes.add_patch(_square(x, y, facecolor=REFUSED, edgecolor="white", hatch="////", linewidth=0))
                continue
            values[y, x] = cell["over_default"]["median"] / fastest
            ink = "white" if scale(values[y, x]) > DARK else INK
            ms = plots.label(cell["ms"]["median"])
            axes.text(x, y, ms, ha="center", va="center", fontsize=5.5, color=ink)
    axes.imshow(values, norm=scale, cmap=COLOURS, aspect="auto", origin="lower")
    axes.set_xticks(range(len(knobs["dist"])), [str(each) for each in knobs["dist"]], fontsize=7)
    axes.set_yticks(range(len(knobs["ps"])), [str(each) for each in knobs["ps"]], fontsize=7)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _square(x: float, y: float, **style: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.5, y - 0.5), 1, 1, **style)


def _frame(axes: Any, setting: Mapping[str, Any], wpb: int, knobs: Mapping[str, Any], style: str) -> None:
    """Draw a frame around a setting, where it lies on this map."""
    if setting["wpb"] == wpb and setting["ps"] in knobs["ps"] and setting["dist"] in knobs["dist"]:
        x, y = knobs["dist"].index(setting["dist"]), knobs["ps"].index(setting["ps"])
        shape = {"fill": False, "edgecolor": INK, "linewidth": 1.6, "linestyle": style, "zorder": 4}
        axes.add_patch(_square(x, y, clip_on=False, **shape))
