"""How far predictions are from measurements: whole trainings by every transfer, and their rehearsals.

Each cell is a graph, a width, a number of ranks and a transfer. Measured are the fastest epoch, the peak of memory on
the largest rank, the symmetric heap and the bytes that cross; predicted is what `mgg train --dry-run --as-ranks` says,
from the calibration of this host, which is measured anew unless --keep is given.

    python benchmarks/model_accuracy.py
    python benchmarks/model_accuracy.py --graphs rmat:16:16 --widths 16,128 --ranks 2 --json found.json
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from mgg_hpc import config
from mgg_hpc.data import generate, writer
from mgg_hpc.data.graph import Graph
from mgg_hpc.errors import WRONG_INPUT, InputError
from mgg_hpc.plan.cost_model import TRANSFERS
from mgg_hpc.tools import model, model_calibrate
from mgg_hpc.tools.bench.harness import document
from mgg_hpc.tools.bench.harness.document import Sheet
from mgg_hpc.tools.model_rehearsal import rehearse

NEAR = 1.05  # times the fastest: as good, where turns differ by more
EPOCHS, FEATURES, CLASSES = 15, 64, 8


@click.command()
@click.option("--graphs", default="rmat:15:16,rmat:17:16,sbm", help="rmat:SCALE:DEGREE or sbm, with commas.")
@click.option("--widths", default="16,64", help="Columns of hidden layers.")
@click.option("--ranks", default="1,2,4")
@click.option("--keep", is_flag=True, help="Use the calibration that there is.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all cells to this file.")
@click.option("--rehearse", "job", type=click.Path(path_type=Path), hidden=True)
def main(graphs: str, widths: str, ranks: str, keep: bool, json_path: Path | None, job: Path | None) -> None:
    """Print errors of predictions and how often the best transfer was picked."""
    if job is not None:
        print(json.dumps(rehearsed(job, int(ranks))))
        return
    given = {name: named(name) for name in graphs.split(",")}
    sizes = [int(width) for width in widths.split(",")]
    if not keep:
        model_calibrate.process_calibrate(ranks)
    cells = []
    with tempfile.TemporaryDirectory(prefix="mgg-accuracy-") as text:
        for name, graph in given.items():
            path = Path(text) / f"{name.replace(':', '-')}.h5"
            writer.write(path, graph)
            for number in model.numbers_of_ranks(ranks):
                for width in sizes:
                    for transfer in TRANSFERS if number > 1 else TRANSFERS[:1]:
                        about = {"graph": name, "width": width, "ranks": number, "transfer": transfer}
                        cells += trained(path, about)
    if json_path is not None:
        json_path.write_text(json.dumps(cells, indent=1) + "\n")
    document.show([], sheets(cells))


def named(name: str) -> Graph:
    """Return a graph with features and classes: rmat:SCALE:DEGREE, or communities of 20 neighbours."""
    kind, *numbers = name.split(":")
    if name == "sbm":
        return generate.sbm(60_000, classes=CLASSES, features=FEATURES, degree=20.0, homophily=0.9, seed=1)
    if kind != "rmat" or len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
        raise InputError(f"--graphs {name}: expected sbm, or rmat:SCALE:DEGREE such as rmat:15:16")
    return generate.rmat(*map(int, numbers), 0, features=FEATURES, classes=CLASSES)


def trained(path: Path, about: dict[str, Any]) -> list[dict[str, Any]]:
    """Train a GCN on so many ranks, and rehearse it; return the cells of both."""
    job, run = path.with_suffix(".toml"), path.with_suffix("") / "-".join(map(str, about.values()))
    job.write_text(
        f'[graph]\nfile = "{path}"\n[model]\nhidden = {about["width"]}\n[train]\nepochs = {EPOCHS}\n'
        f'[run]\nfolder = "{run}"\n[plan]\ntransfer = "{about["transfer"]}"\n'
    )
    model_calibrate.output(about["ranks"], "-c", model_calibrate.TRAIN, str(job))
    (file,) = run.glob("**/summary.json")
    summary = json.loads(file.read_text())
    measured = {
        "epoch": summary["epoch_ms"]["min"],
        "memory": max(summary["peak_rss_bytes"]),
        "heap": summary["heap_bytes"],
        "bytes": summary["bytes"]["remote"],
    }
    # In a process of its own, as a user would: what this one holds is no part of a rank's memory.
    options = ("--rehearse", str(job), "--ranks", str(about["ranks"]))
    predicted = json.loads(model_calibrate.output(1, __file__, *options))
    return [
        {"what": what, **about, "measured": measured[what], "predicted": predicted[what]}
        for what in measured
        if measured[what]
    ]


def rehearsed(job: Path, ranks: int) -> dict[str, float]:
    """Return what a rehearsal predicts of a job: ms of an epoch, and bytes."""
    found, needs = rehearse(config.load(job), ranks)
    [told] = found["jobs"]
    moved = told["transfers"][told["planned"][0]]
    return {
        "epoch": moved["epoch_ms"],
        "memory": max(need["memory"] for need in needs),
        "heap": max(need["heap"] for need in needs),
        "bytes": moved["bytes"],
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
                right, of = picks(some) if what == "epoch" else (0, 0)
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
