"""Benchmarks as pictures. matplotlib is loaded here, when a picture is asked for, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...errors import InputError

COLOURS = {
    "mgg": "#c8432b",
    "mgg-get": "#dd8a78",
    "mgg-halo": "#f0c4ba",
    "dgl": "#2f6690",
    "torch": "#e09f3e",
    "pyg": "#5b8e7d",
    "pyg-csr": "#8fb8a8",
    "mkl": "#7d6b91",
    "scipy": "#9a9a9a",
    "cusparse": "#2f6690",
    "cupy": "#7d6b91",
}
INK, FAINT = "#222222", "#dddddd"
PICTURES = ("aggregate", "epoch", "device-overlap", "sweep")
MOST_LABELS = 5  # side by side; more are turned
LONGEST_BAR = 1.5  # times the longest of the other contestants'
LONGEST = 1.3  # times the largest median: where a whisker ends that one interrupted turn made


def load() -> Any:
    """matplotlib.pyplot, drawing into files. Raises InputError if it is not installed."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise InputError("--plot needs matplotlib; install it with `pip install mgg-hpc[plots]`") from error
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    return plt


def draw(found: dict[str, Any], path: Path) -> None:
    """The picture of a benchmark's document."""
    from .overlap_plot import overlap
    from .sweep_plot import sweep

    drawn = {"aggregate": aggregate, "epoch": epoch, "device-overlap": overlap, "sweep": sweep}
    drawn[found["benchmark"]](found, path)


def draw_again(document: Path, picture: Path) -> None:
    """The picture of a benchmark's JSON. Raises InputError for a file that is none, or that has no picture."""
    try:
        found = json.loads(document.read_text())
        known = found["format"] == "mgg-bench" and found["benchmark"] in PICTURES
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{document}: not what a benchmark wrote with --json ({error})") from error
    if not known:
        raise InputError(
            f"{document}: there is no picture of {found.get('benchmark')!r} of {found['format']!r}"
        )
    if not picture.absolute().parent.is_dir():
        raise InputError(f"{picture}: there is no folder {picture.parent}")
    draw(found, picture)


def caption(figure: Any, found: dict[str, Any], *, ranges: bool = True) -> None:
    """What was measured, and where, below the panels. ranges: whether these show extremes too."""
    if "device" in found:
        where = found["device"]["name"]
    else:
        pages = {"huge": "huge pages", "small": "4 KiB pages"}[found["pages"]]
        where = f"{found['machine']['cpu']}, {found['threads']} threads, {pages}"
    extremes = ", and their min and max" if ranges else ""
    figure.text(
        0.01,
        0.01,
        f"{where}, medians of {found['turns']} turns{extremes}; {found['date'][:10]}",
        fontsize=7,
        color="#666666",
    )


def label(value: float) -> str:
    """Three digits, or all that stand before the point."""
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def _longest(cases: list[dict[str, Any]], name: str) -> float:
    """The most times the floor that a contestant takes."""
    there = [case for case in cases if name in case["ms"]]
    return max(case["ms"][name]["median"] / case["floor"]["ms"]["median"] for case in there)


def _aggregate_panel(axes: Any, cases: list[dict[str, Any]]) -> None:
    """Bars over the gather floor, a group for each width."""
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
            low, middle, high = (case["ms"][name][key] for key in ("min", "median", "max"))
            at = group + (position - (len(names) - 1) / 2) * bar
            axes.bar(at, middle / floor, bar * 0.92, color=COLOURS[name], zorder=2)
            end = min(high / floor, top)
            axes.vlines(at, low / floor, end, color=INK, linewidth=0.8, zorder=3)
            above = {"xytext": (0, 2), "textcoords": "offset points", "ha": "center", "va": "bottom"}
            behind = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.75}
            style = {"fontsize": 6.5, "rotation": turned}
            axes.annotate(label(middle), (at, end), bbox=behind, zorder=5, **above, **style)
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


def aggregate(found: dict[str, Any], path: Path) -> None:
    """A panel for each graph and type: how many times the gather floor each takes, ms written above the bars."""
    plt = load()
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
        row[0].set_ylabel("time over the gather floor; ms above the bars")
    names = [name for name in COLOURS if any(name in case["ms"] for case in found["cases"])]
    handles = [plt.Rectangle((0, 0), 1, 1, color=COLOURS[name]) for name in names]
    handles += [plt.Line2D([], [], color=INK, linewidth=1, linestyle=style) for style in ("--", ":")]
    labels = [*names, "gather floor", "bytes over bandwidth"]
    figure.legend(handles, labels, loc="outside upper left", ncols=len(labels), frameon=False, fontsize=8)
    figure.get_layout_engine().set(rect=(0, 0.04, 1, 0.96))
    caption(figure, found)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def epoch(found: dict[str, Any], path: Path) -> None:
    """A row for each model and graph: ms an epoch, and peak memory; on a GPU the times of layers too."""
    if "device" in found:
        from .epoch_plot import device_epoch

        device_epoch(found, path)
        return
    from .epoch import title

    plt = load()
    cases, bars = found["cases"], max(len(case["ms"]) for case in found["cases"])
    figure, panels = plt.subplots(
        len(cases),
        2,
        figsize=(9, 0.9 + len(cases) * (0.7 + 0.42 * bars)),
        squeeze=False,
        layout="constrained",
    )
    for case, (left, right) in zip(cases, panels, strict=True):
        names = list(case["ms"])[::-1]
        colours = [COLOURS[name] for name in names]
        ms = [case["ms"][name]["median"] for name in names]
        left.barh(names, ms, 0.65, color=colours)
        for name in names:
            low, high = case["ms"][name]["min"], min(case["ms"][name]["max"], LONGEST * max(ms))
            left.hlines(name, low, high, color=INK, linewidth=1)
        sizes = [case["peak_bytes"][name] / 1e6 for name in names]
        right.barh(names, sizes, 0.65, color=colours)
        for axes, values, unit, ends in (
            (left, ms, "ms", [min(case["ms"][name]["max"], LONGEST * max(ms)) for name in names]),
            (right, sizes, "MB", sizes),
        ):
            for name, value, end in zip(names, values, ends, strict=True):
                axes.annotate(
                    f"{label(value)} {unit}",
                    (max(value, end), name),
                    xytext=(4, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=8,
                )
            axes.margins(x=0.22)
        dropout = f"dropout {case['model']['dropout']:g}"
        left.set_title(f"{title(case['model'])}, {dropout}, {case['graph']}: ms an epoch", fontsize=8)
        right.set_title("peak memory of the process", fontsize=8)
    figure.get_layout_engine().set(rect=(0, 0.05, 1, 0.95))
    caption(figure, found)
    figure.savefig(path, dpi=130)
    plt.close(figure)
