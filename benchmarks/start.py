"""The time of `mgg train` from its start to the end of the first epoch, part by part, on the slowest rank.

    python benchmarks/start.py                                       # a hundred million edges
    python benchmarks/start.py rmat:20:16 --ranks 2 --backend cuda
    python benchmarks/start.py --backend serial -o start.md

The graph's file is in the page cache. Plans are not kept; with --kept-plans they are taken from a run before. "all
beyond reading" is the sum of all parts without "read"; "process" is the time from the start to the end of the whole
process. ``peak_mib`` is the largest rank's memory.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click
from harness import command, graphs, options, run, workers
from harness.processes import train
from harness.results import Results, output_files
from harness.shapes import Shape, labelled

from mgg_hpc import config
from mgg_hpc.data import writer
from mgg_hpc.runtime.timing import interleaved

SHAPE = Shape(features=32, hidden=16, classes=8, dropout=0.5)


@command(__doc__)
@click.argument("name", default="rmat:21:26", metavar="[GRAPH]")
@click.option("--ranks", type=click.IntRange(1), default=1)
@click.option("--backend", default="auto", help="As in a job file.")
@click.option("--kept-plans", is_flag=True, help="A run before has kept its plans.")
@options.turns(3)
@output_files(pictures=False)
def main(name: str, ranks: int, backend: str, kept_plans: bool, turns: int, files: tuple[Path, ...]) -> None:
    job = {
        "graph": {"file": "graph.h5"},
        "model": {"hidden": SHAPE.hidden},
        "train": {"epochs": 1},
        "plan": {"cache": "always" if kept_plans else "never"},
        "run": {"backend": backend, "share_gpu": True},
    }
    config.from_tree(job, "benchmarks/start.py")  # refuses a backend before a graph is drawn
    graph = labelled(graphs.read(name), SHAPE)
    with workers.workspace() as folder:
        writer.write(folder / "graph.h5", graph)
        if kept_plans:
            train(folder, job, ranks)
        taken = interleaved({"train": partial(train, folder, job, ranks)}, turns)["train"]
    about = {"graph": graph.name, "nodes": graph.nodes, "edges": graph.edges, "model": str(SHAPE)}
    peak = max(max(each["peak_rss_bytes"]) for each in taken)
    about |= {"ranks": ranks, "backend": taken[0]["backend"], "kept_plans": kept_plans}
    results = Results("start", **about, peak_mib=peak >> 20)
    for part in taken[0]["start_ms"]:
        results.add(part, [each["start_ms"][part] for each in taken])
    beyond = [sum(each["start_ms"].values()) - each["start_ms"]["read"] for each in taken]
    results.add("all beyond reading", beyond)
    results.add("process", [each["process_ms"] for each in taken])
    results.write(files)
    results.show("variant", "median_ms", "min_ms", "max_ms")


if __name__ == "__main__":
    run(main)
