"""How far predictions are from measurements: whole trainings by every transfer, and their rehearsals.

    python benchmarks/predictions.py
    python benchmarks/predictions.py rmat:16:16 --widths 16,128 --ranks 2 -o found.json

A case is a graph, a width, a number of ranks and a transfer. Measured are the fastest epoch, the peak of memory on the
largest rank, the symmetric heap and the bytes that cross; predicted is what `mgg train --dry-run --as-ranks` prints,
from the calibration of this host, which is measured anew unless --keep is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import click
from harness import command, graphs, options, run, workers
from harness.processes import alone, train
from harness.results import Results, Row, output_files
from harness.shapes import Shape, labelled

from mgg_hpc import config
from mgg_hpc.data import writer
from mgg_hpc.plan.cost_model import TRANSFERS
from mgg_hpc.runtime import calibration
from mgg_hpc.sizes import numbers_of
from mgg_hpc.tools import calibrate
from mgg_hpc.tools.rehearse import rehearse

EPOCHS, SHAPE = 15, Shape(features=64, hidden=16, classes=8, dropout=0.5)
CASE = ("graph", "width", "ranks", "transfer")


@command(__doc__)
@options.graph_names("rmat:15:16", "rmat:17:16", "uniform:16:20")
@options.numbers("widths", "16,64", "Columns of hidden layers.")
@click.option("--ranks", default="1,2,4")
@click.option("--keep", is_flag=True, help="Use the calibration that there is.")
@output_files(pictures=False)
def main(names: tuple[str, ...], widths: list[int], ranks: str, keep: bool, files: tuple[Path, ...]) -> None:
    numbers = sorted({*numbers_of("ranks", ranks)})
    if keep:
        calibration.load()  # refuses where there is none
    else:
        calibrate.process_calibrate(ranks)
    results = Results("predictions")
    with workers.workspace() as folder:
        for name in names:
            writer.write(folder / "graph.h5", labelled(graphs.read(name), SHAPE), force=True)
            for number, width in product(numbers, widths):
                for transfer in TRANSFERS if number > 1 else TRANSFERS[:1]:
                    case = dict(zip(CASE, (name, width, number, transfer), strict=True))
                    results.rows += compared(folder, case)
                    results.write(files)
    results.show()


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
    predicted = alone(rehearsed, folder / "job.toml", case["ranks"])
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


if __name__ == "__main__":
    run(main)
