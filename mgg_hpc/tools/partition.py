"""Renumber a graph file's rows, and add row ranges to it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from ..data import schema
from ..data.graph import Graph
from ..data.store import GraphFile, open_graph
from ..data.writer import Partition, write, write_bounds
from ..errors import InputError
from ..plan import order
from ..plan.ranges import edge_balanced, edge_counts
from ..runtime import cores
from .terminal import waiting

BOUNDS: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {"edges": edge_balanced}
MEMORY = 3  # most memory of renumbering, as a multiple of the file


def process_partition(path: Path, *, parts: int | None, method: str, renumbering: str | None) -> None:
    """Renumber the rows of a graph file by a method of ``plan.order`` (None: leave them) and add row ranges of
    nearly equal work for ``parts`` ranks (None: add none), in one replacement of the file; print both.
    """
    if parts is None and renumbering is None:
        raise InputError("nothing to do; expected -n with a number of parts, --order with a method, or both")
    written = renumbering is not None and _renumber(path, renumbering, parts, method)
    if parts is None:
        return
    if not written:
        with open_graph(path) as opened:
            part = _partition(opened.indptr(), parts, method)
        write_bounds(path, parts, part.bounds, method, part.edge_counts)
    _print_bounds(path, parts)


def _renumber(path: Path, method: str, parts: int | None, bounds_method: str) -> bool:
    """Renumber the rows, and add ranges for ``parts`` ranks; return False if they are in that order already."""
    began = time.perf_counter()
    with open_graph(path) as opened:
        graph = _read(opened)
    with waiting(f"ordering {graph.edges:,} edges ({method})"):
        # The order does not depend on the present numbering: moved is int64 [N], the present row of each new row.
        moved = order.permutation(order.original_structure(graph), method)
        if graph.permutation is not None:
            moved = order.inverse(graph.permutation)[moved]
    if (moved == np.arange(graph.nodes)).all() and (opened.order == method or graph.permutation is None):
        print(f"{path}: the rows are in this order already ({method})")
        return False
    before = order.locality(graph.indptr, graph.indices)
    with waiting("renumbering"):
        graph = order.renumbered(graph, moved)
    # The stored ranges are of the old rows: they are made again by their methods.
    ranges = {count: name for count, (name, _) in opened.partitions.items()}
    if parts is not None:
        ranges[parts] = bounds_method
    with waiting("writing"):
        known = sorted(count for count, name in ranges.items() if name in BOUNDS)
        partitions = [_partition(graph.indptr, count, ranges[count]) for count in known]
        identity = "" if graph.permutation is None else opened.uuid
        write(path, graph, force=True, order=method, partitions=partitions, identity=identity)
    after = order.locality(graph.indptr, graph.indices)
    print(f"{path}: rows renumbered ({method}) in {time.perf_counter() - began:.1f} s")
    print(f"  mean log2 of an edge's length: {before.gap:.1f} before, {after.gap:.1f} after")
    print(f"  edges within {order.WINDOW:,} rows: {before.near:.1%} before, {after.near:.1%} after")
    dropped = [str(count) for count, name in ranges.items() if name not in BOUNDS]
    if dropped:
        print(f"  dropped the bounds of {', '.join(dropped)} parts, made by a method unknown here")
    return True


def _read(opened: GraphFile) -> Graph:
    """Read the whole file. Raises InputError if the machine has too little memory for renumbering it."""
    held = opened.contents.datasets
    needed = MEMORY * sum(layout.nbytes for layout in held.values())
    installed = cores.memory_total()
    if needed > installed:
        raise InputError(
            f"{opened.where}: renumbering takes about {needed / 2**30:,.1f} GiB of memory; the machine has "
            f"{installed / 2**30:,.1f} GiB: use a larger one, or leave out --order"
        )
    with waiting(f"reading {opened.edges:,} edges"):
        rows = vars(opened.slice(0, opened.nodes))
    ids = rows.pop("ids")
    permutation = ids if schema.PERMUTATION in held else None
    return Graph(
        opened.name, directed=opened.directed, classes=opened.classes, permutation=permutation, **rows
    )


def _partition(indptr: np.ndarray, parts: int, method: str) -> Partition:
    bounds = BOUNDS[method](indptr, parts)
    return Partition(bounds, method, edge_counts(indptr, bounds).tolist())


def _print_bounds(path: Path, parts: int) -> None:
    with open_graph(path) as opened:
        bounds, (method, counts) = opened.bounds(parts), opened.partitions[parts]
    assert bounds is not None
    table = Table(title=f"{path}: {parts} parts by {method}", title_style="bold")
    for heading in ("rank", "first row", "rows", "edges"):
        table.add_column(heading, justify="right")
    for rank in range(parts):
        lo, hi = int(bounds[rank]), int(bounds[rank + 1])
        table.add_row(str(rank), f"{lo:,}", f"{hi - lo:,}", f"{counts[rank]:,}")
    console = Console()
    console.print(table)
    share = sum(counts) / parts
    if share:
        console.print(f"the largest part has {max(counts) / share:.3f} times the mean of {share:,.0f} edges")
