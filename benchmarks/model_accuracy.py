"""How far predictions are from measurements: aggregations by every transfer, and whole trainings.

Each cell is a graph, a width, a number of ranks and a transfer. The prediction is of `mgg model --system this`, from
the calibration of this host, which is measured anew unless --keep is given. Measured is the slowest rank's time in the
fastest of several turns with the other transfers, right after another one of the same rows, as the calibration
measures. Of trainings,
which `mgg train --dry-run --as-ranks` predicts, it is the fastest epoch, the peak of memory on the largest rank, the
symmetric heap, and the bytes of remote rows in an epoch.

    python benchmarks/model_accuracy.py
    python benchmarks/model_accuracy.py --graphs rmat:16:16,cnr_2000.npz --widths 16,128 --ranks 2 --json found.json

A transfer is picked right where it is the fastest measured one, or within a twentieth of it.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from mgg_hpc import config
from mgg_hpc.data import generate, writer
from mgg_hpc.errors import WRONG_INPUT, InputError
from mgg_hpc.plan import cost_model, counts
from mgg_hpc.plan.cost_model import System
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.plan.ranges import edge_balanced
from mgg_hpc.plan.system import Hosts, of_hosts
from mgg_hpc.runtime import calibration
from mgg_hpc.runtime.turns import take_turns
from mgg_hpc.tools import model, model_calibrate
from mgg_hpc.tools.bench.harness import document
from mgg_hpc.tools.bench.harness.document import Sheet
from mgg_hpc.tools.bench.overlap.cpu import Subject
from mgg_hpc.tools.model_rehearsal import rehearse

GRAPHS = "rmat:15:16,rmat:17:16,uniform:15:16,uniform:17:16,sbm"
TRANSFERS = ("direct", "get", "halo")
TURNS = 5
GET_US = 5.0  # of a row over the network between two hosts of this machine, as the probe of a job measures
NEAR = 1.05  # times the fastest: as good, where turns differ by more
EPOCHS, HIDDEN = 15, 64
TIMES = ("aggregation", "epoch")  # in ms; others are bytes


@click.command()
@click.option("--graphs", default=GRAPHS, help="As mgg bench names them, or sbm, separated by commas.")
@click.option("--widths", default="16,64,256")
@click.option("--ranks", default="1,2,4")
@click.option("--epochs/--no-epochs", default=True, help="Whether to train, too.")
@click.option("--keep", is_flag=True, help="Use the calibration that there is.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all cells to this file.")
@click.option(
    "--hosts", type=float, help="Measure two hosts instead, whose link has so many Mbit/s (root only)."
)
@click.option("--worker", type=click.Path(path_type=Path), hidden=True)
@click.option("--rehearse", "job", type=click.Path(path_type=Path), hidden=True)
def main(
    graphs: str,
    widths: str,
    ranks: str,
    epochs: bool,
    keep: bool,
    json_path: Path | None,
    hosts: float | None,
    worker: Path | None,
    job: Path | None,
) -> None:
    """Print errors of predictions and how often the best transfer was picked."""
    names, sizes = graphs.split(","), [int(width) for width in widths.split(",")]
    if job is not None:
        print(json.dumps(rehearsed(job, int(ranks))))
        return
    if worker is not None:
        measure(names, sizes, msgspec.json.decode(worker.read_bytes(), type=System))
        return
    if not keep:
        model_calibrate.process_calibrate(ranks)
    cells: list[dict[str, Any]] = []
    for number in model.numbers_of_ranks(ranks) if hosts is None else (2,):
        system = calibration.load().system(number)
        if hosts is not None:
            described = Hosts("two hosts", "this", ranks_a_node=1, network_gb_s=hosts / 8000, get_us=GET_US)
            system = of_hosts(described, system)
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            file.write(msgspec.json.encode(system))
            file.flush()
            worker_of = (__file__, "--worker", file.name)
            if hosts is None:
                ended = [model_calibrate.output(number, *worker_of, "--graphs", graphs, "--widths", widths)]
            else:
                ended = on_hosts(hosts, worker_of, [(name, width) for name in names for width in sizes])
        for text in ended:
            cells += json.loads(text.strip().splitlines()[-1])
        if epochs and hosts is None:
            cells += trained(number)
    if json_path is not None:
        json_path.write_text(json.dumps(cells, indent=1) + "\n")
    document.show([], sheets(cells))


def named(name: str) -> Any:
    """Return a graph: of `mgg bench`, or communities of 20 neighbours."""
    from mgg_hpc.tools.bench.harness import graphs

    if name == "sbm":
        return generate.sbm(60_000, classes=8, features=1, degree=20.0, homophily=0.9, seed=1)
    return graphs.read(name)


def on_hosts(mbit: float, worker_of: Sequence[str], cases: Sequence[tuple[str, int]]) -> list[str]:
    """Return what this program prints for each graph and width with a rank of one thread on each of two hosts.

    In processes of their own: a symmetric heap has one size.
    """
    import two_hosts

    found = []
    with two_hosts.connect() as hosts:
        hosts.throttle(rate=f"{mbit:g}mbit")
        for graph, width in cases:
            command = [sys.executable, *worker_of, "--graphs", graph, "--widths", str(width)]
            ended = hosts.run(command, 1, {"OMP_NUM_THREADS": "1"}, seconds=400)
            if ended.returncode:
                raise RuntimeError(f"{' '.join(command)} failed:\n{ended.stdout}{ended.stderr}")
            found.append(ended.stdout)
    return found


def measure(names: Sequence[str], widths: Sequence[int], system: System) -> None:
    """Measure and predict every cell on all ranks of the world; rank 0 prints them as JSON. Collective."""
    from mgg_hpc.runtime import mpi

    comm, cells = mpi.world(), []
    ways = cost_model.transfers(system, comm.size) if comm.size > 1 else TRANSFERS[:1]
    backend = "auto" if "direct" in ways else "shmem"
    for name in names:
        graph = named(name)
        bounds = edge_balanced(graph.indptr, comm.size)

        def part(rank: int, graph: Any = graph, bounds: Any = bounds) -> counts.Slice:
            low, high = int(bounds[rank]), int(bounds[rank + 1])
            first, last = graph.indptr[low], graph.indptr[high]
            return graph.indptr[low : high + 1] - first, graph.indices[first:last]

        traffic = counts.of_all_ranks(bounds, part)
        for width in widths:
            # Both hosts are this machine, which a rank there takes for its own.
            threads = mpi.threads_share(comm) if backend == "auto" else 1
            subject = Subject(comm, graph, width, backend, threads)
            runs = {way: partial(warm, subject, subject.way(way)) for way in ways}
            # Between hosts one after another: a stream of gets changes how the network treats what follows.
            clock: dict[str, list[float]] = {}
            for some in [ways] if backend == "auto" else [[way] for way in reversed(ways)]:
                clock |= take_turns({way: runs[way] for way in some}, TURNS)
            subject.backend.memory.close()
            row_bytes = RowFormat(subject.format.dtype, width).row_bytes
            guess = cost_model.aggregation(system, traffic, row_bytes)
            cells += [
                {
                    "what": "aggregation",
                    "graph": name,
                    "width": width,
                    "ranks": comm.size if backend == "auto" else "2 hosts",
                    "transfer": way,
                    "measured": min(clock[way]),
                    "predicted": 1e3 * guess[way],
                }
                for way in ways
            ]
    if comm.rank == 0:
        sys.stdout.write(json.dumps(cells) + "\n")


def warm(subject: Subject, way: Callable[[], None]) -> float:
    """Return the ms of an aggregation whose rows were just read by another one, as the calibration measures."""
    way()
    return min(subject.timed(way)[0] for _ in range(3))


def trained(ranks: int) -> list[dict[str, Any]]:
    """Train a GCN by every transfer on so many ranks, and rehearse it; return the cells of both."""
    cells = []
    with tempfile.TemporaryDirectory(prefix="mgg-accuracy-") as text:
        folder = Path(text)
        for name, graph in {
            "rmat:15:16": generate.rmat(15, 16, 0, features=64, classes=8),
            "sbm": generate.sbm(60_000, classes=8, features=64, degree=20.0, homophily=0.9, seed=1),
        }.items():
            path = folder / f"{name.replace(':', '-')}.h5"
            writer.write(path, graph)
            for transfer in TRANSFERS if ranks > 1 else TRANSFERS[:1]:
                job, run = folder / "job.toml", folder / f"{path.stem}-{transfer}"
                job.write_text(
                    f'[graph]\nfile = "{path}"\n[model]\nhidden = {HIDDEN}\n[train]\nepochs = {EPOCHS}\n'
                    f'[run]\nfolder = "{run}"\n[plan]\ntransfer = "{transfer}"\n'
                )
                model_calibrate.output(ranks, "-c", model_calibrate.TRAIN, "train", str(job), "--no-progress")
                (file,) = run.glob("**/summary.json")
                summary = json.loads(file.read_text())
                measured = {
                    "epoch": summary["epoch_ms"]["min"],
                    "memory": max(summary["peak_rss_bytes"]),
                    "heap": summary["heap_bytes"],
                    "bytes": summary["bytes"]["remote"],
                }
                # In a process of its own, as a user would: what this one holds is no part of a rank's memory.
                predicted = json.loads(
                    model_calibrate.output(1, __file__, "--rehearse", str(job), "--ranks", str(ranks))
                )
                same = {"graph": name, "width": HIDDEN, "ranks": ranks, "transfer": transfer}
                cells += [
                    {"what": what, **same, "measured": measured[what], "predicted": predicted[what]}
                    for what in measured
                    if measured[what]
                ]
    return cells


def rehearsed(job: Path, ranks: int) -> dict[str, float]:
    """Return what a rehearsal predicts of a job: ms of an epoch, and bytes."""
    found = rehearse(config.load(job), ranks)
    told = found.told["transfers"][found.each[0]]
    return {
        "epoch": told["epoch_ms"],
        "memory": max(need.peak for need in found.needs),
        "heap": max(need.heap for need in found.needs),
        "bytes": told["bytes"],
    }


def sheets(cells: Sequence[dict[str, Any]]) -> list[Sheet]:
    """Return the tables: every cell, and errors and picks by number of ranks."""
    every = [
        [
            *(str(cell[key]) for key in ("what", "graph", "width", "ranks", "transfer")),
            f"{cell['measured']:,.2f}",
            f"{cell['predicted']:,.2f}",
            f"{100 * error(cell):+.0f} %",
        ]
        for cell in cells
    ]
    rows = []
    for what in dict.fromkeys(cell["what"] for cell in cells):
        for ranks in [*dict.fromkeys(cell["ranks"] for cell in cells), None]:
            some = [each for each in cells if each["what"] == what and ranks in (None, each["ranks"])]
            if some:
                absolute = [abs(error(cell)) for cell in some]
                right, of = picks(some) if what in TIMES else (0, 0)
                rows.append(
                    [
                        what,
                        "all" if ranks is None else str(ranks),
                        str(len(some)),
                        f"{100 * statistics.median(absolute):.0f} %",
                        f"{100 * max(absolute):.0f} %",
                        f"{right} of {of}" if of else "",
                    ]
                )
    headings = ["what", "graph", "width", "ranks", "transfer", "measured", "predicted", "error"]
    summary = ["what", "ranks", "cells", "median error", "largest", "best transfer picked"]
    return [Sheet("every cell", headings, every), Sheet("by number of ranks", summary, rows)]


def error(cell: dict[str, Any]) -> float:
    """Return the relative error of a prediction."""
    return float(cell["predicted"] / cell["measured"] - 1)


def picks(cells: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """Return in how many groups of cells that differ in their transfer alone the pick was right, and of how many."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for cell in cells:
        groups.setdefault(tuple(cell[key] for key in ("graph", "width", "ranks")), []).append(cell)
    several = [group for group in groups.values() if len(group) > 1]
    right = 0
    for group in several:
        picked = min(group, key=lambda cell: cell["predicted"])
        right += picked["measured"] <= NEAR * min(cell["measured"] for cell in group)
    return right, len(several)


if __name__ == "__main__":
    try:
        main()
    except InputError as wrong:
        click.echo(f"model_accuracy: error: {wrong}", err=True)
        sys.exit(WRONG_INPUT)
