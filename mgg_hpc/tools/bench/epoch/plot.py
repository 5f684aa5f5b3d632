"""The picture of `mgg bench epoch`: epochs and memory, and on a GPU layers too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..harness import plots
from ..harness.plots import COLOURS, FAINT, LONGEST
from .shape import title

WAYS = {"forward": "forward", "forward and backward": "forward,\nbackward"}


def draw(found: dict[str, Any], path: Path) -> None:
    """Draw a row for each model and graph: ms an epoch, peak memory, and on a GPU the times of layers."""
    plt, cases = plots.load(), found["cases"]
    layered = "layers" in cases[0]
    memory_of, unit, size = ("the GPU", "GB", 1e9) if layered else ("the process", "MB", 1e6)
    names = [name for name in COLOURS if any(name in case["ms"] for case in cases)]
    figure, rows = plt.subplots(
        len(cases),
        3 if layered else 2,
        figsize=(11 if layered else 8, 0.9 + 2.6 * len(cases)),
        squeeze=False,
        layout="constrained",
        gridspec_kw={"width_ratios": [1, 1, 1.8] if layered else [1, 1]},
    )
    for case, (epochs, memory, *layers) in zip(cases, rows, strict=True):
        _bars(epochs, names, ["an epoch"], [case["ms"]])
        peaks = {name: plots.constant(peak / size) for name, peak in case["peak_bytes"].items()}
        _bars(memory, names, ["peak"], [peaks])
        model = case.get("model") or {"model": "gcn", "layers": 2, "heads": 1} | found["model"]
        epochs.set_title(f"{title(model)}, dropout {model['dropout']:g}, {case['graph']}", fontsize=8)
        memory.set_title(f"memory of {memory_of}", fontsize=8)
        epochs.set_ylabel("ms")
        memory.set_ylabel(unit)
        for axes in layers:
            groups = [(each, way) for each in case["layers"] for way in WAYS]
            labels = [f"{each['in']} to {each['out']}\n{WAYS[way]}" for each, way in groups]
            _bars(axes, names, labels, [each[way]["ms"] for each, way in groups])
            axes.set_title("a layer: product with the weights, and sums; ms", fontsize=8)
    plots.legend(figure, plt, names)
    plots.save(figure, found, path, bottom=0.05)


def _bars(axes: Any, names: list[str], labels: list[str], groups: list[dict[str, dict[str, float]]]) -> None:
    """Draw a group of bars for each label, and whiskers from min to max."""
    bar = 0.8 / len(names)
    tallest = max(spread["median"] for group in groups for spread in group.values())
    for place, group in enumerate(groups):
        for position, name in enumerate(names):
            if name in group:
                at = place + (position - (len(names) - 1) / 2) * bar
                plots.bar(axes, name, at, bar, group[name], LONGEST * tallest, fontsize=7)
    axes.set_xlim(-0.5, len(groups) - 0.5)
    axes.set_xticks(range(len(groups)), labels, fontsize=8)
    axes.yaxis.grid(True, color=FAINT, zorder=0)
    axes.set_axisbelow(True)
    axes.margins(y=0.12)
