"""`mgg bench epoch`: a full-graph training epoch of a two-layer GCN, ours and the peers'.

An epoch is what `mgg train` times as one: forward with dropout, the loss over the training rows, backward, Adam.
Features are normal, labels uniform, half of the rows train; all draw from one seed. Graphs' own weights are left
out, and self loops and norms are computed before the clock starts.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...data import store
from ...data.graph import Graph
from ...errors import InputError
from . import contest, document, peers, subjects
from .aggregate import words_of
from .contest import Run
from .document import Options, Sheet, cell
from .peers import Field

WARM_UP = 2  # epochs: the first allocates, and the optimiser makes its state
LOSSES_APART = 0.1  # relative; initial weights and dropout are each contestant's own
GRAPHS, GRAPHS_ON_GPU = ("rmat:17:12",), ("rmat:20:16",)
PEERS, PEERS_ON_GPU = "dgl,pyg,pyg-csr", "pyg,pyg-csr"
CPU_ONLY = frozenset(("threads", "pages", "peers_env"))


@dataclass(frozen=True)
class Shape:
    """The model: feature columns, hidden units, classes; dropout's probability."""

    features: int
    hidden: int
    classes: int
    dropout: float


def process_epoch(
    names: tuple[str, ...],
    *,
    features: int,
    hidden: int,
    classes: int,
    dropout: float,
    device: str,
    given: frozenset[str],
    **others: Any,
) -> None:
    """Measure, print and write; ``others`` are those of Options, and ``given`` the options that the user named.

    Raises InputError for a graph, option, peer or file that will not do.
    """
    on_gpu = device == "cuda"
    others["peers"] = others["peers"] or (PEERS_ON_GPU if on_gpu else PEERS)
    shape, options = Shape(features, hidden, classes, dropout), Options(**others)
    names = names or (GRAPHS_ON_GPU if on_gpu else GRAPHS)
    options.check()
    document.refuse_ranks()
    for name in names:
        subjects.check(name)
    if on_gpu:
        from . import device_epoch

        if of_cpus := sorted(given & CPU_ONLY):
            raise InputError(f"--{of_cpus[0].replace('_', '-')} has no meaning with --device cuda")
        rivals = [] if options.peers == "none" else words_of("peers", options.peers, device_epoch.RIVALS)
        device_epoch.process_device(names, shape, rivals, options)
        return
    chosen, python = peers.chosen(options.peers, "epoch"), peers.interpreter(options.peers_env)
    cases, notes = [], []
    found: dict[str, Any] = {}
    for name in names:
        graph = labelled(subjects.read(name), shape)
        # New processes for each graph: a peak of memory is a process's, and falls no more.
        with (
            contest.workspace() as folder,
            peers.started(chosen, python, options.threads, options.pages) as field,
        ):
            measured, left_out = measure(graph, shape, field, folder, options.turns)
            found = document.contested("epoch", options, field)
            cases.append(measured)
            notes += left_out
    found |= {"model": asdict(shape), "cases": cases}
    found["notes"] += notes
    document.finish(found, sheets(found), options)


def labelled(graph: Graph, shape: Shape) -> Graph:
    """The graph with random features and labels, and without weights."""
    rng = np.random.default_rng(0)
    train = rng.random(graph.nodes) < 0.5
    train[0] = True
    return replace(
        graph,
        weight=None,
        x=rng.standard_normal((graph.nodes, shape.features), dtype=np.float32),
        y=rng.integers(shape.classes, size=graph.nodes),
        classes=shape.classes,
        train=train,
        val=~train,
        test=np.zeros(graph.nodes, dtype=bool),
    )


def measure(
    graph: Graph, shape: Shape, field: Field, folder: Path, turns: int
) -> tuple[dict[str, Any], list[str]]:
    """One row of the result, and a note for each peer that could not take part."""
    store.write(folder / "graph.h5", graph)
    inputs: dict[str, Any] = {
        **subjects.write(graph, folder),
        **asdict(shape),
        "file": str(folder / "graph.h5"),
    }
    for name in ("x", "y", "train"):
        inputs[name] = subjects.save(folder / f"{name}.npy", getattr(graph, name))
    runs, notes = [], []
    for contestant in (field.ours, *field.peers):
        problem = contestant.ask("prepare", task="epoch", inputs=inputs).get("failed")
        for _ in range(WARM_UP):
            problem = problem or contestant.ask("run", name=contestant.name).get("failed")
        if not problem:
            runs.append(Run(contestant, contestant.name))
        elif contestant is field.ours:
            raise RuntimeError(f"our own epoch failed: {problem}")
        else:
            notes.append(f"{contestant.name} is left out of {graph.name}: {problem}")
    contest.take_turns(runs, turns)
    losses = {run.name: _loss(run, folder) for run in runs}
    losses_agree(losses)
    held = {run.name: run.contestant.need("memory") for run in runs}
    row = {
        "graph": graph.name,
        "nodes": graph.nodes,
        "edges": graph.edges,
        "ms": {run.name: contest.spread(run.ms) for run in runs},
        "speedup": {run.name: contest.ratios(run.ms, runs[0].ms) for run in runs[1:]},
        "peak_bytes": {name: memory["peak"] for name, memory in held.items()},
        "loss": losses,
        "huge_share": {name: document.shares(memory) for name, memory in held.items()},
    }
    return row, notes


def losses_agree(losses: dict[str, float]) -> None:
    """Raises RuntimeError where one is far from ours after the same epochs."""
    for name, loss in losses.items():
        if not abs(loss - losses["mgg"]) <= LOSSES_APART * losses["mgg"]:
            raise RuntimeError(
                f"after the same epochs {name}'s loss is {loss:.4f} and ours {losses['mgg']:.4f}"
            )


def _loss(run: Run, folder: Path) -> float:
    file = folder / "loss.npy"
    run.contestant.need("result", name=run.name, file=str(file))
    return float(np.load(file))


def sheets(found: dict[str, Any]) -> list[Sheet]:
    """Time and memory of each, a row a contestant."""
    rows = []
    for case in found["cases"]:
        for name, ms in case["ms"].items():
            ratio = cell(case["speedup"][name], 2) if name in case["speedup"] else ""
            peak, huge = f"{case['peak_bytes'][name] / 1e6:.0f}", f"{case['huge_share'][name]:.0%}"
            rows.append([case["graph"], name, cell(ms), ratio, peak, f"{case['loss'][name]:.4f}", huge])
    model = found["model"]
    title = f"GCN {model['features']} -> {model['hidden']} -> {model['classes']}, dropout {model['dropout']}"
    columns = ["graph", "", "ms an epoch", "ours is times as fast", "peak MB", "last loss", "huge pages"]
    return [Sheet(title, columns, rows)]
