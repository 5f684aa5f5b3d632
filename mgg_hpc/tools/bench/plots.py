"""Benchmarks as pictures. matplotlib is loaded here, when a picture is asked for, and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...errors import InputError

COLOURS = {
    "mgg": "#c8432b",
    "dgl": "#2f6690",
    "torch": "#e09f3e",
    "pyg": "#5b8e7d",
    "pyg-csr": "#8fb8a8",
    "mkl": "#7d6b91",
    "scipy": "#9a9a9a",
}
INK, FAINT = "#222222", "#dddddd"


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
    {"aggregate": aggregate, "epoch": epoch}[found["benchmark"]](found, path)


def _caption(figure: Any, found: dict[str, Any]) -> None:
    pages = {"huge": "huge pages", "small": "4 KiB pages"}[found["pages"]]
    machine = found["machine"]
    figure.text(
        0.01,
        0.01,
        f"{machine['cpu']}, {found['threads']} threads, {pages}, medians of {found['turns']} turns, "
        f"whiskers min and max; {found['date'][:10]}",
        fontsize=7,
        color="#666666",
    )


def _aggregate_panel(axes: Any, cases: list[dict[str, Any]], names: list[str]) -> None:
    """Bars over the gather floor, a group for each width."""
    bar = 0.8 / len(names)
    for position, name in enumerate(names):
        for group, case in enumerate(cases):
            if name not in case["ms"]:
                continue
            ms, floor = case["ms"][name], case["floor"]["ms"]["median"]
            at, height = group + (position - (len(names) - 1) / 2) * bar, ms["median"] / floor
            label = name if not group else None
            axes.bar(at, height, bar * 0.92, color=COLOURS[name], label=label, zorder=2)
            axes.vlines(at, ms["min"] / floor, ms["max"] / floor, color=INK, linewidth=0.8, zorder=3)
            top = max(height, ms["max"] / floor)
            axes.annotate(
                f"{ms['median']:.0f}",
                (at, top),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=6.5,
                color=INK,
            )
    axes.axhline(1, color=INK, linewidth=1, linestyle="--", zorder=4)
    axes.set_xticks(range(len(cases)), [str(case["width"]) for case in cases])
    axes.set_xlabel("width of a row (float32)")
    axes.yaxis.grid(True, color=FAINT, zorder=0)
    axes.set_axisbelow(True)
    first = cases[0]
    weighted = ", weighted" if first["weighted"] else ""
    axes.set_title(
        f"{first['graph']}{weighted}: {first['nodes']:,} nodes, {first['edges']:,} edges", fontsize=9
    )


def aggregate(found: dict[str, Any], path: Path) -> None:
    """A panel for each graph: how many times the gather floor each contestant takes, ms written on the bars."""
    plt = load()
    graphs = list(dict.fromkeys(case["graph"] for case in found["cases"]))
    names = [name for name in found["contestants"] if any(name in case["ms"] for case in found["cases"])]
    figure, panels = plt.subplots(
        1, len(graphs), figsize=(1 + 5.2 * len(graphs), 4), squeeze=False, layout="constrained"
    )
    for axes, graph in zip(panels[0], graphs, strict=True):
        _aggregate_panel(axes, [case for case in found["cases"] if case["graph"] == graph], names)
    panels[0][0].set_ylabel("time over the gather floor (dashed); ms on the bars")
    panels[0][0].legend(frameon=False, ncols=3, loc="upper left")
    for axes in panels[0]:
        axes.margins(y=0.18)
    figure.get_layout_engine().set(rect=(0, 0.04, 1, 0.96))
    _caption(figure, found)
    figure.savefig(path, dpi=160)
    plt.close(figure)


def epoch(found: dict[str, Any], path: Path) -> None:
    """A row for each graph: ms an epoch, and peak memory."""
    plt = load()
    cases, bars = found["cases"], max(len(case["ms"]) for case in found["cases"])
    figure, panels = plt.subplots(
        len(cases),
        2,
        figsize=(9, 0.9 + len(cases) * (0.7 + 0.42 * bars)),
        squeeze=False,
        layout="constrained",
    )
    model = found["model"]
    shape = f"{model['features']} to {model['hidden']} to {model['classes']}"
    for case, (left, right) in zip(cases, panels, strict=True):
        names = list(case["ms"])[::-1]
        colours = [COLOURS[name] for name in names]
        ms = [case["ms"][name]["median"] for name in names]
        left.barh(names, ms, 0.65, color=colours)
        for name in names:
            low, high = case["ms"][name]["min"], case["ms"][name]["max"]
            left.hlines(name, low, high, color=INK, linewidth=1)
        sizes = [case["peak_bytes"][name] / 1e6 for name in names]
        right.barh(names, sizes, 0.65, color=colours)
        for axes, values, unit, ends in (
            (left, ms, "ms", [case["ms"][name]["max"] for name in names]),
            (right, sizes, "MB", sizes),
        ):
            for name, value, end in zip(names, values, ends, strict=True):
                axes.annotate(
                    f"{value:,.0f} {unit}",
                    (max(value, end), name),
                    xytext=(4, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=8,
                )
            axes.margins(x=0.22)
        left.set_title(f"GCN {shape}, {case['graph']} ({case['edges']:,} edges): ms an epoch", fontsize=9)
        right.set_title("peak memory of the process", fontsize=9)
    figure.get_layout_engine().set(rect=(0, 0.05, 1, 0.95))
    _caption(figure, found)
    figure.savefig(path, dpi=160)
    plt.close(figure)
