"""Training epochs of a two-layer GCN on one GPU, and each layer by itself, in one process.

Models are timed by events of the stream. A layer is timed without dropout and ReLU: its product with the weights and
its sums, forward, and then with their backward; the second layer's gives the gradient of its input too, as in training.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ....data import generate
from ....runtime.turns import take_turns
from ..harness import document, graphs, timing, watch
from ..harness.gpu import Call, Device
from ..harness.options import BenchOptions
from . import gpu_models
from .gpu_memory import GpuMemory
from .gpu_models import Inputs, Net
from .shape import WARM_UP, Shape, labelled, losses_agree

GRAPHS = ("rmat:20:16",)
LIBRARIES = tuple(name for name in gpu_models.MAKERS if name != "mgg")
PEERS = ",".join(LIBRARIES)
AT_ONCE = 3  # epochs of a turn, or calls of a layer
FAILURES = (ImportError, OSError, RuntimeError, TypeError, ValueError)


class Comparison:
    """The GPU, the libraries that take turns on it, and the document of their times."""

    def __init__(self, options: BenchOptions, baselines: Sequence[str]) -> None:
        self.device, self.meter = Device.current(), GpuMemory()
        self.baselines, self.turns = baselines, options.turns
        self.found = document.begin("epoch", options, self.device)
        self.warm = False

    def measure(self, name: str, shape: Shape) -> tuple[dict[str, Any], list[str]]:
        """Return a row of the result, and a note for each baseline that could not take part."""
        if not self.warm:  # what libraries load at their first calls belongs to no model's memory
            small = gpu_models.inputs_of(self.device, labelled(generate.rmat(4, 4, seed=0), shape), shape)
            for each in ("mgg", *self.baselines):
                with contextlib.suppress(*FAILURES), watch.cell("warm-up", each):
                    gpu_models.MAKERS[each](small).step()
            self.warm = True
        inputs = gpu_models.inputs_of(self.device, labelled(graphs.read(name), shape), shape)
        return measure(inputs, self.baselines, self.turns, self.meter)


def measure(
    inputs: Inputs, baselines: Sequence[str], turns: int, meter: GpuMemory
) -> tuple[dict[str, Any], list[str]]:
    """Return a row of the result, and a note for each baseline that could not take part."""
    nets, notes = [], []
    peaks: dict[str, dict[str, int]] = {}
    for name in ("mgg", *baselines):
        before = meter.held()
        try:
            with watch.cell(inputs.graph.name, name):
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
    with watch.cell(inputs.graph.name, "epochs"):
        epochs = compared(inputs.device, {net.name: net.step for net in nets}, turns)
    losses = {net.name: net.loss() for net in nets}
    losses_agree(losses)
    row = {
        **document.about(inputs.graph),
        **epochs,
        "peak_bytes": {name: sum(peak.values()) for name, peak in peaks.items()},
        "peak_parts": peaks,
        "loss": losses,
        "layers": [layer(inputs, nets, number, turns) for number in range(len(inputs.layers))],
    }
    return row, notes


def layer(inputs: Inputs, nets: Sequence[Net], number: int, turns: int) -> dict[str, Any]:
    """Return one layer's widths, and the times of its forward, and of forward and backward."""
    device = inputs.device
    forward = {net.name: partial(net.forward, number) for net in nets}
    both = {net.name: partial(net.forward_and_backward, number) for net in nets}
    found: dict[str, Any] = {"in": inputs.widths[number], "out": inputs.widths[number + 1]}
    for name, calls in (("forward", forward), ("forward and backward", both)):
        with watch.cell(inputs.graph.name, f"layer {number + 1}", name):
            found[name] = compared(device, calls, turns)
    return found


def compared(device: Device, calls: Mapping[str, Call], turns: int) -> dict[str, Any]:
    """Return the times of the calls, and how many times as fast as each baseline ours is. First calls do not count."""
    for call in calls.values():
        device.clock.ms([call])
    clocks = {name: partial(device.clock.ms, [call] * AT_ONCE) for name, call in calls.items()}
    return timing.compared(take_turns(clocks, turns))
