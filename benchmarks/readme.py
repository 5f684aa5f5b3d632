"""The README's figures that compare with nothing: plans, epochs of real graphs, memory of a rank, the start of `mgg`.

    python benchmarks/readme.py
    python benchmarks/readme.py --parts plan,help --graph rmat:16 --turns 1 -o readme.json

Parts: plan (of four ranks, one after the other on one core: bounds, self loops, chunks, schedules), epoch (GCNs of 16
hidden units on one rank of two threads), memory (the larger peak of two ranks, and what the plan said; on the small
graph Python and its libraries take almost all of it), help (`mgg --help`). A part whose graph is not there is left out,
and the output says so.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import real_graphs
from harness import command, run, workers
from harness.training import train

from mgg_hpc.data import generate, writer
from mgg_hpc.errors import InputError
from mgg_hpc.plan import adjacency, ranges, workload
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends import DEFAULT_GEOMETRY
from mgg_hpc.runtime.backends.arguments import Options
from mgg_hpc.runtime.backends.host.serial import SerialBackend
from mgg_hpc.runtime.backends.simulated import World
from mgg_hpc.runtime.turns import take_turns
from mgg_hpc.tools.bench.results import Results, output_files, words_of

RANKS, WIDTH = 4, 64  # of plans
SMALL = 2000  # nodes


def plan(results: Results, turns: int, graph: str, **_: object) -> None:
    """Add the time of all ranks' plans, and of the slowest rank's."""
    read = real_graphs.structure(graph)

    def once() -> list[float]:
        """Return each rank's milliseconds; finding bounds counts for the first."""
        marks = [time.perf_counter()]
        bounds = ranges.edge_balanced(read.indptr, RANKS)
        for rank in range(RANKS):
            first, last = int(bounds[rank]), int(bounds[rank + 1])
            indptr = read.indptr[first : last + 1]
            indices = read.indices[indptr[0] : indptr[-1]]
            looped, sources, _ = adjacency.with_self_loops(first, indptr - indptr[0], indices, None)
            made = workload.build(rank, bounds, looped, sources)
            backend = SerialBackend(rank, World(RANKS), Options(DEFAULT_GEOMETRY))
            backend.schedule(made, RowFormat(np.dtype(np.float32), WIDTH))
            marks.append(time.perf_counter())
        return (1e3 * np.diff(marks)).tolist()

    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(everywhere)})
    try:
        taken = take_turns({"plan": once}, turns)["plan"]
    finally:
        os.sched_setaffinity(0, everywhere)
    results.add("all 4 ranks, one core", list(map(sum, taken)), part="plan", graph=read.name)
    results.add("the slowest rank", list(map(max, taken)), part="plan", graph=read.name)


def epoch(results: Results, epochs: int, epoch_graphs: str, **_: object) -> None:
    """Add the epochs of `mgg train` on each graph."""
    settings = {"epochs": epochs, "normalize_features": "row"}
    with workers.workspace() as folder:
        for name in epoch_graphs.split(","):
            job = {"graph": {"file": str(real_graphs.write(name, folder))}, "train": settings}
            ms = train(folder, job | {"run": {"threads": 2}})["epoch_ms"]
            row = {"part": "epoch", "graph": name, "variant": "1 rank of 2 threads", "turns": epochs}
            results.rows.append(row | {f"{end}_ms": ms[end] for end in ("min", "median", "max")})


def memory(results: Results, nodes: int, **_: object) -> None:
    """Add the memory of two ranks on a small graph and on a large one."""
    with workers.workspace() as folder:
        for count in (SMALL, nodes):
            graph = generate.sbm(count, classes=8, features=64, degree=20.0, homophily=0.8, seed=0)
            writer.write(folder / "graph.h5", graph, force=True)
            job = {"graph": {"file": "graph.h5"}, "model": {"hidden": 64}, "train": {"epochs": 5}}
            summary = train(folder, job | {"run": {"threads": 1}}, ranks=2)
            row = {"part": "memory", "graph": f"{count:,} nodes, {graph.edges:,} edges", "variant": "2 ranks"}
            sizes = {"peak_mb": summary["peak_rss_bytes"], "planned_mb": summary["estimated_bytes"]}
            results.rows.append(row | {name: round(max(each) / 1e6, 1) for name, each in sizes.items()})


def start(results: Results, turns: int, **_: object) -> None:
    """Add the time of `mgg --help`."""
    program = [Path(sys.executable).with_name("mgg"), "--help"]

    def once() -> float:
        began = time.perf_counter()
        subprocess.run(program, capture_output=True, check=True)
        return 1e3 * (time.perf_counter() - began)

    results.add("mgg --help", take_turns({"help": once}, 2 * turns)["help"], part="help")


PARTS: dict[str, Callable[..., None]] = {"plan": plan, "epoch": epoch, "memory": memory, "help": start}


@command(__doc__)
@click.option("--parts", default=",".join(PARTS), show_default=True, help="Groups of figures.")
@click.option("--graph", default="cnr_2000", show_default=True, help="To plan.")
@click.option("--turns", type=click.IntRange(1), default=3, show_default=True, help="Of plans and help.")
@click.option("--epochs", type=click.IntRange(1), default=100, show_default=True)
@click.option("--epoch-graphs", default="cora,pubmed", show_default=True)
@click.option(
    "--nodes",
    type=click.IntRange(100),
    default=200_000,
    show_default=True,
    help="Nodes of the large graph of part memory.",
)
@output_files(pictures=False)
def main(parts: str, files: tuple[Path, ...], **sizes: object) -> None:
    results = Results("figures of the README")
    for part in words_of("parts", parts, PARTS):
        try:
            PARTS[part](results, **sizes)
        except InputError as error:
            results.notes.append(f"{part} is left out: {error}")
        results.write(files)
    results.show()


if __name__ == "__main__":
    run(main)
