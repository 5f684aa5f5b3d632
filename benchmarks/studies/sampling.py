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
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import click
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness import children, command, plots, run, workers

from mgg_hpc import config
from mgg_hpc.errors import InputError
from mgg_hpc.runtime import mpi
from mgg_hpc.tools.bench.results import Results, numbers_of, output_files
from mgg_hpc.training.minibatch import sampled
from mgg_hpc.training.run_folder import METRICS, SUMMARY

MODES = ("full", "sampled")
LOWEST = 25  # percent below the best accuracy: where the axis begins
PERCENT = ("test_percent", "deviation_percent", "worst_percent", "below_full_percent")
SHOWN = ("job", "variant", *PERCENT, "median_ms", "times_first", "training_s")


@dataclass
class Run:
    """A training: its summary, and of each evaluated epoch the seconds of training until its end, and percent right."""

    summary: dict[str, Any]
    seconds: list[float]
    accuracy: list[float]
    training_s: float


Runs = dict[str, list[Run]]  # by mode, in the order of seeds


@command(__doc__)
@click.argument("jobs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="JOB...")
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="Runs of each mode.")
@click.option("--fanouts", help="The last layer's first. [default: the job's, else 15,10,5,5,...]")
@click.option("--batch-size", type=click.IntRange(1), help="Training rows of a batch. [default: the job's]")
@click.option("--set", "settings", multiple=True, metavar="SECTION.KEY=VALUE", help="Of all runs.")
@click.option("--threads", type=click.IntRange(1, 1024), help="Of each run. [default: the job's]")
@output_files()
def main(
    jobs: tuple[Path, ...],
    seeds: int,
    fanouts: str | None,
    batch_size: int | None,
    settings: tuple[str, ...],
    threads: int | None,
    files: tuple[Path, ...],
) -> None:
    if mpi.launched():
        raise InputError("this study starts its runs itself, without a launcher")
    hops = numbers_of("fanouts", fanouts) if fanouts else []
    given = [*settings, *([f"run.threads={threads}"] if threads else [])]
    keys = {job: keys_of(job, given, hops, batch_size) for job in jobs}
    found: dict[Path, Runs] = {}
    results = Results("sampling", seeds=seeds)
    for job, by_mode in keys.items():
        rows, found[job] = results.rows, {mode: [] for mode in MODES}
        for seed in range(seeds):
            for mode, words in by_mode.items():
                found[job][mode].append(trained(job, mode, [*words, f"train.seed={seed}"]))
            results.rows = list(rows)
            add(results, job, found[job])
            results.write(files, lambda results: draw(results, found))  # what is measured stays
    results.show(*SHOWN)


def keys_of(job: Path, given: list[str], fanouts: list[int], batch_size: int | None) -> dict[str, list[str]]:
    """Return the keys of a job's runs, by mode. Raises InputError for a job that cannot be trained in both."""
    settings = config.load(job, tuple(given))
    if not Path(settings.graph.file).is_file():
        raise InputError(f"{job}: graph.file is {settings.graph.file}, which is not there")
    fanouts = fanouts or list(settings.train.fanouts) or sampled.fanouts_of(settings.model.layers)
    batches = [f"train.fanouts={fanouts}", *([f"train.batch_size={batch_size}"] if batch_size else [])]
    keys = {mode: [*given, f"train.mode={mode}"] for mode in MODES}
    keys["sampled"] += batches
    try:
        sampled.check(config.load(job, tuple(keys["sampled"])))
    except InputError as error:
        raise InputError(f"{job}: {error}") from error
    return keys


def trained(job: Path, mode: str, keys: Sequence[str]) -> Run:
    """Train in a process. Raises InputError where it fails."""
    with workers.workspace() as folder:
        words = [f"--set={key}" for key in (*keys, f"run.folder={folder}")]
        train = [sys.executable, "-m", "mgg_hpc", "train", str(job), "--no-progress", *words]
        children.output(train, f"{job}, {mode}")
        summary = json.loads((folder / "latest" / SUMMARY).read_text())
        with (folder / "latest" / METRICS).open(newline="") as file:
            return run_of(summary, list(csv.DictReader(file)))


def run_of(summary: dict[str, Any], epochs: Sequence[dict[str, str]]) -> Run:
    """Return a run. epochs: the lines of metrics.csv."""
    ends = [ms / 1e3 for ms in accumulate(float(each["epoch_ms"]) for each in epochs)]
    at = [i for i, each in enumerate(epochs) if each["test_accuracy"]]
    percent = [100 * float(epochs[i]["test_accuracy"]) for i in at]
    return Run(summary, [ends[i] for i in at], percent, training_s=ends[-1])


def add(results: Results, job: Path, runs: Runs) -> None:
    """Add the rows of a job: means over seeds."""
    percent = {mode: [100 * each.summary["test_accuracy"] for each in found] for mode, found in runs.items()}
    full, more = statistics.mean(percent["full"]), {}
    for mode, test in percent.items():
        deviation = statistics.stdev(test) if len(test) > 1 else 0.0
        values = (statistics.mean(test), deviation, min(test), full - statistics.mean(test))
        more[mode] = {name: round(value, 3) for name, value in zip(PERCENT, values, strict=True)}
        more[mode]["training_s"] = round(statistics.mean(each.training_s for each in runs[mode]), 4)
        more[mode]["batches"] = runs[mode][0].summary["batches"]
    summary = runs["full"][0].summary
    columns = {name: summary[name] for name in ("model", "epochs", "backend", "ranks", "threads")}
    columns |= {"graph": summary["graph"]["name"], "edges": summary["graph"]["edges"]}
    ms = {mode: [each.summary["epoch_ms"]["median"] for each in found] for mode, found in runs.items()}
    results.compare(ms, more, job=str(job), **columns)


def draw(results: Results, found: dict[Path, Runs]) -> Any:
    """Return the figure: for each job the accuracy over the time of training, and the times of epochs."""
    plt, size = plots.load(), (10, 1 + 2.6 * len(found))
    figure = plt.figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(found), 2, squeeze=False, width_ratios=(8, 5))
    for (job, runs), (over_time, epochs) in zip(found.items(), grid, strict=True):
        for at, (mode, each) in enumerate(runs.items()):
            _accuracy(over_time, mode, each, plots.COLOURS[at], plots.LINES[at])
        best = max(line.get_ydata().max() for line in over_time.lines)
        over_time.set_title(str(job), fontsize=9, loc="left")
        over_time.set_xlim(left=0)
        over_time.set_ylim(bottom=max(over_time.get_ylim()[0], best - LOWEST))
        plots.bars(epochs, [row for row in results.rows if row["job"] == str(job)])
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return plots.titled(figure, results)


def _accuracy(axes: Any, mode: str, runs: Sequence[Run], colour: str, line: Any) -> None:
    """Draw the mean accuracy over the mean time, and the range of the seeds."""
    length = min(len(each.seconds) for each in runs)
    seconds = np.mean([each.seconds[:length] for each in runs], axis=0)
    accuracy = np.array([each.accuracy[:length] for each in runs])
    axes.fill_between(seconds, accuracy.min(0), accuracy.max(0), color=colour, alpha=0.2, linewidth=0)
    axes.plot(seconds, accuracy.mean(0), color=colour, linestyle=line, linewidth=1.4, label=mode)
    axes.set_xlabel("seconds of training, without evaluations")
    axes.set_ylabel("test accuracy, %: mean and range")
    axes.grid(True, color=plots.FAINT)


if __name__ == "__main__":
    run(main)
