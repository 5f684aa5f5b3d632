"""Training epochs by each transfer: GCN and GIN of the papers' sizes (OSDI '23, figures 7 to 9).

    python benchmarks/studies/epochs.py rmat:17 --ranks 2 --threads 1 -o epochs.csv -o epochs.png

A turn is an `mgg train` of ten epochs, and its time their median. ``crossing_bytes`` is the number of bytes that cross
between ranks in an epoch, forward and backward. All trainings of a model begin with the same weights and draw the same
dropout, so that their last losses must be the same. exchanges.py has stand-ins for the systems that MGG is compared
with.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness import command, run, workers
from harness.plots import draw
from harness.processes import train
from harness.study import DIRECT, GET, HALO, ON_CPU, on_ranks

from mgg_hpc.data import writer
from mgg_hpc.errors import InputError
from mgg_hpc.runtime import mpi
from mgg_hpc.runtime.timing import interleaved
from mgg_hpc.tools.bench import graphs
from mgg_hpc.tools.bench.epoch import Shape, labelled
from mgg_hpc.tools.bench.results import TIMES, Results

MODELS = ("gcn", "gin")
FEATURES, CLASSES, DROPOUT, EPOCHS = 128, 32, 0.5, 10
APART = 1e-4  # how far last losses may lie apart, relative
TRANSFERS = {HALO: "halo", DIRECT: "direct", GET: "get"}
SHOWN = ("model", *TIMES, "crossing_bytes")


@command(__doc__)
@click.argument("graph", default=ON_CPU)
@on_ranks()
def main(
    graph: str, ranks: int, threads: int | None, backend: str, turns: int, files: tuple[Path, ...]
) -> None:
    if mpi.launched():
        raise InputError("this study starts its ranks itself, without a launcher")
    whole = graphs.read(graph)
    results = Results("epochs", graph=whole.name, nodes=whole.nodes, edges=whole.edges, ranks=ranks)
    own = {"backend": backend} | ({"threads": threads} if threads else {})
    with workers.workspace() as folder:
        for model in MODELS:
            shape = Shape.of(model, FEATURES, None, CLASSES, DROPOUT)
            writer.write(folder / "graph.h5", labelled(whole, shape), force=True)
            layers = {"name": model, "hidden": shape.hidden, "layers": shape.layers, "dropout": DROPOUT}
            job = {"graph": {"file": "graph.h5"}, "model": layers, "train": {"epochs": EPOCHS}, "run": own}
            runs = {
                name: partial(train, folder, job | {"plan": {"transfer": transfer}}, ranks)
                for name, transfer in TRANSFERS.items()
            }
            taken = interleaved(runs, turns)
            losses = [each["final_loss"] for done in taken.values() for each in done]
            if not max(losses) - min(losses) <= APART * min(losses):
                raise AssertionError(f"{model}: losses from {min(losses)} to {max(losses)}")
            ms = {name: [each["epoch_ms"]["median"] for each in done] for name, done in taken.items()}
            more = {name: {"crossing_bytes": done[0]["bytes"]["remote"]} for name, done in taken.items()}
            results.same |= {name: taken[HALO][0][name] for name in ("backend", "threads")}
            results.compare(ms, more, model=model.upper(), width=shape.hidden)
            results.write(files, draw)
    results.show(*SHOWN)


if __name__ == "__main__":
    run(main)
