"""The pictures of programs: steps as bars of time and memory, and products over the density of their matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mgg_hpc.tools.bench.harness import plots
from mgg_hpc.tools.bench.harness.plots import COLOURS, FAINT, INK

from .fused import FUSED, TENSORS

TENSORS_COLOUR = "#f0c4ba"
STYLES = {"mgg": ("o", "-"), "mkl": ("s", "--"), "torch": ("^", "-.")}


def colour(name: str) -> str:
    """Return the colour of a run: its library's."""
    return TENSORS_COLOUR if name == TENSORS else COLOURS[name.split(maxsplit=1)[0]]


def draw_fused(rows: Sequence[dict[str, Any]], found: Mapping[str, Any], path: Path) -> None:
    """Draw a line of two panels for each row: times of a step, and what it takes beyond its operands."""
    plt = plots.load()
    most = max(len(row["ms"]) for row in rows)
    figure, grid = plt.subplots(
        len(rows), 2, figsize=(10, 0.8 + (0.5 + 0.3 * most) * len(rows)), squeeze=False, layout="constrained"
    )
    for row, (times, memory) in zip(rows, grid, strict=True):
        names = list(row["ms"])
        spreads = [row["ms"][name] for name in names]
        _bars(times, names, spreads, "ms")
        sizes = [plots.constant(row["peak_bytes"][name] / 1e6) for name in names]
        _bars(memory, names, sizes, "MB")
        memory.set_yticklabels([])
        times.set_title(f"{row['program']} on {row['graph']}: {row['edges']:,} edges", fontsize=9, loc="left")
        size = row["edge_tensor_bytes"] / 1e6
        memory.axvline(size, color=INK, linewidth=1, linestyle=":", zorder=1)
        memory.set_title(f"dotted: one tensor of edges, {plots.label(size)} MB", fontsize=8, loc="left")
    grid[-1][0].set_xlabel("ms of a step, forward and backward")
    grid[-1][1].set_xlabel("MB at the peak beyond the operands")
    plots.save(figure, found, path, bottom=0.25 / figure.get_figheight())


def _bars(axes: Any, names: Sequence[str], spreads: Sequence[dict[str, float]], unit: str) -> None:
    """Draw medians as bars with minima and maxima, and write each beside its bar, with its multiple of ours."""
    ours = spreads[names.index(FUSED)]["median"]
    top = plots.LONGEST * max(spread["median"] for spread in spreads)
    longest = max(min(spread["max"], top) for spread in spreads)
    for at, (name, spread) in enumerate(zip(names, spreads, strict=True)):
        middle, end = spread["median"], min(spread["max"], top)
        axes.barh(at, middle, height=0.75, color=colour(name), zorder=2)
        if spread["max"] > spread["min"]:
            axes.hlines(at, spread["min"], end, color=INK, linewidth=0.8, zorder=3)
        said = f"{plots.label(middle)} {unit}" + ("" if name == FUSED else f", {middle / ours:.1f} x mgg")
        axes.annotate(
            said, (max(end, middle), at), xytext=(3, 0), textcoords="offset points", va="center", fontsize=7.5
        )
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.45 * longest)
    axes.xaxis.grid(True, color=FAINT, zorder=0)


def draw_density(rows: Sequence[dict[str, Any]], found: Mapping[str, Any], path: Path) -> None:
    """Draw the time of a product over its density, and below it each library's time over ours."""
    plt = plots.load()
    figure, (times, ratios) = plt.subplots(
        2, 1, figsize=(7, 6), sharex=True, height_ratios=(2, 1), layout="constrained"
    )
    names = [name for name in STYLES if any(name in row["ms"] for row in rows)]
    for name in names:
        there = [row for row in rows if name in row["ms"]]
        mark, line = STYLES[name]
        style = {"color": COLOURS[name], "marker": mark, "linestyle": line, "markersize": 5, "linewidth": 1.4}
        percents = [row["percent"] for row in there]
        middle = [row["ms"][name]["median"] for row in there]
        low = [row["ms"][name]["median"] - row["ms"][name]["min"] for row in there]
        high = [row["ms"][name]["max"] - row["ms"][name]["median"] for row in there]
        times.errorbar(percents, middle, yerr=[low, high], elinewidth=0.6, capsize=2, label=name, **style)
        if name != FUSED:
            ratios.plot(percents, [row["speedup"][name]["median"] for row in there], **style)
    first = rows[0]
    times.set_title(
        f"{first['nodes']:,} x {first['nodes']:,} sparse times {first['nodes']:,} x {first['width']}, float32",
        fontsize=9,
        loc="left",
    )
    times.set_xscale("log")
    times.set_yscale("log")
    times.set_ylabel("ms of a product")
    times.legend(frameon=False, fontsize=8)
    ratios.axhline(1, color=INK, linewidth=1)
    ratios.set_ylim(bottom=0)
    ratios.set_ylabel("times mgg's time")
    ratios.set_xticks([row["percent"] for row in rows], [f"{row['percent']:g}" for row in rows])
    ratios.minorticks_off()
    ratios.set_xlabel("density of the matrix, percent of its cells")
    for axes in (times, ratios):
        axes.grid(True, color=FAINT)
    plots.save(figure, found, path, bottom=0.25 / figure.get_figheight())
