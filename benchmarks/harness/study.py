"""The command of a study: variants of one aggregation over a graph, on the ranks of a launcher or on a GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from mgg_hpc.data.graph import Graph
from mgg_hpc.errors import InputError
from mgg_hpc.runtime import exit_code, launch, mpi
from mgg_hpc.tools.bench import graphs
from mgg_hpc.tools.bench.results import Results, numbers_of, output_files

from . import command
from .plots import Draw, bars_by
from .ranks import Subject, Way

# A study's variants of a subject, which all sum the same rows. All are compared with the first.
Ways = Callable[[Any], Mapping[str, Way]]

BARS = bars_by("width")

# Variants of several studies, and the systems of the papers that they stand in for.
HALO = "halo: each remote row once, sums meanwhile (ours)"
BULK = "bulk exchange, then sums (as ROC, DGCL)"
DIRECT = "direct: each edge reads through a pointer"
GET = "get: a get for each edge, ahead of the sums"
ALL_GATHER = "all-gather, then sums (NCCL's whole partitions)"
ON_CPU, ON_GPU = "rmat:17:16", "uniform:20:16"
SHOWN = ("width", "variant", "median_ms", "min_ms", "max_ms", "cpu_ms", "times_first", "crossing_bytes")


def on_ranks(ranks: int = 2, turns: int = 9) -> Callable[[Any], Any]:
    """Return the decorator that adds --ranks (for `start`), --threads, --backend, --turns and --output to a command."""
    number, shown = click.IntRange(1), {"show_default": True}
    return _together(
        click.option(
            "--ranks",
            type=number,
            default=ranks,
            **shown,
            help="Number of ranks to start when run without a launcher.",
        ),
        click.option("--threads", type=number, help="Threads of each rank. [default: its share]"),
        click.option("--backend", default="auto", **shown, help="auto, serial, shm or shmem."),
        click.option("--turns", type=number, default=turns, **shown, help="Measurements of each variant."),
        output_files(),
    )


def on_gpus() -> Callable[[Any], Any]:
    """Return the decorator that adds --device and --share to a command."""
    devices, shares = click.Choice(["cpu", "cuda"]), click.FloatRange(0, 1, max_open=True)
    return _together(
        click.option("--device", type=devices, default="cpu", help="cuda: two PEs on one GPU."),
        click.option(
            "--share",
            type=shares,
            default=0.2,
            help="With cuda: share of rows on the second PE. [default: 0.2]",
        ),
    )


def _together(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def add(command: Any) -> Any:
        for option in options[::-1]:
            command = option(command)
        return command

    return add


def start(ranks: int, device: str = "cpu") -> int | None:
    """Run this script on so many ranks, and return its exit code; None where this process is to measure.

    Raises InputError for a GPU under a launcher, and for given options that the device does not have.
    """
    given = click.get_current_context().get_parameter_source
    for name in ("ranks", "threads", "backend") if device == "cuda" else ("share",):
        if given(name) is ParameterSource.COMMANDLINE:
            raise InputError(f"--{name} has no meaning with --device {device}")
    if device == "cuda" and mpi.launched():
        raise InputError("--device cuda: one process plays all PEs; run it without a launcher")
    if device == "cuda" or ranks == 1 or mpi.launched():
        return None
    return launch.process_launch(ranks, sys.argv)


def read(name: str) -> Graph:
    """Return a graph, on all ranks. Collective. Raises InputError, the same on all of them."""
    with mpi.agree(mpi.world()):
        return graphs.read(name)


def subject_of(
    graph: Graph,
    width: int,
    *,
    device: str,
    share: float = 0.0,
    backend: str,
    threads: int | None,
    halos: int = 0,
) -> Any:
    """Return a graph that is ready to be summed. Collective.

    device: "cpu" for the ranks of a launcher (`ranks.Subject`), "cuda" for two PEs on a GPU (`pes.Subject`).
    share: part of the rows that the second PE owns. halos: see `ranks.Subject`.
    """
    if device == "cuda":
        from . import pes

        return pes.Subject(graph, width, share)
    return Subject(mpi.world(), graph, width, backend=backend, threads=threads, halos=halos)


def through_pointers(subject: Any) -> dict[str, Way]:
    """Return the variant DIRECT where pointers lead to the rows of all ranks."""
    if not subject.reaches_peers:
        return {}
    return {DIRECT: subject.way("direct")}


def conditions(graph: Graph, subject: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the columns that all rows have in common: conditions of the measurement, and counts of edges and rows."""
    found = {"graph": graph.name, "nodes": graph.nodes, "edges": graph.edges, **subject.columns()}
    counts = {name: found.pop(name) for name in ("local_edges", "remote_edges", "halo_rows")}
    return found, counts


def finish(results: Results, files: Sequence[Path], draw: Draw, shown: Sequence[str]) -> None:
    """Have rank 0 write and print the results."""
    if exit_code.is_first():
        results.write(files, draw)
        results.show(*(name for name in shown if any(name in row for row in results.rows)))
    exit_code.record(0)


def study(
    doc: str | None,
    name: str,
    ways: Ways,
    *,
    widths: str = "64",
    halos: int = 0,
    gpu: bool = True,
    draw: Draw = BARS,
) -> click.Command:
    """Return the command of a study, which measures its ways for rows of several widths.

    Args:
        doc: docstring of its script.
        name: of the study.
        ways: returns the variants of a subject (`ranks.Subject`, `pes.Subject`).
        widths: of rows, if none are given.
        halos: number of plans with a halo that the ways make.
        gpu: whether there are such variants on a GPU.
        draw: returns a picture of the results.
    """

    @command(doc)
    @click.argument("graph", required=False)
    @click.option("--widths", default=widths, show_default=True, help="Columns of rows, separated by commas.")
    @(on_gpus() if gpu else _together())
    @on_ranks()
    def main(
        graph: str | None,
        widths: str,
        ranks: int,
        turns: int,
        files: tuple[Path, ...],
        device: str = "cpu",
        **launch_options: Any,
    ) -> int | None:
        columns = numbers_of("widths", widths)
        chosen = graph or (ON_GPU if device == "cuda" else ON_CPU)
        graphs.check(chosen)
        if (code := start(ranks, device)) is not None:
            return code
        whole, results = read(chosen), Results(name)
        for width in sorted(columns, reverse=True):  # OpenSHMEM's heap has the size of the first one's
            subject = subject_of(whole, width, device=device, halos=halos, **launch_options)
            results.same, counts = conditions(whole, subject)
            ms, more = subject.measure(ways(subject), turns)
            results.compare(ms, more, width=width, **counts)
            subject.close()
            if exit_code.is_first():
                results.write(files, draw)  # what is measured stays, whatever ends the rest
        results.rows.sort(key=lambda row: columns.index(row["width"]))
        finish(results, files, draw, SHOWN)
        return None

    return main
