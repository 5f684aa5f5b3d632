"""The plots of studies, readable in greyscale and by the colour-blind.

Colours are Okabe and Ito's, in an order of different lightness; lines also differ in their marks and dashes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...data.atomic_write import replacement
from ..bench.harness import plots
from ..bench.harness.plots import FAINT, INK
from .table import Row, Table

COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#B8A800")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (7, 2)))
FIRST, OTHER = "#0072B2", "#B7C9D6"

Draw = Callable[[Table, Path], None]


def bars_by(column: str, title: str, of: str) -> Draw:
    """Return the function that draws medians as bars, with minima and maxima; a panel for each value of a column.

    title: of a panel, with the columns of its rows by name. of: what was timed.
    """

    def draw(table: Table, path: Path) -> None:
        plt = plots.load()
        panels: dict[Any, list[Row]] = {}
        for row in table.rows:
            panels.setdefault(row[column], []).append(row)
        most = max(map(len, panels.values()))
        figure, grid = plt.subplots(
            len(panels),
            1,
            figsize=(8.5, 1.0 + (0.45 * most + 0.6) * len(panels)),
            squeeze=False,
            layout="constrained",
        )
        for axes, rows in zip(grid[:, 0], panels.values(), strict=True):
            _bars(axes, rows)
            axes.set_xlabel(f"ms of {of}")
            axes.set_title(title.format(**rows[0]) if len(panels) > 1 else "", fontsize=9)
        finish(figure, table, path)

    return draw


def _bars(axes: Any, rows: Sequence[Row]) -> None:
    most_ms = plots.LONGEST * max(row["median_ms"] for row in rows)
    for at, row in enumerate(rows):
        end = min(row["max_ms"], most_ms)
        axes.barh(
            at, row["median_ms"], height=0.7, color=OTHER if at else FIRST, edgecolor=INK, linewidth=0.6
        )
        for color, wide in (("white", 3), (INK, 1)):  # seen on dark bars too
            axes.hlines(at, row["min_ms"], end, color=color, linewidth=wide)
            axes.vlines([row["min_ms"], end], at - 0.12, at + 0.12, color=color, linewidth=wide)
        said = f"{plots.label(row['median_ms'])} ms"
        if at and "times_first" in row:
            said += f", {row['times_first']:.2f} times the first"
        axes.annotate(
            said, (max(end, row["median_ms"]), at), xytext=(4, 0), textcoords="offset points",
            va="center", fontsize=8,
        )  # fmt: skip
    axes.set_yticks(range(len(rows)), [row["variant"] for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.5 * max(max(row["median_ms"], min(row["max_ms"], most_ms)) for row in rows))


def lines_by(column: str, label: str) -> Draw:
    """Return the function that draws each variant's time as a line over a column."""

    def draw(table: Table, path: Path) -> None:
        plt = plots.load()
        panels = _panels(table.rows, column)
        figure, grid = plt.subplots(
            1,
            len(panels),
            figsize=(max(7.5, 4.2 * len(panels)), 4.8),
            squeeze=False,
            sharey=True,
            layout="constrained",
        )
        for axes, (title, rows) in zip(grid[0], panels.items(), strict=True):
            _lines(axes, rows, column)
            axes.set_xlabel(label)
            axes.set_title(title, fontsize=9)
        grid[0][0].set_ylabel("ms of one aggregation, median, min and max")
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
        finish(figure, table, path)

    return draw


def _panels(rows: Sequence[Row], column: str) -> dict[str, list[Row]]:
    """Return the rows by what else differs: the width of rows where lines go over ranks."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        title = f"rows of {row['width_values']} values" if column != "width_values" else ""
        found.setdefault(title, []).append(row)
    return found


def _lines(axes: Any, rows: Sequence[Row], column: str) -> None:
    places = sorted({row[column] for row in rows})
    styles = itertools.cycle(zip(COLOURS, MARKS, LINES, strict=True))
    for variant in dict.fromkeys(row["variant"] for row in rows):
        colour, mark, line = next(styles)
        mine = sorted((row for row in rows if row["variant"] == variant), key=lambda row: float(row[column]))
        at, middle = [row[column] for row in mine], [row["median_ms"] for row in mine]
        low = [row["median_ms"] - row["min_ms"] for row in mine]
        high = [row["max_ms"] - row["median_ms"] for row in mine]
        axes.errorbar(
            at, middle, yerr=[low, high], color=colour, marker=mark, linestyle=line,
            markersize=5, linewidth=1.3, elinewidth=0.6, capsize=2, label=variant,
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(places, [str(place) for place in places])
    axes.minorticks_off()
    axes.grid(True, color=FAINT)


def finish(figure: Any, table: Table, path: Path) -> None:
    """Write the picture, with the conditions of the measurement above it."""
    turns = max(row["turns"] for row in table.rows)
    save(figure, f"{table.study}\n{table.about()}\nmedians of {turns} turns, and their min and max", path)


def save(figure: Any, title: str, path: Path) -> None:
    """Write the picture, with a title and the date above it."""
    figure.suptitle(f"{title}; {datetime.now(UTC):%Y-%m-%d}", fontsize=9, x=0.01, ha="left")
    with replacement(path, force=True, size=0) as written:
        figure.savefig(written, dpi=130, format=path.suffix.removeprefix("."))
    plots.load().close(figure)


bars = bars_by("width_values", "rows of {width_values} values", "one aggregation")
EPOCHS = bars_by("model", "{model} of {width_values} hidden units", "a training epoch")
DRAWN = {
    "neighbour-partitioning": bars,
    "interleaving": bars,
    "primitives": bars,
    "transfers": lines_by("width_values", "values of a row (float32)"),
    "scaling": lines_by("ranks", "ranks"),
}
