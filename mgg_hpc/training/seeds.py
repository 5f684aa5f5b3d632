"""`mgg train --seeds N`: train a job with several seeds, and print the mean and the deviation of their scores."""

from __future__ import annotations

import json
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from .. import config
from ..config import Settings
from ..data.clicks.store import open_clicks
from ..data.store import open_graph
from ..errors import InputError
from ..runtime import exit_code, mpi
from ..sizes import counted
from . import report, run_folder
from .checkpoints import resume
from .dlrm.trainer import TITLES
from .metrics import METRICS
from .screen import duration
from .train import Shown, begin, train

MOST = 2**63 - 1  # train.seed of a job


def process_seeds(path: Path, overrides: tuple[str, ...], count: int, options: Shown) -> int:
    """Train with ``count`` seeds, from train.seed on, each in a folder of its own; return the exit code.

    A seed's runs are in RUNS/seed-N, RUNS being run.folder. One that has ended is not trained again, and one that was
    stopped goes on. Raises InputError for a run there of another job or another graph.
    """
    comm = begin()
    with mpi.agree(comm):
        settings = config.load(path, overrides, clicks=True)
        jobs = settings_of(settings, count)
        found = [_check(job) for job in jobs if comm.rank == 0]
        if any(found) and settings.run.resume != "auto":
            report.print_line(
                f'--seeds goes on with the runs in {settings.run.folder}, as run.resume = "auto"'
            )
    summaries: list[dict[str, Any]] = []
    for job in jobs:
        label = f"seed {job.train.seed}, epoch"
        shown = replace(options, label=label, whole=False, opens=options.opens and not summaries)
        trained = train(job, comm, shown)
        if comm.rank == 0:
            run = Path(job.run.folder) / run_folder.find(Path(job.run.folder)).name
            summaries.append(_summary(run))
            options.screen.hide()
            _print_seed(job.train.seed, summaries[-1], run, trained=trained)
    if comm.rank == 0:
        print_scores(summaries)
        report.print_next(f"mgg runs {shlex.quote(str(Path(jobs[0].run.folder).parent))}")
    exit_code.record(0)
    return 0


def settings_of(settings: Settings, count: int) -> list[Settings]:
    """Return the job of each seed. Raises InputError for seeds beyond those that a job may have."""
    seeds = range(settings.train.seed, settings.train.seed + count)
    if seeds[-1] > MOST:
        raise InputError(f"--seeds {count}: from train.seed = {seeds[0]} on; seeds are 0 .. {MOST}")
    return [
        msgspec.structs.replace(
            settings,
            train=msgspec.structs.replace(settings.train, seed=seed),
            run=msgspec.structs.replace(
                settings.run, folder=f"{settings.run.folder}/seed-{seed}", resume="auto"
            ),
        )
        for seed in seeds
    ]


def _check(job: Settings) -> bool:
    """Return whether a seed has a run. Raises InputError if it is of another job: its scores would be counted."""
    run = run_folder.latest(Path(job.run.folder))
    if run is None:
        return False
    advice = "put it back, or name another run.folder"
    before = config.load(run / run_folder.JOB, of_run=True, clicks=True)
    resume.check_settings(run, before, job, advice)
    old, new = before.train, job.train
    if old.patience != new.patience or old.epochs > new.epochs:
        raise InputError(
            f"{run}: was started with train.epochs = {old.epochs} and train.patience = {old.patience}, and now they "
            f"are {new.epochs} and {new.patience}; {advice}"
        )
    if resume.is_finished(run):
        summary = _summary(run)
        with (
            open_clicks(Path(job.dlrm.data)) if job.dlrm.data else open_graph(Path(job.graph.file)) as opened
        ):
            if summary.get("graph", summary)["uuid"] != opened.uuid:
                kind = "other clicks" if job.dlrm.data else "another graph"
                raise InputError(f"{run}: was trained on {kind} than {opened.path}; {advice}")
    return True


def _summary(run: Path) -> dict[str, Any]:
    """Return the summary of a run that has ended. Raises InputError if it is damaged."""
    path = run / run_folder.SUMMARY
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: is damaged ({error}); remove the run, which is trained again then"
        ) from error
    return found


def _print_seed(seed: int, summary: dict[str, Any], run: Path, *, trained: bool) -> None:
    """Print a line on the run of a seed."""
    scores = [f"{name} {score:.4f}" for name, score in _scores(summary).items()]
    how = duration(summary["seconds"]) if trained else "as before"
    epoch = summary.get("best_epoch", summary["epochs"])
    report.print_line(f"seed {seed}: {', '.join(scores)}, epoch {epoch}, {how}; {run}")


def print_scores(summaries: Sequence[dict[str, Any]]) -> None:
    """Print the mean, the standard deviation and the range of the scores of runs with several seeds."""
    every, count, facts = [_scores(summary) for summary in summaries], len(summaries), {}
    title = f" {METRICS[summaries[0]['metric']].title}" if "metric" in summaries[0] else ""
    for name in every[0]:
        scores = [each[name] for each in every]
        deviation = statistics.stdev(scores) if count > 1 else 0.0
        facts[f"{name}{title}"] = (
            f"{statistics.mean(scores):.4f} ± {deviation:.4f}, from {min(scores):.4f} to {max(scores):.4f}"
        )
    report.print_line(f"\n{counted(count, 'seed')}, mean ± standard deviation:")
    report.print_facts(facts)


def _scores(summary: dict[str, Any]) -> dict[str, float]:
    """Return the compared scores: of clicks, or of test and validation nodes (of training nodes without either)."""
    if "metric" not in summary:
        return {title: summary[name] for name, title in TITLES.items()}
    splits = [split for split in ("test", "val") if summary["splits"][split]] or ["train"]
    return {report.SPLIT_NAMES[split]: summary[f"{split}_accuracy"] for split in splits}
