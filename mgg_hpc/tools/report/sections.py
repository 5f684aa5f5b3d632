"""The sections of a report: they take the figures' and tables' numbers from the runs."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import config, sizes
from ...errors import InputError
from ...training.metrics import METRICS
from ...training.profile.phases import PROFILER, breakdown
from ...training.report import counted
from . import figures, timeline
from .least import Crossing, crossing
from .page import Section
from .read import Run

SPLITS = {"train": ":", "validation": "-", "test": "--"}
COLUMNS = {"train": "train_accuracy", "validation": "val_accuracy", "test": "test_accuracy"}
LOSSES = {"train": "loss", "validation": "val_loss"}
TIMES = {"training step": "epoch_ms", "evaluation": "eval_ms"}
MOST_ROWS = 64  # rows of a run in a table over ranks
MOST_MATCHED = 256  # ranks up to which the least number of rows is found
STYLES = {"training step": "-", "evaluation": "--"}


def overview(runs: Sequence[Run]) -> Section:
    """Return the section with the settings and results of all runs, side by side."""
    section = Section("Runs")
    rows: dict[str, list[str]] = {}
    for run in runs:
        for name, value in _facts(run).items():
            rows.setdefault(name, [""] * len(runs))[runs.index(run)] = value
    section.table(["", *(run.name for run in runs)], ([name, *cells] for name, cells in rows.items()))
    return section


def _facts(run: Run) -> dict[str, str]:
    found = run.summary
    if found is None:
        last = {name: f"{values[-1]:.6g}" for name, values in run.metrics.items() if run.epochs}
        state = f"has not ended: {run.epochs} of at most {run.settings.train.epochs} epochs"
        return {"state": state, "loss": last.get("loss", ""), "validation": last.get("val_accuracy", "")}
    metric, epoch, moved = METRICS[found["metric"]].title, found["epoch_ms"], found["bytes"]
    return {
        "state": "ended",
        "model": found["model"],
        "graph": f"{found['graph']['name']}: {found['graph']['nodes']:,} nodes, {found['graph']['edges']:,} edges",
        "ranks": f"{found['ranks']}, {counted(found['threads'], 'thread')} each",
        "backend": found["backend"],
        "transfer": found["transfer"],
        "ps, dist, wpb": ", ".join(f"{found['plan'][name]}" for name in ("ps", "dist", "wpb")),
        f"test {metric}": f"{found['test_accuracy']:.4f}",
        f"validation {metric}": f"{found['val_accuracy']:.4f}",
        "best epoch": f"{found['best_epoch']} of {found['epochs']}",
        "final loss": f"{found['final_loss']:.6f}",
        "epoch, ms": f"{epoch['median']:.2f} ({epoch['min']:.2f} to {epoch['max']:.2f})",
        "aggregation, ms": f"{found['aggregate_ms']['median']:.2f}",
        "evaluation, ms": f"{found['eval_ms']['median']:.2f}",
        "remote rows an epoch": f"{found['remote_rows']:,} ({sizes.shown(moved['remote'])})",
        "seed": f"{found['seed']}",
    }


def learning(runs: Sequence[Run]) -> Section:
    """Return the section on loss and scores over epochs."""
    section = Section("Loss and scores")
    if not any(run.epochs for run in runs):
        return section
    metrics = {METRICS[run.summary["metric"]].title for run in runs if run.summary}
    panels = [
        ("loss", True, [_columns(run, LOSSES) for run in runs]),
        (metrics.pop() if len(metrics) == 1 else "score", False, [_columns(run, COLUMNS) for run in runs]),
    ]
    section.figure(_curves("learning", "Loss and scores over epochs", panels, runs, SPLITS))
    return section


def times(runs: Sequence[Run]) -> Section:
    """Return the section on the time of epochs, by phase and rank."""
    section = Section("Time")
    if any(run.epochs for run in runs):
        panels = [("ms", True, [_columns(run, TIMES) for run in runs])]
        section.figure(_curves("times", "Time of each epoch", panels, runs, STYLES))
    bars = []
    for run in runs:
        ranks, epochs = _ranks(run), (run.summary or {}).get("timed_epochs", 0)
        for rank, each in enumerate(ranks[: figures.MOST_RANKS] if epochs else []):
            label = f"{run.name}: rank {rank}" if len(runs) > 1 else f"rank {rank}"
            spent = {phase: ms / epochs for phase, ms in each["phases_ms"].items() if phase != PROFILER}
            bars.append((label, spent))
    if bars:
        title = "Mean time of an epoch by phase"
        section.figure(
            figures.with_settings(partial(figures.stacked, "phases", title, "ms, mean of an epoch", bars))
        )
    for run in runs:
        if _ranks(run) and run.summary and run.summary["timed_epochs"]:
            _breakdown(section, run, run.summary)
    return section


def _breakdown(section: Section, run: Run, summary: dict[str, Any]) -> None:
    rows = [
        [
            row["phase"],
            *(f"{row[name]:.1f}" for name in ("min", "mean", "max")),
            f"{row['share']:.1%}",
            f"{row['imbalance']:.2f}",
        ]
        for row in breakdown([each["phases_ms"] for each in summary["per_rank"]])
        if row["max"] > 0
    ]
    section.say(f"{run.name}: ms of {summary['timed_epochs']} epochs, over {summary['ranks']} ranks")
    section.table(["phase", "min", "mean", "max", "share", "imbalance"], rows)


def balance(runs: Sequence[Run], least: bool) -> Section:
    """Return the section on the rows and bytes of each rank, beside the least number of rows that must cross.

    least: whether to find that number, which takes time.
    """
    section = Section("What crosses, and balance")
    known = False
    for number, run in enumerate(runs):
        ranks = _ranks(run)
        if not ranks or run.summary is None or len(ranks) < 2:
            continue
        found, why = _crossing(run, run.summary) if least else (None, "--no-least was given")
        columns: dict[str, Sequence[float]] = {
            "a row an edge": [each["remote_edges"] for each in ranks],
            "each row once": [each["halo_rows"] for each in ranks],
        }
        if found is not None:
            columns["least"] = found.least.sum(axis=1).tolist()
        shown, title = ranks[: figures.MOST_RANKS], f"Rows that come to each rank of {run.name}"
        section.say(f"{run.name}: rows that come to each rank in one aggregation, by transfer")
        groups = [f"{rank}" for rank in range(len(shown))]
        series = {name: values[: len(shown)] for name, values in columns.items()}
        draw = partial(figures.grouped, f"rows{number}", title, "rows", groups, series)
        section.figure(figures.with_settings(draw))
        head = ["rank", "host", "rows", "local edges", "remote edges", "each row once"]
        head += [*(["least"] if found is not None else []), "moved an epoch", "bytes an epoch"]
        section.table(head, _balance(ranks, columns.get("least")))
        if found is not None:
            known = True
            _compare(section, run.summary, found)
        if why:
            section.say(f"The least that must cross is left out: {why}.")
    if section.parts:
        section.say(
            "Imbalance: the most edges of a rank over the mean of all ranks. Self loops that a model adds are counted."
        )
    if known:
        section.say(
            "Least: a minimum vertex cover of the edges between each pair of ranks. For each edge its source's row "
            "crosses, or a partial sum for its destination. The transfers here move rows alone, at best each row once."
        )
    return section


def _balance(ranks: Sequence[dict[str, Any]], least: Sequence[float] | None) -> list[list[str]]:
    names = ("rows", "local_edges", "remote_edges", "halo_rows")
    rows = []
    for rank, each in enumerate(ranks[:MOST_ROWS]):
        counts = [each[name] for name in names] + ([least[rank]] if least is not None else [])
        remote = [f"{each['remote_rows']:,}", sizes.shown(each["bytes"]["remote"])]
        rows.append([f"{rank}", each["host"], *(f"{int(count):,}" for count in counts), *remote])
    edges = [each["local_edges"] + each["remote_edges"] for each in ranks]
    mean = sum(edges) / len(edges)
    columns = [[each[name] for each in ranks] for name in names] + ([least] if least is not None else [])
    total = sum(each["bytes"]["remote"] for each in ranks)
    moved = [f"{sum(each['remote_rows'] for each in ranks):,}", sizes.shown(total)]
    if len(ranks) > MOST_ROWS:
        rows.append([f"{len(ranks) - MOST_ROWS} more", *["..."] * (len(rows[0]) - 1)])
    rows.append(["all", f"imbalance {max(edges) / mean if mean else 1:.2f}"])
    rows[-1] += [*(f"{int(sum(column)):,}" for column in columns), *moved]
    return rows


def _compare(section: Section, summary: dict[str, Any], found: Crossing) -> None:
    """Compare the bytes that an epoch moved with the least, if the graph explains the bytes that it moved."""
    rows = {"halo": found.halo.sum(), "direct": found.edges.sum(), "get": found.edges.sum()}
    if not all(each["transfer"] in rows for each in summary["exchanges"]):
        return
    moved = sum(int(rows[each["transfer"]]) * each["row_bytes"] for each in summary["exchanges"])
    least = int(found.least.sum()) * sum(each["row_bytes"] for each in summary["exchanges"])
    if moved == summary["bytes"]["remote"] and least:
        section.say(
            f"An epoch moved {sizes.shown(moved)}, which is {moved / least:.2f} times the least, {sizes.shown(least)}, "
            f"over its {len(summary['exchanges'])} aggregations."
        )


def _crossing(run: Run, summary: dict[str, Any]) -> tuple[Crossing | None, str]:
    """Return the rows that cross between ranks for the run's graph, or None and the reason why they are unknown."""
    path, bounds = Path(run.settings.graph.file), np.array(summary["bounds"], dtype=np.int64)
    if len(bounds) - 1 > MOST_MATCHED:
        return (
            None,
            f"it is found for each pair of ranks, and only where there are at most {MOST_MATCHED} ranks",
        )
    if not path.is_file():
        return None, f"{path} does not exist"
    try:
        found = crossing(path, bounds)
    except (InputError, ValueError, IndexError) as error:
        return None, str(error).rstrip(".")
    halo = [each["halo_rows"] for each in summary["per_rank"]]
    if found.halo.sum(axis=1).tolist() != halo:
        return None, f"{path} has other rows, or in another order, than when the run trained on it"
    return found, ""


def memory(runs: Sequence[Run]) -> Section:
    """Return the section on the estimated memory of each rank and the measured peak."""
    section = Section("Memory")
    series: dict[str, list[float]] = {"estimate": [], "measured peak": []}
    groups: list[str] = []
    rows: list[list[str]] = []
    for run in runs:
        if run.summary is None or "estimated_bytes" not in run.summary:
            continue
        pairs = zip(run.summary["estimated_bytes"], run.summary["peak_rss_bytes"], strict=True)
        for rank, (estimate, peak) in enumerate(pairs):
            label = f"{run.name}: {rank}" if len(runs) > 1 else f"{rank}"
            if rank < MOST_ROWS:
                rows.append(
                    [label, sizes.shown(estimate), sizes.shown(peak), f"{peak / max(1, estimate):.2f}"]
                )
                rows[-1].append(sizes.shown(run.summary["heap_bytes"]))
            if rank < figures.MOST_RANKS:
                groups.append(label)
                series["estimate"].append(estimate / 2**20)
                series["measured peak"].append(peak / 2**20)
    if rows:
        draw = partial(figures.grouped, "memory", "Memory of each rank", "MiB", groups, series)
        section.figure(figures.with_settings(draw))
        section.table(["rank", "estimate", "measured peak", "over the estimate", "symmetric memory"], rows)
    return section


def tuner(runs: Sequence[Run]) -> Section:
    """Return the section on the search for ps, dist and wpb."""
    section = Section("The tuner's path")
    found = [(run.name, row) for run in runs for row in (run.tuning or {}).get("rows", ())]
    for number, (name, row) in enumerate(found):
        steps, chosen = row["steps"], row["chosen"]
        said = ", ".join(f"{knob} {value}" for knob, value in chosen.items()).replace("dist -1", "dist auto")
        how = "not searched"
        if row["source"] != "default":
            how = f"{row['source']}, {row['gain']:.0%} less time than by default"
        section.say(f"{name}, {row['rows']}: {said} ({how})")
        if steps:
            title = f"Settings that {name} has tried for {row['rows']}"
            section.figure(
                figures.with_settings(partial(figures.path, f"tuner{number}", title, steps, chosen))
            )
    return section


def lanes(runs: Sequence[Run]) -> Section:
    """Return the section with the timeline of one epoch of each profiled run."""
    section, traced = Section("Timeline of an epoch"), sum(bool(run.traces) for run in runs)
    for number, run in enumerate(runs):
        if run.profile is not None and len(run.traces) < run.profile["ranks"]:
            ranks = run.profile["ranks"]
            section.say(f"{run.name}: the traces of {ranks - len(run.traces)} of {ranks} ranks are missing")
        found = timeline.read(run.traces, traced) if run.traces else None
        if found is None:
            continue
        title = f"Timeline of epoch {found.epoch} of {run.name}"
        section.say(f"{run.name}: epoch {found.epoch}, as it was profiled")
        section.figure(figures.with_settings(partial(figures.timeline, f"lanes{number}", title, found)))
        if found.longest is not None:
            section.say(
                "The lower part shows the longest aggregation during which rows arrived. A round arrives while the "
                "rank sums the rows that it has; if the round is late, the rank waits for it."
            )
        shares = [each for each in (run.profile or {}).get("exchanges", ()) if "hidden_share" in each]
        if shares:
            head = ["aggregation", "transfer", "both, ms", "sums alone", "transfer alone", "hidden"]
            rows = [
                [f"layer {each['layer']} {each['direction']}", each["transfer"]]
                + [f"{each[name]:.3f}" for name in ("both_ms", "sums_ms", "transfer_ms")]
                + [f"{each['hidden_share']:.2f}"]
                for each in shares
            ]
            section.table(head, rows)
    if not section.parts:
        section.say("No run was profiled: `mgg train --profile` writes the traces that a timeline needs.")
    return section


def machines(runs: Sequence[Run]) -> Section:
    """Return the section on the machine of each run."""
    section = Section("Machine")
    known = [(run.summary or {}).get("machine", {}) for run in runs]
    names = dict.fromkeys(name for each in known for name in each)
    rows: list[list[str]] = []
    marked: set[int] = set()
    for name in names:
        values = [
            sizes.shown(each[name]) if name == "memory_bytes" else str(each.get(name, "")) for each in known
        ]
        if len(set(values)) > 1:
            marked.add(len(rows))
        rows.append([name.replace("_bytes", "").replace("_", " "), *values])
    if rows:
        section.table(["", *(run.name for run in runs)], rows, frozenset(marked))
    return section


def settings(runs: Sequence[Run]) -> Section:
    """Return the section with the job of each run; keys whose values differ come first."""
    section = Section("Job")
    trees = [_flat(run) for run in runs]
    differ = [key for key in trees[0] if len({tree[key] for tree in trees}) > 1]
    keys = [*differ, *(key for key in trees[0] if key not in differ)]
    rows = [[key, *(tree[key] for tree in trees)] for key in keys]
    section.table(["key", *(run.name for run in runs)], rows, frozenset(range(len(differ))))
    return section


def _flat(run: Run) -> dict[str, str]:
    """Return the values of a run's job by section and key."""
    tree = tomllib.loads(config.dumps(run.settings))
    return {f"{section}.{key}": str(value) for section, keys in tree.items() for key, value in keys.items()}


def _ranks(run: Run) -> list[dict[str, Any]]:
    """Return the part of the summary for each rank, which summaries of earlier versions lack."""
    return list((run.summary or {}).get("per_rank", ()))


def _columns(run: Run, names: dict[str, str]) -> dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Return a run's curves by kind, for the columns that have a finite number. names: the column of each kind."""
    epochs = run.metrics["epoch"]
    found = {kind: run.metrics[name] for kind, name in names.items() if name in run.metrics}
    return {kind: (epochs, values) for kind, values in found.items() if np.isfinite(values).any()}


def _curves(name: str, title: str, panels: Any, runs: Sequence[Run], styles: dict[str, str]) -> str:
    draw: Callable[[], str] = partial(figures.curves, name, title, panels, [run.name for run in runs], styles)
    return figures.with_settings(draw)
