"""The tables of predictions."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from .. import sizes
from ..training.report import console


def show(document: dict[str, Any]) -> None:
    """Print a table with a row for each number of ranks and transfer, and how far to trust it."""
    graph, model = document["graph"], document["model"]
    out = console()
    title = (
        f"{model['name']} ({model['layers']} layers, {model['hidden']} hidden) on {graph['name']} "
        f"({graph['nodes']:,} nodes, {graph['edges']:,} edges), {document['system']}: one training epoch"
    )
    table = Table(
        title=title, caption="* chosen; most: of the busiest rank; balance: most edges over the mean"
    )
    for heading in (
        "ranks",
        "balance",
        "transfer",
        "rows",
        "bytes",
        "most",
        "messages",
        "sums ms",
        "epoch ms",
    ):
        table.add_column(heading, justify="left" if heading == "transfer" else "right")
    for job in document["jobs"]:
        edges = job["edges"]
        balance = f"{edges['max'] / edges['mean']:.2f}" if edges["mean"] else "1.00"
        first = True
        for name, each in job["transfers"].items():
            chosen = "*" if set(job["chosen"]) == {name} else ""
            table.add_row(
                f"{job['ranks']:,}" if first else "",
                balance if first else "",
                f"{name}{chosen}",
                f"{each['rows']:,}",
                sizes.shown(each["bytes"]),
                sizes.shown(each["most_bytes"]),
                f"{each['messages']:,}",
                f"{sum(each['aggregation_ms']):.2f}",
                f"{each['epoch_ms']:.2f}",
            )
            first = False
        if len(set(job["chosen"])) > 1:
            table.add_row(
                "", "", ", ".join(job["chosen"]) + "*", "", "", "", "", "", f"{job['epoch_ms']:.2f}"
            )
        table.add_section()
    out.print(table)
    for line in document["basis"]:
        out.print(Text(line))
