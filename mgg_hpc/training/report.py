"""Output of a run: its start, plan and result as lines and tables on stdout, and the progress bar on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from .. import sizes
from ..nn.inputs.host import HostFeatures
from ..runtime.launch import TERMINAL
from . import memory
from .job import Job
from .metrics import METRICS
from .profile.phases import breakdown
from .tuning.target import shown

MANY = 4  # most ranks whose memory is printed in one line
INPUTS = {"features": "features", "learned": "learned columns", "degree": "columns for degrees"}
BETWEEN_RANKS = ("wait for peers", "sum gradients")  # phases that one rank does not have


@contextmanager
def bar_of(total: int, shown: bool | None, done: int = 0) -> Iterator[Callable[..., None]]:
    """Show a bar over ``total`` epochs on stderr, and yield a function that updates it: update(completed=, note=).

    shown: True, False, or None to show it if stderr is a terminal, which may be at the other end of a launcher's pipe.
    done: number of epochs that are complete at the beginning.
    """
    columns = os.environ.get(TERMINAL, "")
    screen = Console(stderr=True)
    if columns.isdecimal():
        screen = Console(stderr=True, force_terminal=True, width=int(columns))
    shown = screen.is_terminal if shown is None else shown
    parts = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    bar = Progress(*parts, console=screen, refresh_per_second=8, disable=not shown)
    with bar if shown else nullcontext():
        yield partial(bar.update, bar.add_task("training", total=total, completed=done, note=""))
    sys.stderr.flush()


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun: "1 rank", "2 ranks"."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def console() -> Console:
    """Return a console on stdout that prints names and paths unchanged; in a file tables have at most 110 columns."""
    width = None if Console().is_terminal else 110
    return Console(width=width, highlight=False, markup=False, emoji=False)


def print_line(text: str) -> None:
    """Print a line on stdout."""
    console().print(text, soft_wrap=True)


def print_start(job: Job) -> None:
    """Print a line each on the graph, the ranks and the choices made."""
    part, ranks = job.part, job.comm.size
    threads = counted(job.backend.options.threads, "thread") + (" each" if ranks > 1 else "")
    lines = [
        f"{part.name}: {part.nodes:,} nodes, {part.edges:,} edges, "
        f"{part.features:,} {INPUTS[job.settings.model.input]}, {part.classes} classes",
        f"{counted(ranks, 'rank')}, {threads}; {shown(job.backend.options.geometry)}",
        f"backend {job.backend.capabilities.name} ({job.backend_reason}); transfer {job.transfer} ({job.transfer.why})",
    ]
    if job.sampled is not None:
        how, many = job.sampled.how, counted(job.sampled.steps, "batch", "batches")
        fanouts = ", ".join("all" if each < 0 else f"{each:,}" for each in how.fanouts)
        lines.append(f"sampled: {many} an epoch of {how.batch_size:,} rows, fanouts {fanouts}")
    if job.streamed is not None:
        where = f"files in {job.settings.plan.scratch}" if job.settings.plan.scratch else "the host's memory"
        room = sizes.shown(job.streamed.streaming.memory)
        lines.append(f"streamed: rows lie in {where}, and pass through {room} a rank")
    if part.bounds_source == "computed" and ranks > 1:
        lines.append(
            f"the file has no partition for {ranks} ranks: edge-balanced bounds were computed "
            f"('mgg partition {part.path.name} -n {ranks}' stores them)"
        )
    run = job.settings.run
    if job.backend.memory.free() is None and (run.share_gpu or run.features != "auto"):
        lines.append("run.share_gpu and run.features are for GPUs: nothing is changed by them here")
    if isinstance(job.x, HostFeatures):
        lines.append("the features stay in the host's memory, and cross to the GPU in each epoch")
    if job.select != job.settings.train.select:
        lines.append("the graph has no validation rows: the weights of the last epoch are kept")
    for line in [*lines, *job.plans.notes]:
        print_line(line)


def print_plan(job: Job) -> None:
    """Print rows, edges and halo of every rank. Collective; rank 0 prints."""
    if job.streamed is not None:
        work = {"rows": job.streamed.rows, "edges": int(job.part.slice.indptr[-1])}
    else:
        plan = job.layers[0].forward
        work = {
            "rows": plan.destinations,
            "local edges": plan.local_edges,
            "remote edges": plan.remote_edges,
            "halo rows": len(plan.halo),
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


def print_result(summary: dict[str, Any], path: Path) -> None:
    """Print the table at the end of a run. path: summary.json in the run folder."""
    title = f"{summary['model']} on {summary['graph']['name']}, {counted(summary['ranks'], 'rank')}"
    table = Table(title=title, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    epoch, moved = summary["epoch_ms"], summary["bytes"]
    macro = f", macro F1 {summary['test_macro_f1']:.4f}" if "test_macro_f1" in summary else ""
    of_epoch = f"aggregation {summary['aggregate_ms']['median']:.2f} ms"
    if batches := summary.get("sampled"):
        of_epoch = f"{counted(summary['batches'], 'batch', 'batches')}, of {batches['edges']:,} edges and "
        of_epoch += f"{batches['rows']:,} rows together"
    rows: dict[str, str | Text] = {
        f"test {METRICS[summary['metric']].title}": f"{summary['test_accuracy']:.4f}{macro}",
        "validation": f"{summary['val_accuracy']:.4f} in epoch {summary['best_epoch']} of {summary['epochs']}",
        "final loss": f"{summary['final_loss']:.6f}",
        "epoch": f"{epoch['median']:.2f} ms (min {epoch['min']:.2f}, max {epoch['max']:.2f}); {of_epoch}",
    }
    if stores := summary.get("streamed"):
        loaded, spilled, all_moved = (
            sizes.shown(stores[f"{name}_bytes"]) for name in ("loaded", "spilled", "moved")
        )
        rows["streamed"] = (
            f"{loaded} of rows were loaded in an epoch, in {stores['load_ms']:.0f} ms; {spilled} of activations left "
            f"memory; {all_moved} were moved with its evaluation"
        )
    rows["evaluation"] = f"{summary['eval_ms']['median']:.2f} ms"
    if summary["ranks"] > 1:
        rows["rows moved"] = (
            f"{summary['remote_rows']:,} remote rows an epoch ({sizes.shown(moved['remote'])}); "
            f"local {sizes.shown(moved['local'])}"
        )
    rows |= {
        "memory per rank": f"{of_ranks(summary['peak_rss_bytes'])}; heap {sizes.shown(summary['heap_bytes'])}",
        "as predicted": of_ranks(summary["estimated_bytes"]),
        "summary": Text(str(path)),
        "run folder": Text(str(path.parent)),
    }
    for name, value in rows.items():
        table.add_row(name, value)
    console().print(table)
