"""What `mgg train` tells a person: the start, the plan, the result. Tables go to stdout."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

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


def print_start(job: Job) -> None:
    """One line each on the graph, the ranks and the choices made."""
    part, geometry = job.part, job.backend.geometry
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"{part.name}: {part.nodes:,} nodes, {part.edges:,} edges, {part.features:,} features, {part.classes} classes"
    )
    console.print(
        f"{job.comm.size} rank(s) x {job.backend.threads} thread(s); "
        f"backend {job.backend.name} ({job.backend_reason}); "
        f"transfer direct; ps {geometry.ps}, dist {geometry.dist}, wpb {geometry.wpb}"
    )
    if part.bounds_source == "computed" and job.comm.size > 1:
        console.print(
            f"the file has no partition for {job.comm.size} ranks: edge-balanced bounds were computed "
            f"('mgg partition {part.path.name} -n {job.comm.size}' stores them)"
        )


def print_plan(job: Job) -> None:
    """Rows, edges, halo and memory of every rank. Collective; rank 0 prints."""
    plan, need = job.adjacency.forward, memory.estimate(job)
    mine = (plan.destinations, plan.local_edges, plan.remote_edges, len(plan.halo), len(plan.segments), need)
    every = job.comm.gather(mine, root=0)
    if every is None:
        return
    table = Table(
        title="plan and memory of each rank", caption="memory beside Python and its libraries (about 350 MiB)"
    )
    for name in ("rank", "rows", "local edges", "remote edges", "halo rows", "segments"):
        table.add_column(name, justify="right")
    for name in ("graph", "features", "plan", "heap", "activations", "total"):
        table.add_column(name, justify="right")
    for rank, (rows, local, remote, halo, segments, e) in enumerate(every):
        counts = [f"{n:,}" for n in (rank, rows, local, remote, halo, segments)]
        table.add_row(*counts, *map(size, (e.graph, e.features, e.plan, e.heap, e.activations, e.total)))
    Console(width=None if Console().is_terminal else 140).print(table)


def print_result(summary: dict[str, Any], path: Path, folder: Path) -> None:
    """The table at the end of a run."""
    table = Table(
        title=f"{summary['model']} on {summary['graph']['name']}, {summary['ranks']} rank(s)",
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
    table.add_row("summary", str(path))
    table.add_row("run folder", str(folder))
    console = Console()
    (console if console.is_terminal else Console(width=110)).print(table)
