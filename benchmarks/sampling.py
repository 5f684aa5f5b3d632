"""Neighbour sampling by this package and other libraries: samplers, and training on batches.

    python benchmarks/sampling.py rmat:20 cnr_2000.npz --threads 2
    python benchmarks/sampling.py rmat:16 --parts sampler --peers dgl --turns 3 -o sampling.md -o sampling.png

Times are of a batch, "mgg loader" and "dgl loader 2" are loaders (with two worker processes), and ``edge_ns`` is the
time for each sampled edge. ``batch_rows`` are a batch's input rows, ``loss`` is the mean of the last epoch.

sampler: batches of rows, without features. This package and DGL draw anew for all rows that a hop begins with; PyG
draws once for each node, and so has fewer edges.

train: forward, loss, backward and Adam of a GraphSAGE with 128 hidden units, a layer for each fanout, over drawn
features and labels, from the same weights. Each library takes part with its fastest run of the warm-up: its loader
with and without worker processes, and in PyG an edge list or a sparse CSR tensor for each layer.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np
from harness import command, graphs, options, run, workers
from harness.results import TIMES
from harness.workers import Comparison, Worker

from mgg_hpc.data import writer
from mgg_hpc.data.graph import Graph

PARTS, PEERS = ("sampler", "train"), {"cpu": ("dgl", "pyg")}
FEATURES, HIDDEN, CLASSES, DROPOUT = 128, 128, 32, 0.5
# Mean losses of the last epoch may be as far apart as this, as a part of the smaller one: all draw for themselves.
APART = 0.1
SHOWN = ("graph", "part", *TIMES, "edge_ns", "batch_edges")


@command(__doc__)
@options.graph_names("rmat:20")
@options.words("parts", PARTS, "Comparisons.")
@options.numbers("fanouts", "15,10,5", "The batch's own rows first.")
@click.option("--batch-size", type=click.IntRange(1), default=1024, help="Rows each.")
@click.option("--batches", type=click.IntRange(1), default=64, help="Of an epoch.")
@workers.comparison("sampling", PEERS, turns=5)
def main(names: tuple[str, ...], parts: list[str], bench: Comparison, **sizes: Any) -> None:
    bench.results.same |= sizes | {"fanouts": ",".join(map(str, sizes["fanouts"]))}
    for name, part in product(names, parts):
        read = graphs.read(name)
        graph = Graph(read.name, read.indptr, read.indices, directed=read.directed)
        with bench.started() as (processes, folder):
            inputs = inputs_of(graph, part, folder, **sizes)
            measure(bench, graph, part, inputs, processes, folder)
    bench.results.show(*SHOWN, "batch_rows", "loss")


def inputs_of(
    graph: Graph, part: str, folder: Path, *, fanouts: list[int], batch_size: int, batches: int
) -> dict[str, Any]:
    """Write the files of a part; return the arguments of its task (`peers.nets.Sampled`)."""
    rng = np.random.default_rng(0)
    rows = np.sort(rng.permutation(graph.nodes)[: batches * batch_size])
    inputs: dict[str, Any] = {"fanouts": fanouts, "batch_size": batch_size, "dropout": DROPOUT}
    inputs["widths"] = [FEATURES, *[HIDDEN] * (len(fanouts) - 1), CLASSES]
    inputs |= {"graph": str(folder / "graph.h5"), **workers.write(folder, rows=rows)}
    if part == "train":
        labels = rng.integers(CLASSES, size=graph.nodes)
        x = rng.standard_normal((graph.nodes, FEATURES), dtype=np.float32)
        x[np.arange(graph.nodes), labels] += 1  # features say a little about the labels
        graph = replace(graph, x=x, y=labels, classes=CLASSES)
        inputs |= {"weights": str(folder / "weights.npz"), **workers.write(folder, x=x, y=labels)}
    writer.write(folder / "graph.h5", graph)
    return inputs | workers.write_edges(graph, folder)


def measure(
    bench: Comparison, graph: Graph, part: str, inputs: dict[str, Any], processes: list[Worker], folder: Path
) -> None:
    """Add the rows of a part. Raises AssertionError where a library's loss is another than ours."""
    runs = bench.prepared(f"{part}, {graph.name}", processes, part, inputs, lambda *_: "")
    warm = {name: taken for name, (taken,) in workers.in_turns(runs, 1).items()}
    if part == "train":
        runs = fastest(runs, warm)
    batches = -(-len(np.load(inputs["rows"])) // inputs["batch_size"])
    ms = {
        name: [each / batches for each in taken]
        for name, taken in workers.in_turns(runs, bench.turns).items()
    }
    more = {}
    for name, taken in ms.items():
        edges, other = (round(float(each), 4) for each in runs[name].result(name, folder))
        more[name] = {"batch_edges": edges, "edge_ns": round(float(np.median(taken)) * 1e6 / edges, 4)}
        more[name] |= {"loss" if part == "train" else "batch_rows": other}
    if part == "train":
        workers.check_losses({name: row["loss"] for name, row in more.items()}, APART)
    bench.add(ms, more, graph=graph.name, edges=graph.edges, part=part)


def fastest(runs: dict[str, Worker], ms: dict[str, float]) -> dict[str, Worker]:
    """Return each library's fastest run."""
    best = {runs[name].name: name for name in sorted(runs, key=ms.__getitem__, reverse=True)}
    return {name: worker for name, worker in runs.items() if best[worker.name] == name}


if __name__ == "__main__":
    run(main)
