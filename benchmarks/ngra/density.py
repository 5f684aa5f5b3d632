"""The sweep over densities (NGra, figure 13): a sparse matrix times a dense one, by a program and by libraries.

The program multiplies sources' rows by weights of edges and sums them, forward. Ours, MKL and torch look at the matrix
before the clock starts. A turn is a few products in a row, and their median: a thread that has slept takes up to 10 ms
to wake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mgg_hpc.data import writer
from mgg_hpc.data.graph import Graph
from mgg_hpc.runtime.turns import take_turns
from mgg_hpc.tools.bench.harness import document, graphs, libraries, sums, timing, watch
from mgg_hpc.tools.bench.harness.document import Sheet
from mgg_hpc.tools.bench.harness.libraries import Libraries
from mgg_hpc.tools.bench.harness.options import BenchOptions

from .fused import OURS

PEERS = ("mkl", "torch")
PERCENTS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
NODES, WIDTH = 10_000, 128
IN_A_ROW = 7  # products of a turn, after the first of which threads are awake and caches warm


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
    weight = rng.uniform(0.1, 1, len(places)).astype(np.float32)
    return Graph(
        f"{percent:g} percent", indptr, (places % nodes).astype(np.int32), weight, edge={"w": weight}
    )


def sweep(
    nodes: int, peers: Sequence[str], options: BenchOptions, width: int = WIDTH
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the row of each density, and the beginning of its document, whose notes name a library that fails."""
    x = np.random.default_rng(1).standard_normal((nodes, width), dtype=np.float32)
    with timing.workspace() as folder, libraries.started(peers, options, OURS) as started:
        for percent in PERCENTS:
            with watch.cell("density", percent):
                graph, notes = drawn(nodes, percent), list[str]()
                runs = _prepared(graph, x, started, folder, notes)
                ms = take_turns(runs, options.turns, pause=timing.BREATH)
            found = document.comparison("programs", options, started)
            row = {"percent": percent, "width": width, **timing.compared(ms)}
            yield document.about(graph) | row, found | {"notes": [*found["notes"], *notes]}


def _prepared(
    graph: Graph, x: np.ndarray, started: Libraries, folder: Path, notes: list[str]
) -> dict[str, Callable[[], float]]:
    """Return the products of all libraries that compute the same, and add a note for each other one."""
    inputs: dict[str, Any] = {**graphs.write(graph, folder, weighted=True), "dtype": "float32", "ahead": []}
    inputs["x"] = graphs.save(folder / "x.npy", x)
    writer.write(folder / "graph.h5", graph, force=True)
    ours = started.ours
    ours.need("prepare", task="product", inputs={"file": str(folder / "graph.h5"), "x": inputs["x"]})
    runs: dict[str, Callable[[], float]] = {"mgg": partial(timing.in_a_row, ours, "mgg", IN_A_ROW)}
    runs["mgg"]()
    expected, limit = ours.result("mgg", folder), sums.allowed(graph, x, graph.weight)
    for worker in started.baselines:
        problem = worker.ask("prepare", task="aggregate", inputs=inputs).get("failed")
        problem = problem or worker.ask("run", name=worker.name).get("failed")
        problem = problem or sums.differing(expected, worker.result(worker.name, folder), limit)
        if problem:
            notes.append(f"{worker.name} is left out of {graph.name}: {problem}")
        else:
            runs[worker.name] = partial(timing.in_a_row, worker, worker.name, IN_A_ROW)
    return runs


def gflops(row: dict[str, Any], name: str) -> float:
    """Return the 10^9 operations a second of a library's median: a product and a sum for each edge and column."""
    return 2 * row["edges"] * row["width"] / row["ms"][name]["median"] / 1e6


def sheet(rows: Sequence[dict[str, Any]]) -> Sheet:
    """Return the table of all densities."""
    columns = ["", "ms", "of mgg's time", "ns an edge", "GFLOP/s"]
    cells = []
    for row in rows:
        for name, spread in row["ms"].items():
            times = row["speedup"].get(name, {"median": 1.0})
            line = [f"{row['percent']:g} %, {name}", document.cell(spread, 3), f"{times['median']:.2f}"]
            cells.append(
                [*line, f"{spread['median'] * 1e6 / max(1, row['edges']):.2f}", f"{gflops(row, name):.1f}"]
            )
    return Sheet("products by density", columns, cells)
