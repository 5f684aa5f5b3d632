"""`mgg bench epoch --device cuda`: a training epoch of a two-layer GCN on one GPU, and each layer by itself.

Workers take turns in one process, timed by events of the stream; an epoch is that of cpu.py. A layer is timed
without dropout and ReLU: its product with the weights and its sums, forward, and then with their backward; the second
layer's gives the gradient of its input too, as in training.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from ....data import generate
from ....data.graph import Graph
from ..harness import document, graphs, timing
from ..harness.document import Options, Sheet, cell
from ..harness.gpu import Call, Stage
from . import gpu_models, plot
from .gpu_memory import GpuMemory, Meter
from .gpu_models import Inputs, Net
from .shape import WARM_UP, Shape, labelled, losses_agree

BASELINES = tuple(name for name in gpu_models.MAKERS if name != "mgg")
AT_ONCE = 3  # epochs of a turn, or calls of a layer
FAILURES = (ImportError, OSError, RuntimeError, TypeError, ValueError)


def process_device(
    names: Sequence[str],
    shape: Shape,
    baselines: Sequence[str],
    options: Options,
    stage: Stage | None = None,
    meter: Meter | None = None,
) -> None:
    """Measure, print and write. Raises InputError where there is no GPU, or no GPU kernels."""
    stage = stage or Stage.gpu()
    meter = meter or GpuMemory()
    found = document.begin("epoch", options.threads, options.turns)
    found["device"] = stage.module.limits()
    found["copy_gb_per_s"] = stage.copy_gb_per_s()
    found |= {"model": asdict(shape), "cases": []}
    # What libraries load at their first calls belongs to nobody's memory.
    small = inputs_of(stage, generate.rmat(4, 4, seed=0), shape)
    for name in ("mgg", *baselines):
        with contextlib.suppress(*FAILURES):
            gpu_models.MAKERS[name](small).step()
    for name in names:
        case, notes = measure(inputs_of(stage, graphs.read(name), shape), baselines, options.turns, meter)
        found["cases"].append(case)
        found["notes"] += notes
    document.finish(found, sheets(found), options, plot.draw)


def inputs_of(stage: Stage, graph: Graph, shape: Shape) -> Inputs:
    """The graph with random features and labels, these in the stage's memory."""
    return gpu_models.inputs_of(stage, labelled(graph, shape), shape)


def measure(
    inputs: Inputs, baselines: Sequence[str], turns: int, meter: Meter
) -> tuple[dict[str, Any], list[str]]:
    """One row of the result, and a note for each baseline that could not take part."""
    nets, notes = [], []
    peaks: dict[str, dict[str, int]] = {}
    for name in ("mgg", *baselines):
        before = meter.held()
        try:
            net = gpu_models.MAKERS[name](inputs)
            for _ in range(WARM_UP):
                net.step()
            peaks[name] = meter.peak(before, net.step) | {"inputs": inputs.nbytes}
        except FAILURES as error:
            if name == "mgg":
                raise
            notes.append(f"{name} is left out of {inputs.graph.name}: {document.first_line(error)}")
            continue
        nets.append(net)
    ms = take_turns(inputs.stage, {net.name: net.step for net in nets}, turns)
    losses = {net.name: net.loss() for net in nets}
    losses_agree(losses)
    row = {
        "graph": inputs.graph.name,
        "nodes": inputs.graph.nodes,
        "edges": inputs.graph.edges,
        **compared(ms),
        "peak_bytes": {name: sum(peak.values()) for name, peak in peaks.items()},
        "peak_parts": peaks,
        "loss": losses,
        "layers": [layer(inputs, nets, number, turns) for number in range(len(inputs.layers))],
    }
    return row, notes


def layer(inputs: Inputs, nets: Sequence[Net], number: int, turns: int) -> dict[str, Any]:
    """One layer's widths, and the times of its forward, and of forward and backward."""
    stage = inputs.stage
    forward: dict[str, Call] = {net.name: partial(net.forward, number) for net in nets}
    both: dict[str, Call] = {net.name: partial(net.forward_and_backward, number) for net in nets}
    return {
        "in": inputs.widths[number],
        "out": inputs.widths[number + 1],
        "forward": compared(take_turns(stage, forward, turns)),
        "forward and backward": compared(take_turns(stage, both, turns)),
    }


def take_turns(stage: Stage, calls: dict[str, Call], turns: int) -> dict[str, list[float]]:
    """A B C, A B C, ...: the ms of a call of each, in each turn; the first calls are not counted."""
    for call in calls.values():
        stage.clock.ms([call])
    ms: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns):
        for name, call in calls.items():
            ms[name].append(stage.clock.ms([call] * AT_ONCE))
    return ms


def compared(ms: dict[str, list[float]]) -> dict[str, Any]:
    """Times, and how many times as fast as each other we are."""
    return {
        "ms": {name: timing.spread(of) for name, of in ms.items()},
        "speedup": {name: timing.ratios(of, ms["mgg"]) for name, of in ms.items() if name != "mgg"},
    }


def sheets(found: dict[str, Any]) -> list[Sheet]:
    """Time and memory of an epoch of each, and the times of layers."""
    epochs, layers = [], []
    for case in found["cases"]:
        for name, ms in case["ms"].items():
            parts, peak = case["peak_parts"][name], f"{case['peak_bytes'][name] / 1e6:,.0f}"
            outside, loss = f"{parts['outside'] / 1e6:,.0f}", f"{case['loss'][name]:.4f}"
            epochs.append([case["graph"], name, cell(ms, 3), _ratio(case, name), peak, outside, loss])
        for each in case["layers"]:
            head = [case["graph"], f"{each['in']} -> {each['out']}"]
            ways = (each["forward"], each["forward and backward"])
            for name in ways[0]["ms"]:
                cells = [text for way in ways for text in (cell(way["ms"][name], 3), _ratio(way, name))]
                layers.append([*head, name, *cells])
    model = found["model"]
    title = f"GCN {model['features']} -> {model['hidden']} -> {model['classes']}, dropout {model['dropout']}"
    faster = "ours is times as fast"
    return [
        Sheet(
            title,
            ["graph", "", "ms an epoch", faster, "peak MB", "of these outside torch", "last loss"],
            epochs,
        ),
        Sheet(
            "a layer: product with the weights, and sums; ms",
            ["graph", "layer", "", "forward", faster, "forward and backward", faster],
            layers,
        ),
    ]


def _ratio(found: dict[str, Any], name: str) -> str:
    return cell(found["speedup"][name], 2) if name in found["speedup"] else ""
