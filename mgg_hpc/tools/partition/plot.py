"""The picture of a comparison of partitions: bytes a layer, rows of the halos, balance and time of each method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..bench.harness import plots

HALO, DIRECT, EDGES, ROWS = "#c8432b", "#2f6690", "#5b8e7d", "#e09f3e"


def draw(document: dict[str, Any], path: Path) -> None:
    """Draw what `compare.process_compare` found into a file. Raises InputError if matplotlib is not installed."""
    plt = plots.load()
    found = document["methods"]
    names = [each["method"] for each in found]
    width = max(9.5, 1.8 * len(names))  # inches, so that the numbers of the last panel lie side by side
    figure, panels = plt.subplots(1, 3, figsize=(width, 3.3), layout="constrained", width_ratios=[2, 1.4, 1])
    _bytes(panels[0], found)
    _balance(panels[1], found)
    _seconds(panels[2], found)
    turned = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if len(names) > 4 else {}
    for panel in panels:
        panel.set_xticks(np.arange(len(names)), names, **turned)
        panel.set_xlim(-0.6, len(names) - 0.4)
        panel.grid(axis="y", color=plots.FAINT, zorder=0)
    title = f"{document['graph']}, {document['nodes']:,} rows, {document['edges']:,} edges, {document['parts']} ranks"
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _bytes(panel: Any, found: list[dict[str, Any]]) -> None:
    """Draw each method's bytes a layer: a mark for each width, from the narrowest up to the widest."""
    widths = list(found[0]["bytes"])
    for offset, kind, said, colour in (
        (-0.15, "halo", "halo", HALO),
        (0.15, "direct", "direct or get", DIRECT),
    ):
        at = np.arange(len(found)) + offset
        values = np.array([[each["bytes"][width][kind] / 1e6 for width in widths] for each in found])
        values[values == 0] = np.nan  # nothing moves, for which a logarithm has no place
        panel.vlines(at, values.min(axis=1), values.max(axis=1), color=colour, linewidth=2, zorder=3)
        for number, width in enumerate(widths):
            panel.plot(
                at,
                values[:, number],
                "o",
                color=colour,
                markersize=5,
                zorder=4,
                label=said if not number else None,
            )
            if kind == "direct":
                where = {"xytext": (5, 0), "textcoords": "offset points", "va": "center", "fontsize": 7}
                panel.annotate(width, (at[0], values[0, number]), **where)
    panel.set_yscale("log")
    panel.set_ylabel("MB a layer, all ranks")
    panel.set_title(f"rows of {', '.join(widths)} columns", fontsize=9)
    panel.legend(frameon=False, fontsize=8)


def _balance(panel: Any, found: list[dict[str, Any]]) -> None:
    """Draw the largest rank's edges and rows over the mean."""
    at = np.arange(len(found))
    for offset, key, colour in ((-0.2, "edge_balance", EDGES), (0.2, "row_balance", ROWS)):
        values = [each[key] for each in found]
        panel.bar(at + offset, values, 0.36, color=colour, zorder=3, label=key.split("_")[0] + "s")
    panel.axhline(1, color=plots.INK, linewidth=0.8, zorder=4)
    panel.set_title("largest rank over the mean", fontsize=9)
    panel.legend(frameon=False, fontsize=8)


def _seconds(panel: Any, found: list[dict[str, Any]]) -> None:
    """Draw the time to find each partition."""
    values = [each["seconds"] for each in found]
    panel.bar(np.arange(len(found)), values, 0.6, color="#9a9a9a", zorder=3)
    for at, value in enumerate(values):
        panel.annotate(
            f"{value:.2g}", (at, value), xytext=(0, 2), textcoords="offset points", ha="center", fontsize=8
        )
    panel.set_title("seconds to find", fontsize=9)
