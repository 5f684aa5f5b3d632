"""`mgg bench overlap --device cuda` as a picture: times, what is hidden, and one call in time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..harness import plots
from ..harness.plots import COLOURS, FAINT, INK

WAY_COLOURS = {
    "halo": COLOURS["mgg"],
    "get": "#e09f3e",
    "bulk": "#2f6690",
    "direct": "#5b8e7d",
    "managed": "#9a9a9a",
    "ring": "#7d6b91",
    "get-whole": "#f2cc8f",
    "get-late": "#c98a2b",
    "get-separate": "#8c6d31",
    "get-thread": "#d9b38c",
    "get-block": "#a8701c",
    "get-plain": "#6b4a12",
}
SENT, WAITED, SUMMING = "#8fb3cc", "#eadfce", "#c8432b"


def draw(found: dict[str, Any], path: Path) -> None:
    """Draw times and hidden share over the remote share, and below the chunks of one call and the blocks that sum."""
    plt = plots.load()
    timed = "timeline" in found
    figure = plt.figure(figsize=(10, 8.2 if timed else 4.2), layout="constrained")
    grid = figure.add_gridspec(2 if timed else 1, 2, height_ratios=[1, 1.25] if timed else [1])
    _times(figure.add_subplot(grid[0, 0]), found)
    _hidden(figure.add_subplot(grid[0, 1]), found)
    if timed:
        _timeline(figure.add_subplot(grid[1, :]), found)
    figure.suptitle(
        f"{found['graph']}: {found['edges']:,} edges, float32 x {found['width']}; remote rows in the host's memory",
        fontsize=10,
    )
    plots.save(figure, found, path, bottom=0.03)


def _times(axes: Any, found: dict[str, Any]) -> None:
    measured = {name for case in found["cases"] for name in case["ms"]}

    def line(name: str, **style: Any) -> None:
        cases = [case for case in found["cases"] if name in case["ms"]]
        shares = [case["share"] for case in cases]
        low, middle, high = ([case["ms"][name][key] for case in cases] for key in ("min", "median", "max"))
        axes.plot(shares, middle, **style)
        axes.fill_between(shares, low, high, color=style["color"], alpha=0.15, linewidth=0)

    for name, colour in WAY_COLOURS.items():
        if name in measured:
            line(name, color=colour, marker="o", markersize=3.5, label=name)
    line("sum", color=INK, linestyle="--", linewidth=1, label="sums alone")
    if "halo moves" in measured:
        line("halo moves", color=INK, linestyle=":", linewidth=1.2, label="halo's transfer alone")
    axes.set_yscale("log")
    axes.set_xlabel("share of the rows that is remote")
    axes.set_ylabel("ms")
    axes.grid(True, color=FAINT)
    axes.legend(frameon=False, fontsize=7.5, ncols=2)
    axes.set_title("one aggregation", fontsize=9)


def _hidden(axes: Any, found: dict[str, Any]) -> None:
    every = []
    for name, colour in WAY_COLOURS.items():
        there = [case for case in found["cases"] if name in case["hidden_share"]]
        known = [(case["share"], case["hidden_share"][name]) for case in there]
        if not known:
            continue
        axes.plot(*zip(*known, strict=True), color=colour, marker="o", markersize=3.5, label=name)
        at = found["balance"][name]["share"]
        axes.axvline(at, color=colour, linewidth=0.9, linestyle="--")
        every += [hidden for _, hidden in known]
    axes.axhline(0.9, color=INK, linewidth=0.8, linestyle=":")
    axes.plot([], [], color=INK, linewidth=0.9, linestyle="--", label="balance point, or nearest to it")
    axes.set_ylim(max(-0.25, min([0, *every])) - 0.02, max([1.05, *every]))
    axes.set_xlabel("share of the rows that is remote")
    axes.set_ylabel("hidden share")
    axes.grid(True, color=FAINT)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    axes.set_title("how much of the shorter one costs nothing", fontsize=9)


def _timeline(axes: Any, found: dict[str, Any]) -> None:
    taken = found["timeline"]
    pushes, arrivals = np.array(taken["pushes"]), np.array(taken["arrivals"])
    order = np.argsort(pushes[:, 1])
    lanes = np.arange(len(order))
    began, sent, seen = pushes[order, 0], pushes[order, 1], arrivals[order]
    waited = np.maximum(0, seen - sent)
    axes.barh(lanes, sent - began, left=began, height=1.0, color=SENT, label="packed and pushed")
    axes.barh(lanes, waited, left=sent, height=1.0, color=WAITED, label="there, not yet seen")
    axes.set_xlabel("microseconds since the first block began")
    axes.set_ylabel(f"chunks of {taken['chunk_bytes'] >> 10} KiB, as they were signalled")
    axes.set_ylim(len(order) - 0.5, -0.5)
    axes.set_xlim(0, None)
    axes.yaxis.get_major_locator().set_params(integer=True)
    blocks = np.array(taken["blocks"])
    busy = axes.twinx()
    busy.spines["right"].set_visible(True)
    at = np.concatenate([blocks[:, 0], blocks[:, 2]])
    running = np.repeat([1, -1], len(blocks))[np.argsort(at, kind="stable")]
    busy.step(np.sort(at), np.cumsum(running), where="post", color=SUMMING, linewidth=1.2)
    busy.axvline(float(np.median(blocks[:, 1])), color=SUMMING, linewidth=0.9, linestyle="--")
    busy.set_ylim(0, 1.08 * len(blocks))
    busy.set_ylabel("blocks that sum", color=SUMMING)
    axes.plot([], [], color=SUMMING, linewidth=1.2, label="blocks that sum")
    axes.plot([], [], color=SUMMING, linewidth=0.9, linestyle="--", label="all work has been taken (median)")
    axes.legend(frameon=True, framealpha=0.9, edgecolor="none", fontsize=7.5, loc="lower left")
    axes.set_title(f"one call of the halo, a share of {taken['share']:g} remote", fontsize=9)
