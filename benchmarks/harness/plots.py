"""Pictures of results, readable in greyscale and by the colour-blind.

Colours are Okabe and Ito's, in an order of different lightness; lines also differ in their marks and dashes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mgg_hpc.tools.bench.results import Results, Row, text

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#000000", "#CC79A7", "#E69F00", "#56B4E9", "#B8A800")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (7, 2)))
FIRST, OTHER = "#0072B2", "#B7C9D6"
LONGEST = 1.3  # times the largest median: where a whisker ends that one interrupted turn made
TIMED = "ms: median, minimum and maximum"

Draw = Callable[[Results], Any]


def load() -> Any:
    """Return matplotlib.pyplot, drawing into files."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    cycle = plt.cycler(color=COLOURS) + plt.cycler(marker=MARKS) + plt.cycler(linestyle=LINES)
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    plt.rcParams.update(
        {"axes.prop_cycle": cycle, "axes.titlesize": 9, "figure.constrained_layout.use": True}
    )
    return plt


def panels_of(rows: Sequence[Row], *columns: str) -> dict[str, list[Row]]:
    """Return the rows by their values of some columns, in words: "rmat17, width 64"."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        title = ", ".join(
            text(row[name]) if isinstance(row[name], str) else f"{name.replace('_', ' ')} {text(row[name])}"
            for name in columns
            if row.get(name) is not None
        )
        found.setdefault(title, []).append(row)
    return found


def bars_by(*columns: str, values: Sequence[str] = ("median_ms",), across: int = 1) -> Draw:
    """Return the function that draws a bar for each row, in a panel for each value of the columns.

    values: columns to draw, each in a panel of its own, side by side; median_ms is drawn with its minimum and maximum.
    across: number of panels in a row of the picture, if there is one column.
    """

    def draw(results: Results) -> Any:
        plt, panels = load(), panels_of(results.rows, *columns)
        wide = len(values) if len(values) > 1 else min(across, len(panels))
        down = -(-len(panels) * len(values) // wide)
        most = max(map(len, panels.values()))
        size = (4 + 4.5 * wide, 1.3 + (0.3 * most + 0.7) * down)
        figure, grid = plt.subplots(down, wide, figsize=size, squeeze=False)
        places = iter(grid.flat)
        for title, rows in panels.items():
            for value in values:
                axes = next(places)
                _bars(axes, rows, value)
                axes.set_title(title if value == values[0] else "", loc="left")
        for axes in places:
            axes.set_axis_off()
        return titled(figure, results)

    return draw


def _bars(axes: Any, rows: Sequence[Row], value: str) -> None:
    """Draw a bar for each row's value; of median_ms with minimum and maximum."""
    timed = value == "median_ms"
    lengths = np.array([row.get(value) or 0 for row in rows], dtype=float)
    most = max(lengths.max(), 1e-9)
    ends = lengths
    if timed:
        ends = np.clip([row["max_ms"] for row in rows], lengths, LONGEST * most)
        whiskers = [lengths - [row["min_ms"] for row in rows], ends - lengths]
        axes.errorbar(lengths, range(len(rows)), xerr=whiskers, fmt="none", ecolor="#222222", capsize=2)
    axes.barh(range(len(rows)), lengths, 0.7, color=[FIRST, *[OTHER] * (len(rows) - 1)])
    for at, row in enumerate(rows):
        said = text(lengths[at])
        if timed and at and "relative_time" in row:
            said += f", {text(row['relative_time'])} times the first"
        axes.annotate(
            said, (ends[at], at), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8
        )
    axes.set_yticks(range(len(rows)), [row["variant"] for row in rows])
    axes.invert_yaxis()
    axes.set(xlim=(0, 1.7 * most), xlabel=TIMED if timed else value.replace("_", " "))


def lines_by(column: str, *panels: str) -> Draw:
    """Return the function that draws each variant's time as a line over a column; a panel for each value of others."""

    def draw(results: Results) -> Any:
        plt, parts = load(), panels_of(results.rows, *panels)
        size = (max(7.5, 4.2 * len(parts)), 5)
        figure, grid = plt.subplots(1, len(parts), figsize=size, squeeze=False, sharey=True)
        for axes, (title, rows) in zip(grid[0], parts.items(), strict=True):
            for variant in dict.fromkeys(row["variant"] for row in rows):
                mine = sorted(
                    (row for row in rows if row["variant"] == variant), key=lambda row: float(row[column])
                )
                low, middle, high = np.array(
                    [[row[f"{n}_ms"] for n in ("min", "median", "max")] for row in mine]
                ).T
                whiskers = {"yerr": [middle - low, high - middle], "elinewidth": 0.6, "capsize": 2}
                axes.errorbar([row[column] for row in mine], middle, **whiskers, label=variant)
            places = sorted({row[column] for row in rows})
            if min(places) > 0:
                axes.set_xscale("log", base=2)
            axes.set(yscale="log", xlabel=column.replace("_", " "), title=title)
            axes.set_xticks(places, [text(place) for place in places])
            axes.minorticks_off()
            axes.grid(True, color="#dddddd")
        grid[0][0].set_ylabel(TIMED)
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
        return titled(figure, results)

    return draw


def titled(figure: Any, results: Results) -> Any:
    """Return the figure, with the conditions of the measurement above it."""
    same = ", ".join(f"{name.replace('_', ' ')} {text(value)}" for name, value in results.same.items())
    turns = max((row.get("turns", 0) for row in results.rows), default=0)
    said = f"{results.name}\n{same}\n{f'medians of {turns} turns; ' if turns else ''}{results.date[:10]}"
    figure.suptitle(said, fontsize=9, x=0.01, ha="left")
    return figure
