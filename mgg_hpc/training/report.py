"""Output of a run on stdout: its start, plan and result as lines and tables."""

from __future__ import annotations

import os
import shlex
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from rich.text import Text

from .. import sizes
from ..config import FeaturesSettings
from ..nn.inputs.host import HostFeatures
from ..nn.inputs.tiered import TieredFeatures
from ..runtime.exit_code import RANKS
from ..runtime.tiers.place import FILE
from ..sizes import counted
from . import memory
from .job import Job
from .metrics import METRICS
from .profile.phases import breakdown
from .screen import console, duration, print_line
from .tuning.target import shown

NAMES = 10  # columns of the names of facts about a job
MANY = 4  # most ranks whose memory is printed in one line
SPLIT_NAMES = {"train": "training", "val": "validation", "test": "test"}
INPUTS = {
    "features": ("feature",),
    "learned": ("learned column",),
    "degree": ("column for degrees", "columns for degrees"),
}
BETWEEN_RANKS = ("wait for peers", "sum gradients")  # phases that one rank does not have


def print_facts(facts: Mapping[str, str], names: int = 0) -> None:
    """Print a line for each fact: its name, and its text, of which a terminal breaks long ones at blanks.

    names: columns of the names. [default: as the longest needs]
    """
    screen, names = console(), names or max(map(len, facts)) + 2
    room = max(20, screen.width - names) if screen.is_terminal else sys.maxsize
    for name, text in facts.items():
        lines = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False)
        label = Text(name.ljust(names), style="bold")
        screen.print(label + Text(("\n" + " " * names).join(lines)), soft_wrap=True)


def print_start(job: Job, fullest: tuple[int, int], *, bound: bool = False) -> None:
    """Print what is trained, and on what. fullest: as returned by `memory.fullest`. bound: as in `memory.Estimate`."""
    part, settings, ranks = job.part, job.settings, job.comm.size
    model, train, on_gpu = settings.model, settings.train, job.backend.capabilities.device != "cpu"
    units = f"{model.heads} heads of {model.hidden}" if model.name == "gat" else str(model.hidden)
    parameters = sum(each.numel() for each in job.model.parameters())
    parameters += part.nodes * part.features if job.learned is not None else 0
    described = (
        f"{model.name}, {counted(model.layers, 'layer')}, {units} hidden units, dropout {model.dropout:g}"
    )
    if model.module:
        described = job.model.name
    facts = {
        "graph": f"{part.name}: {counted(part.nodes, 'node')}, {counted(part.edges, 'edge')}, "
        f"{counted(part.features, *INPUTS[model.input])}, {counted(part.classes, 'class', 'classes')}"
        + (", several a node" if part.multilabel else ""),
        "model": f"{described}, {counted(parameters, 'parameter')}",
        "splits": ", ".join(
            f"{count:,} {SPLIT_NAMES[split]}" for split, count in job.labels.totals.items() if count
        )
        + " nodes",
        "epochs": f"{train.epochs:,}{_kept(job)}",
    }
    if job.sampled is not None:
        fanouts = ", ".join("all" if each < 0 else f"{each:,}" for each in job.sampled.how.fanouts)
        facts["batches"] = (
            f"{job.sampled.steps:,} an epoch, of {counted(job.sampled.how.batch_size, 'node')}, fanouts {fanouts}"
            + (
                f", drawn by the {job.sampled.batches.sampler.place}"
                if job.backend.sampling is not None
                else ""
            )
        )
    if isinstance(job.x, TieredFeatures) and settings.features != FeaturesSettings():
        shares = {name: f" ({share:.1%})" for name, share in job.x.expected.items()}
        held = [f"{name} {counted(rows, 'row')}{shares.get(name, '')}" for name, rows in job.x.rows.items()]
        expected = " of the reads that are expected" * bool(shares)
        facts["features"] = f"{', '.join(held)}{expected}; by {job.x.score}"
    if job.streamed is not None:
        where = f"files in {settings.plan.scratch}" if settings.plan.scratch else "the host's memory"
        room = sizes.shown(job.streamed.streaming.memory)
        facts["streamed"] = f"from {where}, through {room} a rank"
    threads = counted(job.backend.options.threads, "thread") + (" each" if ranks > 1 else "")
    device = f"CPU, {threads}"
    if on_gpu:
        each = "sharing GPUs" if settings.run.share_gpu else "a GPU each"
        name = torch.cuda.get_device_name() if torch.cuda.is_initialized() else "GPU"
        device = f"{name}, {each}" if ranks > 1 else name
    facts["device"] = f"{counted(ranks, 'rank')} on {device}" if ranks > 1 else device
    peak, free = map(sizes.shown, fullest)
    facts["memory"] = f"{'at most ' if bound else ''}{peak} at the peak, of {free} free" + (
        " on the GPU" if on_gpu else ""
    )
    print_facts(facts, NAMES)
    asked = settings.run.share_gpu or settings.run.features != "auto"
    if asked and job.backend.memory.free() is None:
        print_line("run.share_gpu and run.features are for GPUs: nothing is changed by them here")
    if isinstance(job.x, HostFeatures) and not isinstance(job.x, TieredFeatures):
        print_line("the features stay in the host's memory, and cross to the GPU in each epoch")


def _kept(job: Job) -> str:
    """Return when training ends early, and which epoch's weights are kept, for the end of a line."""
    train = job.settings.train
    if job.select == "last":
        why = "" if train.select == "last" else ", as there are no validation nodes"
        return f"; the last one's weights are kept{why}"
    fewer = f", fewer if {train.patience:,} in a row are no better" if train.patience else ""
    return f"{fewer}; the weights of the best validation {METRICS[job.metric.name].title} are kept"


def print_choices(job: Job) -> None:
    """Print the backend, the transfer and the parameters of plans, with the reasons."""
    part, ranks = job.part, job.comm.size
    lines = [
        f"backend {job.backend.capabilities.name} ({job.backend_reason}); "
        f"transfer {job.transfer} ({job.transfer.why}); {shown(job.backend.options.geometry)}",
    ]
    if part.bounds_source == "computed" and ranks > 1:
        lines.append(
            f"the file has no partition for {counted(ranks, 'rank')}: edge-balanced bounds were computed "
            f"('mgg partition {part.path.name} -n {ranks}' stores them)"
        )
    for line in [*lines, *job.plans.notes]:
        print_line(line)


def print_plan(job: Job) -> None:
    """Print rows, edges and halo of every rank. Collective; rank 0 prints."""
    if job.streamed is not None:
        work = {"nodes": job.streamed.rows, "edges": int(job.part.slice.indptr[-1])}
    else:
        plan = job.layers[0].forward
        work = {
            "nodes": plan.destinations,
            "local edges": plan.local_edges,
            "remote edges": plan.remote_edges,
            "halo nodes": len(plan.halo),
            "partitions": sum(plan.partitions(job.backend.options.geometry.ps)),
        }
    _print_ranks(job, "plan", {name: f"{count:,}" for name, count in work.items()})


def print_memory(job: Job, need: memory.Estimate, measured: int | None = None) -> None:
    """Print the estimated memory of every rank by purpose. Collective; rank 0 prints.

    measured: this rank's peak in bytes, at the end of a run.
    """
    where = "" if job.backend.capabilities.device == "cpu" else " on its GPU"
    names = ("in_use", "plan", "heap", "activations", "model", "peak")
    title = (
        f"memory of each rank{where}: in use before training, still to be allocated "
        f"(plan, heap, activations, model), and the {'peak at most' if need.bound else 'expected peak'}"
    )
    cells = {name.replace("_", " "): sizes.shown(getattr(need, name)) for name in names}
    if need.profile:
        cells["profile"] = sizes.shown(need.profile)
    if need.bound:
        cells["at most"] = cells.pop("peak")
    if measured is not None:
        title = "memory of each rank: the estimate and the measured peak"
        cells["measured"] = sizes.shown(measured)
    _print_ranks(job, title, cells)


def of_ranks(nbytes: Sequence[int]) -> str:
    """Return the bytes of each rank as text; of many ranks, which have a table, the least and the most."""
    if len(nbytes) > MANY:
        return f"{sizes.shown(min(nbytes))} to {sizes.shown(max(nbytes))}"
    return ", ".join(sizes.shown(each) for each in nbytes)


def _print_ranks(job: Job, title: str, mine: dict[str, str]) -> None:
    """Print a table with a row for each rank. mine: this rank's cells by heading. Collective."""
    every = job.comm.gather(mine, root=0)
    if every is None:
        return
    table = Table(title=title)
    for name in ("rank", *mine):
        table.add_column(name, justify="right")
    for rank, cells in enumerate(every):
        table.add_row(str(rank), *cells.values())
    console().print(table)


def print_phases(summary: dict[str, Any]) -> None:
    """Print the time of all epochs by phase, over ranks; on one rank only its time and share."""
    several, epochs = summary["ranks"] > 1, summary["timed_epochs"]
    if not epochs:
        return
    table = Table(title=f"{counted(epochs, 'epoch')} by phase: ms{' over ranks' if several else ''}")
    table.add_column("phase", no_wrap=True)
    names = ("min", "mean", "max", "share", "imbalance") if several else ("mean", "share")
    for name in names:
        table.add_column(name if several or name == "share" else "ms", justify="right")
    for row in breakdown([each["phases_ms"] for each in summary["per_rank"]]):
        if row["max"] > 0 and (several or row["phase"] not in BETWEEN_RANKS):
            cells = row | {"share": f"{row['share']:.1%}", "imbalance": f"{row['imbalance']:.2f}"}
            cells |= {name: f"{row[name]:.1f}" for name in ("min", "mean", "max")}
            table.add_row(row["phase"], *(str(cells[name]) for name in names))
    console().print(table)


def print_result(summary: dict[str, Any], folder: Path) -> None:
    """Print the scores at the end of a run, its time, and the commands that may follow. folder: of the run."""
    title, splits = METRICS[summary["metric"]].title, summary["splits"]
    macro = f", macro F1 {summary['test_macro_f1']:.4f}" if "test_macro_f1" in summary else ""
    notes = {"val": f", in epoch {summary['best_epoch']} of {summary['epochs']}", "test": macro}
    facts = {
        f"{SPLIT_NAMES[split]} {title}": f"{summary[f'{split}_accuracy']:.4f}{notes.get(split, '')}"
        for split in ("test", "val", "train")
        if splits[split]
    }
    if (tiers := summary.get("tiers")) and tiers["read"]:
        facts["features"] = hits(tiers["read"][-1], tiers["expected"])
    epoch, evaluation = summary["epoch_ms"]["median"], summary["eval_ms"]["median"]
    each = f"an epoch takes {_milliseconds(epoch)}, its evaluation {_milliseconds(evaluation)}"
    facts["time"] = f"{duration(summary['seconds'])}; {each}"
    print_facts(facts)
    print_next(
        command("predict {} -o predictions.csv", folder, summary["ranks"]), command("report {}", folder, 1)
    )


def hits(read: Mapping[str, float], expected: Mapping[str, float]) -> str:
    """Return the share of rows that an epoch has read from memory, and the expected one. Arguments: shares by tier."""
    wanted = f" ({1 - expected[FILE]:.1%} expected)" if expected else ""
    return f"hits {1 - read[FILE]:.1%}{wanted}"


def command(words: str, folder: Path, ranks: int) -> str:
    """Return a command of mgg, to be copied. words: with {} for the run's folder. ranks: number that was launched."""
    launch = f"mgg launch -n {ranks}" if RANKS in os.environ and ranks > 1 else "mgg"
    return f"{launch} {words.format(shlex.quote(str(nearby(folder))))}"


def nearby(folder: Path) -> Path:
    """Return a folder's path from the current folder, if it is below that."""
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder


def _milliseconds(ms: float) -> str:
    return f"{ms:.2f} ms" if ms < 1000 else duration(ms / 1000)


def print_next(*commands: str) -> None:
    """Print commands that may follow, to be copied."""
    print_line("\nnext:")
    for command in commands:
        print_line(f"  {command}")


def print_details(summary: dict[str, Any]) -> None:
    """Print the times, the traffic and the memory of a run."""
    epoch, moved = summary["epoch_ms"], summary["bytes"]
    of_epoch = f"aggregation {summary['aggregate_ms']['median']:.2f} ms"
    if batches := summary.get("sampled"):
        of_epoch = f"{counted(summary['batches'], 'batch', 'batches')}, of {batches['edges']:,} edges and "
        of_epoch += f"{batches['rows']:,} nodes together"
    facts = {
        "final loss": f"{summary['final_loss']:.6f}",
        "epoch": f"{epoch['median']:.2f} ms (min {epoch['min']:.2f}, max {epoch['max']:.2f}); {of_epoch}",
    }
    if stores := summary.get("streamed"):
        loaded, spilled, all_moved = (
            sizes.shown(stores[f"{name}_bytes"]) for name in ("loaded", "spilled", "moved")
        )
        facts["streamed"] = (
            f"{loaded} of rows were loaded in an epoch, in {stores['load_ms']:.0f} ms; {spilled} of activations left "
            f"memory; {all_moved} were moved with its evaluation"
        )
    if (tiers := summary.get("tiers")) and tiers["read"]:
        shares = ", ".join(f"{name} {share:.1%}" for name, share in tiers["read"][-1].items())
        facts["features"] = f"{shares} of the rows that the last epoch read"
    facts["evaluation"] = f"{summary['eval_ms']['median']:.2f} ms"
    if summary["ranks"] > 1:
        facts["rows moved"] = (
            f"{summary['remote_rows']:,} remote rows an epoch ({sizes.shown(moved['remote'])}); "
            f"local {sizes.shown(moved['local'])}"
        )
    heap = sizes.shown(summary["heap_bytes"])
    facts["memory of each rank"] = (
        f"{of_ranks(summary['peak_rss_bytes'])}, predicted {of_ranks(summary['estimated_bytes'])}; heap {heap}"
    )
    print_facts(facts)
    if failure := summary["cuda_graph_failure"]:
        print_line(f"epochs were not recorded as a CUDA graph: {failure}")
    print_line("")
