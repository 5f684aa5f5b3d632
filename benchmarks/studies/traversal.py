"""The requests that a GPU makes for edges in the host's memory, counted; and searches on a GPU, by where edges lie.

    python benchmarks/studies/traversal.py
    python benchmarks/studies/traversal.py rmat:18 my.h5 --sources 64 -o requests.csv -o requests.png
    python benchmarks/studies/traversal.py rmat:25 --device cuda

EMOGI (Min et al., VLDB '20), as in Min's dissertation. Requests follow from where lists lie, so they are counted on
any machine (figures 2.6, 2.8 and 2.11), for searches in breadth first that follow edges alone. They depend on how lists
are read: edge by edge by a thread (strided), by a warp (merged), or by a warp from the start of a line (aligned).
fewer_percent compares with the variant before; amplification is the bytes of requests over the bytes of the lists that
are read. Tests compare the counts with the loads of kernels over the shim.

Kernels read edges of 4 bytes, aligned. With --device cuda searches are timed by where edges lie, without the copies to
the GPU before them and from it after them; both search from a source before the next one. Where kernels read edges of
the host's memory, the bytes that cross the link are the bytes of the requests that are counted; their bandwidth is
compared with copies of page-locked memory.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import real_graphs
from harness import command, options, pcie_requests, run, workers
from harness.plots import draw
from harness.results import Results, output_files

from mgg_hpc.data import writer
from mgg_hpc.data.graph import Graph
from mgg_hpc.errors import InputError
from mgg_hpc.runtime import backends, mpi
from mgg_hpc.runtime.timing import interleaved
from mgg_hpc.traversal import part as parts
from mgg_hpc.traversal import runs
from mgg_hpc.traversal.part import Part

COPY_BYTES, COPY_TURNS = 256 << 20, 5
COUNTS = ("requests", "of_128_bytes_percent", "fewer_percent", "moved_bytes", "amplification")
TIMES = ("sources", "median_ms", "min_ms", "max_ms", "relative_time", "moved_bytes", "gb_per_s")
PLACES = ("host", "device")  # of edges


@command(__doc__)
@options.graph_names("rmat:16", "uniform:16", check=real_graphs.check)
@click.option("--sources", type=click.IntRange(1), default=16, help="Nodes to begin at.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", help="cuda: time searches.")
@output_files()
def main(names: tuple[str, ...], sources: int, device: str, files: tuple[Path, ...]) -> None:
    if mpi.launched():
        raise InputError("this study runs by itself, without a launcher")
    graphs = [real_graphs.structure(name, directed=True) for name in names]
    comm = mpi.world()
    cuda = device == "cuda"
    chosen = backends.choose("cuda", comm) if cuda else backends.choose_cpu("serial", comm)
    backend: Any = backends.make(chosen, comm, threads=mpi.threads(comm))
    with backends.closed_on_error(backend.memory.close):
        (time_searches if cuda else count_requests)(graphs, sources, backend, files)
    backend.memory.close()


def part_of(graph: Graph, backend: Any, **options: Any) -> Part:
    """Return a graph that is ready to be traversed."""
    with workers.workspace() as folder:
        writer.write(folder / "graph.h5", graph)
        return parts.load(folder / "graph.h5", mpi.world(), backend, **options)


def requests_of(part: Part, search: runs.Run, item: int, reads: str) -> np.ndarray:
    """Count the requests of each of `pcie_requests.SIZES` for the lists of all nodes that a search reached."""
    offset, reached = part.graph.out_indptr, np.flatnonzero(search.arrays["depth"] >= 0)
    return pcie_requests.count(offset[reached], offset[reached + 1], item, reads)


def count_requests(graphs: Sequence[Graph], sources: int, backend: Any, files: Sequence[Path]) -> None:
    """Count, print and write the means over searches from drawn nodes."""
    results, before = Results("requests of a search", sources=sources), 0.0
    for graph in graphs:
        part = part_of(graph, backend)
        done = list(runs.bfs(part, runs.draw_sources(part, sources, 0)))
        edges = sum(each.edges for each in done) / len(done)
        for item, reads in product((4, 8), pcie_requests.READS):
            sizes = sum(requests_of(part, each, item, reads) for each in done) / len(done)
            moved, total = pcie_requests.requested_bytes(sizes), float(sizes.sum())
            fewer = None if reads == pcie_requests.READS[0] else round(100 * (1 - total / before), 2)
            results.rows.append(
                {"graph": graph.name, "edges": graph.edges, "edge_bytes": item, "variant": reads}
                | {
                    f"requests_{size}": round(float(n), 1)
                    for size, n in zip(pcie_requests.SIZES, sizes, strict=True)
                }
                | {"requests": round(total), "of_128_bytes_percent": round(100 * float(sizes[-1]) / total, 2)}
                | {"fewer_percent": fewer, "moved_bytes": round(moved)}
                | {"amplification": round(moved / max(1.0, edges * item), 4)}
            )
            before = total
        results.write(files, draw)
    results.show("graph", "edge_bytes", "variant", *COUNTS)


def time_searches(graphs: Sequence[Graph], sources: int, backend: Any, files: Sequence[Path]) -> None:
    """Time, print and write searches of edges in each place from the same drawn nodes."""
    copied = round(copy_gb_per_s(backend), 2)
    results = Results("a breadth-first search", device=backend.native.limits()["name"], copy_gb_per_s=copied)
    for graph in graphs:
        whole = part_of(graph, backend, edges="host")
        nodes = runs.draw_sources(whole, sources, 0)
        whole = replace(whole, engine=None)  # it has locked edges that a variant locks
        moved = dict.fromkeys(PLACES, 0.0)
        calls = {
            place: partial(search, variant_of(whole, backend, place), place, iter(nodes), moved)
            for place in PLACES
        }
        ms = interleaved(calls, len(nodes))
        for name, taken in ms.items():
            columns: dict[str, Any] = {"graph": graph.name, "edges": graph.edges}
            if name == "host":
                columns["moved_bytes"] = round(moved[name] / len(taken))
                columns["gb_per_s"] = round(moved[name] / sum(taken) / 1e6, 3)
            row = results.add(name, taken, next(iter(ms.values())), **columns)
            row["sources"] = row.pop("turns")
        results.write(files, draw)
    results.show("graph", "variant", *TIMES)


def variant_of(whole: Part, backend: Any, place: str) -> Part:
    """Return a part whose edges are in a place; its first search is checked, and allocates what later ones find."""
    part = replace(whole, engine=backend.traversal.bind(whole.graph, edges=place, bottom_up=False))
    list(runs.bfs(part, runs.draw_sources(part, 1, 0)))
    return part


def search(part: Part, place: str, following: Iterator[int], moved: dict[str, float]) -> float:
    """Search from the next node, add the bytes of its requests, and return its milliseconds."""
    (found,) = runs.bfs(part, [next(following)], check=False)
    moved[place] += pcie_requests.requested_bytes(requests_of(part, found, 4, "aligned"))
    return 1e3 * part.engine.search_seconds


def copy_gb_per_s(backend: Any) -> float:
    """Return the speed of the fastest of a few copies of page-locked memory to the GPU."""
    arrays, copies = backend.arrays, backend.arrays.copies()
    source, target = arrays.pinned(COPY_BYTES), arrays.zeros(COPY_BYTES)

    def copy() -> float:
        began = time.perf_counter()
        copies.upload(source, target)
        copies.finish(copies.mark())
        return time.perf_counter() - began

    return COPY_BYTES / min([copy() for _ in range(1 + COPY_TURNS)][1:]) / 1e9


if __name__ == "__main__":
    run(main)
