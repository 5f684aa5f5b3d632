"""Sums of neighbours' rows, by this package and other libraries, and the gather floor.

    python benchmarks/aggregate.py
    python benchmarks/aggregate.py rmat:16:8 my.h5 --widths 64,128 --peers dgl -o sums.md -o sums.png
    python benchmarks/aggregate.py my.npz --orders none,community --dtypes float32,bfloat16
    python benchmarks/aggregate.py rmat:20 uniform:20 --device cuda --widths 128,16,64,256

The gather floor reads the same rows in the same order and stores nothing. ``relative_time`` is the time over its.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from itertools import product
from pathlib import Path
from statistics import geometric_mean

import click
import numpy as np
from harness import command, graphs, options, run, workers
from harness.graphs import drawn_rows
from harness.plots import draw
from harness.results import TIMES, Row
from harness.sums import Reference
from harness.workers import Comparison
from numpy.typing import NDArray

from mgg_hpc.data.graph import Graph, csr_from_edges
from mgg_hpc.plan import order
from mgg_hpc.runtime.timing import ratios

PEERS = {"cpu": ("dgl", "torch", "pyg", "mkl", "scipy"), "cuda": ("cusparse", "torch", "pyg")}
DTYPES = ("float32", "bfloat16", "float16")
CASE = ("graph", "order", "dtype", "width")
SHOWN = (*CASE, *TIMES, "mgg_speedup")


@command(__doc__)
@options.graph_names("rmat:18:16")
@options.numbers("widths", "16,64,128,256", "Columns of rows.")
@options.words("dtypes", DTYPES, f"Of rows: {', '.join(DTYPES)}.", "float32")
@options.words("orders", order.METHODS, f"Of nodes: {', '.join(order.METHODS)}.", "none")
@click.option("--weighted", is_flag=True, help="Multiply each row by its edge's weight.")
@workers.comparison("aggregate", PEERS)
def main(
    names: tuple[str, ...],
    widths: list[int],
    dtypes: list[str],
    orders: list[str],
    weighted: bool,
    bench: Comparison,
) -> None:
    bench.results.same["weighted"] = weighted
    with bench.started() as (processes, folder):
        for name, method in product(names, orders):
            graph = graphs.read(name)
            if method != "none":
                graph = renumbered(graph, order.permutation(graph, method))
            weight = graphs.weights(graph) if weighted else None
            given = workers.write_edges(graph, folder) | {"weight": None}
            given |= {} if weight is None else workers.write(folder, weight=weight)
            for dtype, width in product(dtypes, widths):
                case = {"graph": graph.name, "order": method, "dtype": dtype, "width": width}
                x = drawn_rows(graph.nodes, width, "float32")
                reference = Reference(graph, x.astype(np.dtype(dtype)), weight)
                inputs = {**given, "dtype": dtype, **workers.write(folder, x=x)}
                accept = partial(differing, reference, folder)
                runs = bench.prepared(f"{graph.name}, {dtype}", processes, "aggregate", inputs, accept)
                ms = workers.in_turns({"gather floor": runs["gather floor"]} | runs, bench.turns)
                speedups = {
                    name: {"mgg_speedup": round(ratios(taken, ms["mgg"])["median"], 4)}
                    for name, taken in ms.items()
                }
                bench.add(ms, speedups, **case, edges=graph.edges)
    bench.results.notes += summary(bench.results.rows)
    bench.results.write(bench.files, draw)
    bench.results.show(*SHOWN)


def differing(reference: Reference, folder: Path, worker: workers.Worker, run: str) -> str:
    """Return how a library's sums differ from SciPy's by more than rounding, or "". Raises AssertionError for ours."""
    wrong = "" if run == "gather floor" else reference.differing(worker.result(run, folder))
    if wrong and worker.name == "mgg":
        raise AssertionError(f"mgg: {wrong}")
    return wrong


def renumbered(graph: Graph, rows: NDArray[np.int64]) -> Graph:
    """Return the edges of a graph with old row rows[i] as row i."""
    place = order.inverse(rows)
    destinations = np.repeat(place, np.diff(graph.indptr))
    indptr, indices, weight = csr_from_edges(
        place[graph.indices], destinations, graph.nodes, weight=graph.weight
    )
    return Graph(graph.name, indptr, indices, weight=weight, directed=graph.directed)


def summary(rows: list[Row]) -> list[str]:
    """Return lines that say what all cases say together.

    How many times as fast mgg is as each variant; the same for its fastest order of nodes against variants on nodes as
    they were, and for half rows against float32, by medians, since these were not measured in turns.
    """
    ours = {tuple(row[name] for name in CASE): row["median_ms"] for row in rows if row["variant"] == "mgg"}
    orders = {row["order"] for row in rows}
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        (graph, method, dtype, width), variant = (row[name] for name in CASE), row["variant"]
        if variant != "mgg":
            found[f"mgg, times as fast as {variant}"].append(row["mgg_speedup"])
        if method == "none" and len(orders) > 1:
            best = min(ours[graph, each, dtype, width] for each in orders)
            found[f"mgg in its fastest order, as {variant} on nodes as they were"].append(
                row["median_ms"] / best
            )
        if variant == "mgg" and dtype != "float32" and (whole := ours.get((graph, method, "float32", width))):
            found[f"{dtype} rows, times as fast as float32"].append(whole / row["median_ms"])
    return [
        f"{what}: geometric mean {geometric_mean(of):.2f}, {min(of):.2f} to {max(of):.2f}"
        for what, of in found.items()
    ]


if __name__ == "__main__":
    run(main)
