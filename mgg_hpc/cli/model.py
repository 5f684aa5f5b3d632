"""`mgg model`: the options of predictions."""

from __future__ import annotations

from pathlib import Path

import click
from click import Choice, FloatRange, IntRange, argument, option

from .options import Existing, Output, example


@click.command(
    short_help="Predict traffic and times of many ranks.",
    epilog=example(
        "mgg model graph.h5 --ranks 8,16,64 --system dgx-a100",
        "mgg model graph.h5 --ranks 1,2,4 --system this",
        "mgg model graph.h5 --ranks 64 --system cluster.toml --model sage --hidden 256 --layers 3",
        "mgg model graph.h5 --ranks 8 --system dgx-h100 --json model.json",
    ),
)
@argument("graph", type=Existing)
@option("--ranks", default="1,2,4,8", help="Numbers of ranks, separated by commas.")
@option(
    "--system", default="this", help="dgx-a100, dgx-h100, this (mgg doctor --calibrate), or a file NAME.toml."
)
@option("--model", "name", type=Choice(["gcn", "gin", "sage", "gat"]), default="gcn")
@option("--hidden", type=IntRange(1, 2**20), default=16, help="Columns of a hidden layer; gat: of each head.")
@option("--layers", type=IntRange(1, 1024), default=2)
@option("--dropout", type=FloatRange(0, 1, max_open=True), default=0.5)
@option("--features", type=IntRange(1), help="Columns of the input. [default: the graph's]")
@option("--classes", type=IntRange(1), help="Columns of the output. [default: the graph's, or 16]")
@option("--json", "json_path", type=Output, help="Write JSON to this file.")
@option("--force", is_flag=True, help="Replace the JSON file if it exists.")
def model(
    graph: Path,
    ranks: str,
    system: str,
    name: str,
    hidden: int,
    layers: int,
    dropout: float,
    features: int | None,
    classes: int | None,
    json_path: Path | None,
    force: bool,
) -> None:
    """Count what each of many ranks would move by each transfer, and predict a training epoch.

    The graph is divided as a job divides it, and one rank's rows are read at a time: a laptop counts for any cluster.
    """
    from ..tools.model import process_model

    process_model(
        graph,
        ranks=ranks,
        system=system,
        model={"name": name, "hidden": hidden, "layers": layers, "dropout": dropout},
        features=features,
        classes=classes,
        json_path=json_path,
        force=force,
    )
