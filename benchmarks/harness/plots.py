"""Pictures of results, readable in greyscale and by the colour-blind.

Colours are Okabe and Ito's, in an order of different lightness; lines also differ in their marks and dashes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from mgg_hpc.tools.bench.results import Results, Row, text

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#000000", "#CC79A7", "#E69F00", "#56B4E9", "#B8A800")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (7, 2)))
FIRST, OTHER = "#0072B2", "#B7C9D6"
INK, FAINT = "#222222", "#dddddd"
LONGEST = 1.3  # times the largest median: where a whisker ends that one interrupted turn made

Draw = Callable[[Results], Any]


def load() -> Any:
    """Return matplotlib.pyplot, drawing into files."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    return plt


def panels_of(rows: Sequence[Row], *columns: str) -> dict[str, list[Row]]:
    """Return the rows by their values of some columns, in words: "rmat17, 64 width"."""
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
        down = len(panels) if len(values) > 1 else -(-len(panels) // wide)
        most = max(map(len, panels.values()))
        size = (4 + 4.5 * wide, 1.3 + (0.3 * most + 0.7) * down)
        figure, grid = plt.subplots(down, wide, figsize=size, squeeze=False, layout="constrained")
        places = iter(grid.flat)
        for title, rows in panels.items():
            for value in values:
                axes = next(places)
                bars(axes, rows, value)
                axes.set_title(title if value == values[0] else "", fontsize=9, loc="left")
        for axes in places:
            axes.set_axis_off()
        return titled(figure, results)

    return draw


def bars(axes: Any, rows: Sequence[Row], value: str = "median_ms") -> None:
    """Draw a bar for each row's value; of median_ms with minimum and maximum."""
    timed = value == "median_ms"
    most = LONGEST * max(row.get(value) or 0 for row in rows)
    for at, row in enumerate(rows):
        length = row.get(value) or 0
        end = max(length, min(row["max_ms"], most)) if timed else length
        axes.barh(at, length, height=0.7, color=OTHER if at else FIRST, edgecolor=INK, linewidth=0.6)
        if timed:
            for color, wide in (("white", 3), (INK, 1)):  # seen on dark bars too
                axes.hlines(at, row["min_ms"], min(row["max_ms"], most), color=color, linewidth=wide)
        said = text(float(length))
        if timed and at and "times_first" in row:
            said += f", {text(row['times_first'])} times the first"
        axes.annotate(said, (end, at), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), [row["variant"] for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.6 * max(most / LONGEST, 1e-9))
    axes.set_xlabel("ms: median, minimum and maximum" if timed else value.replace("_", " "))


def lines_by(column: str, *panels: str) -> Draw:
    """Return the function that draws each variant's time as a line over a column; a panel for each value of others."""

    def draw(results: Results) -> Any:
        plt, parts = load(), panels_of(results.rows, *panels)
        size = (max(7.5, 4.2 * len(parts)), 5)
        figure, grid = plt.subplots(
            1, len(parts), figsize=size, squeeze=False, sharey=True, layout="constrained"
        )
        for axes, (title, rows) in zip(grid[0], parts.items(), strict=True):
            _lines(axes, rows, column)
            axes.set_xlabel(column.replace("_", " "))
            axes.set_title(title, fontsize=9)
        grid[0][0].set_ylabel("ms: median, minimum and maximum")
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
        return titled(figure, results)

    return draw


def _lines(axes: Any, rows: Sequence[Row], column: str) -> None:
    places = sorted({row[column] for row in rows})
    styles = itertools.cycle(zip(COLOURS, MARKS, LINES, strict=True))
    for variant in dict.fromkeys(row["variant"] for row in rows):
        colour, mark, line = next(styles)
        mine = sorted((row for row in rows if row["variant"] == variant), key=lambda row: float(row[column]))
        middle = [row["median_ms"] for row in mine]
        low = [row["median_ms"] - row["min_ms"] for row in mine]
        high = [row["max_ms"] - row["median_ms"] for row in mine]
        axes.errorbar(
            [row[column] for row in mine], middle, yerr=[low, high], color=colour, marker=mark, linestyle=line,
            markersize=5, linewidth=1.3, elinewidth=0.6, capsize=2, label=variant,
        )  # fmt: skip
    if min(places) > 0:
        axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(places, [text(place) for place in places])
    axes.minorticks_off()
    axes.grid(True, color=FAINT)


def titled(figure: Any, results: Results) -> Any:
    """Return the figure, with the conditions of the measurement above it."""
    same = ", ".join(f"{name.replace('_', ' ')} {text(value)}" for name, value in results.same.items())
    turns = max((row.get("turns", 0) for row in results.rows), default=0)
    said = f"{results.name}\n{same}\n{f'medians of {turns} turns; ' if turns else ''}{results.date[:10]}"
    figure.suptitle(said, fontsize=9, x=0.01, ha="left")
    return figure
