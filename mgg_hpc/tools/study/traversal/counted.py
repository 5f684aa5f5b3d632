"""The study of requests that a GPU makes for edges in the host's memory (EMOGI; Min's dissertation, section 2.5.3).

Requests follow from where lists lie, so they are counted, on any machine; tests compare the counts with those of the
kernels over the shim. What they take needs a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ....data import writer
from ....data.graph import Graph
from ....errors import InputError
from ....runtime import backends, mpi
from ....traversal import part as parts
from ....traversal import requests, runs
from ...bench.harness import document, plots, timing
from ...bench.harness.document import Sheet
from ...bench.harness.plots import INK
from .. import plot
from ..table import Files, Row, Table

ITEMS = (4, 8)  # bytes of an edge
COLOURS = ("#D55E00", "#E69F00", "#56B4E9", "#0072B2")  # of the sizes of requests


def run(graphs: Sequence[Graph], sources: int, files: Files) -> int:
    """Count, print and write. Raises InputError under a launcher."""
    if mpi.launched():
        raise InputError("mgg study traversal runs by itself, without a launcher")
    table = Table("traversal", {"device": "counted"})
    for graph in graphs:
        rows = counted(graph, sources)
        table.rows += [{"study": "traversal", "device": "counted", **row} for row in rows]
    document.show([f"requests of {sources} searches in breadth first, counted"], [sheet(table.rows)])
    table.save(files, draw)
    return 0


def counted(graph: Graph, sources: int) -> list[Row]:
    """Return a row for each size of edges and way to read them: means over searches from drawn sources."""
    comm = mpi.world()
    backend = backends.make(backends.choose_cpu("serial", comm), comm, threads=mpi.threads(comm))
    with timing.workspace() as folder, backends.closed_on_error(backend.memory.close):
        writer.write(
            folder / "graph.h5", Graph(graph.name, graph.indptr, graph.indices, directed=graph.directed)
        )
        part = parts.load(folder / "graph.h5", comm, backend)
        offset = part.graph.out_indptr
        found = {(item, reads): np.zeros(4, np.int64) for item in ITEMS for reads in requests.READS}
        edges = 0
        done = list(runs.bfs(part, runs.draw_sources(part, sources, 0)))
        for each in done:
            reached = np.flatnonzero(each.arrays["depth"] >= 0)
            edges += each.edges
            for item, reads in found:
                found[item, reads] += requests.of_lists(offset[reached], offset[reached + 1], item, reads)
    backend.memory.close()
    return [
        _row(graph, item, reads, sizes / len(done), edges / len(done))
        for (item, reads), sizes in found.items()
    ]


def _row(graph: Graph, item: int, reads: str, sizes: np.ndarray, edges: float) -> Row:
    about = document.about(graph) | {"variant": reads, "edge_bytes": item}
    about |= {
        f"requests_{size}": round(float(count), 1) for size, count in zip(requests.SIZES, sizes, strict=True)
    }
    moved = requests.moved(sizes)
    return about | {"moved_bytes": round(moved), "amplification": round(moved / max(1.0, edges * item), 4)}


def _total(row: Row) -> float:
    return sum(row[f"requests_{size}"] for size in requests.SIZES)


def sheet(rows: Sequence[Row]) -> Sheet:
    """Return the table that is printed; fewer: requests less than in the way before."""
    cells: list[list[str]] = []
    before = 0.0
    for row in rows:
        total = _total(row)
        first = row["variant"] == requests.READS[0]
        fewer = "" if first else f"{100 * (1 - total / before):.1f}%"
        shares = [f"{100 * row[f'requests_{size}'] / total:.1f}%" for size in requests.SIZES]
        about = f"{row['graph']}, {row['edge_bytes']} bytes, {row['variant']}"
        cells.append([about, *shares, f"{total:,.0f}", fewer, f"{row['amplification']:.3f}"])
        before = total
    sizes = [f"of {size} bytes" for size in requests.SIZES]
    return Sheet("requests", ["", *sizes, "requests", "fewer", "bytes over those of lists"], cells)


def draw(table: Table, path: Path) -> None:
    """Draw each way's requests as a bar of its sizes; a panel for each graph and size of edges."""
    plt = plots.load()
    panels: dict[tuple[str, int], list[Row]] = {}
    for row in table.rows:
        panels.setdefault((row["graph"], row["edge_bytes"]), []).append(row)
    figure, grid = plt.subplots(
        len(panels), 1, figsize=(8.5, 1.0 + 1.5 * len(panels)), squeeze=False, layout="constrained"
    )
    for axes, ((graph, item), rows) in zip(grid[:, 0], panels.items(), strict=True):
        _bars(axes, rows)
        axes.set_title(f"{graph}, edges of {item} bytes", fontsize=9, loc="left")
        axes.set_xlabel("requests of a search")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    plot.save(figure, "requests for edges in the host's memory, breadth-first search\ncounted", path)


def _bars(axes: Any, rows: Sequence[Row]) -> None:
    for at, row in enumerate(rows):
        left = 0.0
        for size, colour in zip(requests.SIZES, COLOURS, strict=True):
            count = row[f"requests_{size}"]
            axes.barh(
                at, count, left=left, height=0.7, color=colour, edgecolor=INK, linewidth=0.4,
                label=f"{size} bytes" if at == 0 else None,
            )  # fmt: skip
            left += count
        said = f"{100 * row['requests_128'] / left:.0f}% of 128 bytes, {row['amplification']:.2f} times the bytes"
        axes.annotate(said, (left, at), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), [row["variant"] for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.45 * max(_total(row) for row in rows))
