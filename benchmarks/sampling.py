"""Neighbour sampling beside other libraries: samplers alone, epochs of a sampled GraphSAGE, and what blocks cost.

    make bench-peers PYTHON=python3.11                       # once, and what PyG samples by (docs/benchmarks.md)
    python benchmarks/sampling.py --json sampling.json       # all parts, on rmat20 and cnr_2000
    python benchmarks/sampling.py --parts sampler --graphs rmat:16 --peers dgl --turns 3

sampler: batches of rows, none of their features. Ours and DGL draw anew for all rows that a hop begins with; PyG draws
once for each node, so it draws fewer edges, and time for each edge stands beside time for each batch.
blocks: ours alone, beside sampling a batch: the plans of its blocks, their schedules, and what these are made for, the
sums over all blocks, each forward and backward.
train: forward, loss, backward and Adam of a GraphSAGE of three layers with 128 hidden units, over drawn features and
labels. All begin with the same weights. Of each library the fastest way takes part, chosen in the warm-up: its
loader with and without worker processes, and in PyG an edge list or a sparse CSR tensor for each layer.

Libraries take turns (A B A B), each in a process of its own, with as many threads; a loader with worker processes has
these beside them.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import real_graphs

from mgg_hpc.data import writer
from mgg_hpc.data.graph import Graph
from mgg_hpc.errors import WRONG_INPUT, InputError
from mgg_hpc.runtime.turns import take_turns
from mgg_hpc.tools.bench.harness import document, graphs, libraries, timing
from mgg_hpc.tools.bench.harness.document import Sheet
from mgg_hpc.tools.bench.harness.libraries import Libraries
from mgg_hpc.tools.bench.harness.options import BenchOptions, numbers_of, words_of
from mgg_hpc.tools.bench.harness.timing import Worker

OURS = "mgg_hpc.tools.bench.baselines.sampled_ours"
MODULES = {"dgl": "sampled_dgl", "pyg": "sampled_pyg"}
PARTS = {"sampler": "sample", "blocks": "blocks", "train": "train"}  # and the task of a worker
TITLES = {"sampler": "samplers alone", "blocks": "what blocks cost", "train": "epochs of GraphSAGE"}
FEATURES, HIDDEN, CLASSES, DROPOUT = 128, 128, 32, 0.5
# Mean losses of the last epoch may be as far apart as this, as a part of the smaller one: all draw for themselves.
APART = 0.1
WARM_UP = 2


def with_data(graph: Graph) -> Graph:
    """Return the graph with labels, and features that say a little about them."""
    rng = np.random.default_rng(0)
    labels = rng.integers(CLASSES, size=graph.nodes)
    x = rng.standard_normal((graph.nodes, FEATURES), dtype=np.float32)
    x[np.arange(graph.nodes), labels] += 1
    return replace(graph, x=x, y=labels, classes=CLASSES)


def inputs_of(
    graph: Graph, part: str, fanouts: list[int], batch_size: int, batches: int, folder: Path
) -> dict[str, Any]:
    """Write the files of a part; return the arguments of the workers' tasks."""
    seeds = np.random.default_rng(1).permutation(graph.nodes)[: batches * batch_size]
    inputs: dict[str, Any] = {"fanouts": fanouts, "batch_size": batch_size, "file": str(folder / "graph.h5")}
    if part == "blocks":
        inputs["width"] = HIDDEN
    if part == "train":
        graph = with_data(graph)
        inputs |= {name: graphs.save(folder / f"{name}.npy", getattr(graph, name)) for name in ("x", "y")}
        inputs["widths"] = [FEATURES, *[HIDDEN] * (len(fanouts) - 1), CLASSES]
        inputs |= {"dropout": DROPOUT, "weights": str(folder / "weights.npz")}
    writer.write(folder / "graph.h5", graph)
    structure = graphs.write(graph, folder)
    inputs |= {name: structure[name] for name in ("indptr", "indices")}
    return inputs | {"rows": graphs.save(folder / "rows.npy", np.sort(seeds))}


def measure(inputs: dict[str, Any], part: str, peers: Libraries, folder: Path, turns: int) -> dict[str, Any]:
    """Return times of all runs, in ms of a batch, and what they returned. inputs: of `inputs_of`."""
    steps = -(-len(np.load(inputs["rows"])) // inputs["batch_size"])
    runs: dict[str, Worker] = {}
    for worker in (peers.ours, *peers.baselines):  # ours writes the initial weights
        for name in worker.need("prepare", task=PARTS[part], inputs=inputs)["runs"]:
            runs[name] = worker
    warm = take_turns({name: partial(worker.ms, name) for name, worker in runs.items()}, WARM_UP)
    if part == "train":
        runs = libraries.fastest(runs, {name: times[-1] for name, times in warm.items()})
    calls = {name: partial(worker.ms, name) for name, worker in runs.items()}
    ms = {
        name: [each / steps for each in times]
        for name, times in take_turns(calls, turns, pause=timing.BREATH).items()
    }
    returned = {name: worker.result(name, folder).tolist() for name, worker in runs.items()}
    second = "loss" if part == "train" else "rows_a_batch"
    found = {"edges_a_batch": {name: edges for name, (edges, _) in returned.items()}}
    found |= {second: {name: value for name, (_, value) in returned.items()}}
    if part == "train":
        check_losses(found["loss"])
    return {"batches": steps, **timing.compared(ms), **found, "times_best": best(ms)}


def check_losses(losses: dict[str, float]) -> None:
    """Raise RuntimeError where a library's loss is another than ours."""
    for name, loss in losses.items():
        if not abs(loss - losses["mgg"]) <= APART * min(loss, losses["mgg"]):
            raise RuntimeError(
                f"after as many epochs {name}'s loss is {loss:.4f} and ours {losses['mgg']:.4f}"
            )


def best(ms: dict[str, list[float]]) -> dict[str, float] | None:
    """Return how many times as fast as the fastest of the others ours is (`mgg`), turn by turn; None without others."""
    others = {
        name: timing.spread(times)["median"] for name, times in ms.items() if not name.startswith("mgg")
    }
    if not others:
        return None
    return timing.ratios(ms[min(others, key=lambda name: others[name])], ms["mgg"])


def sheet(part: str, rows: list[dict[str, Any]]) -> Sheet:
    """Return the table of a part."""
    columns = ["", "ms a batch", "edges a batch", "ns an edge", "of mgg's time"]
    columns += ["seconds an epoch", "loss"] if part == "train" else ["rows a batch"]
    cells = []
    for row in rows:
        for name, spread in row["ms"].items():
            edges = row["edges_a_batch"][name]
            times = row["speedup"].get(name, {"median": 1.0})
            line = [f"{row['graph']}, {name}", document.cell(spread, 2), f"{edges:,.0f}"]
            line += [f"{spread['median'] * 1e6 / edges:.1f}", f"{times['median']:.2f}"]
            if part == "train":
                line += [f"{spread['median'] * row['batches'] / 1e3:.2f}", f"{row['loss'][name]:.3f}"]
            else:
                line.append(f"{row['rows_a_batch'][name]:,.0f}")
            cells.append(line)
    return Sheet(TITLES[part], columns, cells)


@click.command(help=__doc__.partition("\n")[0])
@click.option("--parts", default=",".join(PARTS), show_default=True, help="Which, separated by commas.")
@click.option("--graphs", "names", default="rmat:20,cnr_2000", show_default=True, help="Separated by commas.")
@click.option("--fanouts", default="15,10,5", show_default=True, help="The batch's own rows first.")
@click.option("--batch-size", type=click.IntRange(1), default=1024, show_default=True)
@click.option("--batches", type=click.IntRange(1), default=64, show_default=True, help="Of an epoch.")
@click.option("--threads", type=click.IntRange(1), default=2, show_default=True)
@click.option("--turns", type=click.IntRange(1), default=5, show_default=True)
@click.option("--peers", default=",".join(MODULES), show_default=True, help='Other libraries, or "none".')
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
    fanouts: str,
    batch_size: int,
    batches: int,
    peers: str,
    json_file: Path | None,
    **others: Any,
) -> None:
    """Measure, print and write."""
    options = BenchOptions(pages="huge", json=json_file, peers=peers, **others)
    try:
        options.check_files()
        chosen, hops = words_of("parts", parts, PARTS), numbers_of("fanouts", fanouts)
        baselines = words_of("peers", peers, MODULES, none=True)
        rows: dict[str, list[dict[str, Any]]] = {part: [] for part in chosen}
        for name in names.split(","):
            graph = real_graphs.structure(name)
            for part in chosen:
                with (
                    timing.workspace() as folder,
                    libraries.started(
                        [] if part == "blocks" else baselines, options, OURS, MODULES
                    ) as started,
                ):
                    inputs = inputs_of(graph, part, hops, batch_size, batches, folder)
                    row = measure(inputs, part, started, folder, options.turns)
                    found = document.comparison("sampling", options, started)
                    rows[part].append(document.about(graph) | row)
    except InputError as error:
        click.echo(f"sampling: error: {error}", err=True)
        sys.exit(WRONG_INPUT)
    document.finish(found | rows, [sheet(part, rows[part]) for part in chosen], options)


if __name__ == "__main__":
    main()
