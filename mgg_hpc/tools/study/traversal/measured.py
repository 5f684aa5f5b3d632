"""Times of breadth-first searches on a GPU, by where edges lie and how lists are read.

EMOGI: figures 2.9, 2.10 and 2.13 of Min's dissertation.

A search is timed without what goes to the GPU before it and comes from it after it. Where kernels read edges of the
host's memory, the bytes that cross the link are those of the requests that `counted` tells of; their bandwidth is
compared with that of copies of page-locked memory.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from ....data import writer
from ....data.graph import Graph
from ....errors import InputError
from ....runtime import backends, mpi
from ....runtime.backends.cuda.kernels import DeviceBackend
from ....runtime.backends.cuda.traversal.graph import DeviceGraph
from ....traversal import part as parts
from ....traversal import requests, runs
from ....traversal.part import Part
from ...bench.harness import document, timing, watch
from .. import plot
from ..table import Files, Table

COPY_BYTES, COPY_TURNS = 256 << 20, 5
SHOWN = (
    "graph",
    "variant",
    "min_ms",
    "median_ms",
    "max_ms",
    "times_first",
    "moved_bytes",
    "gb_per_s",
    "copy_gb_per_s",
)


@dataclass(frozen=True)
class Way:
    """A place of edges, bytes of an edge, and how lists are read."""

    place: str
    item: int
    reads: str = "aligned"

    def __str__(self) -> str:
        said = "" if self.reads == "aligned" else f", {self.reads}"
        return f"{self.place}, {self.item} bytes{said}"


WAYS = (
    Way("host", 8),
    Way("host", 8, "merged"),
    Way("host", 8, "strided"),
    Way("host", 4),
    Way("managed", 8),
    Way("managed", 4),
    Way("copied", 8),
    Way("copied", 4),
    Way("device", 4),
)


def run(graphs: list[Graph], sources: int, files: Files) -> int:
    """Measure, print and write. Raises InputError under a launcher, and where there is no GPU."""
    if mpi.launched():
        raise InputError("mgg study traversal runs by itself, without a launcher")
    comm = mpi.world()
    backend = backends.make(backends.choose("cuda", comm), comm, threads=mpi.threads(comm))
    with backends.closed_on_error(backend.memory.close):
        device = cast(DeviceBackend, backend)
        name, copied = device.native.limits()["name"], round(copy_gb_per_s(device), 2)
        table = Table("traversal", {"device": name, "copy_gb_per_s": copied})
        for graph in graphs:
            measure(table, device, graph, sources)
    backend.memory.close()
    table.finish(files, plot.bars_by("graph", "{graph}", "a breadth-first search"), SHOWN)
    return 0


def copy_gb_per_s(backend: DeviceBackend) -> float:
    """Return the fastest of a few copies of page-locked memory to the GPU, in 1e9 bytes a second."""
    arrays, copies = backend.arrays, backend.arrays.copies()
    source, target = arrays.pinned(COPY_BYTES), arrays.zeros(COPY_BYTES)
    took = []
    for _ in range(1 + COPY_TURNS):
        began = time.perf_counter()
        copies.upload(source, target)
        copies.finish(copies.mark())
        took.append(time.perf_counter() - began)
    return COPY_BYTES / min(took[1:]) / 1e9


def measure(table: Table, backend: DeviceBackend, graph: Graph, sources: int) -> None:
    """Add a row for each way: searches that follow edges alone, from the same drawn nodes; the first is checked."""
    with timing.workspace() as folder:
        writer.write(
            folder / "graph.h5", Graph(graph.name, graph.indptr, graph.indices, directed=graph.directed)
        )
        part = parts.load(folder / "graph.h5", mpi.world(), backend, edges="copied")
    nodes = runs.draw_sources(part, sources, 0)
    about = document.about(graph)
    first: list[float] = []
    for way in WAYS:
        with watch.cell(graph.name, way):
            made = backend.traversal.of(
                part.graph, edges=way.place, reads=way.reads, wide=way.item == 8, bottom_up=False
            )
            timed, moved = searched(replace(part, engine=made), made, nodes, way)
        first = first or timed
        more: dict[str, Any] = {"edge_bytes": way.item}
        if way.place == "host":
            more |= {"moved_bytes": round(moved / len(nodes)), "gb_per_s": round(moved / sum(timed) / 1e9, 3)}
        times = timing.ratios(timed, first)["median"]
        ms = timing.spread([1e3 * seconds for seconds in timed])
        table.add(str(way), ms, len(nodes), times, **about, **more)


def searched(part: Part, made: DeviceGraph, nodes: list[int], way: Way) -> tuple[list[float], float]:
    """Return the seconds of each search, and the bytes that all have asked for. Managed edges begin on the host."""
    offset = part.graph.out_indptr
    list(runs.bfs(part, nodes[:1]))  # checked; and what a first search allocates is there
    timed, moved = [], 0.0
    for node in nodes:
        made.edges_to_host()
        (run,) = runs.bfs(part, [node], check=False)
        timed.append(made.search_seconds)
        reached = np.flatnonzero(run.arrays["depth"] >= 0)
        moved += requests.moved(requests.of_lists(offset[reached], offset[reached + 1], way.item, way.reads))
    return timed, moved
