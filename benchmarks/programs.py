"""Layers of programs on vertices and edges, by this package and other libraries; and products by density.

    python benchmarks/programs.py
    python benchmarks/programs.py my.npz rmat:17 --programs gated --peers dgl -o gated.md -o gated.png
    python benchmarks/programs.py --density 10000 -o density.md -o density.png

A step is a forward and a backward pass of a layer, with gradients of the rows and all weights. gated: G-GCN's sum of
gated neighbours. gated-max: their maximum. typed: GG-NN's sum by type of edge. "mgg edge tensors" is this package with
``fuse = False``. Other libraries compute all products at vertices, DGL with int32 and int64 ids, PyG over an edge list,
an EdgeIndex and a CSR tensor. ``memory_mb`` is the peak memory of a process in its first step, minus its memory before
the step: the graph in the library's forms, rows, weights and the gradient of the outputs.

--density: a sparse matrix times a dense one (NGra, figure 13), by a program's fused sum, MKL and torch, forward. MKL
and this package inspect the matrix before the clock starts.

A turn is the median of a few calls in a row: a thread that has slept takes up to 10 ms to wake.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from harness import command, run, sums, workers
from harness.plots import bars_by, lines_by
from harness.workers import Conditions, Worker
from peers.programs import TYPES

from mgg_hpc.data import writer
from mgg_hpc.data.graph import Graph
from mgg_hpc.errors import InputError
from mgg_hpc.runtime.turns import take_turns
from mgg_hpc.tools.bench import graphs
from mgg_hpc.tools.bench.results import Results, output_files, words_of

# The norm of the difference to ours, as a part of ours. A maximum's gradients go to another edge where two messages are
# as near to each other as rounding.
APART = {"gated": 1e-4, "gated-max": 1e-2, "typed": 1e-4}
PEERS, DENSITY_PEERS = ("dgl", "pyg"), ("mkl", "torch")
PERCENTS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
STEPS, PRODUCTS = 3, 7  # calls in a row
WARM_UP = 2
TIMES = ("variant", "median_ms", "min_ms", "max_ms", "times_first")
DRAW = bars_by("graph", "program", values=("median_ms", "memory_mb"))


@command(__doc__)
@click.argument("names", nargs=-1, metavar="[GRAPH]...")
@click.option("--programs", default=",".join(APART), show_default=True, help="Which, separated by commas.")
@click.option("--width", type=click.IntRange(1), default=128, show_default=True, help="Columns of rows.")
@click.option("--density", type=click.IntRange(1), help="Products of matrices of so many rows instead.")
@click.option("--peers", help='Libraries, or "none". [default: all]')
@output_files()
@workers.conditions(turns=5)
def main(
    names: tuple[str, ...],
    programs: str,
    width: int,
    density: int | None,
    peers: str | None,
    files: tuple[Path, ...],
    conditions: Conditions,
) -> None:
    known = DENSITY_PEERS if density else PEERS
    chosen = words_of("peers", peers or ",".join(known), known, none=True)
    kinds = words_of("programs", programs, APART)
    if conditions.device != "cpu":
        raise InputError(f"--device {conditions.device}: programs are compared on CPUs")
    for name in names:
        graphs.check(name)
    results = Results("programs", **conditions.same(), width=width)
    if density:
        products(results, density, chosen, conditions, files)
        results.show("density_percent", "edges", *TIMES)
        return
    for name in names or ("rmat:17",):
        graph = graphs.read(name)
        for kind in kinds:
            steps(results, graph, kind, width, chosen, conditions)
            results.write(files, DRAW)  # what is measured stays, whatever ends the rest
    results.show("graph", "program", *TIMES, "memory_mb", "memory_times_first")


def in_rows(runs: Mapping[str, Worker], count: int, turns: int) -> dict[str, list[float]]:
    """Return the milliseconds of each run in each turn: the median of so many calls in a row."""

    def median(worker: Worker, name: str) -> float:
        return statistics.median(worker.ms(name) for _ in range(count))

    calls = {name: partial(median, worker, name) for name, worker in runs.items()}
    return take_turns(calls, turns, pause=workers.BREATH)


def steps(
    results: Results, graph: Graph, program: str, width: int, peers: Sequence[str], conditions: Conditions
) -> None:
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

    with workers.workspace() as folder:
        inputs = {"program": program, **write_operands(graph, program, width, folder)}
        with workers.started(peers, conditions) as (processes, notes):
            runs, left_out = workers.prepared(processes, "propagate", inputs, accept)
            in_rows(runs, STEPS, WARM_UP)
            ms = in_rows(runs, STEPS, conditions.turns)
        memory = {name: memory_mb(worker, name, inputs) for name, worker in runs.items()}
    notes += [f"{graph.name}, {program}: {note}" for note in left_out]
    results.notes += [note for note in notes if note not in results.notes]
    ours = memory["mgg"] or 1.0
    more = {name: {"memory_mb": mb, "memory_times_first": mb / ours} for name, mb in memory.items()}
    results.compare(ms, more, graph=graph.name, edges=graph.edges, program=program)


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
    return files | {name: workers.save(folder / f"{name}.npy", array) for name, array in arrays.items()}


def memory_mb(like: Worker, name: str, inputs: dict[str, Any]) -> float:
    """Return the MB that the first call of a run takes at most beyond its operands, in a process of its own."""
    with replace(like) as worker:
        worker.need("prepare", task="propagate", inputs=inputs)
        worker.need("forget")
        before = worker.need("memory")["peak"]
        worker.ms(name)
        return round((worker.need("memory")["peak"] - before) / 1e6, 1)


def products(
    results: Results, nodes: int, peers: Sequence[str], conditions: Conditions, files: Sequence[Path]
) -> None:
    """Add the rows of each density, and write them."""
    x = np.random.default_rng(1).standard_normal((nodes, results.same["width"]), dtype=np.float32)
    with workers.workspace() as folder, workers.started(peers, conditions) as (processes, notes):
        results.notes += notes
        file, rows = folder / "graph.h5", workers.save(folder / "x.npy", x)
        for percent in PERCENTS:
            graph = drawn(nodes, percent)
            writer.write(file, graph, force=True)
            operands = {"file": str(file), "x": rows}
            runs, _ = workers.prepared(processes[:1], "product", operands, lambda *_: "")
            wanted, limit = processes[0].result("mgg", folder), sums.allowed(graph, x, graph.weight)

            def accept(worker: Worker, name: str, wanted: Any = wanted, limit: Any = limit) -> str:
                return sums.differing(wanted, worker.result(name, folder), limit)

            inputs = {**workers.write_graph(graph, folder, weighted=True), "dtype": "float32", "x": rows}
            theirs, left_out = workers.prepared(processes[1:], "aggregate", inputs, accept)
            results.notes += [f"{graph.name}: {note}" for note in left_out]
            ms = in_rows(runs | theirs, PRODUCTS, conditions.turns)
            results.compare(ms, density_percent=percent, edges=graph.edges)
            results.write(files, lines_by("density_percent"))


def drawn(nodes: int, percent: float) -> Graph:
    """Return a directed graph in which each pair of nodes is an edge with the same probability, with weights."""
    rng = np.random.default_rng(0)
    cells, share = nodes * nodes, percent / 100
    # Gaps between edges are geometric; six deviations more of them than expected reach the last cell.
    count = int(cells * share + 6 * (cells * share) ** 0.5 + 10)
    places = np.cumsum(rng.geometric(share, count)) - 1
    places = places[: np.searchsorted(places, cells)]
    indptr = np.zeros(nodes + 1, np.int64)
    np.cumsum(np.bincount(places // nodes, minlength=nodes), out=indptr[1:])
    weight, sources = rng.uniform(0.1, 1, len(places)).astype(np.float32), (places % nodes).astype(np.int32)
    return Graph(f"{percent:g} percent", indptr, sources, weight, edge={"w": weight})


if __name__ == "__main__":
    run(main)
