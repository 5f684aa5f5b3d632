"""The study of sampling (OSDI '23, table 3): jobs trained on the full graph and on sampled batches, for several seeds.

Both have the same graph, split, model and epochs, and are evaluated on the full graph. Each run is an `mgg train` in a
process of its own; a job's runs of a seed follow each other.
"""

from __future__ import annotations

import csv
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec

from ... import config
from ...errors import InputError
from ...runtime import mpi
from ...training.minibatch import sampled
from ...training.run_folder import METRICS, SUMMARY
from ..bench.harness import document, timing, watch
from ..bench.harness.document import Sheet
from . import sampling_plot
from .sampling_plot import MODES, Curve, by_job
from .table import Files, Row, Table

INPUTS = Path("inputs")


@dataclass(frozen=True, kw_only=True)
class Request:
    """The jobs, seeds and settings of a study.

    jobs: job files. seeds: number of seeds, from 0 on. fanouts: one for each layer, the last layer's first, of jobs
    without train.fanouts; empty: `sampled.fanouts_of`. batch_size: 0 for the job's. settings: other keys,
    "section.key=value". threads: of each run; None: as the job has them.
    """

    jobs: Sequence[Path]
    seeds: int
    fanouts: Sequence[int]
    batch_size: int
    settings: Sequence[str]
    threads: int | None
    files: Files


def jobs_with_graphs(folder: Path = INPUTS) -> list[Path]:
    """Return the job files of a folder's folders that batches can train, and whose graphs are there.

    Raises InputError where there is none.
    """
    jobs = []
    for path in sorted(folder.glob("*/*.toml")):
        settings = config.load(path)
        if settings.model.input != "learned" and Path(settings.graph.file).is_file():
            jobs.append(path)
    if not jobs:
        raise InputError(f"{folder}/*/*.toml: the graph of no job is there; name job files")
    return jobs


def run(request: Request) -> int:
    """Train, print and write. Raises InputError under a launcher, for a job that cannot be, and where a run fails."""
    if mpi.launched():
        raise InputError("mgg study sampling starts its runs itself, without a launcher")
    keys = {job: tuple(_keys(job, request)) for job in request.jobs}
    made, curves = Table("sampling", {}), list[Curve]()
    for job, seed, mode in _order(request):
        with timing.workspace() as folder, watch.cell("sampling", job, f"seed {seed}", mode):
            row, curve = trained(job, mode, (*keys[job], f"train.seed={seed}"), folder)
            made.rows.append(row)
            curves.append(curve)
        made.save(Files(request.files.csv, None), lambda *_: None)  # what there is, should a later run fail
    document.show([], [sheet(made.rows)])
    made.save(request.files, lambda _, path: sampling_plot.draw(made.rows, curves, path))
    return 0


def _order(request: Request) -> Iterator[tuple[Path, int, str]]:
    """Yield the runs in their order."""
    for job in request.jobs:
        for seed in range(request.seeds):
            for mode in MODES:
                yield job, seed, mode


def _keys(job: Path, request: Request) -> Iterator[str]:
    """Yield the keys of all runs of a job. Raises InputError for a job that cannot be, or has no graph."""
    settings = config.load(job, tuple(request.settings))
    if not Path(settings.graph.file).is_file():
        raise InputError(f"{job}: graph.file is {settings.graph.file}, which is not there")
    yield from request.settings
    if request.threads is not None:
        yield f"run.threads={request.threads}"
    layers = settings.model.layers
    fanouts = request.fanouts or settings.train.fanouts or sampled.fanouts_of(layers)
    if len(fanouts) != layers:
        raise InputError(f"{job}: {layers} layers, and fanouts {list(fanouts)}; one for each layer")
    train = msgspec.structs.replace(settings.train, mode="sampled", fanouts=list(fanouts))
    try:
        sampled.check(msgspec.structs.replace(settings, train=train))
    except InputError as error:
        raise InputError(f"{job}: {error}") from error
    yield f"train.fanouts={list(fanouts)}"
    if request.batch_size:
        yield f"train.batch_size={request.batch_size}"


def trained(job: Path, mode: str, keys: Sequence[str], folder: Path) -> tuple[Row, Curve]:
    """Train in a process. folder: for the run's own. Raises InputError where it fails."""
    keys = [
        each for each in keys if mode == "sampled" or not each.startswith(("train.fanouts", "train.batch"))
    ]
    words = [f"--set={each}" for each in (*keys, f"train.mode={mode}", f"run.folder={folder}")]
    command = [sys.executable, "-m", "mgg_hpc", "train", str(job), "--no-progress", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"{job}, {mode}: {' '.join(done.stderr.split()) or done.returncode}")
    written = folder / "latest"
    summary = json.loads((written / SUMMARY).read_text())
    with (written / METRICS).open(newline="") as file:
        epochs = list(csv.DictReader(file))
    row = row_of(str(job), summary, [float(each["epoch_ms"]) for each in epochs])
    return row, curve_of(str(job), mode, epochs)


def row_of(job: str, summary: dict[str, Any], epoch_ms: Sequence[float]) -> Row:
    """Return the table's row of a run. epoch_ms: of all epochs."""
    graph, drawn = summary["graph"], summary.get("sampled", {})
    row = {
        "study": "sampling",
        "job": job,
        **{name: graph[name] for name in ("nodes", "edges")},
        "graph": graph["name"],
    }
    row |= {"backend": summary["backend"], "ranks": summary["ranks"], "threads_per_rank": summary["threads"]}
    row |= {"model": summary["model"], "variant": summary["mode"], "seed": summary["seed"]}
    row |= {"batches": summary["batches"], "epochs": summary["epochs"], "best_epoch": summary["best_epoch"]}
    if drawn:
        row |= {"fanouts": " ".join(map(str, drawn["fanouts"])), "batch_rows": drawn["batch_size"]}
    row |= {f"{split}_percent": round(100 * summary[f"{split}_accuracy"], 3) for split in ("val", "test")}
    row |= {f"{name}_ms": round(value, 4) for name, value in summary["epoch_ms"].items()}
    row |= {"eval_ms": round(summary["eval_ms"]["median"], 4), "training_s": round(sum(epoch_ms) / 1e3, 4)}
    return row | {"peak_rss_bytes": max(summary["peak_rss_bytes"])}


def curve_of(job: str, mode: str, epochs: Sequence[dict[str, str]]) -> Curve:
    """Return the epochs of metrics.csv that were evaluated."""
    found = Curve(job, mode)
    for line, ms in zip(epochs, accumulate(float(each["epoch_ms"]) for each in epochs), strict=True):
        if line["test_accuracy"]:
            found.seconds.append(ms / 1e3)
            found.accuracy.append(100 * float(line["test_accuracy"]))
    return found


def sheet(rows: Sequence[Row]) -> Sheet:
    """Return the table of means over seeds."""
    columns = ["job", "mode", "seeds", "test %", "std", "worst", "full - sampled", "epoch ms", "training s"]
    cells = []
    for job, modes in by_job(rows).items():
        full = statistics.mean(row["test_percent"] for row in modes["full"])
        for mode, runs in modes.items():
            test = [row["test_percent"] for row in runs]
            deviation = statistics.stdev(test) if len(test) > 1 else 0.0
            line = [statistics.mean(test), deviation, min(test), full - statistics.mean(test)]
            line += [statistics.median(row["median_ms"] for row in runs)]
            line += [statistics.mean(row["training_s"] for row in runs)]
            cells.append([job, mode, str(len(runs)), *(f"{value:.2f}" for value in line)])
    return Sheet("full-graph and sampled training", columns, cells)
