"""Renumber a graph file's rows, and add row ranges to it."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from ...data.store import GraphFile, open_graph
from ...data.writer import Partition, write_bounds
from ...errors import InputError
from ...plan import order
from ...plan.row_ranges import edge_balanced, edge_counts
from ...plan.workload import prefix_sum
from ..importing import default_memory
from ..terminal import waiting
from .arrange import Arrangement, Asked, arrange, parts_of
from .renumber import free_memory, localities, rewrite


def process_partition(
    path: Path,
    *,
    parts: int | None,
    method: str,
    renumbering: str | None,
    assignment: Path | None = None,
    memory: int | None = None,
) -> None:
    """Renumber the rows of a graph file by a method of ``plan.order`` (None: leave them) and add row ranges for
    ``parts`` ranks (None: add none) by one of `partitioners.METHODS`, in one replacement of the file; print both.

    assignment: a .npy file with the part of each node, int [N], in the user's numbering, for the method "given".
    memory: bytes to use. [default: half of the machine's]
    """
    asked = asked_for(parts, method, renumbering, assignment)
    if asked.parts is None and renumbering is None:
        raise InputError("nothing to do; expected -n with a number of parts, --order with a method, or both")
    with open_graph(path) as opened:
        if asked.method == "edges" and renumbering is None:
            assert asked.parts is not None
            indptr = opened.indptr()
            part: Partition | None = _counted(indptr, edge_balanced(indptr, asked.parts), "edges")
        else:
            part = _renumber(opened, asked, memory or default_memory())
    if part is not None:
        write_bounds(path, len(part.edge_counts), part.bounds, part.method, part.edge_counts)
    if asked.parts is not None:
        _print_bounds(path, asked.parts)


def asked_for(parts: int | None, method: str, renumbering: str | None, assignment: Path | None) -> Asked:
    """Return what options ask for. Raises InputError for some that do not go together."""
    if assignment is None:
        if method == "given":
            raise InputError("--method given needs --assignment with the part of each node")
        if method != "edges" and parts is None:
            raise InputError(f"--method {method} needs -n with a number of parts")
        return Asked(parts, method, renumbering)
    if method not in ("edges", "given"):
        raise InputError(f"--assignment does not go with --method {method}; it is for --method given")
    return Asked(parts or parts_of(assignment), "given", renumbering, assignment)


def _renumber(opened: GraphFile, asked: Asked, memory: int) -> Partition | None:
    """Renumber the rows, and add ranges; returns the ranges to add instead if the rows are in that order already."""
    began = time.perf_counter()
    free, label = free_memory(opened, memory), asked.label
    with waiting(f"ordering {opened.edges:,} edges ({label})"):
        found = arrange(opened, asked, memory=free)
    indptr = opened.indptr()
    moved_indptr = prefix_sum(np.diff(indptr)[found.moved])
    part = None
    if asked.parts is not None:
        bounds = edge_balanced(moved_indptr, asked.parts) if found.bounds is None else found.bounds
        part = _counted(moved_indptr, bounds, asked.method)
    stays = found.identity and (asked.renumbering is None or opened.order in ("", label))
    if stays:
        print(f"{opened.where}: the rows are in this order already ({label})")
        return part
    _rewrite(opened, found, moved_indptr, part, label, free)
    print(f"{opened.where}: rows renumbered ({label}) in {time.perf_counter() - began:.1f} s")
    _tell_lengths(opened, found)
    _tell_dropped(opened, part)
    return None


def _rewrite(
    opened: GraphFile,
    found: Arrangement,
    indptr: NDArray[np.int64],
    part: Partition | None,
    label: str,
    memory: int,
) -> None:
    """Replace the file. The stored ranges are of the old rows: those by edges are found again."""
    again = [count for count, (name, _) in opened.partitions.items() if name == "edges"]
    ranges = {count: _counted(indptr, edge_balanced(indptr, count), "edges") for count in again}
    if part is not None:
        ranges[len(part.edge_counts)] = part
    ids = None if (found.ids == np.arange(len(found.ids))).all() else found.ids
    partitions = [ranges[count] for count in sorted(ranges)]
    rewrite(opened, found.moved, ids, label=label, partitions=partitions, memory=memory)


def _tell_lengths(opened: GraphFile, found: Arrangement) -> None:
    with waiting("measuring"):
        before, after = localities(opened, order.inverse(found.moved))
    print(f"  mean log2 of an edge's length: {before.gap:.1f} before, {after.gap:.1f} after")
    print(f"  edges within {order.WINDOW:,} rows: {before.near:.1%} before, {after.near:.1%} after")


def _tell_dropped(opened: GraphFile, part: Partition | None) -> None:
    made = None if part is None else len(part.edge_counts)
    for count, (name, _) in opened.partitions.items():
        if name != "edges" and count != made:
            print(f"  dropped the bounds of {count} parts, made by the method {name} for the former rows")


def _counted(indptr: NDArray[np.int64], bounds: NDArray[np.int64], method: str) -> Partition:
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
