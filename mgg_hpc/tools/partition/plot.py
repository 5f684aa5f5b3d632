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
    figure, panels = plt.subplots(1, 3, figsize=(9.5, 3.3), layout="constrained", width_ratios=[2, 1.4, 1])
    _bytes(panels[0], found)
    _balance(panels[1], found)
    _seconds(panels[2], found)
    for panel in panels:
        panel.set_xticks(np.arange(len(names)), names, rotation=30 if len(names) > 4 else 0)
        panel.grid(axis="y", color=plots.FAINT, zorder=0)
    title = f"{document['graph']}, {document['nodes']:,} rows, {document['edges']:,} edges, {document['parts']} ranks"
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _bytes(panel: Any, found: list[dict[str, Any]]) -> None:
    """Draw bars of each method's bytes a layer, at the widest rows, and ticks of the narrower ones."""
    widths = list(found[0]["bytes"])
    for offset, kind, colour in ((-0.2, "halo", HALO), (0.2, "direct", DIRECT)):
        at = np.arange(len(found)) + offset
        for number, width in enumerate(widths):
            values = [max(each["bytes"][width][kind], 1) / 1e6 for each in found]
            last = number == len(widths) - 1
            label = {"halo": "halo", "direct": "direct or get"}[kind]
            panel.bar(
                at,
                values,
                0.36,
                color=colour,
                alpha=0.35 if not last else 0.9,
                zorder=3 + len(widths) - number,
                label=label if last else None,
            )
    panel.set_yscale("log")
    panel.set_ylabel("MB a layer, all ranks")
    panel.set_title(f"bytes at {', '.join(widths)} columns", fontsize=9)
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
