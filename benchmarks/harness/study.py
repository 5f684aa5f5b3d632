"""Variants of one aggregation over a graph, on the ranks of a launcher or on a GPU; shared by the studies."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from harness import graphs
from harness.results import TIMES, Results, output_files
from mgg_hpc.cli.options import together
from mgg_hpc.data.graph import Graph
from mgg_hpc.errors import InputError
from mgg_hpc.runtime import exit_code, launch, mpi

from . import options
from .plots import draw
from .ranks import Subject

# Variants of several studies, and the systems of the papers that they stand in for.
HALO = "halo: each remote row once, sums meanwhile (ours)"
BULK = "bulk exchange, then sums (as ROC, DGCL)"
DIRECT = "direct: each edge reads through a pointer"
GET = "get: a get for each edge, ahead of the sums"
ON_CPU, ON_GPU = "rmat:17:16", "uniform:20:16"
SHOWN = ("width", *TIMES, "cpu_ms", "crossing_bytes")


@dataclass(frozen=True)
class Study:
    """A graph, and how aggregations over it are measured.

    device: "cpu" for the ranks of a launcher (`ranks.Subject`), "cuda" for two PEs on a GPU (`pes.Subject`). shares: of
    rows that the second PE owns. on_ranks: backend and threads.
    """

    graph: Graph
    device: str
    shares: tuple[float, ...]
    turns: int
    files: tuple[Path, ...]
    on_ranks: dict[str, Any]

    def subject(self, width: int, share: float) -> Any:
        """Return the graph, ready to be summed. Collective."""
        if self.device == "cuda":
            from . import pes

            return pes.Subject(self.graph, width, share)
        return Subject(mpi.world(), self.graph, width, **self.on_ranks)


def on_ranks(turns: int = 9) -> Any:
    """Add --ranks, --threads, --backend, --turns and --output to a command."""
    ranks = "Number of ranks to start when run without a launcher."
    return together(
        click.option("--ranks", type=click.IntRange(1), default=2, help=ranks),
        options.threads("Of each rank. [default: its share]"),
        click.option("--backend", default="auto", help="auto, serial, shm or shmem."),
        options.turns(turns),
        output_files(),
    )


def measured(turns: int = 9) -> Any:
    """Return the decorator of a study, which adds the graph, --device, --share and the options of `on_ranks`.

    The command starts its ranks, unless a launcher has, and takes a `Study`. Collective. Raises InputError, the same on
    all ranks, for a GPU under a launcher, and for given options that the device does not have.
    """
    device, share = click.Choice(["cpu", "cuda"]), click.FloatRange(0, 1, max_open=True)
    far = "With cuda: of rows on the second PE. Repeatable."
    added = together(
        click.argument("graph", required=False),
        click.option("--device", type=device, default="cpu", help="cuda: two PEs on one GPU."),
        click.option("--share", type=share, multiple=True, default=(0.2,), help=far),
        on_ranks(turns),
    )

    def add(command: Any) -> Any:
        @functools.wraps(command)
        def called(
            *, graph: str | None, device: str, share: Any, ranks: int, turns: int, files: Any, backend: str,
            threads: int | None, **given: Any,
        ) -> Any:  # fmt: skip
            cuda, source = device == "cuda", click.get_current_context().get_parameter_source
            chosen = graph or (ON_GPU if cuda else ON_CPU)
            graphs.check(chosen)
            for name in ("ranks", "threads", "backend") if cuda else ("share",):
                if source(name) is ParameterSource.COMMANDLINE:
                    raise InputError(f"--{name} has no meaning with --device {device}")
            if cuda and mpi.launched():
                raise InputError("--device cuda: one process plays all PEs; run it without a launcher")
            if not cuda and ranks > 1 and not mpi.launched():
                return launch.process_launch(ranks, sys.argv)
            with mpi.agree(mpi.world()):
                read = graphs.read(chosen)
            how = {"backend": backend, "threads": threads}
            return command(study=Study(read, device, share, turns, files, how), **given)

        return added(called)

    return add


def conditions(graph: Graph, subject: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the columns that all rows have in common, and those that say what a subject's rows and edges are."""
    found = {"graph": graph.name, "nodes": graph.nodes, "edges": graph.edges, **subject.columns()}
    own = ("remote_share", "local_edges", "remote_edges", "halo_rows")
    return found, {name: found.pop(name) for name in own if name in found}


def finish(results: Results, files: Sequence[Path], shown: Sequence[str]) -> None:
    """Have rank 0 write and print the results."""
    if exit_code.is_first():
        results.write(files, draw)
        results.show(*(name for name in shown if any(name in row for row in results.rows)))
    exit_code.record(0)
