"""Training on graphs whose rows stream, beside the same training in memory: time, memory, bytes.

    python benchmarks/streaming.py --folder SCRATCH                    # all parts
    python benchmarks/streaming.py --parts memory --graph rmat:16

memory: a step in memory, with rows in the host's memory (in place, and copied into chunks as devices do), and in files
past the page cache; plan.memory is a quarter of the features, beside the plans. Peaks are of a process of its own,
beyond what it had before it opened the graph: edges are counted, and rows in the host's memory, too. "ms of storage" is
the time of all bytes that storage read and wrote, at the speeds of two threads that do nothing else; "of bound" is the
time over it, or over that of a step in memory where that takes longer.
capped: GCN with 256 hidden units and 3 layers from files, in 38 percent of the memory that it takes otherwise.
Schedules of sums, loads ahead, and ranks that pass chunks on are parts of programs.py.

Turns alternate (A B A B) in one process; two of each warm up.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from ngra import streaming
from ngra.schedules import WARM_UP, step_ms
from ngra.streaming import Case
from real_graphs import structure

from mgg_hpc.data.graph import Graph
from mgg_hpc.errors import WRONG_INPUT, InputError
from mgg_hpc.nn.streaming.graph import StreamedGraph, Streaming
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.plan.streaming import grid
from mgg_hpc.runtime.streaming.file_store import FileStore
from mgg_hpc.runtime.turns import take_turns
from mgg_hpc.tools.bench.harness import document, graphs
from mgg_hpc.tools.bench.harness.document import Sheet
from mgg_hpc.tools.bench.harness.options import BenchOptions, words_of

PARTS = ("memory", "capped")
MIB = 1 << 20
REQUEST = 4 << 20  # bytes that the loader of chunks reads at a time
READERS = 2  # threads that read at once, or write


def resident(name: str) -> int:
    """Return a line of this process's status, VmRSS or VmHWM, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


@dataclass(frozen=True)
class Found:
    """A way of streaming beside rows in memory, in ms and bytes of a step.

    peak: what the process has above what it had before it opened the graph. read, written: of storage. best: loads over
    the fewest that any replacement has. apart: gradients, as a part of the largest.
    """

    ms: float
    whole: float
    peak: int
    loaded: int
    read: int
    written: int
    best: float
    apart: float


def alone(function: Any, *arguments: Any) -> Any:
    """Return what a function returns in a process of its own, whose memory no other run has touched."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def peak_of(case: Case, streaming: Streaming | None) -> int:
    """Return how far a step raises the memory of this process above what it had before it opened the graph."""
    small = replace(case, path=case.path.parent / "small.h5")
    with small.opened(None) as net:  # loads what the first step loads
        net.step()
    before = resident("VmRSS")
    with case.opened(streaming) as net:
        net.step()
        Path("/proc/self/clear_refs").write_text("5")
        net.step()
        return resident("VmHWM") - before


def beside(case: Case, streaming: Streaming, turns: int) -> Found:
    """Compare a way of streaming with rows in memory, in turns."""
    peak = peak_of(case, streaming)
    with case.all_opened({"memory": None, "stream": streaming}) as nets:
        runs = {name: partial(step_ms, net) for name, net in nets.items()}
        take_turns(runs, WARM_UP)
        ms = {name: statistics.median(each) for name, each in take_turns(runs, turns).items()}
        net, whole = nets["stream"], nets["memory"]
        net.graph.backend.stream.meter.taken()
        before = storage()
        loss, gradients = net.step(), net.gradients()
        after, loaded = storage(), net.graph.backend.stream.meter.stored_bytes
        wanted = whole.step(), whole.gradients()
        if abs(loss - wanted[0]) > 1e-5 * abs(wanted[0]):
            raise RuntimeError(f"losses are {loss} and {wanted[0]}")
        apart = max(relative(a, b) for a, b in zip(gradients, wanted[1], strict=True))
        best, moved = best_of(net.streamed), [b - a for a, b in zip(before, after, strict=True)]
    return Found(ms["stream"], ms["memory"], peak, loaded, *moved, best, apart)


def storage() -> tuple[int, int]:
    """Return the bytes that this process has read from storage, and written to it, so far."""
    found = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(found["read_bytes"]), int(found["write_bytes"])


def speeds(folder: Path) -> tuple[float, float]:
    """Return the bytes per second that a file in a folder is read and written with, by as many threads as stores use.

    Reads are those of the loader of chunks: past the page cache, of REQUEST bytes. Writes are those of stores.
    """
    rows = np.ones((1 << 19, 128), np.float32)
    store = FileStore(RowFormat(rows.dtype, 128), len(rows), folder, direct=True)
    at_once = REQUEST // store.format.row_bytes

    def writes(thread: int) -> None:
        for first in range(thread * at_once, len(rows), READERS * at_once):
            store.write(first, rows[:at_once])

    def reads(thread: int) -> None:
        with mmap.mmap(-1, REQUEST) as box:
            for offset in range(thread * REQUEST, rows.nbytes, READERS * REQUEST):
                os.preadv(store.place.file, [box], offset)

    took = []
    with ThreadPoolExecutor(READERS) as pool:
        for move in (writes, reads):
            began = time.perf_counter()
            list(pool.map(move, range(READERS)))
            took.append(rows.nbytes / (time.perf_counter() - began))
    store.close()
    return took[1], took[0]


def best_of(graph: StreamedGraph) -> float:
    """Return the loads of a graph's passes over the fewest that any replacement has with as many slots."""
    loads = fewest = 0
    for made in graph.all_grids():
        for direction in (made.forward, made.backward):
            order = direction.order
            loads += int(order.loads.sum())
            fewest += grid.fewest_loads(order.chunk, order.slots)
    return loads / max(1, fewest)


def relative(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the largest difference over the largest value."""
    return float((one - other).abs().max() / other.abs().max().clamp(min=1e-30))


COLUMNS = [
    "rows",
    "ms",
    "of in memory",
    "peak MiB",
    "limit MiB",
    "loaded MiB",
    "of Belady's",
    "ms of storage",
]
COLUMNS += ["of bound", "apart"]


def table(title: str, case: Case, ways: dict[str, Streaming], turns: int, peak: int) -> Sheet:
    """Return ways of streaming beside rows in memory, whose peak is given."""
    rows: list[list[str]] = []
    for name, how in ways.items():
        fast = speeds(case.path.parent)
        got: Found = alone(beside, case, how, turns)
        if not rows:
            rows.append(["in memory", f"{got.whole:.0f}", "1", f"{peak / MIB:.0f}", *["-"] * 6])
        files = how.folder is not None
        storage_ms = 1e3 * (got.read / fast[0] + got.written / fast[1]) if files else 0.0
        bound = got.ms / max(storage_ms, got.whole)
        line = [name, f"{got.ms:.0f}", f"{got.ms / got.whole:.2f}", f"{got.peak / MIB:.0f}"]
        line += [f"{how.memory / MIB:.0f}", f"{got.loaded / MIB:.0f}", f"{got.best:.3f}", f"{storage_ms:.0f}"]
        rows.append([*line, f"{bound:.2f}", f"{got.apart:.1e}"])
    return Sheet(title, COLUMNS, rows)


def memory(case: Case, turns: int) -> list[Sheet]:
    """Compare steps in memory with streamed ones, features four times as large as what they stream through."""
    ways = {
        "in place": Streaming(case.limit),
        "copied into chunks": Streaming(case.limit, copies=True),
        "files, direct": Streaming(case.limit, folder=case.path.parent),
    }
    sheets = []
    for program in streaming.PROGRAMS:
        each = replace(case, program=program)
        title = (
            f"{program}, {case.graph['nodes']:,} nodes, {case.graph['edges']:,} edges, {case.hidden} columns"
        )
        sheets.append(table(title, each, ways, turns, alone(peak_of, each, None)))
    return sheets


def capped(case: Case, turns: int) -> list[Sheet]:
    """Train a GCN of three layers with 256 hidden units in 38 percent of the memory that it takes otherwise."""
    case = replace(case, program="gcn", hidden=256, layers=3)
    peak = alone(peak_of, case, None)
    limit, folder = int(0.38 * peak), case.path.parent
    ways = {
        "in place": Streaming(limit),
        "files, page cache": Streaming(limit, folder=folder, direct=False),
        "files, direct": Streaming(limit, folder=folder),
    }
    return [table("GCN, 3 layers, 256 hidden, in 38 percent of its memory", case, ways, turns, peak)]


def measured(part: str, graph: Graph, scratch: Path, options: BenchOptions) -> list[Sheet]:
    """Return the tables of a part."""
    about = streaming.write(graph, scratch / "graph.h5")
    streaming.write(graphs.read("rmat:8"), scratch / "small.h5")
    case = Case(scratch / "graph.h5", about, "gcn", options.threads)
    return {"memory": memory, "capped": capped}[part](case, options.turns)


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--parts", default=",".join(PARTS), help="Which, separated by commas.")
@click.option("--graph", "name", default="rmat:17", help="rmat:SCALE[:EDGE_FACTOR], or of the data folder.")
@click.option("--folder", type=click.Path(path_type=Path), default=None, help="Of scratch files.")
@click.option("--turns", default=5, help="Turns that are counted.")
@click.option("--threads", default=2, help="Of each process.")
def main(parts: str, name: str, folder: Path | None, turns: int, threads: int) -> None:
    """Measure and print."""
    try:
        chosen = words_of("parts", parts, PARTS)
        graph = structure(name)
    except InputError as error:
        click.echo(f"streaming: error: {error}", err=True)
        sys.exit(WRONG_INPUT)
    options = BenchOptions(turns=turns, threads=threads)
    with tempfile.TemporaryDirectory(dir=folder, prefix="mgg-streaming-") as made:
        for part in chosen:
            document.show([], measured(part, graph, Path(made), options))


if __name__ == "__main__":
    main()
