"""The figures of docs/results.md that compare with nothing: plans, epochs, memory of a rank, the start of `mgg`.

    python benchmarks/figures.py
    python benchmarks/figures.py --parts plan,help --graph rmat:16 --turns 1 -o figures.json

Parts: plan (of four ranks, one after the other on one core: bounds, self loops, chunks, schedules), epoch (GCNs of 16
hidden units on one rank of two threads), memory (the larger peak of two ranks on a small graph, and what the plan said;
Python and its libraries take almost all of it), help (`mgg --help`). A part whose graph is not there is left out, and
the output says so.
"""

from __future__ import annotations

import os
import subprocess
import sys
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import real_graphs
from harness import command, options, run, workers
from harness.processes import train

from mgg_hpc.data import generate, writer
from mgg_hpc.errors import InputError
from mgg_hpc.plan import adjacency, row_ranges, workload
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends import DEFAULT_GEOMETRY
from mgg_hpc.runtime.backends.arguments import Options
from mgg_hpc.runtime.backends.host.kernels import SerialBackend
from mgg_hpc.runtime.backends.simulated import World
from mgg_hpc.tools.bench.results import Results, output_files

RANKS, WIDTH = 4, 64  # of plans


def ms(call: Callable[[], Any], turns: int) -> list[float]:
    """Return the milliseconds of each of so many calls."""
    return [1e3 * seconds for seconds in timeit.repeat(call, number=1, repeat=turns)]


def plan(results: Results, turns: int, graph: str, **_: object) -> None:
    """Add the time of all ranks' plans."""
    read = real_graphs.structure(graph)

    def all_ranks() -> None:
        bounds = row_ranges.edge_balanced(read.indptr, RANKS)
        for rank in range(RANKS):
            first, last = int(bounds[rank]), int(bounds[rank + 1])
            indptr = read.indptr[first : last + 1]
            indices = read.indices[indptr[0] : indptr[-1]]
            looped, sources, _ = adjacency.with_self_loops(first, indptr - indptr[0], indices, None)
            made = workload.direct(workload.split(rank, bounds, looped, sources))
            backend = SerialBackend(rank, World(RANKS), Options(DEFAULT_GEOMETRY))
            backend.schedule(made, RowFormat(np.dtype(np.float32), WIDTH))

    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(everywhere)})
    try:
        results.add("all 4 ranks, one core", ms(all_ranks, turns), part="plan", graph=read.name)
    finally:
        os.sched_setaffinity(0, everywhere)


def epoch(results: Results, epochs: int, epoch_graphs: str, **_: object) -> None:
    """Add the epochs of `mgg train` on each graph."""
    settings = {"epochs": epochs, "normalize_features": "row"}
    with workers.workspace() as folder:
        for name in epoch_graphs.split(","):
            job = {"graph": {"file": str(real_graphs.write(name, folder))}, "train": settings}
            found = train(folder, job | {"run": {"threads": 2}})["epoch_ms"]
            row = {"part": "epoch", "graph": name, "variant": "1 rank of 2 threads", "turns": epochs}
            results.rows.append(row | {f"{end}_ms": found[end] for end in ("min", "median", "max")})


def memory(results: Results, **_: object) -> None:
    """Add the memory of two ranks on a small graph."""
    graph = generate.sbm(2000, classes=8, features=64, degree=20.0, homophily=0.8, seed=0)
    job = {"graph": {"file": "graph.h5"}, "model": {"hidden": 64}, "train": {"epochs": 5}}
    with workers.workspace() as folder:
        writer.write(folder / "graph.h5", graph)
        summary = train(folder, job | {"run": {"threads": 1}}, ranks=2)
    sizes = {"peak_mb": summary["peak_rss_bytes"], "planned_mb": summary["estimated_bytes"]}
    row = {"part": "memory", "graph": f"{graph.nodes:,} nodes", "variant": "2 ranks"}
    results.rows.append(row | {name: round(max(each) / 1e6, 1) for name, each in sizes.items()})


def start(results: Results, turns: int, **_: object) -> None:
    """Add the time of `mgg --help`."""
    program = [Path(sys.executable).with_name("mgg"), "--help"]
    taken = ms(lambda: subprocess.run(program, capture_output=True, check=True), 2 * turns)
    results.add("mgg --help", taken, part="help")


PARTS: dict[str, Callable[..., None]] = {"plan": plan, "epoch": epoch, "memory": memory, "help": start}


@command(__doc__)
@options.words("parts", PARTS, "Groups of figures.")
@click.option("--graph", default="cnr_2000", help="To plan.")
@options.turns(3)
@click.option("--epochs", type=click.IntRange(1), default=100)
@click.option("--epoch-graphs", default="cora,pubmed")
@output_files(pictures=False)
def main(parts: list[str], files: tuple[Path, ...], **sizes: object) -> None:
    results = Results("figures without peers")
    for part in parts:
        try:
            PARTS[part](results, **sizes)
        except InputError as error:
            results.notes.append(f"{part} is left out: {error}")
        results.write(files)
    results.show()


if __name__ == "__main__":
    run(main)
