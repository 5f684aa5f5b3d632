"""Print the start, the plan and the result of a run. Tables go to stdout."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .. import sizes
from ..nn.inputs.host import HostFeatures
from ..runtime.backends.arguments import BY_WIDTH, Geometry
from . import memory
from .job import Job
from .metrics import METRICS
from .profile.phases import breakdown

MANY = 4  # most ranks whose memory is printed in one line
INPUTS = {"features": "features", "learned": "learned columns", "degree": "columns for degrees"}


def spread(values: list[float]) -> dict[str, float]:
    """Return min, median and max, as in summary.json."""
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def counted(number: int, noun: str) -> str:
    """Format a count with its noun: "1 rank", "2 ranks"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def console() -> Console:
    """Return a console on stdout that prints names and paths unchanged; in a file tables have at most 110 columns."""
    width = None if Console().is_terminal else 110
    return Console(width=width, highlight=False, markup=False, emoji=False)


def knobs_of(geometry: Geometry) -> dict[str, int | str]:
    """Return ps, dist and wpb as reports and summary.json show them, and far_ps where it is set."""
    dist: int | str = "auto" if geometry.dist == BY_WIDTH else geometry.dist
    far = {} if geometry.far_ps is None else {"far_ps": geometry.far_ps}
    return {"ps": geometry.ps, "dist": dist, "wpb": geometry.wpb} | far


def print_start(job: Job) -> None:
    """Print a line each on the graph, the ranks and the choices made."""
    part, geometry, ranks = job.part, job.backend.options.geometry, job.comm.size
    threads = counted(job.backend.options.threads, "thread") + (" each" if ranks > 1 else "")
    knobs = ", ".join(f"{name} {value}" for name, value in knobs_of(geometry).items())
    lines = [
        f"{part.name}: {part.nodes:,} nodes, {part.edges:,} edges, "
        f"{part.features:,} {INPUTS[job.settings.model.input]}, {part.classes} classes",
        f"{counted(ranks, 'rank')}, {threads}; {knobs}",
        f"backend {job.backend.capabilities.name} ({job.backend_reason}); transfer {job.transfer} ({job.transfer.why})",
    ]
    if job.sampled is not None:
        how, steps = job.sampled.how, job.sampled.steps
        many = "1 batch" if steps == 1 else f"{steps:,} batches"
        fanouts = ", ".join("all" if each < 0 else f"{each:,}" for each in how.fanouts)
        lines.append(f"sampled: {many} an epoch of {how.batch_size:,} rows, fanouts {fanouts}")
    if job.streamed is not None:
        where = f"files in {job.settings.plan.scratch}" if job.settings.plan.scratch else "the host's memory"
        lines.append(
            f"streamed: rows lie in {where}, and pass through {sizes.shown(job.streamed.streaming.memory)} a rank"
        )
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
        console().print(line, soft_wrap=True)


def print_line(text: str) -> None:
    """Print a remark on stdout."""
    console().print(text, soft_wrap=True)


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
        "(plan, heap, activations, model), and the expected peak"
    )
    cells = {name.replace("_", " "): sizes.shown(getattr(need, name)) for name in names}
    if measured is not None:
        title = "memory of each rank: the estimate and the measured peak"
        cells["measured"] = sizes.shown(measured)
    _print_ranks(job, title, cells)


def told(bytes_of: Sequence[int]) -> str:
    """Format the bytes of each rank; of many ranks, which have a table, the least and the most."""
    if len(bytes_of) > MANY:
        return f"{sizes.shown(min(bytes_of))} to {sizes.shown(max(bytes_of))}"
    return ", ".join(sizes.shown(each) for each in bytes_of)


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
    """Print the time of all epochs by phase, over ranks; on one rank without what is the same there."""
    several, epochs = summary["ranks"] > 1, summary["timed_epochs"]
    if not epochs:
        return
    table = Table(title=f"{counted(epochs, 'epoch')} by phase: ms{' over ranks' if several else ''}")
    table.add_column("phase", no_wrap=True)
    names = ("min", "mean", "max", "share", "imbalance") if several else ("mean", "share")
    for name in names:
        table.add_column(name if several or name == "share" else "ms", justify="right")
    for row in breakdown([each["phases_ms"] for each in summary["per_rank"]]):
        if row["max"] > 0:
            cells = row | {"share": f"{row['share']:.1%}", "imbalance": f"{row['imbalance']:.2f}"}
            cells |= {name: f"{row[name]:.1f}" for name in ("min", "mean", "max")}
            table.add_row(row["phase"], *(str(cells[name]) for name in names))
    console().print(table)


def _streamed(summary: dict[str, Any]) -> dict[str, str]:
    """Return the row of a graph that was streamed; none of others."""
    found = summary.get("streamed")
    if not found:
        return {}
    loaded = (
        f"{sizes.shown(found['loaded_bytes'])} of rows were loaded in an epoch, in {found['load_ms']:.0f} ms"
    )
    others = f"{sizes.shown(found['spilled_bytes'])} of activations left memory"
    return {
        "streamed": f"{loaded}; {others}; {sizes.shown(found['moved_bytes'])} were moved with its evaluation"
    }


def print_result(summary: dict[str, Any], path: Path, folder: Path) -> None:
    """Print the table at the end of a run."""
    title = f"{summary['model']} on {summary['graph']['name']}, {counted(summary['ranks'], 'rank')}"
    table = Table(title=title, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    epoch, aggregate, moved = summary["epoch_ms"], summary["aggregate_ms"]["median"], summary["bytes"]
    macro = f", macro F1 {summary['test_macro_f1']:.4f}" if "test_macro_f1" in summary else ""
    batches = summary.get("sampled")
    told_of = f"aggregation {aggregate:.2f} ms"
    if batches:
        count = summary["batches"]
        made = f"{count:,} {'batch' if count == 1 else 'batches'}"
        told_of = f"{made}, of {batches['edges']:,} edges and {batches['rows']:,} rows together"
    rows: dict[str, str | Text] = {
        f"test {METRICS[summary['metric']].title}": f"{summary['test_accuracy']:.4f}{macro}",
        "validation": f"{summary['val_accuracy']:.4f} in epoch {summary['best_epoch']} of {summary['epochs']}",
        "final loss": f"{summary['final_loss']:.6f}",
        "epoch": f"{epoch['median']:.2f} ms (min {epoch['min']:.2f}, max {epoch['max']:.2f}); {told_of}",
        **_streamed(summary),
        "evaluation": f"{summary['eval_ms']['median']:.2f} ms",
        "rows moved": f"{summary['remote_rows']:,} remote rows an epoch ({sizes.shown(moved['remote'])}); "
        f"local {sizes.shown(moved['local'])}",
        "memory per rank": f"{told(summary['peak_rss_bytes'])}; heap {sizes.shown(summary['heap_bytes'])}",
        "as predicted": told(summary["estimated_bytes"]),
        "summary": Text(str(path)),
        "run folder": Text(str(folder)),
    }
    for name, value in rows.items():
        table.add_row(name, value)
    console().print(table)
