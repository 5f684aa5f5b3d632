"""`mgg bench epoch`: a full-graph training epoch of a model, ours and the peers'.

An epoch is what `mgg train` times as one: forward with dropout, the loss over the training rows, backward, Adam.
Features are normal, labels uniform, half of the rows train; all draw from one seed. Graphs' own weights are left
out, and self loops and norms are computed before the clock starts. All begin with the same weights, with which their
losses must be the same before anybody trains.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ....data import store
from ....data.graph import Graph
from ....errors import InputError
from ..harness import document, graphs, libraries, timing
from ..harness.document import Options, Sheet, cell
from ..harness.libraries import Field
from ..harness.timing import Run, Worker
from . import plot
from .shape import (
    DROPPED_APART,
    TRAINED_APART,
    UNTRAINED_APART,
    WARM_UP,
    Shape,
    labelled,
    losses_agree,
    title,
)

# GIN's sums over hubs make losses of tens of thousands here, and much of any difference: what its peers compute is held
# to ours by the first bound.
GIN_APART = {TRAINED_APART: 0.1, DROPPED_APART: 9.0}
GRAPHS, GRAPHS_ON_GPU = ("rmat:17:12",), ("rmat:20:16",)
PEERS, PEERS_ON_GPU = "dgl,pyg,pyg-csr", "pyg,pyg-csr"
CPU_ONLY = frozenset(("threads", "pages", "peers_env"))


# Hidden units, layers and heads of each model, as papers have them.
MODELS = {"gcn": (16, 2, 1), "gin": (64, 5, 1), "sage": (128, 2, 1), "gat": (8, 2, 8)}


def process_epoch(
    names: tuple[str, ...],
    *,
    model: str,
    features: int,
    hidden: int | None,
    classes: int,
    dropout: float,
    device: str,
    given: frozenset[str],
    **others: Any,
) -> None:
    """Measure, print and write; ``others`` are those of Options, and ``given`` the options that the user named.

    Raises InputError for a graph, model, option, peer or file that will not do.
    """
    on_gpu = device == "cuda"
    others["peers"] = others["peers"] or (PEERS_ON_GPU if on_gpu else PEERS)
    options = Options(**others)
    shapes = []
    for word in document.words_of("model", model, tuple(MODELS)):
        usual, layers, heads = MODELS[word]
        shapes.append(Shape(features, hidden or usual, classes, dropout, word, layers, heads))
    names = names or (GRAPHS_ON_GPU if on_gpu else GRAPHS)
    options.check()
    document.refuse_ranks()
    for name in names:
        graphs.check(name)
    if on_gpu:
        from . import gpu as epoch_gpu

        if of_cpus := sorted(given & CPU_ONLY):
            raise InputError(f"--{of_cpus[0].replace('_', '-')} has no meaning with --device cuda")
        if model != "gcn":
            raise InputError(f"--model {model}: --device cuda trains a gcn")
        compared = (
            [] if options.peers == "none" else document.words_of("peers", options.peers, epoch_gpu.BASELINES)
        )
        epoch_gpu.process_device(names, shapes[0], compared, options)
        return
    found = contest_of(names, shapes, options)
    document.finish(found, sheets(found), options, plot.draw)


def contest_of(names: tuple[str, ...], shapes: list[Shape], options: Options) -> dict[str, Any]:
    """The document: a case for each model on each graph. Raises InputError for a peer that there is not."""
    chosen, python = libraries.chosen(options.peers, "epoch"), libraries.interpreter(options.peers_env)
    cases, notes = [], []
    found: dict[str, Any] = {}
    for shape, name in itertools.product(shapes, names):
        graph = labelled(graphs.read(name), shape)
        # New processes for each case: a peak of memory is a process's, and falls no more.
        with (
            timing.workspace() as folder,
            libraries.started(chosen, python, options.threads, options.pages) as field,
        ):
            measured, left_out = measure(graph, shape, field, folder, options.turns)
            found = document.comparison("epoch", options, field)
            cases.append(measured)
            notes += left_out
    found["cases"] = cases
    found["notes"] += notes
    return found


def inputs_of(graph: Graph, shape: Shape, folder: Path) -> dict[str, Any]:
    """Write the input files into ``folder``; return the arguments of the workers' tasks."""
    store.write(folder / "graph.h5", graph)
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
    graph: Graph, shape: Shape, field: Field, folder: Path, turns: int
) -> tuple[dict[str, Any], list[str]]:
    """One row of the result, and a note for each peer that could not take part."""
    inputs = inputs_of(graph, shape, folder)
    runs, notes = [], []
    untrained: dict[str, float] = {}
    for worker in (field.ours, *field.peers):
        name = worker.name
        problem = _begun(worker, inputs, folder, untrained)
        if not problem:
            runs.append(Run(worker, name))
        elif worker is field.ours:
            raise RuntimeError(f"our own epoch failed: {problem}")
        else:
            notes.append(f"{name} is left out of {graph.name}, {shape.model}: {problem}")
    timing.take_turns(runs, turns)
    losses = {run.name: _loss(run, folder) for run in runs}
    apart = DROPPED_APART if shape.dropout else TRAINED_APART
    losses_agree(losses, GIN_APART[apart] if shape.model == "gin" else apart)
    held = {run.name: run.worker.need("memory") for run in runs}
    row = {
        "model": asdict(shape),
        "graph": graph.name,
        "nodes": graph.nodes,
        "edges": graph.edges,
        "ms": {run.name: timing.spread(run.ms) for run in runs},
        "speedup": {run.name: timing.ratios(run.ms, runs[0].ms) for run in runs[1:]},
        "peak_bytes": {name: memory["peak"] for name, memory in held.items()},
        "untrained_loss": untrained,
        "loss": losses,
        "huge_share": {name: document.shares(memory) for name, memory in held.items()},
    }
    return row, notes


def _begun(worker: Worker, inputs: dict[str, Any], folder: Path, untrained: dict[str, float]) -> str | None:
    """Make its model and warm up; what went wrong, or None. Its loss before joins ``untrained``, ours first."""
    name = worker.name
    problem = worker.ask("prepare", task="epoch", inputs=inputs).get("failed")
    problem = problem or worker.ask("run", name="untrained").get("failed")
    if problem:
        return problem
    loss = _loss(Run(worker, "untrained"), folder)
    ours = untrained.setdefault("mgg", loss)
    if not abs(loss - ours) <= UNTRAINED_APART * ours:
        return f"with the same weights its loss is {loss:.6g} and ours {ours:.6g}"
    untrained[name] = loss
    for _ in range(WARM_UP):
        problem = problem or worker.ask("run", name=name).get("failed")
    return problem


def _loss(run: Run, folder: Path) -> float:
    file = folder / "loss.npy"
    run.worker.need("result", name=run.name, file=str(file))
    return float(np.load(file))


def sheets(found: dict[str, Any]) -> list[Sheet]:
    """Time and memory of each, a row a worker; and what of them counts, a row a case."""
    columns = ["graph", "", "ms an epoch", "ours is times as fast", "peak MB", "last loss", "huge pages"]
    each: dict[str, Sheet] = {}
    for case in found["cases"]:
        name = f"{title(case['model'])}, dropout {case['model']['dropout']}"
        each.setdefault(name, Sheet(name, columns, [])).rows.extend(_rows(case))
    best = [_beside_the_best(case) for case in found["cases"] if case["speedup"]]
    columns = [
        "model",
        "graph",
        "ms",
        "better peer",
        "its ms",
        "ours is times as fast",
        "peak MB",
        "of DGL's",
    ]
    return [*each.values(), *([Sheet("beside the better peer", columns, best)] if best else [])]


def _rows(case: dict[str, Any]) -> list[list[str]]:
    rows = []
    for name, ms in case["ms"].items():
        ratio = cell(case["speedup"][name], 2) if name in case["speedup"] else ""
        peak, huge = f"{case['peak_bytes'][name] / 1e6:.0f}", f"{case['huge_share'][name]:.0%}"
        rows.append([case["graph"], name, cell(ms), ratio, peak, f"{case['loss'][name]:.5g}", huge])
    return rows


def _beside_the_best(case: dict[str, Any]) -> list[str]:
    """Ours, the peer with the smaller median, and our peak beside DGL's."""
    ms, peak = case["ms"], case["peak_bytes"]
    best = min(case["speedup"], key=lambda name: ms[name]["median"])
    share = f"{peak['mgg'] / peak['dgl']:.2f}" if "dgl" in peak else ""
    times = [f"{ms['mgg']['median']:.0f}", best, f"{ms[best]['median']:.0f}"]
    factor = f"{case['speedup'][best]['median']:.2f}"
    return [case["model"]["model"], case["graph"], *times, factor, f"{peak['mgg'] / 1e6:.0f}", share]
