"""The plot of the study of sampling: accuracy over the time of training, and the times of epochs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..bench.harness import plots
from ..bench.harness.plots import FAINT, INK
from . import plot
from .table import Row

MODES = ("full", "sampled")
COLOURS = {"full": plot.OTHER, "sampled": plot.FIRST}
SHOWN = 25  # percent below the best mean accuracy that are in the picture
LINES = {"full": ("#666666", "--"), "sampled": (plot.FIRST, "-")}


@dataclass
class Curve:
    """A run, epoch by epoch: seconds of training until its end, and the accuracy on test rows then, in percent."""

    job: str
    mode: str
    seconds: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)


def by_job(rows: Sequence[Row]) -> dict[str, dict[str, list[Row]]]:
    """Return rows by job and mode, a row a seed."""
    found: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        found.setdefault(row["job"], {}).setdefault(row["variant"], []).append(row)
    return found


def draw(rows: Sequence[Row], curves: Sequence[Curve], path: Path) -> None:
    """Draw a line of two panels for each job."""
    plt, jobs = plots.load(), by_job(rows)
    figure, grid = plt.subplots(
        len(jobs),
        2,
        figsize=(9.5, 0.9 + 2.5 * len(jobs)),
        squeeze=False,
        width_ratios=(2.2, 1),
        layout="constrained",
    )
    for (job, modes), (over_time, times) in zip(jobs.items(), grid, strict=True):
        _accuracy(over_time, job, [curve for curve in curves if curve.job == job])
        _epochs(times, modes)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    first, seeds = rows[0], len({row["seed"] for row in rows})
    conditions = f"{first['ranks']} x {first['threads_per_rank']} ranks x threads, backend {first['backend']}"
    plot.save(figure, f"sampling\n{conditions}; {seeds} seeds, their means, minima and maxima", path)


def _accuracy(axes: Any, job: str, curves: Sequence[Curve]) -> None:
    """Draw the accuracy of each mode over its mean time, and the range of the seeds."""
    best = 0.0
    for mode in MODES:
        mine = [curve for curve in curves if curve.mode == mode]
        length = min(len(curve.seconds) for curve in mine)
        seconds = np.mean([curve.seconds[:length] for curve in mine], axis=0)
        found = np.array([curve.accuracy[:length] for curve in mine])
        best = max(best, found.mean(axis=0).max())
        colour, line = LINES[mode]
        axes.fill_between(seconds, found.min(axis=0), found.max(axis=0), color=colour, alpha=0.2, linewidth=0)
        axes.plot(seconds, found.mean(axis=0), color=colour, linestyle=line, linewidth=1.4, label=mode)
    axes.set_title(job, fontsize=9, loc="left")
    axes.set_xlabel("seconds of training, without evaluations")
    axes.set_ylabel("test accuracy, %")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=max(axes.get_ylim()[0], best - SHOWN))
    axes.grid(True, color=FAINT)


def _epochs(axes: Any, modes: dict[str, list[Row]]) -> None:
    """Draw the median epoch of each mode as a bar, with the seeds' medians."""
    for at, mode in enumerate(MODES):
        medians = [row["median_ms"] for row in modes[mode]]
        middle = statistics.median(medians)
        axes.barh(at, middle, height=0.6, color=COLOURS[mode], edgecolor=INK, linewidth=0.6)
        axes.hlines(at, min(medians), max(medians), color=INK, linewidth=1)
        axes.annotate(
            f"{plots.label(middle)} ms", (max(medians), at), xytext=(4, 0), textcoords="offset points",
            va="center", fontsize=8,
        )  # fmt: skip
    axes.set_yticks(range(len(MODES)), MODES)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.4 * max(row["median_ms"] for runs in modes.values() for row in runs))
    axes.set_xlabel("ms of an epoch")
