"""Pictures of results: bars with their values, and maps of the design space; PICTURES has that of each benchmark."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean, mode
from typing import Any

import numpy as np

from harness.results import Results, Row, text
from mgg_hpc.errors import InputError
from mgg_hpc.tools.plots import COLOURS, INK, MAIN, MARKS, MUTED, OTHER, WIDTH, load

LONGEST = 1.3  # times the longest bar: where whiskers end
# By the ends of columns' names.
UNITS = {"ms": " ms", "mb": " MB", "percent": "%", "time": "×", "speedup": "×"}
SLOWEST = 2.0  # times the fastest: where shades of a map end


@dataclass(frozen=True)
class Bars:
    """A picture of bars: a row of panels for each value of some columns, whose panels are side by side.

    title: what is shown. panels: columns whose values have a row of panels each. across: a column whose values are side
    by side; or several values are, in this order. label: the column that names bars; of rows with the same label the
    mean is drawn, with the least and the most.
    """

    title: str
    panels: tuple[str, ...] = ()
    values: tuple[str, ...] = ("median_ms",)
    across: str = ""
    label: str = "variant"

    def __call__(self, results: Results) -> Any:
        """Return the figure. Times that are side by side are drawn as ratios to the first one's."""
        plt, grid, bars = load(), [], []
        for part in panels_of(results.rows, *self.panels).values():
            columns = panels_of(part, self.across).items()
            grid.append([(heading, value, rows) for heading, rows in columns for value in self.values])
            shown = [row for row in part if any(row.get(value) is not None for value in self.values)]
            bars.append(list(dict.fromkeys(text(row[self.label]) for row in shown)))
        each = 0.14 * max(len(textwrap.wrap(name, 24)) for names in bars for name in names) + 0.12
        heights = [each * len(names) + 0.6 for names in bars]  # inches
        shape, size = (len(grid), max(map(len, grid))), (WIDTH, sum(heights) + 0.8)
        figure, lines = plt.subplots(*shape, sharey="row", squeeze=False, height_ratios=heights, figsize=size)
        for line, title, panels, names in zip(
            lines, panels_of(results.rows, *self.panels), grid, bars, strict=True
        ):
            for axes in line[len(panels) :]:
                axes.set_axis_off()
            for axes, (heading, value, rows) in zip(line, panels, strict=False):
                said = (heading or _name(value)) + _first(rows, value) if len(panels) > 1 else ""
                above = (title if axes is line[0] else " ") if title else ""
                axes.set_title("\n".join(filter(None, [above, said])), fontsize=9.5)
                _bars(axes, rows, names, self.label, value, ratios=len(panels) > 1)
        return titled(figure, results, self.title)


def panels_of(rows: Sequence[Row], *columns: str) -> dict[str, list[Row]]:
    """Return the rows by their values of some columns, in words: "rmat17, width 64"."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        title = ", ".join(
            text(row[name]) if isinstance(row[name], str) else f"{_name(name)} {text(row[name])}"
            for name in columns
            if row.get(name) is not None
        )
        found.setdefault(title, []).append(row)
    return found


def _name(value: str) -> str:
    """Return the words for a column of values, without its unit."""
    if value == "median_ms":
        return "time"
    words, _, unit = value.replace("gb_per_s", "GB/s").rpartition("_")
    return (words if words and unit in UNITS else f"{words} {unit}").replace("_", " ").strip()


def _relative(rows: Sequence[Row], value: str) -> bool:
    return value == "median_ms" and all("relative_time" in row for row in rows)


def _first(rows: Sequence[Row], value: str) -> str:
    """Return the end of the heading of ratios: what they are relative to."""
    return f"\n1× is {text(rows[0]['median_ms'])} ms" if _relative(rows, value) else ""


def _bars(axes: Any, rows: Sequence[Row], names: Sequence[str], label: str, value: str, ratios: bool) -> None:
    """Draw a bar for each label of ``names``. ratios: of times, these to the first one."""
    shown = "relative_time" if ratios and _relative(rows, value) else value
    unit = UNITS.get(shown.rpartition("_")[2], "")
    bars = []  # place, length, and where its whisker begins and ends
    for place, name in enumerate(names):
        group = [row for row in rows if text(row[label]) == name and row.get(shown) is not None]
        if group:
            ends = [float(row[shown]) for row in group]
            length = geometric_mean(ends) if unit == "×" else fmean(ends)
            if shown == "median_ms" and len(group) == 1:
                ends = [group[0]["min_ms"], group[0]["max_ms"]]
            bars.append((place, length, min(ends), max(ends)))
    places, lengths, low, high = (
        (np.array(each) for each in zip(*bars, strict=True)) if bars else [np.zeros(0)] * 4
    )
    most = LONGEST * lengths.max(initial=0) or 1.0
    first = names.index("mgg") if "mgg" in names else places.min(initial=len(names))
    colours = [MAIN if place == first else OTHER for place in places]
    whiskers = np.maximum(0, [lengths - low, np.minimum(high, most) - lengths])
    drawn = axes.barh(places, lengths, 0.68, xerr=whiskers, color=colours, ecolor=INK, error_kw={"lw": 1})
    axes.bar_label(drawn, [text(length) + unit for length in lengths.tolist()], padding=4, fontsize=9)
    axes.set_yticks(range(len(names)), [textwrap.fill(name, 24) for name in names], fontsize=9)
    axes.set(xlim=(0, most), ylim=(len(names) - 0.45, -0.55), xticks=[])
    axes.tick_params(left=False)
    axes.spines[["bottom", "left"]].set_visible(False)


def curves(results: Results) -> Any:
    """Draw shares of reads over the percent of rows (hit_rate_PERCENT), a panel for each graph and fanouts."""
    plt, panels = load(), panels_of(results.rows, "graph", "fanouts")
    variants = list(dict.fromkeys(row["variant"] for row in results.rows))
    height = -(-len(panels) // 2)
    figure = plt.figure(figsize=(WIDTH, 2.1 * height + 1.6))
    above, below = figure.subfigures(2, 1, height_ratios=[0.7, 2.1 * height])
    grid = below.subplots(height, 2, sharex=True, sharey=True, squeeze=False)
    for axes, (title, rows) in zip(grid.flat, panels.items(), strict=False):
        for row in rows:
            at = {int(name[9:]): value for name, value in row.items() if name.startswith("hit_rate_")}
            style = variants.index(row["variant"])
            axes.plot(at.keys(), at.values(), color=COLOURS[style], marker=MARKS[style], markersize=4)
        axes.set_title(title, fontsize=9.5)
        axes.grid()
    below.supxlabel("% of the rows", fontsize=9.5)
    below.supylabel("share of the reads", fontsize=9.5)
    above.legend(grid[0, 0].lines, variants, loc="center left", ncols=3, fontsize=8.5, frameon=False)
    return titled(figure, results, "Reads that find rows near, by the score that puts them there")


def maps(results: Results) -> Any:
    """Draw times over the fastest as shades, ms as numbers, and the settings that the search measured."""
    plt, rows = load(), [row for row in results.rows if row["variant"] == "map"]
    steps = [
        row
        for row in results.rows
        if row["variant"].startswith("search: ") and "compare" not in row["variant"]
    ]
    found = next(row for row in results.rows if row["variant"] == "found")
    fastest = min(row["relative_time"] for row in rows)
    figure, both = plt.subplots(2, 1, figsize=(WIDTH, 7.6))
    for axes, knob, other in zip(both, ("ps", "wpb"), ("wpb", "ps"), strict=True):
        at = mode(row[other] for row in rows)
        here = [row for row in rows if row[other] == at]
        down, across = (sorted({row[name] for row in here}) for name in (knob, "dist"))
        times = np.full((len(down), len(across)), np.nan)
        for row in here:
            y, x = down.index(row[knob]), across.index(row["dist"])
            times[y, x] = row["relative_time"] / fastest
            ink = "white" if times[y, x] > SLOWEST**0.5 else INK
            axes.text(x, y + 0.2, text(row["median_ms"]), ha="center", va="center", fontsize=9, color=ink)
        shades = axes.imshow(
            times, vmin=1, vmax=SLOWEST, norm="log", cmap="cividis_r", aspect="auto", origin="lower"
        )
        axes.set_xticks(range(len(across)), across)
        axes.set_yticks(range(len(down)), down)
        axes.set(xlabel="dist", ylabel=knob, title=f"{knob} and dist, at {other} = {at}")
        path = [
            (across.index(step["dist"]), down.index(step[knob]) - 0.2) for step in steps if step[other] == at
        ]
        style = {"color": COLOURS[1], "marker": ".", "linewidth": 1.2}
        axes.plot(*np.array(path).reshape(-1, 2).T, **style)
        if found[other] == at:
            place = [across.index(found["dist"])], [down.index(found[knob]) - 0.2]
            axes.plot(*place, "*", markersize=12, color="white", markeredgecolor=INK)
    bar = figure.colorbar(shades, ax=both, pad=0.01, extend="max", label="times the fastest; numbers: ms")
    bar.set_ticks([1, 1.1, 1.25, 1.5, SLOWEST], labels=["1", "1.1", "1.25", "1.5", "2"], minor=False)
    bar.minorticks_off()
    return titled(
        figure, results, "One aggregation by ps, dist and wpb; the search's path, and what it found"
    )


def titled(figure: Any, results: Results, title: str) -> Any:
    """Return the figure with its title above, and the conditions of the measurement below."""
    of_rows = {name: {row.get(name) for row in results.rows} for name in results.columns()}
    same = {name: values.pop() for name, values in of_rows.items() if len(values) == 1} | results.same
    said = [str(same["graph"])] if "graph" in same else []
    said += [f"{text(same[name])} {name}" for name in ("nodes", "edges") if name in same]
    names = ("ranks", "threads", "threads_per_rank", "backend", "pages", "seeds", "sources")
    said += [f"{name.replace('_', ' ')} {text(same[name])}" for name in names if name in same]
    turns = max((row.get("turns", 0) for row in results.rows), default=0)
    said += [f"medians of {turns} turns, least and most"] if turns else []
    said += [*filter(None, [results.machine.get("gpu") or results.machine["cpu"]]), results.date[:10]]
    figure.suptitle(textwrap.fill(title, 60), fontsize=11.5, fontweight="bold", x=0.01, ha="left")
    figure.supxlabel(textwrap.fill("; ".join(said), 86), fontsize=8.5, color=MUTED, x=0.01, ha="left")
    return figure


def draw(results: Results) -> Any:
    """Return the picture of a benchmark. Raises InputError for one that has none."""
    if results.name not in PICTURES:
        raise InputError(f"there is no picture of {results.name!r}; expected {', '.join(PICTURES)}")
    load().close("all")
    return PICTURES[results.name](results)


PICTURES: dict[str, Callable[[Results], Any]] = {
    "aggregate": Bars(
        "Sums of neighbours' rows: times as long as mgg takes, means over widths of rows",
        ("graph", "dtype"),
        ("mgg_speedup",),
        "order",
    ),
    "epoch": Bars("A training epoch: time, and peak of memory", ("model", "graph"), ("median_ms", "peak_mb")),
    "programs": Bars(
        "Programs on edges, a training step: time and memory",
        ("graph", "program"),
        ("median_ms", "memory_mb"),
    ),
    "sampling": Bars("Mini-batches of sampled neighbours", ("part", "graph")),
    "traversal": Bars("Searches of graphs", ("graph", "part")),
    "streaming": Bars(
        "A training step on a graph that streams through memory",
        ("graph", "part", "program", "ranks", "gb_per_s"),
        ("median_ms", "moved_mb"),
    ),
    "partitioning": Bars("One aggregation, by how the work is cut into blocks", ("width",)),
    "interleaving": Bars("One aggregation, by when remote rows are summed", ("width",)),
    "primitives": Bars("One aggregation, by how remote rows are asked for", across="width"),
    "tiers hits": curves,
    "transfers": Bars("One aggregation, by how remote rows are fetched", ("remote_share",), across="width"),
    "scaling": Bars("One aggregation on 1, 2 and 4 ranks", ("variant",), across="width", label="ranks"),
    "design space": maps,
    "full and sampled training": Bars(
        "Test accuracy of training on the full graph and on batches", ("job",), ("test_percent",)
    ),
    "requests of a search": Bars(
        "Requests of a search to the host's memory, by how lists of edges are read",
        ("graph", "edge_bytes"),
        ("requests", "of_128_bytes_percent", "amplification"),
    ),
    "a breadth-first search": Bars("A breadth-first search, by where edges lie", ("graph",)),
}
