"""`mgg bench`: the speed of this machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from ..tools.bench.results import output_files
from .options import Verbs, example

WIDTH = click.IntRange(1, 65536)


@click.group(
    short_help="Measure this machine's sums and epochs.",
    cls=Verbs,
    context_settings={"show_default": True},
    epilog=example("mgg bench aggregate rmat:18", "mgg bench epoch --models gcn,gat -o epoch.json"),
)
def bench() -> None:
    """Measure the speed of this machine, to compare it with others.

    GRAPHS are rmat:SCALE[:EDGE_FACTOR], uniform:SCALE[:EDGE_FACTOR], graph files (.h5) or archives (.npz).

    The scripts in the repository's folder benchmarks/ compare with other libraries, and repeat the papers' studies.
    """


def measuring(name: str, *examples: str) -> Callable[[Any], Any]:
    """Return the decorator of a benchmark's command, with the options that all of them have."""

    def add(command: Any) -> Any:
        device = click.Choice(["cpu", "cuda"])
        for option in (
            click.argument("graphs", nargs=-1),
            click.option("--device", type=device, default="cpu", help="cuda: the first GPU."),
            click.option("--threads", type=click.IntRange(1, 1024), help="[default: one for each core]"),
            click.option("--turns", type=click.IntRange(1), default=9, help="Number of measurements."),
            output_files(pictures=False),
        )[::-1]:
            command = option(command)
        return bench.command(name, epilog=example(*examples))(command)

    return add


@measuring(
    "aggregate",
    "mgg bench aggregate rmat:20 my.h5 --widths 64,128",
    "mgg bench aggregate --dtype bfloat16 --weighted -o sums.csv",
)
@click.option("--widths", default="16,64,128,256", help="Columns of rows, separated by commas.")
@click.option(
    "--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), default="float32", help="Of rows."
)
@click.option("--weighted", is_flag=True, help="Multiply each row by its edge's weight.")
def bench_aggregate(graphs: tuple[str, ...], **options: Any) -> None:
    """Sum neighbours' rows, beside the gather floor, which reads the same rows and stores nothing.

    [default graph: rmat:18]
    """
    from ..tools.bench.aggregate import run_aggregate

    run_aggregate(graphs or ("rmat:18",), **options)


@measuring(
    "epoch",
    "mgg bench epoch",
    "mgg bench epoch rmat:15 --models gin,sage,gat --dropout 0 -o epoch.json",
)
@click.option("--models", default="gcn", help="gcn, gin, sage, gat; or several, separated by commas.")
@click.option("--features", type=WIDTH, default=128, help="Columns of the input.")
@click.option("--hidden", type=WIDTH, help="Units; of each head. [default: gcn 16, gin 64, sage 128, gat 8]")
@click.option("--classes", type=WIDTH, default=32)
@click.option("--dropout", type=click.FloatRange(0, 1, max_open=True), default=0.5)
def bench_epoch(graphs: tuple[str, ...], **options: Any) -> None:
    """Train models for epochs: forward, loss, backward, Adam.

    GCN, GraphSAGE (mean) and GAT have two layers, GIN five. [default graph: rmat:17:12]
    """
    from ..tools.bench.epoch import run_epoch

    run_epoch(graphs or ("rmat:17:12",), **options)
