"""The pictures of graphs that stream: times of steps beside the bytes that they move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mgg_hpc.tools.bench.harness import plots
from mgg_hpc.tools.bench.harness.plots import FAINT, INK

FIRST, OTHER = "#c8432b", "#b7c9d6"
KINDS = {"chunks": "#2f6690", "sums": "#e09f3e", "others": "#c9c9c9"}
SAID = {"chunks": "chunks of sources", "sums": "sums that leave and return", "others": "other rows"}


def draw_schedules(rows: Sequence[dict[str, Any]], found: Mapping[str, Any], path: Path) -> None:
    """Draw a line of two panels for each row: times of a step, and its bytes by kind."""
    plt, figure, grid = _panels(rows)
    for row, (times, moved) in zip(rows, grid, strict=True):
        _bars(times, row)
        for at, kinds in enumerate(row["moved"].values()):
            left = 0.0
            for kind, colour in KINDS.items():
                moved.barh(at, kinds[kind] / 1e6, left=left, height=0.75, color=colour, zorder=2)
                left += kinds[kind] / 1e6
            _say(moved, left, at, f"{plots.label(left)} MB")
        _finish_bytes(moved, max(sum(kinds.values()) for kinds in row["moved"].values()) / 1e6)
        _title(times, row, f"stores of {row['rate']:g} GB/s")
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in KINDS.values()]
    figure.legend(handles, SAID.values(), loc="outside upper right", ncols=3, frameon=False, fontsize=8)
    grid[-1][1].set_xlabel("MB between stores and memory in a step")
    _save(figure, grid, found, path)


def draw_overlap(rows: Sequence[dict[str, Any]], found: Mapping[str, Any], path: Path) -> None:
    """Draw a line of two panels for each row: times of a step, and those of its bytes and of the rest alone."""
    _, figure, grid = _panels(rows)
    for row, (times, parts) in zip(rows, grid, strict=True):
        _bars(times, row)
        alone = {"bytes at the rate": row["moving_ms"], "all else": row["computing_ms"]}
        for at, ms in enumerate(alone.values()):
            parts.barh(at, ms, height=0.75, color=(KINDS["chunks"], KINDS["others"])[at], zorder=2)
            _say(parts, ms, at, f"{plots.label(ms)} ms")
        parts.set_yticks(range(len(alone)), list(alone))
        parts.invert_yaxis()
        parts.set_xlim(times.get_xlim())
        parts.xaxis.grid(True, color=FAINT, zorder=0)
        _title(times, row, f"stores of {row['rate']:.2f} GB/s")
    grid[-1][1].set_xlabel("ms of each alone")
    _save(figure, grid, found, path)


def draw_ring(rows: Sequence[dict[str, Any]], found: Mapping[str, Any], path: Path) -> None:
    """Draw a line of two panels for each row: times of a step, and bytes that all ranks read."""
    _, figure, grid = _panels(rows)
    for row, (times, loaded) in zip(rows, grid, strict=True):
        _bars(times, row)
        for at, nbytes in enumerate(row["loaded"].values()):
            loaded.barh(at, nbytes / 1e6, height=0.75, color=_colour(at), zorder=2)
            fewer = max(row["loaded"].values()) / max(1, nbytes)
            said = f"{plots.label(nbytes / 1e6)} MB"
            _say(loaded, nbytes / 1e6, at, f"{said}, {fewer:.1f} times fewer" if fewer > 1 else said)
        _finish_bytes(loaded, max(row["loaded"].values()) / 1e6)
        _title(times, row, f"{row['ranks']} ranks, {row['rate']:g} GB/s for each that loads")
    grid[-1][1].set_xlabel("MB that all ranks read of stores in a step")
    _save(figure, grid, found, path)


def _panels(rows: Sequence[dict[str, Any]]) -> tuple[Any, Any, Any]:
    plt = plots.load()
    bars = sum(len(row["ms"]) for row in rows)
    height = 1.1 + 0.6 * len(rows) + 0.33 * bars
    figure, grid = plt.subplots(len(rows), 2, figsize=(10, height), squeeze=False, layout="constrained")
    return plt, figure, grid


def _bars(axes: Any, row: Mapping[str, Any]) -> None:
    """Draw the ways' times with their extremes, and write each beside its bar, with its multiple of the first."""
    for at, (name, spread) in enumerate(row["ms"].items()):
        axes.barh(at, spread["median"], height=0.75, color=_colour(at), zorder=2)
        end = min(spread["max"], plots.LONGEST * spread["median"])
        axes.hlines(at, spread["min"], end, color=INK, linewidth=0.8, zorder=3)
        times = f", {row['speedup'][name]['median']:.2f} times" if name in row["speedup"] else ""
        _say(axes, max(end, spread["median"]), at, f"{plots.label(spread['median'])} ms{times}")
    axes.set_yticks(range(len(row["ms"])), list(row["ms"]))
    axes.invert_yaxis()
    axes.set_xlim(0, 1.5 * max(spread["median"] for spread in row["ms"].values()))
    axes.xaxis.grid(True, color=FAINT, zorder=0)


def _finish_bytes(axes: Any, longest: float) -> None:
    axes.set_yticks([])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.5 * max(longest, 1e-3))
    axes.xaxis.grid(True, color=FAINT, zorder=0)


def _colour(at: int) -> str:
    return OTHER if at else FIRST


def _say(axes: Any, end: float, at: int, said: str) -> None:
    axes.annotate(said, (end, at), xytext=(3, 0), textcoords="offset points", va="center", fontsize=7.5)


def _title(axes: Any, row: Mapping[str, Any], said: str) -> None:
    title = f"{row['program']} on {row['graph']}: {row['edges']:,} edges, {row['width']} columns; {said}"
    axes.set_title(title, fontsize=9, loc="left")


def _save(figure: Any, grid: Any, found: Mapping[str, Any], path: Path) -> None:
    grid[-1][0].set_xlabel("ms of a step, forward and backward")
    plots.save(figure, found, path, bottom=0.25 / figure.get_figheight())
