"""Print what methods of `mgg partition` would have ranks sum and move; the graph file stays as it is.

python benchmarks/partition.py my.h5 -n 4 --methods edges,metis,ldg,community,rcm
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from mgg_hpc.data.readers.graph_file import edges_of_rows
from mgg_hpc.data.store import GraphFile, open_graph
from mgg_hpc.plan import counts, order
from mgg_hpc.plan.partitioners import METHODS
from mgg_hpc.plan.ranges import edge_balanced
from mgg_hpc.tools.importing import default_memory
from mgg_hpc.tools.partition.arrange import Asked, arrange
from mgg_hpc.tools.partition.renumber import free_memory
from mgg_hpc.tools.partition.structure import numbered


def counted(opened: GraphFile, method: str, parts: int) -> dict[str, float]:
    """Return the seconds and the result of a partitioner, or of an order of rows cut into edge-balanced ranges.

    edges, rows: the largest rank's over the mean. cut edges: edges whose source is on another rank. halo rows, of one
    rank: distinct remote rows of all ranks, and of the one with most.
    """
    memory, began = free_memory(opened, default_memory()), time.perf_counter()
    asked = Asked(parts, "edges", method) if method in order.METHODS else Asked(parts, method, None)
    found = arrange(opened, asked, memory=memory)
    bounds = found.bounds
    if bounds is None:
        degree = np.diff(opened.indptr())[found.moved]
        bounds = edge_balanced(np.concatenate([[0], np.cumsum(degree)]), parts)
    seconds = time.perf_counter() - began
    moved = numbered(opened, order.inverse(found.moved), memory=memory)
    with contextlib.nullcontext(opened) if found.identity else moved as edges:
        indptr = edges.indptr()
        traffic = counts.of_all_ranks(
            bounds, lambda rank: edges_of_rows(edges, indptr, *map(int, bounds[rank : rank + 2])), rounds=1
        )
    edges_of, halo = (
        [f(each) for each in traffic.ranks] for f in (lambda x: int(x.edges.sum()), lambda x: x.halo_rows)
    )
    return {
        "seconds": seconds,
        "edges": max(edges_of) / max(1, np.mean(edges_of)),
        "rows": np.diff(bounds).max() / np.diff(bounds).mean(),
        "cut edges": sum(each.remote_edges for each in traffic.ranks),
        "halo rows": sum(halo),
        "of one rank": max(halo),
    }


@click.command()
@click.argument("graph", type=click.Path(path_type=Path))
@click.option("-n", "--parts", type=click.IntRange(1, 4096), required=True, help="Ranks.")
@click.option(
    "--methods", default="edges,metis,ldg", show_default=True, help="Of edges, metis, ldg and the orders."
)
def main(graph: Path, parts: int, methods: str) -> None:
    """Print a table with a row for each method."""
    known, table = {*METHODS, *order.METHODS} - {"given"}, Table("method")
    for method in methods.split(","):
        if method not in known:
            raise click.UsageError(f"{method!r} is no method; expected some of {', '.join(sorted(known))}")
    with open_graph(graph) as opened:
        for method in methods.split(","):
            found = counted(opened, method, parts)
            if not table.rows:
                for name in found:
                    table.add_column(name, justify="right")
            table.add_row(method, *(f"{x:.3f}" if isinstance(x, float) else f"{x:,}" for x in found.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
