"""`mgg bench epoch`: a full-graph training epoch of a model, ours and other libraries'.

An epoch is what `mgg train` times as one: forward with dropout, the loss over the training rows, backward, Adam.
Features are normal, labels uniform, half of the rows train; all draw from one seed. Graphs' own weights are left out,
and self loops and norms are computed before the clock starts. What is compared takes turns, in processes (cpu.py) or on
one GPU (gpu.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ....errors import InputError
from ..harness import document
from ..harness.document import Sheet, cell
from ..harness.options import BenchOptions, words_of
from . import plot
from .shape import MODELS, Shape, title


def runner_of(device: str) -> Any:
    """Return the module that times this package and the baselines on this device."""
    if device == "cuda":
        from . import gpu

        return gpu
    from . import cpu

    return cpu


def run_epoch(
    names: Sequence[str],
    *,
    device: str,
    model: str,
    features: int,
    hidden: int | None,
    classes: int,
    dropout: float,
    peers: str | None,
    **others: Any,
) -> None:
    """Measure, print and write. Raises InputError for a graph, model, option, library or file that cannot be."""
    runner = runner_of(device)
    options = BenchOptions(**others)
    compared = words_of("peers", peers or runner.PEERS, runner.LIBRARIES, none=True)
    shapes = []
    for word in words_of("model", model, MODELS):
        usual, layers, heads = MODELS[word]
        shapes.append(Shape(features, hidden or usual, classes, dropout, word, layers, heads))
    if device == "cuda" and model != "gcn":
        raise InputError(f"--model {model}: --device cuda trains a gcn")
    names = names or runner.GRAPHS
    options.check(*names)
    comparison, found, cases, notes = runner.Comparison(options, compared), {}, [], []
    for shape, name in itertools.product(shapes, names):
        row, left_out = comparison.measure(name, shape)
        cases.append({"model": asdict(shape), **row})
        notes += left_out
        # On CPUs each case has new processes, by which the document begins.
        found = comparison.found | {"cases": cases, "notes": [*comparison.found["notes"], *notes]}
        document.write(found, sheets(found), options)  # what is measured stays, whatever ends the rest
    document.finish(found, sheets(found), options, plot.draw)


def sheets(found: dict[str, Any]) -> list[Sheet]:
    """Return the tables: time and memory of each; ours beside the best baseline; the times of layers."""
    gpu, faster = "device" in found, "ours is times as fast"
    last = "of these outside torch" if gpu else "huge pages"
    columns = ["graph", "", "ms an epoch", faster, "peak MB", "last loss", last]
    each: dict[str, Sheet] = {}
    for case in found["cases"]:
        name = f"{title(case['model'])}, dropout {case['model']['dropout']}"
        each.setdefault(name, Sheet(name, columns, [])).rows.extend(_rows(case, gpu))
    made = list(each.values())
    if best := [_beside_the_best(case) for case in found["cases"] if case["speedup"]]:
        columns = ["model", "graph", "ms", "better baseline", "its ms", faster, "peak MB", "of DGL's"]
        made.append(Sheet("beside the better baseline", columns, best))
    if gpu:
        columns = ["graph", "layer", "", "forward", faster, "forward and backward", faster]
        layers = [row for case in found["cases"] for row in _layers(case)]
        made.append(Sheet("a layer: product with the weights, and sums; ms", columns, layers))
    return made


def _rows(case: dict[str, Any], gpu: bool) -> list[list[str]]:
    rows = []
    for name, ms in case["ms"].items():
        peak, loss = f"{case['peak_bytes'][name] / 1e6:,.0f}", f"{case['loss'][name]:.5g}"
        last = (
            f"{case['peak_parts'][name]['outside'] / 1e6:,.0f}" if gpu else f"{case['huge_share'][name]:.0%}"
        )
        rows.append([case["graph"], name, cell(ms, 3 if gpu else 1), _ratio(case, name), peak, loss, last])
    return rows


def _beside_the_best(case: dict[str, Any]) -> list[str]:
    """Return the cells of ours, of the baseline with the smaller median, and of our peak beside DGL's."""
    ms, peak = case["ms"], case["peak_bytes"]
    best = min(case["speedup"], key=lambda name: ms[name]["median"])
    share = f"{peak['mgg'] / peak['dgl']:.2f}" if "dgl" in peak else ""
    times = [f"{ms['mgg']['median']:.1f}", best, f"{ms[best]['median']:.1f}"]
    factor = f"{case['speedup'][best]['median']:.2f}"
    return [case["model"]["model"], case["graph"], *times, factor, f"{peak['mgg'] / 1e6:,.0f}", share]


def _layers(case: dict[str, Any]) -> list[list[str]]:
    rows = []
    for each in case["layers"]:
        ways = (each["forward"], each["forward and backward"])
        for name in ways[0]["ms"]:
            times = [text for way in ways for text in (cell(way["ms"][name], 3), _ratio(way, name))]
            rows.append([case["graph"], f"{each['in']} -> {each['out']}", name, *times])
    return rows


def _ratio(found: dict[str, Any], name: str) -> str:
    return cell(found["speedup"][name], 2) if name in found["speedup"] else ""
