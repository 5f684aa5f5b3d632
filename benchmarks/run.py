"""The README's figures that have no baselines: plans, epochs on one rank and two, memory, start-up.

    python benchmarks/run.py --json bench.json
    python benchmarks/run.py --only plan --graph rmat:16

`mgg bench` measures aggregation and epochs beside other libraries.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
import real_graphs

from mgg_hpc.data import generate, writer
from mgg_hpc.data.graph import Graph
from mgg_hpc.errors import WRONG_INPUT, InputError
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.turns import take_turns
from mgg_hpc.tools.bench.harness import document, machine
from mgg_hpc.tools.bench.harness.document import Sheet
from mgg_hpc.tools.bench.harness.options import words_of

MGG = Path(sys.executable).with_name("mgg")
PARTS = ("plan", "epoch", "memory", "help")


def graph_named(name: str) -> tuple[Graph, str]:
    """A graph of the data folder or rmat:SCALE; and a note where another one had to do."""
    kind, _, scale = name.partition(":")
    if kind == "rmat":
        return generate.rmat(int(scale), 16, 0), ""
    try:
        return real_graphs.read(name), ""
    except InputError as error:
        return generate.rmat(18, 10, 0), f"{error}; rmat of scale 18 instead"


def plan(graph: Graph, ranks: int, turns: int) -> dict[str, Any]:
    """Seconds to plan all ranks' work one after the other on one core: bounds, self loops, chunks, schedules."""
    from mgg_hpc.plan import adjacency, ranges, workload
    from mgg_hpc.runtime.backends import DEFAULT_GEOMETRY
    from mgg_hpc.runtime.backends.arguments import Options
    from mgg_hpc.runtime.backends.host.serial import SerialBackend
    from mgg_hpc.runtime.backends.simulated import World

    def once() -> tuple[float, float]:
        """Seconds of all ranks, and of the slowest."""
        began = time.perf_counter()
        bounds = ranges.edge_balanced(graph.indptr, ranks)
        each = []
        for rank in range(ranks):
            started = time.perf_counter()
            first, last = int(bounds[rank]), int(bounds[rank + 1])
            indptr = graph.indptr[first : last + 1]
            indices = graph.indices[indptr[0] : indptr[-1]]
            looped, sources, _ = adjacency.with_self_loops(first, indptr - indptr[0], indices, None)
            made = workload.build(rank, bounds, looped, sources)
            SerialBackend(rank, World(ranks), Options(DEFAULT_GEOMETRY)).schedule(
                made, RowFormat(np.dtype(np.float32), 64)
            )
            each.append(time.perf_counter() - started)
        return time.perf_counter() - began, max(each)

    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(everywhere)})
    try:
        taken = take_turns({"plan": once}, turns)["plan"]
    finally:
        os.sched_setaffinity(0, everywhere)
    all_ranks, slowest = (min(seconds) for seconds in zip(*taken, strict=True))
    kept = {"graph": graph.name, "edges": graph.edges, "ranks": ranks}
    return kept | {"all_ranks_s": all_ranks, "slowest_rank_s": slowest}


def mgg(*arguments: str | Path) -> None:
    """Run `mgg`; its output is shown where it fails."""
    done = subprocess.run([MGG, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"mgg {' '.join(map(str, arguments))} failed:\n{done.stdout}{done.stderr}")


def train(
    folder: Path, file: Path, ranks: int, threads: int, epochs: int, **settings: object
) -> dict[str, Any]:
    """The summary of a run started as a user starts it."""
    job = folder / "job.toml"
    job.write_text(f'[graph]\nfile = "{file}"\n[run]\nfolder = "{folder / "runs"}"\nthreads = {threads}\n')
    chosen = [f"--set={key.replace('__', '.')}={value}" for key, value in settings.items()]
    mgg("launch", "-n", str(ranks), "train", job, f"--set=train.epochs={epochs}", *chosen)
    return json.loads((folder / "runs" / "latest" / "summary.json").read_text())


def epoch(names: list[str], folder: Path, epochs: int) -> list[dict[str, Any]]:
    """Training and evaluation of one epoch, with two threads: of one rank, or one of each of two."""
    rows = []
    for name in names:
        file = real_graphs.write(name, folder)
        for ranks, threads in ((1, 2), (2, 1)):
            summary = train(folder, file, ranks, threads, epochs, train__normalize_features="row")
            kept = {key: summary[key] for key in ("ranks", "threads", "epoch_ms", "eval_ms", "aggregate_ms")}
            rows.append({"graph": name, **kept})
    return rows


def memory(folder: Path, nodes: int) -> dict[str, Any]:
    """The peak of each of two ranks, what the plan said, and what remains for Python and its libraries."""
    file = folder / "memory.h5"
    graph = generate.sbm(nodes, classes=8, features=64, degree=20.0, homophily=0.8, seed=0)
    writer.write(file, graph, force=True)
    summary = train(folder, file, 2, 1, 5, model__hidden=64)
    pairs = zip(summary["peak_rss_bytes"], summary["estimated_bytes"], strict=True)
    return {
        "nodes": nodes,
        "edges": graph.edges,
        "peak_bytes": summary["peak_rss_bytes"],
        "estimated_bytes": summary["estimated_bytes"],
        "remainder_bytes": [peak - estimated for peak, estimated in pairs],
    }


def help_time(turns: int) -> dict[str, float]:
    """Seconds of `mgg --help`, on the clock and of the processor."""

    def once() -> tuple[float, float]:
        before, began = os.times(), time.perf_counter()
        mgg("--help")
        wall, after = time.perf_counter() - began, os.times()
        worked = after.children_user + after.children_system - before.children_user - before.children_system
        return wall, worked

    wall, used = zip(*take_turns({"help": once}, turns)["help"], strict=True)
    return {"wall_s": min(wall), "median_wall_s": statistics.median(wall), "processor_s": min(used)}


def show(results: dict[str, Any]) -> None:
    """Print everything that was measured."""
    lines = [", ".join(f"{key} {value}" for key, value in results["machine"].items())]
    lines += [results["note"]] if "note" in results else []
    sheets = []
    if found := results.get("plan"):
        lines.append(
            f"plan of {found['graph']} ({found['edges']:,} edges) for {found['ranks']} ranks on one core: "
            f"{found['all_ranks_s']:.2f} s for all, {found['slowest_rank_s']:.2f} s for the slowest rank"
        )
    if found := results.get("help"):
        lines.append(f"mgg --help: {found['wall_s']:.3f} s ({found['processor_s']:.3f} s of processor time)")
    if found := results.get("epoch"):
        columns = ["graph", "ranks", "threads", "epoch", "evaluation", "aggregation"]
        times = ("epoch_ms", "eval_ms", "aggregate_ms")
        rows = [
            [row["graph"], str(row["ranks"]), str(row["threads"]), *document.cells(row, times, 2)]
            for row in found
        ]
        sheets.append(Sheet("ms an epoch", columns, rows))
    if found := results.get("memory"):
        sizes = zip(*(found[f"{key}_bytes"] for key in ("peak", "estimated", "remainder")), strict=True)
        rows = [[str(rank), *(f"{size / 1e6:.0f}" for size in each)] for rank, each in enumerate(sizes)]
        columns = ["rank", "peak", "planned", "remainder"]
        sheets.append(Sheet(f"MB of a rank, {found['edges']:,} edges", columns, rows))
    document.show(lines, sheets)


@click.command(help=__doc__.partition("\n")[0])
@click.option("--only", default=",".join(PARTS), show_default=True, help="Which parts, separated by commas.")
@click.option("--graph", default="cnr_2000", show_default=True, help="To plan; or rmat:SCALE.")
@click.option("--turns", type=click.IntRange(1), default=3, show_default=True, help="Of planning.")
@click.option("--epochs", type=click.IntRange(1), default=100, show_default=True)
@click.option("--epoch-graphs", default="cora,pubmed", show_default=True)
@click.option("--memory-nodes", type=click.IntRange(100), default=200_000, show_default=True)
@click.option("--json", "output", type=click.Path(path_type=Path), help="Write the figures to this file too.")
def main(only: str, graph: str, turns: int, output: Path | None, **sizes: Any) -> None:
    """Measure what was asked for, print it, and write it down."""
    try:
        parts = words_of("only", only, PARTS)
        results = measured(parts, graph, turns, **sizes)
    except InputError as error:
        click.echo(f"bench: error: {error}", err=True)
        sys.exit(WRONG_INPUT)
    show(results)
    if output:
        output.write_text(json.dumps(results, indent=2, default=_plain) + "\n")


def measured(
    parts: list[str], graph: str, turns: int, epochs: int, epoch_graphs: str, memory_nodes: int
) -> dict[str, Any]:
    """Return the figures of the parts."""
    results: dict[str, Any] = {"machine": machine.describe()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "plan" in parts:
            subject, note = graph_named(graph)
            if note:
                results["note"] = note
            results["plan"] = plan(subject, 4, turns)
        if "epoch" in parts:
            results["epoch"] = epoch(epoch_graphs.split(","), folder, epochs)
        if "memory" in parts:
            results["memory"] = memory(folder, memory_nodes)
        if "help" in parts:
            results["help"] = help_time(5)
    return results


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(type(value).__name__)


if __name__ == "__main__":
    main()
