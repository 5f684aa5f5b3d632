"""The report's figures, drawn by matplotlib as SVG elements that keep text as text and load nothing.

Runs differ by colour and marker, splits and kinds by the style of the line, and phases by colour and hatching, so that
they can be told apart in a grey print and without colour vision.
"""

from __future__ import annotations

import functools
import html
import io
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from ...training.profile import phases
from .. import plots
from ..plots import COLOURS, HATCHES, INK, MARKS
from . import timeline
from .read import Run

# Kinds of time in the order of colours and hatches, the same in all figures.
KINDS = [*phases.PHASES, timeline.WAITED, phases.STEP, *phases.BATCH_STAGES.values(), *timeline.KINDS[1:]]
USES = dict(zip(timeline.USES, ((0, 0), (5, 0), (4, 1), (1, 0), (7, 0)), strict=True))  # colour and hatch
SETTINGS = {"axes.grid": True, "svg.fonttype": "none"}
STYLES = {"train": ":", "validation": "-", "test": "--", "training step": "-", "evaluation": "--"}
LOGARITHMIC = ("loss", "ms")  # labels of axes
MOST_POINTS = 4000  # points of all runs' curves of one kind, so that pages stay small
CURVE_MARKS = 8  # markers on a curve
SIZE = (plots.WIDTH, 3.3)  # inches
WIDE = 1.4 * plots.WIDTH  # of figures that scroll on a narrow screen


def drawn(draw: Callable[..., Any]) -> Callable[..., Markup]:
    """Turn a function that returns a figure into one that returns its SVG element.

    The new function has two more arguments, first: a name, which makes ids unique in the page, and a title.
    """

    @functools.wraps(draw)
    def element(name: str, title: str, *content: Any, **options: Any) -> Markup:
        plt, text = plots.load(), io.StringIO()
        with plt.rc_context(SETTINGS | {"svg.hashsalt": name}):
            figure = draw(plt, *content, **options)
            labels = [len(name) for axes in figure.axes for name in axes.get_legend_handles_labels()[1]]
            columns = int(72 * figure.get_figwidth() / (5.5 * max(labels, default=1) + 42))
            figure.legend(loc="outside upper left", ncols=max(1, columns), frameon=False, fontsize=10)
            figure.savefig(text, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
            plt.close(figure)
        svg = re.sub(r"(?s)^.*?(?=<svg )|<metadata>.*?</metadata>", "", text.getvalue())
        svg = re.sub(r' xmlns(:\w+)?="[^"]*"| id="[\w.]+_\d+"', "", svg).replace("xlink:href=", "href=")
        wide = ' class="wide"' if figure.get_figwidth() > plots.WIDTH else ""
        said = html.escape(title)
        label = f'<figure{wide}><figcaption>{said}</figcaption><svg role="img" aria-label="{said}" '
        return Markup(svg.replace("<svg ", label, 1) + "</figure>")

    return element


def _filled(kind: str) -> dict[str, Any]:
    place = KINDS.index(kind) if kind in KINDS else len(KINDS)
    colour, hatch = COLOURS[place % len(COLOURS)], HATCHES[place % len(HATCHES)]
    return {"facecolor": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0.3}


@drawn
def curves(plt: Any, runs: Sequence[Run], label: str, columns: Mapping[str, str]) -> Any:
    """Draw values over epochs.

    label: of the vertical axis. columns: the column of metrics.csv of each kind of curve. Columns without a finite
    number are left out.
    """
    figure, axes = plt.subplots(figsize=SIZE)
    kinds = set()
    axes.set(xlabel="epoch", ylabel=label)
    axes.xaxis.set_major_locator(plt.MaxNLocator(integer=True))
    for (i, run), (kind, column) in itertools.product(enumerate(runs), columns.items()):
        if not np.isfinite(run.metrics.get(column, np.nan)).any():
            continue
        points = min(run.epochs, 1000, MOST_POINTS // len(runs))
        shown = np.unique(np.linspace(0, run.epochs - 1, points).astype(int))
        (line,) = axes.plot(
            run.metrics["epoch"][shown], run.metrics[column][shown], STYLES[kind], color=COLOURS[i]
        )
        # Markers of runs that agree are seen side by side.
        line.set(marker=MARKS[i], markersize=4, markevery=(i, max(len(runs), points // CURVE_MARKS)))
        kinds.add(kind)
    if label in LOGARITHMIC and axes.has_data():
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(plt.LogLocator(subs=(1.0, 2.0, 5.0), numticks=6))
        axes.yaxis.set_minor_locator(plt.NullLocator())
        axes.yaxis.set_major_formatter("{x:g}")
    for kind in filter(kinds.__contains__, STYLES):
        axes.plot([], [], STYLES[kind], color=INK, label=kind)
    for i, run in enumerate(runs if len(runs) > 1 else ()):
        axes.plot([], [], color=COLOURS[i], marker=MARKS[i], markersize=4, label=run.name)
    return figure


@drawn
def stacked(plt: Any, label: str, groups: Sequence[str], series: Mapping[str, Sequence[float]]) -> Any:
    """Draw a horizontal bar for each group, stacked of the kinds in ``series``, whose lengths are by group."""
    figure, axes = plt.subplots(figsize=(plots.WIDTH, 1.3 + 0.3 * len(groups)))
    end = np.zeros(len(groups))
    for kind, lengths in series.items():
        axes.barh(range(len(groups)), lengths, 0.78, end, label=kind, **_filled(kind))
        end += lengths
    axes.set_yticks(range(len(groups)), groups)
    axes.invert_yaxis()
    axes.set_xlabel(label)
    return figure


@drawn
def path(plt: Any, steps: Sequence[Mapping[str, Any]], chosen: Mapping[str, Any]) -> Any:
    """Draw the tuner's path: the time of each measured setting in order, the best time so far, and the chosen one."""
    figure, axes = plt.subplots(figsize=(WIDE, SIZE[1]))
    # A setting that did not fit the device has no time.
    ms = np.array([np.nan if step["seconds"] is None else 1e3 * step["seconds"] for step in steps])
    places = np.arange(1, len(steps) + 1)
    axes.plot(places, ms, color=COLOURS[0], marker="o", linewidth=0.8, label="measured")
    best = np.fmin.accumulate(ms)
    axes.step(places, best, where="post", color=COLOURS[1], linestyle="--", label="best so far")
    taken = [step["setting"] == chosen for step in steps]
    if any(taken):
        axes.plot(places[taken], ms[taken], "D", color=COLOURS[1], markersize=8, label="chosen")
    values = [
        [("auto" if value == -1 else f"{value}") for value in step["setting"].values()] for step in steps
    ]
    said = [f"{step['knob']}\n{'/'.join(of)}" for step, of in zip(steps, values, strict=True)]
    axes.set_xticks(places, said, fontsize=8)
    axes.set(ylabel="ms", xlabel=f"knob that moved, and {'/'.join(steps[0]['setting'])}")
    return figure


@drawn
def lanes(plt: Any, found: timeline.Timeline) -> Any:
    """Draw the lanes of each rank over an epoch and, below them, over the exchange that took longest."""
    used = [lane for lane in timeline.LANES if any(bar.lane == lane for bar in found.bars)]
    rows = {pair: place for place, pair in enumerate(itertools.product(found.ranks, used))}
    size = (WIDE, 0.8 + len(found.views) * (0.8 + 0.26 * len(rows)))
    figure, axes = plt.subplots(len(found.views), figsize=size, squeeze=False)
    for at, (first, last) in zip(axes[:, 0], found.views, strict=True):
        for kind in KINDS:
            bars = [bar for bar in found.bars if bar.kind == kind and bar.end >= first and bar.begin <= last]
            begins = np.array([max(bar.begin, first) for bar in bars])
            # A bar narrower than a point is drawn one point wide.
            lengths = np.maximum([min(bar.end, last) for bar in bars] - begins, (last - first) / 900)
            drawn = at.barh(
                [rows[bar.rank, bar.lane] for bar in bars], lengths, 0.84, begins, **_filled(kind)
            )
            drawn.set_label(kind if bars and at is axes[0, 0] else "")
        at.set(xlim=(first, last), ylim=(len(rows) - 0.4, -0.6), xlabel="ms from the begin of the epoch")
        at.set_yticks(range(len(rows)), [f"rank {rank}: {lane}" for rank, lane in rows], fontsize=9)
    return figure


@drawn
def pools(plt: Any, views: Sequence[tuple[tuple[float, float], Sequence[timeline.Use]]]) -> Any:
    """Draw how CPU, link, device and buffers are used over an epoch of hybrid batches, and, below, over an overlap."""
    lanes = list(dict.fromkeys(use.lane for use in views[0][1]))
    figure, axes = plt.subplots(len(views), figsize=(WIDE, 0.8 + len(views) * (0.8 + 0.3 * len(lanes))))
    for at, ((first, last), uses) in zip(axes, views, strict=True):
        whole = at is axes[0]  # its bars are means over time, not batches, so nothing separates them
        for use in uses:
            colour, hatch = USES[use.kind]
            how = {
                "facecolor": COLOURS[colour],
                "hatch": HATCHES[hatch],
                "edgecolor": "white",
                "align": "edge",
            }
            seams: dict[str, Any] = {"linewidth": 0 if whole else 0.5, "antialiased": not whole}
            bottom = lanes.index(use.lane) + 0.42 - 0.84 * use.base
            at.bar(use.begin, -0.84 * use.height, use.end - use.begin, bottom, **how, **seams)
        at.set(xlim=(first, last), ylim=(len(lanes) - 0.4, -0.6), xlabel="ms from the begin of the epoch")
        at.set_yticks(range(len(lanes)), lanes, fontsize=9)
    for kind, (colour, hatch) in USES.items():
        axes[0].bar(0, 0, facecolor=COLOURS[colour], hatch=HATCHES[hatch], edgecolor="white", label=kind)
    return figure
