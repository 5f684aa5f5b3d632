"""Full-graph training epochs of models, by this package and other libraries.

    python benchmarks/epoch.py --models gcn,gin,sage,gat -o epoch.md -o epoch.png
    python benchmarks/epoch.py rmat:15 my.h5 --models gat --dropout 0 --peers dgl
    python benchmarks/epoch.py rmat:20 --device cuda

An epoch is forward with dropout, the loss over the training rows, backward and Adam, as `mgg train` has it. Features,
labels and training rows are drawn, edges have no weights, and self loops and norms are made before the clock starts.
All libraries begin with the same weights, and must have the same loss before they train. ``loss`` is the last epoch's,
``peak_mb`` the most memory of each process, with libraries and input; of a GPU without the CUDA context.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import click
from harness import command, graphs, options, run, workers
from harness.results import TIMES
from harness.shapes import MODELS, WARM_UP, Shape, labelled
from harness.workers import Comparison, Worker

from mgg_hpc.data import writer
from mgg_hpc.data.graph import Graph

PEERS = {"cpu": ("dgl", "pyg", "pyg-csr"), "cuda": ("pyg", "pyg-csr")}
# How far losses may lie apart, as a part of the smaller one: before training, with the same weights; after all epochs
# without dropout; and with it, since each library draws its own.
UNTRAINED_APART, TRAINED_APART, DROPPED_APART = 1e-4, 2e-3, 0.5
# GIN's sums over hubs make losses of tens of thousands here, and much of any difference: other libraries' losses are
# held to ours by the first bound.
GIN_APART = {TRAINED_APART: 0.1, DROPPED_APART: 9.0}
SHOWN = ("graph", "model", *TIMES, "peak_mb", "loss")


@command(__doc__)
@options.graph_names("rmat:17:12")
@options.words("models", MODELS, f"Of {', '.join(MODELS)}.", "gcn")
@click.option("--features", type=options.WIDTH, default=128, help="Columns of the input.")
@click.option(
    "--hidden", type=options.WIDTH, help="Units; of each head. [default: gcn 16, gin 64, sage 128, gat 8]"
)
@click.option("--classes", type=options.WIDTH, default=32, help="Columns of the output.")
@click.option("--dropout", type=click.FloatRange(0, 1, max_open=True), default=0.5)
@workers.comparison("epoch", PEERS)
def main(names: tuple[str, ...], models: list[str], bench: Comparison, **sizes: Any) -> None:
    bench.results.same["dropout"] = sizes["dropout"]
    for model, name in product(models, names):
        shape = Shape.of(model, **sizes)
        measure(bench, labelled(graphs.read(name), shape), shape)
    bench.results.show(*SHOWN)


def measure(bench: Comparison, graph: Graph, shape: Shape) -> None:
    """Add the rows of one case, in new processes, since a process's peak of memory does not fall again."""
    with bench.started() as (processes, folder):
        # MGG is the first, and writes the initial weights.
        accept = partial(accepted, dict[str, float](), folder)
        inputs = inputs_of(graph, shape, folder)
        runs = bench.prepared(f"{shape}, {graph.name}", processes, "epoch", inputs, accept)
        ms = workers.in_turns(runs, bench.turns)
        losses = {name: float(worker.result(name, folder)) for name, worker in runs.items()}
        peaks = {name: worker.need("memory")["peak"] / 1e6 for name, worker in runs.items()}
    apart = DROPPED_APART if shape.dropout else TRAINED_APART
    workers.check_losses(losses, GIN_APART[apart] if shape.model == "gin" else apart)
    more = {name: {"peak_mb": round(peaks[name], 1), "loss": round(losses[name], 6)} for name in ms}
    bench.add(ms, more, graph=graph.name, nodes=graph.nodes, edges=graph.edges, model=str(shape))


def inputs_of(graph: Graph, shape: Shape, folder: Path) -> dict[str, Any]:
    """Write the files of a graph with labels; return the arguments of the task "epoch"."""
    writer.write(folder / "graph.h5", graph)
    rows = {name: getattr(graph, name) for name in ("x", "y", "train")}
    files = {"file": str(folder / "graph.h5"), "weights": str(folder / "weights.npz")}
    return {**workers.write_edges(graph, folder), **asdict(shape), **workers.write(folder, **rows), **files}


def accepted(untrained: dict[str, float], folder: Path, worker: Worker, run: str) -> str:
    """Compare the loss before training with ``untrained["mgg"]``, and warm up; return why it is left out, or ""."""
    loss = float(worker.result(run, folder))
    ours = untrained.setdefault("mgg", loss)
    if not abs(loss - ours) <= UNTRAINED_APART * ours:
        return f"with the same weights its loss is {loss:.6g}, and mgg's {ours:.6g}"
    replies = (worker.ask("run", name=run) for _ in range(WARM_UP))
    return next((reply["failed"] for reply in replies if "failed" in reply), "")


if __name__ == "__main__":
    run(main)
