"""Steps on graphs whose rows stream, beside the same steps in memory: time, memory, bytes.

    python benchmarks/streaming.py rmat:16 --folder SCRATCH -o streaming.md -o streaming.png
    python benchmarks/streaming.py rmat:16 --folder SCRATCH --parts capped --turns 2

memory: GCN and a gated GCN, two layers of 128 columns, with rows in the host's memory, in place and copied into chunks
as devices do, and in files past the page cache. ``limit_mib``, plan.memory, is a quarter of the features, beside the
plans. capped: GCN of 256 hidden units and 3 layers, in 38 percent of the memory that it takes otherwise.

Each variant has a process of its own, where it takes turns with a step in memory. ``peak_mib`` is what it has before
that, above what it had before it opened the graph: edges count, and rows in the host's memory, too. ``of_belady``:
loads of chunks over the fewest that any replacement has. ``storage_ms``: time of all bytes that storage read and wrote,
at the speeds of two threads that do nothing else. ``of_bound``: the step's time over it, or over a step in memory where
that takes longer. ``apart``: the largest difference of gradients over the largest gradient.
benchmarks/studies/streaming.py has schedules of sums, loads ahead, and chains of ranks.
"""

from __future__ import annotations

import mmap
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from harness import command, run, streamed
from harness.memory import alone, peak_from_now, status
from harness.plots import bars_by
from harness.streamed import Case

from mgg_hpc.nn.streaming.graph import Streaming
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.plan.streaming import grid
from mgg_hpc.runtime import cores
from mgg_hpc.runtime.streaming.file_store import FileStore
from mgg_hpc.tools.bench import graphs
from mgg_hpc.tools.bench.results import Results, output_files, words_of

PARTS = ("memory", "capped")
MIB = 1 << 20
REQUEST = 4 << 20  # bytes that the loader of chunks reads at a time
READERS = 2  # threads that read at once, or write
CAPPED = 0.38  # of the memory that a step takes otherwise
SHOWN = ("peak_mib", "limit_mib", "loaded_mib", "of_belady", "storage_ms", "of_bound", "apart")
DRAW = bars_by("part", "program", values=("median_ms", "peak_mib"))


@command(__doc__)
@click.argument("name", default="rmat:17", metavar="[GRAPH]")
@click.option("--parts", default=",".join(PARTS), show_default=True, help="Comparisons, separated by commas.")
@click.option(
    "--folder", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Of scratch files."
)
@click.option("--threads", type=click.IntRange(1), help="Of each process. [default: all cores]")
@click.option("--turns", type=click.IntRange(1), default=5, show_default=True)
@output_files()
def main(
    name: str, parts: str, folder: Path | None, threads: int | None, turns: int, files: tuple[Path, ...]
) -> None:
    chosen, threads = words_of("parts", parts, PARTS), threads or cores.available()
    graphs.check(name)
    with tempfile.TemporaryDirectory(dir=folder, prefix="mgg-streaming-") as made:
        scratch = Path(made)
        streamed.write(graphs.read("rmat:8"), scratch / "small.h5", threads)
        case = streamed.write(graphs.read(name), scratch / "graph.h5", threads)
        results = Results("streaming", graph=case.graph, nodes=case.nodes, edges=case.edges, threads=threads)
        for part in chosen:
            for program in streamed.PROGRAMS if part == "memory" else ["gcn"]:
                compare(results, part, replace(case, program=program), turns)
                results.write(files, DRAW)  # what is measured stays, whatever ends the rest
    results.show("part", "program", "variant", "median_ms", "times_first", *SHOWN)


def compare(results: Results, part: str, case: Case, turns: int) -> None:
    """Add the rows of a part and a program."""
    if part == "capped":
        case = replace(case, hidden=256, layers=3)
    peak = alone(peak_of, case, None)
    limit = int(CAPPED * peak) if part == "capped" else case.limit
    in_place, files = Streaming(limit), Streaming(limit, folder=case.path.parent)
    variants = {"in place": in_place, "copied into chunks": replace(in_place, copies=True)}
    if part == "capped":
        variants = {"in place": in_place, "files, page cache": replace(files, direct=False)}
    variants["files, direct"] = files
    same = {"part": part, "program": case.program}
    for at, (name, how) in enumerate(variants.items()):
        ms, columns = alone(beside, case, how, turns)
        if at == 0:
            results.add("in memory", ms["memory"], ms["memory"], **same, peak_mib=peak / MIB)
        results.add(name, ms["stream"], ms["memory"], **same, **columns, limit_mib=limit / MIB)


def peak_of(case: Case, how: Streaming | None) -> int:
    """Return how far a step raises the memory of this process above what it had before it opened the graph."""
    with replace(case, path=case.path.parent / "small.h5").opened(None) as net:
        net.step()  # loads what the first step loads
    before = status("VmRSS")
    with case.opened(how) as net:
        net.step()
        peak_from_now()
        net.step()
        return status("VmHWM") - before


def beside(case: Case, how: Streaming, turns: int) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Compare a way of streaming with rows in memory; return the milliseconds of both, and further columns.

    Raises AssertionError where losses differ.
    """
    columns = {"peak_mib": peak_of(case, how) / MIB}
    with case.all_opened({"memory": None, "stream": how}) as nets:
        ms = streamed.in_turns(nets, turns)
        net, whole = nets["stream"], nets["memory"]
        before = storage()
        columns["loaded_mib"] = net.moved()["chunks_mb"] * 1e6 / MIB
        read, written = storage() - before
        loss, expected = net.step(), whole.step()
        if abs(loss - expected) > 1e-5 * abs(expected):
            raise AssertionError(f"losses are {loss} and {expected}")
        orders = [way.order for made in net.graph.all_grids() for way in (made.forward, made.backward)]
        fewest = sum(grid.fewest_loads(order.chunk, order.slots) for order in orders)
        columns["of_belady"] = sum(int(order.loads.sum()) for order in orders) / max(1, fewest)
        pairs = zip(net.layers.parameters(), whole.layers.parameters(), strict=True)
        columns["apart"] = max(relative(one.grad, other.grad) for one, other in pairs)
    if how.folder is not None:
        reading, writing = speeds(case.path.parent)
        columns["storage_ms"] = 1e3 * (read / reading + written / writing)
    medians = {name: statistics.median(taken) for name, taken in ms.items()}
    columns["of_bound"] = medians["stream"] / max(columns.get("storage_ms", 0.0), medians["memory"])
    return ms, columns


def storage() -> np.ndarray:
    """Return the bytes that this process has read from storage, and written to it, so far."""
    found = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return np.array([int(found["read_bytes"]), int(found["write_bytes"])])


def relative(one: Any, other: Any) -> float:
    """Return the largest difference over the largest value."""
    return float((one - other).abs().max() / other.abs().max().clamp(min=1e-30))


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

    def rate(move: Callable[[int], None]) -> float:
        began = time.perf_counter()
        list(pool.map(move, range(READERS)))
        return rows.nbytes / (time.perf_counter() - began)

    with ThreadPoolExecutor(READERS) as pool:
        writing, reading = rate(writes), rate(reads)
    store.close()
    return reading, writing


if __name__ == "__main__":
    run(main)
