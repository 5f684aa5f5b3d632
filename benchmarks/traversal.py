"""Breadth-first search, shortest paths, components and PageRank on CPUs, beside other libraries and GAPBS.

    make bench-peers PYTHON=python3.11                          # once
    git clone https://github.com/sbeamer/gapbs && make -C gapbs
    MGG_GAPBS=gapbs python benchmarks/traversal.py rmat:20 cnr_2000
    python benchmarks/traversal.py rmat:18 my.h5 --parts bfs,cc --peers scipy -o traversal.csv

Times are of traversals alone, in ms: without reading or renumbering a graph, and without checks of results. All begin
at the same nodes, one after the other, and a time is the mean over these nodes. Lengths are integers, 8 to 72, drawn
from the ends of an edge. Components are those of the undirected graph. Results are compared with ours, except those of
GAPBS, which prints none; a library with other results is left out. ``relative_time`` is the time over ours.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np
import real_graphs
from harness import command, options, run, workers
from harness.results import TIMES
from harness.workers import Comparison, Worker

from mgg_hpc.data import native, writer
from mgg_hpc.data.graph import Graph

PARTS = ("bfs", "sssp", "cc", "pagerank")
PEERS = {"cpu": ("gapbs", "scipy")}
RANKS_APART = 2e-3  # sum of differences of ranks, at tolerances of up to 1e-4


@command(__doc__)
@options.graph_names("rmat:20", check=real_graphs.check)
@options.words("parts", PARTS, "Traversals.")
@click.option("--sources", type=click.IntRange(1), default=8, help="Nodes to begin at.")
@click.option("--tolerance", type=float, default=1e-4, help="Of PageRank.")
@workers.comparison("traversal", PEERS, turns=5)
def main(names: tuple[str, ...], parts: list[str], sources: int, tolerance: float, bench: Comparison) -> None:
    with bench.started() as (processes, folder):
        for name, part in product(names, parts):
            graph = real_graphs.structure(name, directed=part != "cc")
            begin = sources if part in ("bfs", "sssp") else 1
            inputs = {"part": part, "tolerance": tolerance, **inputs_of(graph, begin, folder)}
            accept = partial(accepted, part, dict[str, np.ndarray](), folder)
            runs = bench.prepared(f"{graph.name}, {part}", processes, "traverse", inputs, accept)
            taken = workers.in_turns(runs, bench.turns)
            ms = {name: [each / len(inputs["sources"]) for each in of] for name, of in taken.items()}
            bench.add(ms, graph=graph.name, edges=graph.edges, part=part)
    bench.results.show("graph", "part", *TIMES)


def inputs_of(graph: Graph, sources: int, folder: Path) -> dict[str, Any]:
    """Write the files of a graph; return the fields of peers.traversals.Task that say what is traversed."""
    writer.write(folder / "graph.h5", graph, force=True)
    kernels, nodes = native.load(), np.arange(graph.nodes)
    indices = graph.indices.astype(np.int32, copy=False)
    lengths = np.empty(graph.edges, np.float32)
    kernels.lengths(graph.indptr, indices, nodes, nodes, graph.directed, 0, lengths)
    out = np.zeros(graph.nodes + 1, np.int64), np.empty_like(indices), np.empty(graph.edges, np.int64)
    kernels.transpose(graph.indptr, indices, *out)
    senders = np.flatnonzero(np.diff(out[0]))
    begin = np.random.default_rng(0).choice(senders, min(sources, len(senders)), replace=False)
    return {
        "file": str(folder / "graph.h5"),
        **workers.write(folder, indptr=out[0], indices=out[1], lengths=lengths[out[2]]),
        "directed": graph.directed,
        "sources": begin.tolist(),
    }


def accepted(part: str, ours: dict[str, np.ndarray], folder: Path, worker: Worker, run: str) -> str:
    """Compare the result of a run with ``ours["mgg"]``, which the first run sets."""
    found = worker.result(run, folder)
    return differing(part, ours.setdefault("mgg", found), found)


def differing(part: str, ours: np.ndarray, theirs: np.ndarray) -> str:
    """Return how far a library's result, unless it is empty, differs from ours, in words; nothing if it does not."""
    apart = float(np.abs(theirs - ours).sum()) if len(theirs) else 0.0
    near = apart <= (RANKS_APART if part == "pagerank" else 0)
    return "" if near else f"its result differs from ours, by {apart:g} in all"


if __name__ == "__main__":
    run(main)
