"""The report's figures, drawn by matplotlib as SVG elements that keep text as text and load nothing.

Runs differ by colour and marker, splits and kinds by the style of the line, and phases by colour and hatching, so that
they can be told apart in a grey print and without colour vision. Colours: Okabe and Ito, "Color Universal Design"
(2008).
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...training.profile import phases
from ..bench.harness import plots
from ..bench.harness.plots import FAINT, INK
from .timeline import Timeline

COLOURS = ["#222222", "#0072b2", "#d55e00", "#009e73", "#e69f00", "#56b4e9", "#cc79a7", "#999999"]
FILLS = [*COLOURS[1:], COLOURS[0]]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]
HATCHES = ["", "//", "--", "xx", "\\\\", "||", "++", "/-", "/|"]  # few lines: each is written into the page
# The place of each kind of time in both lists, the same in all figures. Kinds that share a place never share a figure.
PLACES = {
    phases.AGGREGATE: 0,
    phases.WAIT: 1,
    "wait for a round": 1,
    phases.DENSE: 2,
    phases.STEP: 2,
    phases.LOSS: 3,
    phases.GRADIENTS: 4,
    phases.EVALUATE: 5,
    phases.CHECKPOINT: 6,
    phases.OTHER: 7,
    "a round is pushed here": 7,
    "a chunk is pushed here": 7,
    "a chunk is seen": 8,
    "kernel": 9,
    "copy": 10,
    phases.PROFILER: 11,
}
MOST_POINTS = 4000  # points of all runs' curves of one kind, so that pages stay small
MOST_RANKS = 32  # ranks in a figure with bars
MARKS = 8  # markers on a curve
WIDTH = 8.6  # inches

Curves = Mapping[str, tuple[np.ndarray, np.ndarray]]


def _svg(figure: Any, name: str, title: str) -> str:
    """Return a figure as an SVG element. name: makes its ids unique in the page. title: text for screen readers."""
    plt = plots.load()
    text = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif"}):
        figure.savefig(text, format="svg", metadata=nothing)
    plt.close(figure)
    found = text.getvalue()
    found = found[found.index("<svg") :]
    found = re.sub(r"<metadata>.*?</metadata>\s*", "", found, flags=re.DOTALL)
    found = re.sub(r'\s+xmlns(:\w+)?="[^"]*"', "", found).replace("xlink:href=", "href=")
    for kind in set(re.findall(r'\bid="([\w.]+_\d+)"', found)):  # figure_1, axes_1 ...: once in a page
        found = found.replace(f' id="{kind}"', "")
    return found.replace("<svg ", f'<svg role="img" aria-label="{html.escape(title, quote=True)}" ', 1)


def _filled(place: int) -> dict[str, str]:
    """Return the colour and the hatching of a bar, by its place in `FILLS` and `HATCHES`."""
    return {"facecolor": FILLS[place % len(FILLS)], "hatch": HATCHES[place % len(HATCHES)]}


def _thinned(values: np.ndarray, runs: int) -> np.ndarray:
    """Return the indices of at most 1000 values, the first and the last among them; fewer if there are many runs."""
    most = min(len(values), 1000, MOST_POINTS // runs)
    return np.unique(np.linspace(0, len(values) - 1, most).astype(int))


def _axes(wide: int = 1, height: float = 2.9, **more: Any) -> tuple[Any, Any]:
    plt = plots.load()
    figure, axes = plt.subplots(1, wide, figsize=(WIDTH, height), squeeze=False, layout="constrained", **more)
    for each in axes[0]:
        each.grid(axis="y", color=FAINT, linewidth=0.6)
        each.set_axisbelow(True)
    return figure, axes[0]


def curves(
    name: str,
    title: str,
    panels: Sequence[tuple[str, bool, Sequence[Curves]]],
    runs: Sequence[str],
    styles: Mapping[str, str],
) -> str:
    """Draw values over epochs.

    panels: the label of the vertical axis, whether the axis is logarithmic, and the curves of each run, by kind.
    runs: names of the runs. styles: line style of each kind.
    """
    plt = plots.load()
    figure, axes = _axes(len(panels))
    for at, (label, logarithmic, of_runs) in zip(axes, panels, strict=True):
        for run, found in enumerate(of_runs):
            for kind, (epochs, values) in found.items():
                shown = _thinned(epochs, len(runs))
                every = max(len(runs), len(shown) // MARKS)
                at.plot(
                    epochs[shown],
                    values[shown],
                    color=COLOURS[run],
                    linestyle=styles[kind],
                    linewidth=1.3,
                    marker=MARKERS[run],
                    markersize=3.5,
                    markevery=(run * every // len(runs), every),  # runs that agree are seen side by side
                )
        if logarithmic and at.has_data():
            at.set_yscale("log")
            for axis, most in ((at.yaxis.set_major_locator, 6), (at.yaxis.set_minor_locator, 0)):
                axis(plt.LogLocator(subs=(1.0, 2.0, 5.0), numticks=most) if most else plt.NullLocator())
            at.yaxis.set_major_formatter("{x:g}")
        at.xaxis.set_major_locator(plt.MaxNLocator(integer=True))
        at.set_xlabel("epoch")
        at.set_ylabel(label)
    shown_kinds = {kind for _, _, of_runs in panels for found in of_runs for kind in found}
    handles = [
        plt.Line2D([], [], color=INK, linestyle=style, label=kind)
        for kind, style in styles.items()
        if kind in shown_kinds
    ]
    if len(runs) > 1:
        handles += [
            plt.Line2D([], [], color=COLOURS[i], marker=MARKERS[i], markersize=4, label=run)
            for i, run in enumerate(runs)
        ]
    figure.legend(handles=handles, loc="outside upper left", ncols=4, frameon=False, fontsize=8)
    return _svg(figure, name, title)


def stacked(name: str, title: str, label: str, bars: Sequence[tuple[str, Mapping[str, float]]]) -> str:
    """Draw a horizontal bar for each label. bars: labels, and the lengths of the bar's parts by kind in `PLACES`."""
    kinds = list(dict.fromkeys(kind for _, parts in bars for kind in parts if parts[kind] > 0))
    figure, (at,) = _axes(height=0.9 + 0.27 * len(bars))
    at.grid(False)
    at.grid(axis="x", color=FAINT, linewidth=0.6)
    left = np.zeros(len(bars))
    for kind in kinds:
        values = np.array([parts.get(kind, 0.0) for _, parts in bars])
        style = {"edgecolor": "white", "linewidth": 0.6} | _filled(PLACES.get(kind, len(PLACES)))
        at.barh(range(len(bars)), values, 0.78, left, label=kind, **style)
        left += values
    at.set_yticks(range(len(bars)), [text for text, _ in bars])
    at.invert_yaxis()
    at.set_xlabel(label)
    figure.legend(loc="outside upper left", ncols=5, frameon=False, fontsize=8)
    return _svg(figure, name, title)


def grouped(
    name: str,
    title: str,
    label: str,
    groups: Sequence[str],
    series: Mapping[str, Sequence[float]],
) -> str:
    """Draw a group of bars for each rank, with one bar for each series. groups: labels of the ranks."""
    figure, (at,) = _axes(height=2.6)
    width = 0.8 / max(1, len(series))
    for i, (kind, values) in enumerate(series.items()):
        places = np.arange(len(groups)) + (i - (len(series) - 1) / 2) * width
        style = {"edgecolor": "white", "linewidth": 0.6} | _filled(i)
        at.bar(places, values, width * 0.94, label=kind, **style)
    at.yaxis.set_major_formatter("{x:,.0f}")
    at.set_xticks(range(len(groups)), groups)
    at.set_xlabel("rank")
    at.set_ylabel(label)
    figure.legend(loc="outside upper left", ncols=4, frameon=False, fontsize=8)
    return _svg(figure, name, title)


def path(name: str, title: str, steps: Sequence[Mapping[str, Any]], chosen: Mapping[str, Any]) -> str:
    """Draw the tuner's path: the time of each measured setting in order, the best time so far, and the chosen one."""
    figure, (at,) = _axes(height=2.9)
    # A setting that did not fit the device has no time.
    seconds = np.array([np.nan if step["seconds"] is None else 1e3 * step["seconds"] for step in steps])
    places = np.arange(1, len(steps) + 1)
    at.plot(places, seconds, color=COLOURS[1], marker="o", linewidth=0.8, label="measured")
    best = np.fmin.accumulate(seconds)
    at.step(places, best, where="post", color=COLOURS[2], linestyle="--", label="best so far")
    taken = [i for i, step in enumerate(steps) if step["setting"] == dict(chosen)]
    if taken:
        at.plot(places[taken], seconds[taken], "D", color=COLOURS[2], markersize=8, label="chosen")
    said = [
        f"{step['knob']}\n"
        + "/".join("auto" if value == -1 else f"{value}" for value in step["setting"].values())
        for step in steps
    ]
    at.set_xticks(places, said, fontsize=7)
    at.set_ylabel("ms")
    at.set_xlabel(f"knob that moved, and {'/'.join(steps[0]['setting'])}")
    figure.legend(loc="outside upper left", ncols=3, frameon=False, fontsize=8)
    return _svg(figure, name, title)


LANES = ("stages", "waits", "kernels", "rows arrive")


def timeline(name: str, title: str, found: Timeline) -> str:
    """Draw the lanes of each rank over an epoch and, below them, over the exchange that took longest."""
    plt = plots.load()
    style = {kind: _filled(PLACES[kind]) for kind in PLACES if any(bar.kind == kind for bar in found.bars)}
    lanes = [lane for lane in LANES if any(bar.lane == lane for bar in found.bars)]
    rows = {
        (rank, lane): place * (len(lanes) + 0.5) + i
        for place, rank in enumerate(found.ranks)
        for i, lane in enumerate(lanes)
    }
    views = [view for view in (found.whole, found.longest) if view is not None]
    height = 0.6 + len(views) * (0.7 + 0.22 * len(found.ranks) * (len(lanes) + 0.5))
    figure, axes = plt.subplots(len(views), 1, figsize=(WIDTH, height), squeeze=False, layout="constrained")
    for at, (first, last) in zip(axes[:, 0], views, strict=True):
        for bar in found.bars:
            if bar.end < first or bar.begin > last:
                continue
            # A bar narrower than a point is drawn one point wide.
            wide = max(min(bar.end, last) - max(bar.begin, first), (last - first) / 900)
            low = rows[bar.rank, bar.lane] - 0.42
            box = ((max(bar.begin, first), low), wide, 0.84)
            at.add_patch(plt.Rectangle(*box, edgecolor="white", linewidth=0.2, **style[bar.kind]))
        at.set_xlim(first, last)
        at.set_ylim(max(rows.values()) + 0.6, -0.6)
        at.set_yticks(list(rows.values()), [f"rank {rank}: {lane}" for rank, lane in rows], fontsize=7)
        at.set_xlabel("ms from the begin of the epoch")
    handles = [
        plt.Rectangle((0, 0), 1, 1, edgecolor="white", label=kind, **each) for kind, each in style.items()
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=5, frameon=False, fontsize=8)
    return _svg(figure, name, title)


def with_settings(draw: Callable[[], str]) -> str:
    """Call ``draw`` under the settings of matplotlib that all figures share, and return the SVG element it returns."""
    plt = plots.load()
    shared = {"font.size": 9, "hatch.linewidth": 0.6, "axes.edgecolor": INK, "text.color": INK}
    with plt.rc_context(shared | {"text.parse_math": False}):  # a name of a run may have dollar signs
        return draw()
