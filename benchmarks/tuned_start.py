"""Compare the time of runs that take known settings from the cache with runs whose job file has the same settings.

    python benchmarks/tuned_start.py
    python benchmarks/tuned_start.py --graph rmat:19:16 --turns 15

A GCN whose layers all have rows of 64 bytes is trained with plan.tune = "full", and one of the settings found is kept
for all of its aggregations, in a cache folder of its own. Then two runs take turns: one with plan.tune = "auto", which
reads that folder, and one with plan.tune = "never" and ps, dist and wpb in the job file. Both must give the same
losses. Times are of whole processes, from start to end, and of epochs.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click
import tomli_w

from mgg_hpc.data import generate, writer
from mgg_hpc.errors import WRONG_INPUT, InputError
from mgg_hpc.runtime import cores
from mgg_hpc.runtime.backends.arguments import BY_WIDTH
from mgg_hpc.runtime.turns import take_turns
from mgg_hpc.tools import model_calibrate
from mgg_hpc.training.tuning.tuner import LONGEST

WIDTH = 16  # values of a row, of every layer
EPOCHS = 60


@click.command(help=__doc__)
@click.option("--graph", default="rmat:17:16", show_default=True, help="rmat:SCALE:DEGREE.")
@click.option("--ranks", type=click.IntRange(1), default=1, show_default=True)
@click.option("--turns", type=click.IntRange(1), default=11, show_default=True)
def main(graph: str, ranks: int, turns: int) -> None:
    """Measure and print."""
    kind, *numbers = graph.split(":")
    if kind != "rmat" or len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
        raise InputError(f"--graph {graph}: expected rmat:SCALE:DEGREE, such as rmat:17:16")
    with tempfile.TemporaryDirectory(prefix="mgg-tuned-start-") as text:
        folder = Path(text)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        writer.write(
            folder / "graph.h5", generate.rmat(*map(int, numbers), seed=0, features=WIDTH, classes=WIDTH)
        )
        train(folder, ranks, {"tune": "full"}, LONGEST + 1)
        chosen = found(folder)
        dist = "auto" if chosen["dist"] == BY_WIDTH else chosen["dist"]
        given = {"tune": "never", "ps": chosen["ps"], "dist": dist, "wpb": chosen["wpb"]}
        runs = {"cache": {"tune": "auto"}, "job file": given}
        taken = take_turns(
            {name: partial(train, folder, ranks, plan, EPOCHS) for name, plan in runs.items()}, turns
        )
    show(graph, ranks, chosen, taken)


def train(folder: Path, ranks: int, plan: dict[str, Any], epochs: int) -> dict[str, Any]:
    """Train once; return the seconds of the whole run, the ms of its epochs, its loss and what was tuned."""
    number = len(list(folder.glob("run*")))
    job = {
        "graph": {"file": str(folder / "graph.h5")},
        "model": {"hidden": WIDTH},
        "train": {"epochs": epochs},
        "plan": {"transfer": "direct", **plan},
        "run": {"folder": str(folder / f"run{number}")},
    }
    path = folder / "job.toml"
    path.write_text(tomli_w.dumps(job))
    began = time.perf_counter()
    model_calibrate.output(ranks, "-c", model_calibrate.TRAIN, str(path))
    seconds = time.perf_counter() - began
    (file,) = (folder / f"run{number}").glob("**/summary.json")
    summary = json.loads(file.read_text())
    return {
        "seconds": seconds,
        "epoch_ms": summary["epoch_ms"]["median"],
        "loss": summary["final_loss"],
        "tuned": summary["tuned"],
    }


def found(folder: Path) -> dict[str, int]:
    """Return the setting of the first entry of the cache folder, after giving it to all others."""
    entries = sorted((folder / "cache" / "mgg-hpc" / "tuned").glob("*.json"))
    chosen: dict[str, int] = json.loads(entries[0].read_text())["chosen"]
    for entry in entries:
        entry.write_text(json.dumps(json.loads(entry.read_text()) | {"chosen": chosen}))
    return chosen


def show(graph: str, ranks: int, chosen: dict[str, int], taken: dict[str, Sequence[dict[str, Any]]]) -> None:
    """Print times of both runs, and their ratio. Raises RuntimeError where they did not do the same."""
    cached, given = taken["cache"], taken["job file"]
    if len({run["loss"] for run in (*cached, *given)}) > 1 or not all(run["tuned"] for run in cached):
        raise RuntimeError("the runs did not train the same, or took nothing from the cache")
    print(
        f"{graph}, {ranks} ranks, {chosen}; {cores.processor()}, {datetime.now(UTC):%Y-%m-%d}; {len(cached)} turns"
    )
    for what, unit in (("seconds", "s"), ("epoch_ms", "ms an epoch")):
        ratios = [one[what] / other[what] for one, other in zip(cached, given, strict=True)]
        middle = (statistics.median(run[what] for run in runs) for runs in (cached, given))
        shown = ", ".join(f"{name} {value:.3f} {unit}" for name, value in zip(taken, middle, strict=True))
        print(
            f"{shown}; ratio {statistics.median(ratios):.4f} (median), {min(ratios):.4f} to {max(ratios):.4f}"
        )


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(WRONG_INPUT)
