"""Data tiering: which rows mini-batches read, by scores that are computed before training.

    python benchmarks/tiers.py hits                                # rmat20, and cnr_2000 and gowalla of MGG_DATA
    python benchmarks/tiers.py hits rmat:16 --fanouts 10,10 --shares 10
    python benchmarks/tiers.py gather --threads 1

hits: ``hit_rate`` is the share of a batch's rows that it finds in the nearest memory, if that holds the given percent
of all rows, those of the highest scores. Training nodes are a random percent. The sampler
draws the batches of --epochs epochs; "oracle" scores rows by the reads of as many other epochs.

gather: milliseconds in which torch.index_select, and a TieredTensor with a tenth of the rows in its nearest tier, copy
rows of --mib MiB by number.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
import numpy as np
import real_graphs
import torch
from harness import options, run
from numpy.typing import NDArray
from torch import Tensor

from mgg_hpc.cli.options import Fanouts
from mgg_hpc.data.graph import Graph
from mgg_hpc.nn.tiered import TieredTensor
from mgg_hpc.plan import scores
from mgg_hpc.runtime import cores
from mgg_hpc.runtime.sampler import Sampler, shuffled
from mgg_hpc.runtime.timing import interleaved
from mgg_hpc.tools.bench.results import TIMES, Results, output_files

GRAPHS = ("rmat:20:16", "cnr_2000", "gowalla_bipartite")
BATCH, SMALL_BATCH = 1024, 64  # training nodes; larger batches read most rows of a graph of
SMALL = 100_000  # nodes, wherever they lie
TRAINING_PERCENT = 1


def reads(
    graph: Graph, train: NDArray[np.bool_], fanouts: list[int], batch: int, epochs: range
) -> NDArray[np.int64]:
    """Return how many batches of some epochs, counted from 1, read each row, int64 [N]."""
    sampler, counts = Sampler(graph.indptr, graph.indices), np.zeros(graph.nodes, np.int64)
    nodes = np.flatnonzero(train)
    steps = -(-len(nodes) // batch)
    for epoch in epochs:
        seeds = nodes[shuffled(nodes, seed=0, epoch=epoch)]
        for step in range(steps):
            found = sampler.sample(seeds[step * batch :][:batch], fanouts, seed=0, step=epoch * steps + step)
            counts[found.nodes] += 1
    return counts


def scored(
    graph: Graph, train: NDArray[np.bool_], fanouts: list[int], batch: int
) -> dict[str, NDArray[np.floating]]:
    """Return each score of a graph's rows, [N], by its name."""
    degree = np.diff(graph.indptr)
    pull = scores.puller(graph.nodes, lambda: [(0, graph.indptr, graph.indices)])
    return {
        "out-degree": scores.out_degree(pull, graph.nodes),
        "reverse PageRank": scores.reverse_pagerank(pull, degree),
        "weighted reverse PageRank": scores.training_pagerank(pull, degree, train),
        "expected visits": scores.visits(pull, degree, train, fanouts, batch, ids=np.arange(graph.nodes)),
    }


@click.group(help=__doc__)
def main() -> None: ...


@main.command()
@click.argument("names", nargs=-1, metavar="[GRAPH]...")
@click.option("--fanouts", type=Fanouts(), multiple=True, default=("12,12,12", "25,15"), help="Repeatable.")
@options.numbers("shares", "5,10,25", "Percent of the rows that are near.")
@click.option("--epochs", type=click.IntRange(1), default=5, help="Epochs that are drawn.")
@output_files(pictures=False)
def hits(
    names: tuple[str, ...],
    fanouts: tuple[list[int], ...],
    shares: list[int],
    epochs: int,
    files: tuple[Path, ...],
) -> None:
    """Print the share of reads that are near, by score."""
    results = Results("tiers hits", training_percent=TRAINING_PERCENT, epochs=epochs)
    for name in names or GRAPHS:
        graph = real_graphs.structure(name)
        train = np.random.default_rng(0).random(graph.nodes) < TRAINING_PERCENT / 100
        batch = SMALL_BATCH if graph.nodes < SMALL else BATCH
        for each in fanouts:
            dry, counts = (
                reads(graph, train, each, batch, range(first, first + epochs)) for first in (1, 1 + epochs)
            )
            orders = scored(graph, train, each, batch) | {"oracle": dry}
            for variant, score in orders.items():
                row = {
                    "graph": graph.name,
                    "fanouts": "-".join(map(str, each)),
                    "batch": batch,
                    "variant": variant,
                }
                order = scores.order(score)
                for share in shares:
                    near = order[: graph.nodes * share // 100]
                    row[f"hit_rate_{share}"] = round(float(counts[near].sum() / counts.sum()), 4)
                results.rows.append(row)
    results.write(files)
    results.show()


@main.command()
@options.numbers("sizes", "64,128,256,512,1024,2048,4096", "Bytes of a row.")
@click.option("--mib", type=click.IntRange(1), default=512, help="Size of all rows.")
@click.option("--count", type=click.IntRange(1), default=50_000, help="Rows of a gather.")
@options.threads()
@options.turns(9)
@output_files(pictures=False)
def gather(
    sizes: list[int], mib: int, count: int, threads: int | None, turns: int, files: tuple[Path, ...]
) -> None:
    """Time copies of rows by number."""
    torch.set_num_threads(threads or cores.available())
    results = Results("tiers gather", mib=mib, count=count, threads=torch.get_num_threads())
    rng = np.random.default_rng(0)
    for size in sizes:
        x = torch.randn((mib << 20) // size, size // 4)
        out = torch.empty(count, size // 4)
        with TieredTensor.from_torch(x, near=x.nbytes // 10, score=rng.random(len(x))) as tensor:

            def timed(run: Callable[[Tensor], object], rows: int = len(x)) -> float:
                ids = torch.from_numpy(rng.integers(0, rows, count))  # others each time, which no cache has
                began = time.perf_counter()
                run(ids)
                return 1e3 * (time.perf_counter() - began)

            runs: dict[str, Callable[[Tensor], object]] = {
                "torch.index_select": partial(torch.index_select, x, 0, out=out),
                "TieredTensor": partial(tensor.gather, out=out),
            }
            taken = interleaved({name: partial(timed, each) for name, each in runs.items()}, turns)
        results.compare(taken, row_bytes=size)
    results.write(files)
    results.show("row_bytes", *TIMES)


if __name__ == "__main__":
    run(main)
