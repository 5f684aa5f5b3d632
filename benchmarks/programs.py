"""Layers of programs on vertices and edges, by this package and other libraries.

    python benchmarks/programs.py
    python benchmarks/programs.py my.npz rmat:17 --programs gated --peers dgl -o gated.md -o gated.png

A step is a forward and a backward pass of a layer, with gradients of the rows and all weights. gated: G-GCN's sum of
gated neighbours. gated-max: their maximum. typed: GG-NN's sum by type of edge. "mgg edge tensors" is this package with
``fuse = False``. Other libraries compute all products at vertices, PyG over an edge list, an EdgeIndex and a CSR
tensor. ``memory_mb`` is the peak memory of a process in its first step, minus its memory before the step: the graph in
the library's forms, rows, weights and the gradient of the outputs.

A turn is the median of a few steps in a row: a thread that has slept takes up to 10 ms to wake.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from harness import command, graphs, options, run, workers
from harness.results import TIMES
from harness.workers import Comparison, Worker
from peers.programs import TYPES

from mgg_hpc.data import writer
from mgg_hpc.data.graph import Graph

# The norm of the difference to ours, as a part of ours. A maximum's gradients go to another edge where two messages are
# as near to each other as rounding.
APART = {"gated": 1e-4, "gated-max": 1e-2, "typed": 1e-4}
PEERS = {"cpu": ("dgl", "pyg")}
STEPS = 3  # in a row
SHOWN = ("graph", "program", *TIMES, "memory_mb")


@command(__doc__)
@options.graph_names("rmat:17")
@options.words("programs", APART, "Which.")
@click.option("--width", type=options.WIDTH, default=128, help="Columns of rows.")
@workers.comparison("programs", PEERS, turns=5)
def main(names: tuple[str, ...], programs: list[str], width: int, bench: Comparison) -> None:
    bench.results.same["width"] = width
    for name in names:
        graph = graphs.read(name)
        for program in programs:
            steps(bench, graph, program, width)
    bench.results.show(*SHOWN)


def steps(bench: Comparison, graph: Graph, program: str, width: int) -> None:
    """Add the rows of a program over a graph. A run whose results are others than ours is left out, and named."""
    expected: list[np.ndarray] = []

    def accept(worker: Worker, name: str) -> str:
        values = np.split(worker.result(name, folder), [graph.nodes * width, 2 * graph.nodes * width])
        if not expected:
            expected.extend(values)
        pairs = zip(values, expected, strict=True)  # of outputs, and of gradients of rows and of weights
        apart = np.max([np.linalg.norm(mine - ours) / np.linalg.norm(ours) for mine, ours in pairs])
        said = "" if apart <= APART[program] else f"its results differ from ours by {apart:.1e} of their norm"
        if said and worker.name == "mgg":
            raise AssertionError(f"{name}: {said}")
        return said

    with bench.started() as (processes, folder):
        inputs = {"program": program, **write_operands(graph, program, width, folder)}
        runs = bench.prepared(f"{graph.name}, {program}", processes, "propagate", inputs, accept)
        workers.in_turns(runs, 2, STEPS)  # warms up
        ms = workers.in_turns(runs, bench.turns, STEPS)
        more = {name: {"memory_mb": memory_mb(worker, name, inputs)} for name, worker in runs.items()}
    bench.add(ms, more, graph=graph.name, edges=graph.edges, program=program)


def write_operands(graph: Graph, program: str, width: int, folder: Path) -> dict[str, str]:
    """Write the files of a `peers.programs.Task`, and return their names."""
    rng = np.random.default_rng(0)
    types = rng.integers(TYPES, size=graph.edges)
    structure = Graph(graph.name, graph.indptr, graph.indices, directed=graph.directed)
    writer.write(folder / "graph.h5", replace(structure, edge={"type": types.astype(np.int8)}))
    arrays = {"indptr": graph.indptr, "indices": graph.indices.astype(np.int32), "types": types}
    for name in ("x", "gradient"):
        arrays[name] = rng.standard_normal((graph.nodes, width), dtype=np.float32)
    square, scale = (width, width), np.float32(width**-0.5)
    shapes = {"matrix": (TYPES, *square)} if program == "typed" else {"far": square, "near": square}
    weights = {name: scale * rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    np.savez(folder / "weights.npz", **weights)
    files = {"file": str(folder / "graph.h5"), "weights": str(folder / "weights.npz")}
    return files | workers.write(folder, **arrays)


def memory_mb(like: Worker, name: str, inputs: dict[str, Any]) -> float:
    """Return the MB that the first call of a run takes at most beyond its operands, in a process of its own."""
    with replace(like) as worker:
        worker.need("prepare", task="propagate", inputs=inputs)
        worker.need("forget")
        before = worker.need("memory")["peak"]
        worker.ms(name)
        return round((worker.need("memory")["peak"] - before) / 1e6, 1)


if __name__ == "__main__":
    run(main)
