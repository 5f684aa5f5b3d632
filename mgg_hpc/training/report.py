"""What `mgg train` tells a person: the start, the plan, the result. Tables go to stdout."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..runtime.backends.base import BY_WIDTH, Geometry
from . import memory
from .job import Job


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def spread(values: list[float]) -> dict[str, float]:
    """min, median and max, as summary.json has them."""
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def counted(number: int, noun: str) -> str:
    """ "1 rank", "2 ranks"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def console() -> Console:
    """stdout; names and paths are printed as they are, and tables in a file are 110 columns wide at most."""
    width = None if Console().is_terminal else 110
    return Console(width=width, highlight=False, markup=False, emoji=False)


def distance(geometry: Geometry) -> int | str:
    """dist as people and summary.json are told it."""
    return "auto" if geometry.dist == BY_WIDTH else geometry.dist


def print_start(job: Job) -> None:
    """One line each on the graph, the ranks and the choices made."""
    part, geometry, ranks = job.part, job.backend.geometry, job.comm.size
    threads = counted(job.backend.threads, "thread") + (" each" if ranks > 1 else "")
    lines = [
        f"{part.name}: {part.nodes:,} nodes, {part.edges:,} edges, "
        f"{part.features:,} features, {part.classes} classes",
        f"{counted(ranks, 'rank')}, {threads}; ps {geometry.ps}, dist {distance(geometry)}, wpb {geometry.wpb}",
        f"backend {job.backend.name} ({job.backend_reason}); transfer {job.transfer} ({job.transfer.why})",
    ]
    if part.bounds_source == "computed" and ranks > 1:
        lines.append(
            f"the file has no partition for {ranks} ranks: edge-balanced bounds were computed "
            f"('mgg partition {part.path.name} -n {ranks}' stores them)"
        )
    if job.select != job.settings.train.select:
        lines.append("the graph has no validation rows: the weights of the last epoch are kept")
    for line in lines:
        console().print(line, soft_wrap=True)


def print_plan(job: Job) -> None:
    """Rows, edges, halo and memory of every rank. Collective; rank 0 prints."""
    plan, need = job.layers[0].forward, memory.estimate(job)
    work = (plan.destinations, plan.local_edges, plan.remote_edges, len(plan.halo), len(plan.segments))
    every = job.comm.gather((work, need), root=0)
    if every is None:
        return
    work_names = ("rows", "local edges", "remote edges", "halo rows", "segments")
    memory_names = ("input", "plan", "heap", "activations", "model", "total")
    works, memories = (
        Table(title="plan"),
        Table(title="memory, beside about 350 MiB for Python and its libraries"),
    )
    for table, names in ((works, work_names), (memories, memory_names)):
        for name in ("rank", *names):
            table.add_column(name, justify="right")
    for rank, (counts, estimate) in enumerate(every):
        works.add_row(str(rank), *(f"{count:,}" for count in counts))
        memories.add_row(str(rank), *(size(getattr(estimate, name)) for name in memory_names))
    console().print(works, memories, sep="\n")


def print_result(summary: dict[str, Any], path: Path, folder: Path) -> None:
    """The table at the end of a run."""
    table = Table(
        title=f"{summary['model']} on {summary['graph']['name']}, {counted(summary['ranks'], 'rank')}",
        show_header=False,
    )
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    epoch, evaluation, aggregate = summary["epoch_ms"], summary["eval_ms"], summary["aggregate_ms"]
    table.add_row("test accuracy", f"{summary['test_accuracy']:.4f}")
    table.add_row(
        "validation", f"{summary['val_accuracy']:.4f} in epoch {summary['best_epoch']} of {summary['epochs']}"
    )
    table.add_row("final loss", f"{summary['final_loss']:.6f}")
    table.add_row(
        "epoch",
        f"{epoch['median']:.2f} ms (min {epoch['min']:.2f}, max {epoch['max']:.2f}); "
        f"aggregation {aggregate['median']:.2f} ms",
    )
    table.add_row("evaluation", f"{evaluation['median']:.2f} ms")
    remote = summary["bytes"]["remote"]
    table.add_row(
        "rows moved",
        f"{summary['remote_rows']:,} remote rows an epoch ({size(remote)}); local {size(summary['bytes']['local'])}",
    )
    peaks = summary["peak_rss_bytes"]
    table.add_row(
        "memory per rank", ", ".join(size(peak) for peak in peaks) + f"; heap {size(summary['heap_bytes'])}"
    )
    table.add_row("summary", Text(str(path)))
    table.add_row("run folder", Text(str(folder)))
    console().print(table)
