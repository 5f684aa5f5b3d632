"""Data tiering: how many of the rows that mini-batches read are near, by scores that are computed before training.

The commands `hits` and `traffic` of benchmarks/tiers.py, after figures 4.8, 4.10 and 4.11 of Min's dissertation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import click
import numpy as np
import real_graphs
from harness import options
from harness.caches import CACHES
from harness.pcie_requests import LINE
from harness.plots import draw
from harness.results import Results, output_files
from numpy.typing import NDArray

from mgg_hpc.cli.options import Fanouts, together
from mgg_hpc.data.graph import Graph
from mgg_hpc.plan import scores
from mgg_hpc.runtime.sampler import Sampler, shuffled

DIRECTED = ":directed"  # after the name of a graph of the data folder whose edges are not made symmetric
GRAPHS = ("rmat:20:16", "cnr_2000", f"cnr_2000{DIRECTED}", "gowalla_bipartite")
BATCH, SMALL_BATCH = 1024, 64  # training nodes; larger batches read most rows of a graph of
SMALL = 100_000  # nodes, wherever they lie
TRAINING_PERCENT = 1
ORACLE = "oracle"
OF_TRAFFIC = ("weighted reverse PageRank", "expected visits", ORACLE)  # scores


class Case:
    """The batches of one graph and fanouts, and its rows in the order of each score.

    columns: of results. counts: int64 [N], how many batches of ``epochs`` epochs read each row. orders: rows by
    descending score, int64 [N], by the name of the score; the oracle's are the reads of as many earlier epochs.
    """

    def __init__(self, graph: Graph, fanouts: list[int], epochs: int) -> None:
        self.nodes, self._fanouts = graph.nodes, fanouts
        self._sampler = Sampler(graph.indptr, graph.indices)
        train = np.random.default_rng(0).random(graph.nodes) < TRAINING_PERCENT / 100
        self._train, self._batch = np.flatnonzero(train), SMALL_BATCH if graph.nodes < SMALL else BATCH
        self.steps = -(-len(self._train) // self._batch)
        self.columns = {
            "graph": graph.name + (" directed" if graph.directed else ""),
            "fanouts": "-".join(map(str, fanouts)),
            "batch": self._batch,
        }
        self.counted = range(1 + epochs, 1 + 2 * epochs)
        self.counts = self._reads(self.counted)
        degree = np.diff(graph.indptr)
        pull = scores.puller(graph.nodes, lambda: [(0, graph.indptr, graph.indices)])
        visits = scores.visits(pull, degree, train, fanouts, self._batch, ids=np.arange(graph.nodes))
        scored = {
            "out-degree": scores.out_degree(pull, graph.nodes),
            "reverse PageRank": scores.reverse_pagerank(pull, degree),
            "weighted reverse PageRank": scores.training_pagerank(pull, degree, train),
            "expected visits": visits,
            ORACLE: self._reads(range(1, 1 + epochs)),
        }
        self.orders = {name: scores.order(score) for name, score in scored.items()}

    def batches(self, epochs: Iterable[int]) -> Iterator[NDArray[np.int64]]:
        """Yield the rows that the batches of some epochs, counted from 1, read, in the order in which they are met."""
        for epoch in epochs:
            seeds = self._train[shuffled(self._train, seed=0, epoch=epoch)]
            for step in range(self.steps):
                chosen = seeds[step * self._batch :][: self._batch]
                number = epoch * self.steps + step
                yield self._sampler.sample(chosen, self._fanouts, seed=0, step=number).nodes

    def _reads(self, epochs: Iterable[int]) -> NDArray[np.int64]:
        counts = np.zeros(self.nodes, np.int64)
        for rows in self.batches(epochs):
            counts[rows] += 1
        return counts

    def replayed(self, room: int, name: str, batches: int) -> float:
        """Return the hit rate of a cache of ``room`` rows in so many batches, after as many that fill it."""
        cache, drawn = CACHES[name](room), list(islice(self.batches(self.counted), 2 * batches))
        hits = [cache.read(rows) for rows in drawn]
        half = len(drawn) // 2
        return sum(hits[half:]) / sum(map(len, drawn[half:]))


def cases(names: tuple[str, ...], fanouts: tuple[list[int], ...], epochs: int) -> Iterator[Case]:
    """Yield each graph with each of the fanouts."""
    for name in names:
        graph = real_graphs.structure(name.removesuffix(DIRECTED), directed=name.endswith(DIRECTED))
        yield from (Case(graph, each, epochs) for each in fanouts)


def read_until(case: Case, order: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the share of reads of the first 0 .. N rows of an order, [N + 1]."""
    return np.concatenate([[0], np.cumsum(case.counts[order])]) / case.counts.sum()


def link_bytes(reads: NDArray[np.integer], row_bytes: int) -> int:
    """Return the bytes of requests of 128 for rows that lie one after the other, and are read so many times, [n]."""
    first = np.arange(len(reads)) * row_bytes
    lines = (first + row_bytes - 1) // LINE - first // LINE + 1
    return int(LINE * (lines * reads).sum())


def _named(_context: Any, _argument: Any, names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        real_graphs.check(name.removesuffix(DIRECTED))
    return names or GRAPHS


GIVEN = together(
    click.argument("names", nargs=-1, metavar="[GRAPH]...", callback=_named),
    click.option(
        "--fanouts",
        type=Fanouts(),
        multiple=True,
        default=("12,12,12", "25,15"),
        help="Repeatable. By depth: --fanouts 10,10 --fanouts 10,10,10 and so on.",
        show_default="12,12,12; 25,15",
    ),
    options.numbers("shares", "5,10,25", "Percent of the rows that are near."),
    click.option("--epochs", type=click.IntRange(1), default=40, help="Epochs that are drawn, twice."),
)


@click.command()
@GIVEN
@click.option(
    "--replayed", type=click.IntRange(0), default=32, help="Batches in which caches are looked at; 0: none."
)
@output_files()
def hits(
    names: tuple[str, ...],
    fanouts: tuple[list[int], ...],
    shares: list[int],
    epochs: int,
    replayed: int,
    files: tuple[Path, ...],
) -> None:
    """Print the share of reads that are near, by score."""
    how = {"training_percent": TRAINING_PERCENT, "epochs": epochs, "replayed_batches": replayed}
    results = Results("tiers hits", **how)
    for case in cases(names, fanouts, epochs):
        room = [case.nodes * share // 100 for share in shares]
        found = {name: read_until(case, order)[room].tolist() for name, order in case.orders.items()}
        for name in CACHES if replayed else ():
            found[name] = [case.replayed(rows, name, replayed) for rows in room]
        for variant, rates in found.items():
            near = {f"hit_rate_{share}": round(rate, 4) for share, rate in zip(shares, rates, strict=True)}
            results.rows.append(case.columns | {"variant": variant} | near)
        results.write(files, draw)
    results.show()


@click.command()
@GIVEN
@click.option("--row-bytes", type=click.IntRange(1), default=512, help="Size of a row.")
@click.option("--ranks", type=click.IntRange(2), default=4, help="Ranks that share a peers' tier.")
@output_files(pictures=False)
def traffic(
    names: tuple[str, ...],
    fanouts: tuple[list[int], ...],
    shares: list[int],
    epochs: int,
    row_bytes: int,
    ranks: int,
    files: tuple[Path, ...],
) -> None:
    """Print the share of the bytes between host and GPU that tiers remove, modelled from the rows of batches."""
    results = Results("tiers traffic", training_percent=TRAINING_PERCENT, epochs=epochs, row_bytes=row_bytes)
    results.notes.append("modelled from the rows that sampled batches read: nothing was measured on a link")
    for case in cases(names, fanouts, epochs):
        for variant in OF_TRAFFIC:
            reads = case.counts[case.orders[variant]]
            whole = link_bytes(reads, row_bytes)
            # Of the rows that each rank has room for, those that all ranks have copies of.
            for placed, replicated in (
                ("one rank", 1.0),
                (f"{ranks} ranks, half replicated", 0.5),
                (f"{ranks} ranks, none replicated", 0.0),
            ):
                row: dict[str, Any] = {"variant": variant, "case": placed}
                for share in shares:
                    room = case.nodes * share // 100
                    near = int(replicated * room)
                    far = reads[near + ranks * (room - near) :]
                    row[f"removed_{share}"] = round(1 - link_bytes(far, row_bytes) / whole, 4)
                row["batch_mb"] = round(whole / len(case.counted) / case.steps / 1e6, 3)
                results.rows.append(case.columns | row)
        results.write(files)
    results.show()
