"""The report's figures, drawn by matplotlib as SVG elements that keep text as text and load nothing.

Runs differ by colour and marker, splits and kinds by the style of the line, and phases by colour and hatching, so that
they can be told apart in a grey print and without colour vision. Colours: Okabe and Ito, "Color Universal Design"
(2008).
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

from ...errors import InputError
from ...training.profile import phases
from . import timeline
from .read import Run

INK = "#222222"
COLOURS = [INK, "#0072b2", "#d55e00", "#009e73", "#e69f00", "#56b4e9", "#cc79a7", "#999999"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]
HATCHES = ["", "//", "--", "xx", "\\\\", "||", "++", "/-", "/|"]  # few lines: each is written into the page
# Kinds of time in the order of colours and hatches, the same in all figures.
KINDS = [*phases.PHASES, phases.STEP, *phases.BATCH_STAGES.values(), *timeline.KINDS]
SETTINGS = {"axes.grid": True, "axes.axisbelow": True, "font.size": 9, "svg.fonttype": "none"}
SETTINGS |= {"grid.color": "#dddddd", "hatch.linewidth": 0.6}
SETTINGS |= {"text.parse_math": False}  # a name of a run may have dollar signs
STYLES = {"train": ":", "validation": "-", "test": "--", "training step": "-", "evaluation": "--"}
LOGARITHMIC = ("loss", "ms")  # labels of axes
MOST_POINTS = 4000  # points of all runs' curves of one kind, so that pages stay small
MARKS = 8  # markers on a curve
WIDTH = 8.6  # inches


def load() -> Any:
    """Return matplotlib.pyplot, drawing into files. Raises InputError if it is not installed."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise InputError("pictures need matplotlib; install it with `pip install mgg-hpc[plots]`") from error
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def drawn(draw: Callable[..., Any]) -> Callable[..., Markup]:
    """Turn a function that returns a figure into one that returns its SVG element.

    The new function has two more arguments, first: a name, which makes ids unique in the page, and a title for screen
    readers.
    """

    @functools.wraps(draw)
    def element(name: str, title: str, *content: Any, **options: Any) -> Markup:
        plt, text = load(), io.StringIO()
        with plt.rc_context(SETTINGS | {"svg.hashsalt": name}):
            figure = draw(plt, *content, **options)
            figure.legend(loc="outside upper left", ncols=4, frameon=False, fontsize=8)
            figure.savefig(text, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
            plt.close(figure)
        svg = re.sub(r"(?s)^.*?(?=<svg )|<metadata>.*?</metadata>", "", text.getvalue())
        svg = re.sub(r' xmlns(:\w+)?="[^"]*"| id="[\w.]+_\d+"', "", svg).replace("xlink:href=", "href=")
        label = f'<figure><svg role="img" aria-label="{html.escape(title)}" '
        return Markup(svg.replace("<svg ", label, 1) + "</figure>")

    return element


def _filled(kind: str) -> dict[str, Any]:
    place = KINDS.index(kind) if kind in KINDS else len(KINDS)
    colour, hatch = COLOURS[(place + 1) % len(COLOURS)], HATCHES[place % len(HATCHES)]
    return {"facecolor": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0.3}


@drawn
def curves(plt: Any, runs: Sequence[Run], panels: Mapping[str, Mapping[str, str]]) -> Any:
    """Draw values over epochs.

    panels: the column of metrics.csv of each kind of curve, by the label of the vertical axis. Columns without a finite
    number are left out.
    """
    figure, axes = plt.subplots(1, len(panels), figsize=(WIDTH, 2.9), squeeze=False, layout="constrained")
    kinds = set()
    for at, (label, columns) in zip(axes[0], panels.items(), strict=True):
        at.set(xlabel="epoch", ylabel=label)
        at.xaxis.set_major_locator(plt.MaxNLocator(integer=True))
        for (i, run), (kind, column) in itertools.product(enumerate(runs), columns.items()):
            if not np.isfinite(run.metrics.get(column, np.nan)).any():
                continue
            points = min(run.epochs, 1000, MOST_POINTS // len(runs))
            shown = np.unique(np.linspace(0, run.epochs - 1, points).astype(int))
            (line,) = at.plot(
                run.metrics["epoch"][shown], run.metrics[column][shown], STYLES[kind], color=COLOURS[i]
            )
            # Markers of runs that agree are seen side by side.
            line.set(marker=MARKERS[i], markersize=4, markevery=(i, max(len(runs), points // MARKS)))
            kinds.add(kind)
        if label in LOGARITHMIC and at.has_data():
            at.set_yscale("log")
            at.yaxis.set_major_locator(plt.LogLocator(subs=(1.0, 2.0, 5.0), numticks=6))
            at.yaxis.set_minor_locator(plt.NullLocator())
            at.yaxis.set_major_formatter("{x:g}")
    for kind in filter(kinds.__contains__, STYLES):
        axes[0, 0].plot([], [], STYLES[kind], color=INK, label=kind)
    for i, run in enumerate(runs if len(runs) > 1 else ()):
        axes[0, 0].plot([], [], color=COLOURS[i], marker=MARKERS[i], markersize=4, label=run.name)
    return figure


@drawn
def stacked(plt: Any, label: str, groups: Sequence[str], series: Mapping[str, Sequence[float]]) -> Any:
    """Draw a horizontal bar for each group, stacked of the kinds in ``series``, whose lengths are by group."""
    figure, axes = plt.subplots(figsize=(WIDTH, 0.9 + 0.27 * len(groups)), layout="constrained")
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
    figure, axes = plt.subplots(figsize=(WIDTH, 2.9), layout="constrained")
    # A setting that did not fit the device has no time.
    ms = np.array([np.nan if step["seconds"] is None else 1e3 * step["seconds"] for step in steps])
    places = np.arange(1, len(steps) + 1)
    axes.plot(places, ms, color=COLOURS[1], marker="o", linewidth=0.8, label="measured")
    best = np.fmin.accumulate(ms)
    axes.step(places, best, where="post", color=COLOURS[2], linestyle="--", label="best so far")
    taken = [step["setting"] == chosen for step in steps]
    if any(taken):
        axes.plot(places[taken], ms[taken], "D", color=COLOURS[2], markersize=8, label="chosen")
    values = [
        [("auto" if value == -1 else f"{value}") for value in step["setting"].values()] for step in steps
    ]
    said = [f"{step['knob']}\n{'/'.join(of)}" for step, of in zip(steps, values, strict=True)]
    axes.set_xticks(places, said, fontsize=7)
    axes.set(ylabel="ms", xlabel=f"knob that moved, and {'/'.join(steps[0]['setting'])}")
    return figure


@drawn
def lanes(plt: Any, found: timeline.Timeline) -> Any:
    """Draw the lanes of each rank over an epoch and, below them, over the exchange that took longest."""
    used = [lane for lane in timeline.LANES if any(bar.lane == lane for bar in found.bars)]
    rows = {pair: place for place, pair in enumerate(itertools.product(found.ranks, used))}
    size = (WIDTH, 0.6 + len(found.views) * (0.7 + 0.24 * len(rows)))
    figure, axes = plt.subplots(len(found.views), figsize=size, squeeze=False, layout="constrained")
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
        at.set_yticks(range(len(rows)), [f"rank {rank}: {lane}" for rank, lane in rows], fontsize=7)
    return figure
