"""Breadth-first search, shortest paths, components and PageRank on CPUs, beside other libraries and GAPBS.

    make bench-peers PYTHON=python3.11                          # once
    git clone https://github.com/sbeamer/gapbs && make -C gapbs
    MGG_GAPBS=gapbs python benchmarks/traversal.py --json traversal.json
    python benchmarks/traversal.py --parts bfs,cc --graphs rmat:18 --peers scipy --turns 3

Times are of traversals alone, in ms: without reading or renumbering a graph, and without checks of results. Each run
begins at the same nodes, and its time is their mean. Lengths are integers, 8 to 72, drawn from the ends of an edge.
Components are those of the undirected graph. Libraries take turns (A B A B), each in a process of its own. Results are
compared with ours, but for GAPBS, which prints none.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import real_graphs

from mgg_hpc.data import native, writer
from mgg_hpc.data.graph import Graph
from mgg_hpc.errors import WRONG_INPUT, InputError
from mgg_hpc.runtime.turns import take_turns
from mgg_hpc.tools.bench.harness import document, graphs, libraries, timing
from mgg_hpc.tools.bench.harness.document import Sheet
from mgg_hpc.tools.bench.harness.libraries import Libraries
from mgg_hpc.tools.bench.harness.options import BenchOptions, words_of
from mgg_hpc.tools.bench.harness.timing import Worker

OURS = "mgg_hpc.tools.bench.baselines.traversal.with_mgg"
MODULES = {name: f"traversal.with_{name}" for name in ("gapbs", "networkit", "igraph", "scipy")}
PARTS = {
    "bfs": "breadth-first search",
    "sssp": "shortest paths",
    "cc": "connected components",
    "pagerank": "PageRank",
}
LACKS = {"scipy": ("pagerank",)}
RANKS_APART = 2e-3  # sum of differences of ranks, at tolerances of up to 1e-4


def inputs_of(graph: Graph, sources: int, tolerance: float, folder: Path) -> dict[str, Any]:
    """Write the files of a graph; return the arguments of the workers' tasks."""
    writer.write(folder / "graph.h5", graph)
    kernels, nodes = native.load(), np.arange(graph.nodes)
    indices = graph.indices.astype(np.int32, copy=False)
    lengths = np.empty(graph.edges, np.float32)
    kernels.lengths(graph.indptr, indices, nodes, nodes, graph.directed, 0, lengths)
    out = np.zeros(graph.nodes + 1, np.int64), np.empty_like(indices), np.empty(graph.edges, np.int64)
    kernels.transpose(graph.indptr, indices, *out)
    begin = np.random.default_rng(0).choice(np.flatnonzero(np.diff(out[0])), sources, replace=False)
    return {
        "file": str(folder / "graph.h5"),
        "indptr": graphs.save(folder / "indptr.npy", out[0]),
        "indices": graphs.save(folder / "indices.npy", out[1]),
        "lengths": graphs.save(folder / "lengths.npy", lengths[out[2]]),
        "directed": graph.directed,
        "sources": begin.tolist(),
        "tolerance": tolerance,
    }


def measure(inputs: dict[str, Any], part: str, peers: Libraries, folder: Path, turns: int) -> dict[str, Any]:
    """Return times of all runs, in ms of a traversal, and how many times as fast as the others ours is."""
    runs: dict[str, Worker] = {}
    for worker in (peers.ours, *peers.baselines):
        if part not in LACKS.get(worker.name, ()):
            for name in worker.need("prepare", task=part, inputs=inputs)["runs"]:
                runs[name] = worker
    calls = {name: partial(worker.ms, name) for name, worker in runs.items()}
    take_turns(calls, 1)
    count = len(inputs["sources"]) if part in ("bfs", "sssp") else 1
    ms = {
        name: [each / count for each in times]
        for name, times in take_turns(calls, turns, pause=timing.BREATH).items()
    }
    compare(part, {name: worker.result(name, folder) for name, worker in runs.items()})
    return timing.compared(ms)


def compare(part: str, results: dict[str, np.ndarray]) -> None:
    """Raise RuntimeError where a library's result is another than ours."""
    ours = results["mgg"]
    for name, found in results.items():
        if not len(found):
            continue
        apart = float(np.abs(found - ours).sum())
        if not apart <= (RANKS_APART if part == "pagerank" else 0):
            raise RuntimeError(f"{part}: {name}'s result differs from ours, by {apart:g} in all")


def sheet(part: str, rows: list[dict[str, Any]]) -> Sheet:
    """Return the table of a part."""
    cells = []
    for row in rows:
        for name, spread in row["ms"].items():
            times = row["speedup"].get(name)
            cells.append([f"{row['graph']}, {name}", document.cell(spread, 2), document.cell(times, 2)])
    return Sheet(PARTS[part], ["", "ms", "of mgg's time"], cells)


@click.command(help=__doc__.partition("\n")[0])
@click.option("--parts", default=",".join(PARTS), show_default=True, help="Which, separated by commas.")
@click.option("--graphs", "names", default="rmat:20,cnr_2000", show_default=True, help="Separated by commas.")
@click.option("--sources", type=click.IntRange(1), default=8, show_default=True, help="Nodes to begin at.")
@click.option("--tolerance", type=float, default=1e-4, show_default=True, help="Of PageRank.")
@click.option("--threads", type=click.IntRange(1), default=2, show_default=True)
@click.option("--turns", type=click.IntRange(1), default=5, show_default=True)
@click.option("--peers", default=",".join(MODULES), show_default=True, help='Others, or "none".')
@click.option(
    "--peers-env", type=click.Path(path_type=Path), help="Their environment. [default: .venv-peers]"
)
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), help="Write the figures to this file too."
)
@click.option("--table", type=click.Path(path_type=Path), help="Write the tables to this file too.")
def main(
    parts: str,
    names: str,
    sources: int,
    tolerance: float,
    peers: str,
    json_file: Path | None,
    **others: Any,
) -> None:
    """Measure, print and write."""
    options = BenchOptions(pages="huge", json=json_file, peers=peers, **others)
    try:
        options.check_files()
        chosen = words_of("parts", parts, PARTS)
        baselines = words_of("peers", peers, MODULES, none=True)
        rows: dict[str, list[dict[str, Any]]] = {part: [] for part in chosen}
        for name in names.split(","):
            for part in chosen:
                graph = real_graphs.structure(name, directed=part != "cc")
                with (
                    timing.workspace() as folder,
                    libraries.started(baselines, options, OURS, MODULES) as started,
                ):
                    inputs = inputs_of(graph, sources, tolerance, folder)
                    row = measure(inputs, part, started, folder, options.turns)
                    found = document.comparison("traversal", options, started)
                    rows[part].append(document.about(graph) | row)
    except InputError as error:
        click.echo(f"traversal: error: {error}", err=True)
        sys.exit(WRONG_INPUT)
    document.finish(found | rows, [sheet(part, rows[part]) for part in chosen], options)


if __name__ == "__main__":
    main()
