"""Training epochs on CPUs, by a process for this package and one for each other library.

All begin with the same weights, with which their losses must be the same before any of them trains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from ....data import writer
from ....data.graph import Graph
from ....runtime.turns import take_turns
from ..harness import document, graphs, libraries, timing
from ..harness.libraries import Libraries
from ..harness.options import BenchOptions
from ..harness.timing import Worker
from .shape import DROPPED_APART, TRAINED_APART, UNTRAINED_APART, WARM_UP, Shape, labelled, losses_agree

# GIN's sums over hubs make losses of tens of thousands here, and much of any difference: the baselines' losses are
# held to ours by the first bound.
GIN_APART = {TRAINED_APART: 0.1, DROPPED_APART: 9.0}
GRAPHS = ("rmat:17:12",)
LIBRARIES = ("dgl", "pyg", "pyg-csr")
PEERS = ",".join(LIBRARIES)


class Comparison:
    """Libraries whose processes take turns, and the document of their times."""

    def __init__(self, options: BenchOptions, baselines: Sequence[str]) -> None:
        self.options, self.baselines = options, baselines
        self.found: dict[str, Any] = {}

    def measure(self, name: str, shape: Shape) -> tuple[dict[str, Any], list[str]]:
        """Return a row of the result, and a note for each baseline that could not take part."""
        # New processes for each case: a peak of memory is a process's, and falls no more.
        with timing.workspace() as folder, libraries.started(self.baselines, self.options) as started:
            measured = measure(labelled(graphs.read(name), shape), shape, started, folder, self.options.turns)
            self.found = document.comparison("epoch", self.options, started)
            return measured


def inputs_of(graph: Graph, shape: Shape, folder: Path) -> dict[str, Any]:
    """Write the input files into ``folder``; return the arguments of the workers' tasks."""
    writer.write(folder / "graph.h5", graph)
    inputs: dict[str, Any] = {
        **graphs.write(graph, folder),
        **asdict(shape),
        "file": str(folder / "graph.h5"),
        "weights": str(folder / "weights.npz"),  # ours, which is asked first, writes them
    }
    for name in ("x", "y", "train"):
        inputs[name] = graphs.save(folder / f"{name}.npy", getattr(graph, name))
    return inputs


def measure(
    graph: Graph, shape: Shape, libraries: Libraries, folder: Path, turns: int
) -> tuple[dict[str, Any], list[str]]:
    """Return a row of the result, and a note for each baseline that could not take part."""
    inputs, notes = inputs_of(graph, shape, folder), []
    workers: list[Worker] = []
    untrained: dict[str, float] = {}
    for worker in (libraries.ours, *libraries.baselines):
        problem = _begun(worker, inputs, folder, untrained)
        if not problem:
            workers.append(worker)
        elif worker is libraries.ours:
            raise RuntimeError(f"our own epoch failed: {problem}")
        else:
            notes.append(f"{worker.name} is left out of {graph.name}, {shape.model}: {problem}")
    runs = {worker.name: partial(worker.ms, worker.name) for worker in workers}
    ms = take_turns(runs, turns, pause=timing.BREATH)
    losses = {worker.name: float(worker.result(worker.name, folder)) for worker in workers}
    apart = DROPPED_APART if shape.dropout else TRAINED_APART
    losses_agree(losses, GIN_APART[apart] if shape.model == "gin" else apart)
    row = {
        **document.about(graph),
        **timing.compared(ms),
        "peak_bytes": {worker.name: worker.need("memory")["peak"] for worker in workers},
        "untrained_loss": untrained,
        "loss": losses,
        "huge_share": document.huge_shares(workers),
    }
    return row, notes


def _begun(worker: Worker, inputs: dict[str, Any], folder: Path, untrained: dict[str, float]) -> str | None:
    """Make a worker's model and warm up; return an error or None. Its loss before joins ``untrained``, ours first."""
    name = worker.name
    problem = worker.ask("prepare", task="epoch", inputs=inputs).get("failed")
    problem = problem or worker.ask("run", name="untrained").get("failed")
    if problem:
        return problem
    loss = float(worker.result("untrained", folder))
    ours = untrained.setdefault("mgg", loss)
    if not abs(loss - ours) <= UNTRAINED_APART * ours:
        return f"with the same weights its loss is {loss:.6g} and ours {ours:.6g}"
    untrained[name] = loss
    for _ in range(WARM_UP):
        problem = problem or worker.ask("run", name=name).get("failed")
    return problem
