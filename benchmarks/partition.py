"""The edges and remote rows of ranks by methods of `mgg partition`; the graph file stays as it is.

    python benchmarks/partition.py my.h5 -n 4 --methods edges,metis,ldg,community,rcm

A partitioner gives each rank its rows; after an order, rows are cut into ranges of about as many edges. Columns: the
largest rank's edges and rows over the mean; edges whose source is on another rank; and distinct remote rows of all
ranks, and of the one with most.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
from harness import command, options, run
from harness.results import Results, output_files

from mgg_hpc.data.readers.graph_file import edges_of_rows
from mgg_hpc.data.store import GraphFile, open_graph
from mgg_hpc.plan import counts, order
from mgg_hpc.plan.partitioners import METHODS
from mgg_hpc.plan.row_ranges import edge_balanced
from mgg_hpc.tools.importing import default_memory
from mgg_hpc.tools.partition import Request, arrange, free_memory, numbered

KNOWN = sorted({*METHODS, *order.METHODS} - {"given", "none"})


@command(__doc__)
@click.argument("graph", type=click.Path(path_type=Path))
@click.option("-n", "--parts", type=click.IntRange(1, 4096), required=True, help="Ranks.")
@options.words("methods", KNOWN, f"Of {', '.join(KNOWN)}.", "edges,metis,ldg")
@output_files(pictures=False)
def main(graph: Path, parts: int, methods: list[str], files: tuple[Path, ...]) -> None:
    results = Results("partition", graph=graph.stem, ranks=parts)
    with open_graph(graph) as opened:
        for method in methods:
            results.rows.append({"variant": method, **counted(opened, method, parts)})
            results.write(files)
    results.show()


def counted(opened: GraphFile, method: str, parts: int) -> dict[str, Any]:
    """Return the columns of a method, and the seconds that it took."""
    memory, began = free_memory(opened, default_memory()), time.perf_counter()
    request = Request(parts, "edges", method) if method in order.METHODS else Request(parts, method)
    found = arrange(opened, request, memory=memory)
    bounds = found.bounds
    if bounds is None:
        degree = np.diff(opened.indptr())[found.moved]
        bounds = edge_balanced(np.concatenate([[0], np.cumsum(degree)]), parts)
    seconds = time.perf_counter() - began
    moved = numbered(opened, order.inverse(found.moved), memory=memory)
    with contextlib.nullcontext(opened) if found.identity else moved as edges:
        indptr = edges.indptr()
        traffic = counts.count_ranks(
            bounds, lambda rank: edges_of_rows(edges, indptr, *map(int, bounds[rank : rank + 2])), rounds=1
        )
    held, rows = np.array([int(rank.edges.sum()) for rank in traffic.ranks]), np.diff(bounds)
    halo = [rank.halo_rows for rank in traffic.ranks]
    return {
        "seconds": round(seconds, 3),
        "edges_over_mean": round(float(held.max() / max(1, held.mean())), 4),
        "rows_over_mean": round(float(rows.max() / rows.mean()), 4),
        "cut_edges": sum(int(rank.remote_edges) for rank in traffic.ranks),
        "halo_rows": int(sum(halo)),
        "largest_halo_rows": int(max(halo)),
    }


if __name__ == "__main__":
    run(main)
