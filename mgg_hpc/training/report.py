"""What `mgg train` tells a person: the start, the plan, the result. Tables go to stdout."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..nn.inputs.host import HostFeatures
from ..runtime.backends.arguments import BY_WIDTH, Geometry
from . import memory
from .job import Job
from .metrics import METRICS

MANY = 4  # ranks whose memory is told in a line
INPUTS = {"features": "features", "learned": "learned columns", "degree": "columns for degrees"}


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
    part, geometry, ranks = job.part, job.backend.options.geometry, job.comm.size
    threads = counted(job.backend.options.threads, "thread") + (" each" if ranks > 1 else "")
    lines = [
        f"{part.name}: {part.nodes:,} nodes, {part.edges:,} edges, "
        f"{part.features:,} {INPUTS[job.settings.model.input]}, {part.classes} classes",
        f"{counted(ranks, 'rank')}, {threads}; ps {geometry.ps}, dist {distance(geometry)}, wpb {geometry.wpb}",
        f"backend {job.backend.capabilities.name} ({job.backend_reason}); transfer {job.transfer} ({job.transfer.why})",
    ]
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
    for line in lines:
        console().print(line, soft_wrap=True)


def print_line(text: str) -> None:
    """A remark, on stdout."""
    console().print(text, soft_wrap=True)


def print_plan(job: Job) -> None:
    """Rows, edges and halo of every rank. Collective; rank 0 prints."""
    plan = job.layers[0].forward
    partitions = sum(plan.partitions(job.backend.options.geometry.ps))
    work = (plan.destinations, plan.local_edges, plan.remote_edges, len(plan.halo), partitions)
    names = ("rows", "local edges", "remote edges", "halo rows", "partitions")
    _print_ranks(job, "plan", names, [f"{count:,}" for count in work])


def print_memory(job: Job, need: memory.Estimate, measured: int | None = None) -> None:
    """What every rank holds and what it will take, by purpose. Collective; rank 0 prints.

    measured: the most bytes that this rank held, at the end.
    """
    where = "" if job.backend.capabilities.device == "cpu" else " on its GPU"
    names = ("there", "plan", "heap", "activations", "model", "total")
    title = f"memory of each rank{where}: what is there, what is to come, and the most of it"
    cells = [size(getattr(need, name)) for name in names]
    if measured is None:
        _print_ranks(job, title, names, cells)
    else:
        title = "memory of each rank: what was predicted, and the most that was measured"
        _print_ranks(job, title, (*names, "measured"), [*cells, size(measured)])


def told(bytes_of: Sequence[int]) -> str:
    """Bytes of each rank; of many ranks, which have a table, the least and the most."""
    if len(bytes_of) > MANY:
        return f"{size(min(bytes_of))} to {size(max(bytes_of))}"
    return ", ".join(size(each) for each in bytes_of)


def _print_ranks(job: Job, title: str, names: Sequence[str], mine: Sequence[str]) -> None:
    """A table with a row of each rank. Collective."""
    every = job.comm.gather(mine, root=0)
    if every is None:
        return
    table = Table(title=title)
    for name in ("rank", *names):
        table.add_column(name, justify="right")
    for rank, cells in enumerate(every):
        table.add_row(str(rank), *cells)
    console().print(table)


def print_result(summary: dict[str, Any], path: Path, folder: Path) -> None:
    """The table at the end of a run."""
    table = Table(
        title=f"{summary['model']} on {summary['graph']['name']}, {counted(summary['ranks'], 'rank')}",
        show_header=False,
    )
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    epoch, evaluation, aggregate = summary["epoch_ms"], summary["eval_ms"], summary["aggregate_ms"]
    macro = f", macro F1 {summary['test_macro_f1']:.4f}" if "test_macro_f1" in summary else ""
    table.add_row(f"test {METRICS[summary['metric']].title}", f"{summary['test_accuracy']:.4f}{macro}")
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
    peaks = told(summary["peak_rss_bytes"])
    table.add_row("memory per rank", f"{peaks}; heap {size(summary['heap_bytes'])}")
    table.add_row("as predicted", told(summary["estimated_bytes"]))
    table.add_row("summary", Text(str(path)))
    table.add_row("run folder", Text(str(folder)))
    console().print(table)
