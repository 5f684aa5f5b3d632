"""Sums of neighbours' rows, by this package and other libraries, and the gather floor.

    python benchmarks/aggregate.py
    python benchmarks/aggregate.py rmat:16:8 my.h5 --widths 64,128 --peers dgl -o sums.md -o sums.png
    python benchmarks/aggregate.py my.npz --orders none,community --dtypes float32,bfloat16
    python benchmarks/aggregate.py rmat:20 uniform:20 --device cuda --widths 128,16,64,256

The gather floor reads the same rows in the same order and stores nothing. ``times_first`` is the time over the floor's.
``bytes_ms`` is the time of the bytes that have to be moved at all (each row, index, offset and output once), at the
speed at which the same threads read 1 GiB from end to end.
"""

from __future__ import annotations

from pathlib import Path
from statistics import geometric_mean
from typing import Any

import click
import numpy as np
from harness import command, run, sums, workers
from harness.plots import bars_by
from harness.workers import Conditions

from mgg_hpc.data.graph import Graph
from mgg_hpc.plan import order
from mgg_hpc.tools.bench import graphs
from mgg_hpc.tools.bench.aggregate import drawn_rows
from mgg_hpc.tools.bench.results import Results, Row, numbers_of, output_files, words_of

PEERS = {"cpu": ("dgl", "torch", "pyg", "mkl", "scipy"), "cuda": ("cusparse", "torch", "pyg")}
DTYPES = ("float32", "bfloat16", "float16")
STREAM_BYTES = 1 << 30
SHOWN = (
    "graph",
    "order",
    "dtype",
    "width",
    "variant",
    "median_ms",
    "min_ms",
    "max_ms",
    "times_first",
    "mgg_speedup",
    "bytes_ms",
)


@command(__doc__)
@click.argument("names", nargs=-1, metavar="[GRAPH]...")
@click.option("--widths", default="16,64,128,256", show_default=True, help="Columns of rows.")
@click.option("--dtypes", default="float32", show_default=True, help=f"Of rows: {', '.join(DTYPES)}.")
@click.option("--orders", default="none", show_default=True, help=f"Of nodes: {', '.join(order.METHODS)}.")
@click.option("--weighted", is_flag=True, help="Multiply each row by its edge's weight.")
@click.option("--peers", help='Libraries, or "none". [default: all of the device]')
@output_files()
@workers.conditions()
def main(
    names: tuple[str, ...],
    widths: str,
    dtypes: str,
    orders: str,
    weighted: bool,
    peers: str | None,
    files: tuple[Path, ...],
    conditions: Conditions,
) -> None:
    known = PEERS[conditions.device]
    chosen = words_of("peers", peers or ",".join(known), known, none=True)
    columns, kinds = numbers_of("widths", widths), words_of("dtypes", dtypes, DTYPES)
    methods = [
        "none" if word == "none" else words_of("orders", word, order.METHODS)[0] for word in orders.split(",")
    ]
    for name in names:
        graphs.check(name)
    results = Results("aggregate", **conditions.same(), weighted=weighted)
    with workers.workspace() as folder, workers.started(chosen, conditions) as (processes, notes):
        results.notes += notes
        rate = stream_gb_per_s(processes[0]) if conditions.device == "cpu" else 0.0
        for name in names or ("rmat:18:16",):
            plain = graphs.read(name)
            for method in methods:
                graph = (
                    plain if method == "none" else order.renumbered(plain, order.permutation(plain, method))
                )
                given = workers.write_graph(graph, folder, weighted=weighted)
                for dtype in kinds:
                    for width in columns:
                        case = {"graph": graph.name, "order": method, "dtype": dtype, "width": width}
                        measure(results, case, graph, given, processes, folder, conditions.turns, rate)
                        results.write(files, DRAW)  # what is measured stays, whatever ends the rest
    results.notes += summary(results.rows)
    results.write(files, DRAW)
    results.show(*SHOWN)


DRAW = bars_by("graph", "order", "dtype", "width", across=2)


def summary(rows: list[Row]) -> list[str]:
    """Return lines that say what all cases say together.

    How many times as fast mgg is as each variant: the geometric mean over all cases, and the least. The same for its
    fastest order of nodes against variants on nodes as they were, and for half rows against float32, by medians, since
    these were not measured in turns.
    """
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row["variant"], []).append(row["mgg_speedup"])
    means = [
        f"{name} {geometric_mean(of):.2f} ({min(of):.2f})" for name, of in found.items() if name != "mgg"
    ]
    lines = [f"mgg is times as fast as, geometric mean (least): {', '.join(means)}"]

    def key(row: Row, **other: str) -> tuple[Any, ...]:
        return tuple((row | other)[name] for name in ("graph", "order", "dtype", "width"))

    ours = {key(row): row["median_ms"] for row in rows if row["variant"] == "mgg"}
    best: dict[str, list[float]] = {}
    for row in rows:
        orders = [ms for each, ms in ours.items() if each[0] == row["graph"] and each[2:] == key(row)[2:]]
        if row["order"] == "none" and len(orders) > 1:
            best.setdefault(row["variant"], []).append(row["median_ms"] / min(orders))
    if best:
        means = [f"{name} {geometric_mean(of):.2f}" for name, of in best.items()]
        lines.append(f"in its fastest order, against nodes as they were: {', '.join(means)}")
    halves = {
        each: ours[whole] / ms
        for each, ms in ours.items()
        if (whole := (*each[:2], "float32", each[3])) in ours
    }
    for dtype in DTYPES[1:]:
        if times := [ratio for each, ratio in halves.items() if each[2] == dtype]:
            lines.append(f"{dtype} rows, times as fast as float32: {min(times):.2f} to {max(times):.2f}")
    return lines


def stream_gb_per_s(ours: workers.Worker) -> float:
    """Return the most GB/s at which all threads read memory from end to end."""
    ours.need("prepare", task="stream", inputs={"size": STREAM_BYTES})
    return STREAM_BYTES / min(ours.ms("stream") for _ in range(5)) / 1e6


def measure(
    results: Results,
    case: dict[str, Any],
    graph: Graph,
    given: dict[str, str | None],
    processes: list[workers.Worker],
    folder: Path,
    turns: int,
    rate: float,
) -> None:
    """Add the rows of one case. Sums that differ from ours by more than rounding are left out, and named."""
    x = drawn_rows(graph.nodes, case["width"], "float32")
    inputs = {**given, "dtype": case["dtype"], "x": workers.save(folder / "x.npy", x)}
    picked = sums.sample(graph.indptr)
    weight = None if given["weight"] is None else np.load(given["weight"])
    halves = x.astype(np.dtype(case["dtype"]))
    expected = sums.product(graph, halves.astype(np.float64), weight, picked)
    limit = sums.allowed(graph, halves, weight, picked)

    def accept(worker: workers.Worker, run: str) -> str:
        if run == "gather floor":
            return ""
        wrong = sums.differing(expected, worker.result(run, folder)[picked], limit)
        if wrong and worker.name == "mgg":
            raise AssertionError(f"mgg: {wrong}")
        return wrong

    runs, notes = workers.prepared(processes, "aggregate", inputs, accept)
    results.notes += [f"{graph.name}, {case['dtype']}: {note}" for note in notes]
    floor_first = {"gather floor": runs["gather floor"]} | runs
    ms = workers.in_turns(floor_first, turns)
    an_edge = 4 if weight is None else 8
    bytes_once = 2 * x.size * halves.itemsize + an_edge * graph.edges + 8 * len(graph.indptr)
    row = (
        {"edges": graph.edges, "bytes_ms": round(bytes_once / rate / 1e6, 4)}
        if rate
        else {"edges": graph.edges}
    )
    ours = np.array(ms["mgg"])
    speedups = {
        name: {"mgg_speedup": round(float(np.median(np.array(taken) / ours)), 4)}
        for name, taken in ms.items()
    }
    results.compare(ms, speedups, **case, **row)


if __name__ == "__main__":
    run(main)
