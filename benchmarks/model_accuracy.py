"""How far predictions are from measurements: whole trainings by every transfer, and their rehearsals.

    python benchmarks/model_accuracy.py
    python benchmarks/model_accuracy.py --graphs rmat:16:16 --widths 16,128 --ranks 2 -o found.json

A case is a graph, a width, a number of ranks and a transfer. Measured are the fastest epoch, the peak of memory on the
largest rank, the symmetric heap and the bytes that cross; predicted is what `mgg train --dry-run --as-ranks` prints,
from the calibration of this host, which is measured anew unless --keep is given. The second table has errors, and in
how many groups of cases that differ in their transfer alone the fastest one was picked, or one within 5 percent of it.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from harness import command, run, workers
from harness.training import train

from mgg_hpc import config
from mgg_hpc.data import generate, writer
from mgg_hpc.data.graph import Graph
from mgg_hpc.plan.cost_model import TRANSFERS
from mgg_hpc.runtime import calibration
from mgg_hpc.tools import model, model_calibrate
from mgg_hpc.tools.bench import graphs
from mgg_hpc.tools.bench.epoch import Shape, labelled
from mgg_hpc.tools.bench.results import Results, Row, numbers_of, output_files
from mgg_hpc.tools.model_rehearsal import rehearse

NEAR = 1.05  # times the fastest: as good, where turns differ by more
EPOCHS, SHAPE = 15, Shape(features=64, hidden=16, classes=8, dropout=0.5)
CASE = ("graph", "width", "ranks", "transfer")


@command(__doc__)
@click.option("--graphs", "names", default="rmat:15:16,rmat:17:16,sbm", show_default=True)
@click.option("--widths", default="16,64", show_default=True, help="Columns of hidden layers.")
@click.option("--ranks", default="1,2,4", show_default=True)
@click.option("--keep", is_flag=True, help="Use the calibration that there is.")
@click.option("--rehearse", "job", type=click.Path(path_type=Path), hidden=True)
@output_files(pictures=False)
def main(names: str, widths: str, ranks: str, keep: bool, job: Path | None, files: tuple[Path, ...]) -> None:
    if job is not None:
        print(json.dumps(rehearsed(job, int(ranks))))
        return
    given = {name: named(name) for name in names.split(",")}
    sizes, numbers = numbers_of("widths", widths), model.numbers_of_ranks(ranks)
    if keep:
        calibration.load()  # refuses where there is none
    else:
        model_calibrate.process_calibrate(ranks)
    results = Results("predictions")
    with workers.workspace() as folder:
        for name, graph in given.items():
            writer.write(folder / "graph.h5", graph, force=True)
            for number in numbers:
                for width in sizes:
                    for transfer in TRANSFERS if number > 1 else TRANSFERS[:1]:
                        case = dict(zip(CASE, (name, width, number, transfer), strict=True))
                        results.rows += compared(folder, case)
                        results.write(files)
    results.show()
    summary = Results("errors by number of ranks")
    summary.rows += errors(results.rows)
    summary.show()


def named(name: str) -> Graph:
    """Return a graph with features and labels: "sbm", communities of 20 neighbours, or one that `mgg bench` knows."""
    if name == "sbm":
        width, classes = SHAPE.features, SHAPE.classes
        return generate.sbm(60_000, classes=classes, features=width, degree=20.0, homophily=0.9, seed=1)
    return labelled(graphs.read(name), SHAPE)


def compared(folder: Path, case: dict[str, Any]) -> Iterator[Row]:
    """Train a GCN, and rehearse the training; yield a row for each figure that is not 0."""
    job = {"graph": {"file": "graph.h5"}, "model": {"hidden": case["width"]}, "train": {"epochs": EPOCHS}}
    summary = train(folder, job | {"plan": {"transfer": case["transfer"]}}, case["ranks"])
    measured = {
        "epoch ms": summary["epoch_ms"]["min"],
        "memory bytes": max(summary["peak_rss_bytes"]),
        "heap bytes": summary["heap_bytes"],
        "moved bytes": summary["bytes"]["remote"],
    }
    # In a process of its own, as a user would: what this one holds is no part of a rank's memory.
    options = ("--rehearse", str(folder / "job.toml"), "--ranks", str(case["ranks"]))
    predicted = json.loads(model_calibrate.output(1, __file__, *options))
    for part, value in measured.items():
        if value:
            error = round(100 * (predicted[part] / value - 1), 2)
            figures = {"measured": value, "predicted": predicted[part], "error_percent": error}
            yield {"part": part, **case, **figures}


def rehearsed(job: Path, ranks: int) -> dict[str, float]:
    """Return what a rehearsal predicts of a job."""
    found, needs = rehearse(config.load(job), ranks)
    [of_job] = found["jobs"]
    moved = of_job["transfers"][of_job["planned"][0]]
    return {
        "epoch ms": moved["epoch_ms"],
        "memory bytes": max(need["memory"] for need in needs),
        "heap bytes": max(need["heap"] for need in needs),
        "moved bytes": moved["bytes"],
    }


def errors(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the errors of each figure by number of ranks, and of all."""
    for part in dict.fromkeys(row["part"] for row in rows):
        for ranks in [*dict.fromkeys(row["ranks"] for row in rows), "all"]:
            some = [row for row in rows if row["part"] == part and ranks in ("all", row["ranks"])]
            if some:
                absolute = [abs(row["error_percent"]) for row in some]
                about = {"part": part, "ranks": ranks, "cases": len(some)}
                about |= {"median_percent": statistics.median(absolute), "largest_percent": max(absolute)}
                yield about | {"picked": picks(some) if part == "epoch ms" else None}


def picks(rows: Sequence[Row]) -> str:
    """Return in how many groups of rows that differ in their transfer alone the pick was right, and of how many."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in CASE[:3]), []).append(row)
    several, right = [group for group in groups.values() if len(group) > 1], 0
    for group in several:
        picked = min(group, key=lambda row: row["predicted"])
        right += picked["measured"] <= NEAR * min(row["measured"] for row in group)
    return f"{right} of {len(several)}" if several else ""


if __name__ == "__main__":
    run(main)
