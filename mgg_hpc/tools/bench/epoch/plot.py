"""The pictures of `mgg bench epoch`: epochs and memory, and on a GPU layers too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..harness import plots
from ..harness.plots import COLOURS, FAINT, INK, LONGEST
from .shape import title

WAYS = {"forward": "forward", "forward and backward": "forward,\nbackward"}


def draw(found: dict[str, Any], path: Path) -> None:
    """A row for each model and graph: ms an epoch, and peak memory; on a GPU the times of layers too."""
    if "device" in found:
        _draw_gpu(found, path)
        return
    plt = plots.load()
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
                    f"{plots.label(value)} {unit}",
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
    plots.caption(figure, found)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _draw_gpu(found: dict[str, Any], path: Path) -> None:
    """A row for each graph: ms an epoch, peak memory, and ms of each layer."""
    plt = plots.load()
    cases = found["cases"]
    size = (11, 0.9 + 2.6 * len(cases))
    shape = {"width_ratios": [1, 1, 1.8]}
    figure, rows = plt.subplots(
        len(cases), 3, figsize=size, squeeze=False, layout="constrained", gridspec_kw=shape
    )
    names = [name for name in COLOURS if any(name in case["ms"] for case in cases)]
    for case, (epochs, memory, layers) in zip(cases, rows, strict=True):
        _bars(epochs, names, ["an epoch"], [case["ms"]])
        gigabytes = {name: peak / 1e9 for name, peak in case["peak_bytes"].items()}
        _bars(
            memory,
            names,
            ["peak"],
            [{name: dict.fromkeys(("min", "median", "max"), of) for name, of in gigabytes.items()}],
        )
        groups = [(each, way) for each in case["layers"] for way in WAYS]
        labels = [f"{each['in']} to {each['out']}\n{WAYS[way]}" for each, way in groups]
        _bars(layers, names, labels, [each[way]["ms"] for each, way in groups])
        epochs.set_ylabel("ms")
        memory.set_ylabel("GB")
        epochs.set_title(f"{case['graph']} ({case['edges']:,} edges)", fontsize=9)
        memory.set_title("memory of the GPU", fontsize=9)
        layers.set_title("a layer: product with the weights, and sums; ms", fontsize=9)
    model = found["model"]
    title = f"GCN {model['features']} to {model['hidden']} to {model['classes']}"
    handles = [plt.Rectangle((0, 0), 1, 1, color=COLOURS[name]) for name in names]
    figure.legend(
        handles, names, loc="outside upper left", ncols=len(names), frameon=False, fontsize=8, title=title
    )
    figure.get_layout_engine().set(rect=(0, 0.05, 1, 0.95))
    plots.caption(figure, found)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _bars(axes: Any, names: list[str], labels: list[str], groups: list[dict[str, dict[str, float]]]) -> None:
    """A group of bars for each label, and whiskers from min to max."""
    bar = 0.8 / len(names)
    tallest = max(spread["median"] for group in groups for spread in group.values())
    for place, group in enumerate(groups):
        for position, name in enumerate(names):
            if name not in group:
                continue
            low, middle, high = (group[name][key] for key in ("min", "median", "max"))
            at, end = place + (position - (len(names) - 1) / 2) * bar, min(high, LONGEST * tallest)
            axes.bar(at, middle, bar * 0.92, color=COLOURS[name], zorder=2)
            if high > low:
                axes.vlines(at, low, end, color=INK, linewidth=0.8, zorder=3)
            axes.annotate(
                plots.label(middle),
                (at, max(middle, end)),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=7,
            )
    axes.set_xlim(-0.5, len(groups) - 0.5)
    axes.set_xticks(range(len(groups)), labels, fontsize=8)
    axes.yaxis.grid(True, color=FAINT, zorder=0)
    axes.set_axisbelow(True)
    axes.margins(y=0.12)
