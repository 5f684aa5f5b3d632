"""`mgg partition --compare`: what each way to divide a graph's rows would have ranks sum and move."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ...data.readers.graph_file import edges_of_rows
from ...data.store import GraphFile, open_graph
from ...errors import InputError
from ...plan import counts, order, partitioners
from ...plan.layout import RowFormat
from ...plan.ranges import edge_balanced
from ..importing import default_memory
from ..terminal import waiting
from .arrange import Asked, arrange
from .renumber import free_memory
from .structure import numbered

METHODS, WIDTHS = ("edges", "metis", "ldg"), (16, 64, 256)
ENDINGS = (".png", ".svg", ".pdf")  # of pictures
KNOWN = (*partitioners.METHODS, *order.METHODS)


def process_compare(
    path: Path,
    *,
    parts: int | None,
    memory: int | None,
    methods: str | None,
    widths: str | None,
    renumbering: str | None,
    assignment: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Report, for each method, balance, edge cut, halo and bytes a layer for ``parts`` ranks; the file stays.

    methods: of partitioners, or orders of rows that are cut into edge-balanced ranges. widths: columns of a layer.
    renumbering: order of rows that goes with each method. plot: a picture to write.
    """
    if parts is None:
        raise InputError("--compare needs -n with a number of parts")
    names = _methods(methods, renumbering, assignment)
    columns = _widths(widths)
    if plot is not None:
        from ..bench.harness import plots

        if plot.suffix.lower() not in ENDINGS:
            raise InputError(f"{plot}: a plot is a .png, .svg or .pdf")
        plots.load()  # to miss it now and not after the work
        if not plot.absolute().parent.is_dir():
            raise InputError(f"{plot}: there is no folder {plot.parent}")
    with open_graph(path) as opened:
        free = free_memory(opened, memory or default_memory())
        facts = {"graph": opened.name, "uuid": opened.uuid, "nodes": opened.nodes, "edges": opened.edges}
        found = []
        for name in names:
            with waiting(f"{name}: {opened.edges:,} edges"):
                is_order = name in order.METHODS
                asked = Asked(
                    parts,
                    "edges" if is_order else name,
                    name if is_order else renumbering,
                    assignment if name == "given" else None,
                )
                found.append({"method": name, **compare(opened, asked, columns, memory=free)})
    document = {"format": "mgg-partition", "version": 1, **facts, "parts": parts, "methods": found}
    if as_json:
        print(json.dumps(document, indent=2))
    else:
        _print(path, document)
    if plot is not None:
        from .plot import draw

        draw(document, plot)


def compare(opened: GraphFile, asked: Asked, widths: list[int], *, memory: int) -> dict[str, Any]:
    """Return what one method gives. seconds: to find it, from the file to the numbers of the rows.

    edge_balance, row_balance: the largest rank's edges and rows over the mean. cut: edges whose source is on another
    rank. halo, largest_halo: distinct remote rows of all ranks, and of the one with most. widths: bytes that all ranks
    read from others in one layer of so many float32 columns, rows padded to 16 bytes.
    """
    assert asked.parts is not None
    began = time.perf_counter()
    found = arrange(opened, asked, memory=memory)
    degree = np.diff(opened.indptr())[found.moved]
    bounds = found.bounds
    if bounds is None:
        bounds = edge_balanced(np.concatenate([[0], np.cumsum(degree)]), asked.parts)
    seconds = time.perf_counter() - began
    with _in_order(opened, None if found.identity else order.inverse(found.moved), memory) as edges:
        indptr = edges.indptr()
        traffic = counts.of_all_ranks(
            bounds,
            lambda rank: edges_of_rows(edges, indptr, int(bounds[rank]), int(bounds[rank + 1])),
            rounds=1,
        )
    edges_of = np.array([int(each.edges.sum()) for each in traffic.ranks])
    rows_of = np.diff(bounds)
    halo = np.array([each.halo_rows for each in traffic.ranks])
    cut = sum(each.remote_edges for each in traffic.ranks)
    row_bytes = {width: RowFormat(np.dtype(np.float32), width).row_bytes for width in widths}
    return {
        "seconds": round(seconds, 3),
        "edge_balance": _over_mean(edges_of),
        "row_balance": _over_mean(rows_of),
        "cut": cut,
        "halo": int(halo.sum()),
        "largest_halo": int(halo.max()),
        "bytes": {
            str(width): {"halo": int(halo.sum()) * each, "direct": cut * each}
            for width, each in row_bytes.items()
        },
    }


@contextmanager
def _in_order(opened: GraphFile, place: np.ndarray | None, memory: int) -> Iterator[GraphFile]:
    """Yield a graph file of the edges with rows in their new places; the file itself if these are the present ones."""
    if place is None:
        yield opened
        return
    with numbered(opened, place, memory=memory) as edges:
        yield edges


def _over_mean(values: np.ndarray) -> float:
    return round(float(values.max() / values.mean()), 4) if values.sum() else 1.0


def _methods(methods: str | None, renumbering: str | None, assignment: Path | None) -> list[str]:
    names = list(METHODS) + (["given"] if assignment is not None else [])
    if methods is not None:
        names = list(dict.fromkeys(each.strip() for each in methods.split(",")))
    for name in names:
        if name not in KNOWN:
            raise InputError(f"--methods: {name!r} is no method; expected some of {', '.join(KNOWN)}")
        if name == "given" and assignment is None:
            raise InputError("--methods: given needs --assignment with the part of each node")
        if name in order.METHODS and renumbering is not None:
            raise InputError(f"--methods: {name} is an order itself; leave out --order")
    return names


def _widths(widths: str | None) -> list[int]:
    if widths is None:
        return list(WIDTHS)
    try:
        found = [int(each) for each in widths.split(",")]
    except ValueError:
        found = [0]
    if min(found) < 1:
        raise InputError(f"--widths: {widths!r}; expected whole numbers of columns, such as 16,64,256")
    return found


def _print(path: Path, document: dict[str, Any]) -> None:
    found = document["methods"]
    title = f"{path}: {document['parts']} parts, {document['nodes']:,} rows, {document['edges']:,} edges"
    facts = Table(title=title, title_style="bold")
    moved = Table(
        title="MB a layer that all ranks read from others, by halo and by direct or get", title_style="bold"
    )
    for heading in ("method", "seconds", "edges*", "rows*", "cut edges", "halo rows", "of one rank"):
        facts.add_column(heading, justify="left" if heading == "method" else "right")
    moved.add_column("method")
    for width in found[0]["bytes"]:
        moved.add_column(f"halo {width}", justify="right")
        moved.add_column(f"direct {width}", justify="right")
    for each in found:
        counted = (f"{each[name]:,}" for name in ("cut", "halo", "largest_halo"))
        balance = (f"{each[name]:.3f}" for name in ("edge_balance", "row_balance"))
        facts.add_row(each["method"], f"{each['seconds']:.2f}", *balance, *counted)
        sizes = (f"{of[kind] / 1e6:,.1f}" for of in each["bytes"].values() for kind in ("halo", "direct"))
        moved.add_row(each["method"], *sizes)
    console = Console()
    console.print(facts)
    console.print("* of the largest rank, over the mean")
    console.print(moved)
