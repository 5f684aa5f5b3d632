"""The picture of `mgg bench aggregate`: time relative to the gather floor, by width of a row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..harness import plots
from ..harness.plots import COLOURS, FAINT, INK

MOST_LABELS = 5  # side by side; more are turned
LONGEST_BAR = 1.5  # times the longest of the other baselines'
BEHIND = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.75}


def _longest(cases: list[dict[str, Any]], name: str) -> float:
    """Return the largest ratio of a library's time to the floor."""
    there = [case for case in cases if name in case["ms"]]
    return max(case["ms"][name]["median"] / case["floor"]["ms"]["median"] for case in there)


def _aggregate_panel(axes: Any, cases: list[dict[str, Any]]) -> None:
    """Draw bars of times relative to the gather floor, a group for each width."""
    names = [name for name in COLOURS if any(name in case["ms"] for case in cases)]
    bar = min(0.25, 0.86 / len(names))
    turned = 90 if len(names) > MOST_LABELS else 0
    second, tallest = sorted([0.0, *(_longest(cases, name) for name in names)])[-2:]
    # A whisker that an interrupted turn made ends here, and so do bars far above all others': they flatten the rest.
    top = 1.3 * min(tallest, LONGEST_BAR * second if second else tallest)
    for group, case in enumerate(cases):
        floor = case["floor"]["ms"]["median"]
        least = case["compulsory"]["ms"] / floor
        axes.hlines(least, group - 0.42, group + 0.42, color=INK, linewidth=1, linestyle=":", zorder=4)
        for position, name in enumerate(names):
            if name not in case["ms"]:
                continue
            at = group + (position - (len(names) - 1) / 2) * bar
            over = {key: ms / floor for key, ms in case["ms"][name].items()}
            said = plots.label(case["ms"][name]["median"])
            plots.bar(axes, name, at, bar, over, top, said, fontsize=6.5, rotation=turned, bbox=BEHIND)
    axes.axhline(1, color=INK, linewidth=1, linestyle="--", zorder=4)
    axes.set_xlim(-0.5, len(cases) - 0.5)
    axes.set_xticks(range(len(cases)), [str(case["width"]) for case in cases])
    axes.set_xlabel(f"width of a row ({cases[0]['dtype']})")
    axes.yaxis.grid(True, color=FAINT, zorder=0)
    axes.set_axisbelow(True)
    axes.set_ylim(0, (1.12 if turned else 1.06) * top)
    first = cases[0]
    said = ", weighted" if first["weighted"] else ""
    said += "" if first["order"] == "none" else f", order {first['order']}"
    axes.set_title(f"{first['graph']}{said}: {first['nodes']:,} nodes, {first['edges']:,} edges", fontsize=9)


def draw(found: dict[str, Any], path: Path) -> None:
    """Draw a panel for each graph and type: times relative to the gather floor as bars, ms written above them."""
    plt = plots.load()
    panels: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for case in found["cases"]:
        panels.setdefault((case["graph"], case["order"], case["dtype"]), []).append(case)
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    size = (0.6 + 6.2 * columns, 0.8 + 3.6 * rows)
    figure, grid = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, cases in zip(grid.flat, panels.values(), strict=False):
        _aggregate_panel(axes, cases)
    for row in grid:
        row[0].set_ylabel("time relative to the gather floor; ms above the bars")
    names = [name for name in COLOURS if any(name in case["ms"] for case in found["cases"])]
    plots.legend(figure, plt, names, {"gather floor": "--", "bytes over bandwidth": ":"})
    plots.save(figure, found, path, bottom=0.04)
