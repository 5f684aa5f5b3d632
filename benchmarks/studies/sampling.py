"""Training on the full graph and on sampled batches, by accuracy and time, over seeds (OSDI '23, table 3).

    python benchmarks/studies/sampling.py inputs/pubmed/sage.toml --seeds 10 --threads 1 --batch-size 50
    python benchmarks/studies/sampling.py a.toml b.toml --fanouts 10,10 --set train.epochs=50 -o a.csv -o a.png

Both have the same graph, split, model and epochs, and are evaluated on the full graph. Each run is an `mgg train` in a
process of its own. Times are of an epoch: the median of a run, and of these the median, minimum and maximum over seeds,
in which both take turns. Percentages are accuracies on the test rows, ``below_full_percent`` is the difference of their
means, and ``training_s`` are all epochs of a run, without evaluations.
"""

from __future__ import annotations

import csv
import statistics
import sys
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness import command, run, workers
from harness.plots import draw
from harness.processes import LATEST, train
from harness.results import Results, output_files

from mgg_hpc import config
from mgg_hpc.errors import InputError
from mgg_hpc.runtime import mpi
from mgg_hpc.sizes import numbers_of
from mgg_hpc.training import sampled
from mgg_hpc.training.run_folder import METRICS

MODES = ("full", "sampled")
PERCENT = ("test_percent", "deviation_percent", "worst_percent", "below_full_percent")
SHOWN = ("job", "variant", *PERCENT, "median_ms", "relative_time", "training_s")


@command(__doc__)
@click.argument("jobs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="JOB...")
@click.option("--seeds", type=click.IntRange(1), default=3, help="Runs of each mode.")
@click.option("--fanouts", help="The last layer's first. [default: the job's, else 15,10,5,5,...]")
@click.option("--batch-size", type=click.IntRange(1), help="Training rows of a batch. [default: the job's]")
@click.option("--set", "settings", multiple=True, metavar="SECTION.KEY=VALUE", help="Of all runs.")
@click.option("--threads", type=click.IntRange(1, 1024), help="Of each run. [default: the job's]")
@output_files()
def main(jobs: tuple[Path, ...], seeds: int, files: tuple[Path, ...], **given: Any) -> None:
    if mpi.launched():
        raise InputError("this study starts its runs itself, without a launcher")
    keys = {job: keys_of(job, **given) for job in jobs}
    results = Results("full and sampled training", seeds=seeds)
    for job, by_mode in keys.items():
        rows, found = results.rows, dict[str, list[dict[str, Any]]]({mode: [] for mode in MODES})
        for seed in range(seeds):
            for mode, words in by_mode.items():
                found[mode].append(trained(job, [*words, f"train.seed={seed}"]))
            results.rows = list(rows)
            add(results, job, found)
            results.write(files, draw)  # what is measured stays
    results.show(*SHOWN)


def keys_of(
    job: Path, *, fanouts: str | None, batch_size: int | None, settings: tuple[str, ...], threads: int | None
) -> dict[str, list[str]]:
    """Return the keys of a job's runs, by mode. Raises InputError for a job that cannot be trained in both."""
    given = [*settings, *([f"run.threads={threads}"] if threads else [])]
    loaded = config.load(job, tuple(given))
    hops = numbers_of("fanouts", fanouts) if fanouts else list(loaded.train.fanouts)
    hops = hops or sampled.fanouts_of(loaded.model.layers)
    batches = [f"train.fanouts={hops}", *([f"train.batch_size={batch_size}"] if batch_size else [])]
    keys = {mode: [*given, f"train.mode={mode}"] for mode in MODES}
    keys["sampled"] += batches
    sampled.check(config.load(job, tuple(keys["sampled"])))
    return keys


def trained(job: Path, keys: list[str]) -> dict[str, Any]:
    """Train in a process; return its summary, with the seconds of all epochs. Raises InputError where it fails."""
    with workers.workspace() as folder:
        summary = train(folder, job, keys=keys)
        with (folder / LATEST / METRICS).open(newline="") as file:
            epochs = [float(each["epoch_ms"]) for each in csv.DictReader(file)]
        return summary | {"training_s": sum(epochs) / 1e3}


def add(results: Results, job: Path, runs: dict[str, list[dict[str, Any]]]) -> None:
    """Add the rows of a job: means over seeds."""
    percent = {mode: [100 * each["test_accuracy"] for each in found] for mode, found in runs.items()}
    full, more = statistics.mean(percent["full"]), {}
    for mode, test in percent.items():
        deviation = statistics.stdev(test) if len(test) > 1 else 0.0
        values = (statistics.mean(test), deviation, min(test), full - statistics.mean(test))
        more[mode] = {name: round(value, 3) for name, value in zip(PERCENT, values, strict=True)}
        more[mode]["training_s"] = round(statistics.mean(each["training_s"] for each in runs[mode]), 4)
        more[mode]["batches"] = runs[mode][0]["batches"]
    summary = runs["full"][0]
    columns = {name: summary[name] for name in ("model", "epochs", "backend", "ranks", "threads")}
    columns |= {"graph": summary["graph"]["name"], "edges": summary["graph"]["edges"]}
    ms = {mode: [each["epoch_ms"]["median"] for each in found] for mode, found in runs.items()}
    results.compare(ms, more, job=str(job), **columns)


if __name__ == "__main__":
    run(main)
