"""Time training steps of graphs whose rows stream (NGra), by part.

    python benchmarks/streaming.py rmat:16 --folder SCRATCH -o streaming.md -o streaming.png
    python benchmarks/streaming.py rmat:15 --parts schedules,overlap -o schedules.png
    python benchmarks/streaming.py rmat:15 --parts ring --ranks 2 --threads 1

Models are a GCN and a gated GCN of two layers and 128 columns. Memory (``limit_mb``) holds the plans and a quarter of
the features.

memory: compare a step in memory with steps whose rows lie in the host's memory (read in place, or copied into chunks
as devices do) and in files that bypass the page cache.
schedules: NGra's orders of sums, by stage and by destination (figure 14), from a store of a given rate.
overlap: chunks loaded ahead or on demand, at the rate at which all bytes take as long as the rest of a step; the rows
below them show either alone.
ring: ranks that pass chunks on, or load each for themselves (figure 16), GCN only; without a launcher the script starts
its ranks.

``moved_mb`` is the number of bytes that all ranks move between stores and memory in a step: ``chunks_mb`` of source
rows, and ``sums_mb`` of sums that leave memory and return. ``storage_mb`` is the part that storage reads and writes.
``peak_mb`` is the peak memory of a process minus its memory before it opens the graph.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import torch
from harness import command, graphs, options, run
from harness.plots import draw
from harness.processes import alone, peak_from_now, status
from harness.results import Results, output_files
from harness.shapes import Shape, labelled
from torch import Tensor
from torch.nn import Linear
from torch.nn.functional import cross_entropy

from mgg_hpc.data import writer
from mgg_hpc.errors import InputError
from mgg_hpc.nn import saga
from mgg_hpc.nn.api import open_graph
from mgg_hpc.nn.graph.dist_graph import DistGraph
from mgg_hpc.nn.streaming.graph import SCHEDULES, StreamedGraph, Streaming
from mgg_hpc.runtime import cores, exit_code, mpi
from mgg_hpc.runtime.launch import process_launch
from mgg_hpc.runtime.timing import interleaved

PARTS = ("memory", "schedules", "overlap", "ring")
RATES = {"schedules": 1.0, "ring": 0.5}  # GB/s of the stores of each rank
FEATURES, CLASSES = 128, 16
LEAST = 1 << 20  # bytes of rows that small graphs stream through
PLAN_BYTES = 16  # for each edge of an undirected graph, as `StreamedGraph` counts plans
CASE = ("graph", "part", "program", "ranks", "gb_per_s")
SHOWN = (*CASE[1:], "variant", "median_ms", "relative_time", "moved_mb", "chunks_mb", "sums_mb")
SHOWN += ("storage_mb", "peak_mb", "limit_mb")


class Gcn(saga.Layer):
    """Graph convolution, by the weights of the normalised graph."""

    kind = "gcn"

    def __init__(self, columns: int, out: int) -> None:
        super().__init__()
        self.linear = Linear(columns, out)

    def apply_edge(self, edge: saga.Edge) -> Tensor:
        return edge.src * edge.weight

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return torch.relu(self.linear(accum))


class Gated(Gcn):
    """Gated GCN: each edge has a gate for each column."""

    kind = "edges"

    def __init__(self, columns: int, out: int) -> None:
        super().__init__(columns, out)
        self.far, self.near = Linear(columns, columns), Linear(columns, columns, bias=False)

    def apply_edge(self, edge: saga.Edge) -> Tensor:
        return torch.sigmoid(self.far(edge.src) + self.near(edge.dst)) * edge.src


PROGRAMS = {"gcn": Gcn, "gated-gcn": Gated}


@dataclass
class Net:
    """A net of one program's layers, with class scores as its output, and its graph. Calls are collective."""

    layers: torch.nn.ModuleList
    graph: DistGraph

    def step(self) -> float:
        """Run forward, loss and backward; return the loss."""
        self.layers.zero_grad()
        x: Any = self.graph.x
        for layer in self.layers:
            x = layer(x, self.graph)
        out = x.tensor() if isinstance(self.graph, StreamedGraph) else x
        loss = self.graph.loss(out, cross_entropy)
        loss.backward()
        return float(loss.detach())

    def ms(self) -> float:
        """Return the milliseconds of a step, of the slowest rank."""
        self.graph.backend.stream.meter.taken()
        self.graph.comm.Barrier()
        began = time.perf_counter()
        self.step()
        return max(self.graph.comm.allgather(1e3 * (time.perf_counter() - began)))

    def moved(self) -> dict[str, float]:
        """Run a step, and return the MB that move between all ranks' stores and memory, as columns of results."""
        graph, meter = self.graph, self.graph.backend.stream.meter
        assert isinstance(graph, StreamedGraph)
        meter.taken()
        others, swapped = graph.pace.nbytes, graph.swapped
        self.step()
        chunks, sums = meter.stored_bytes, graph.swapped - swapped
        found = {"moved": chunks + graph.pace.nbytes - others, "chunks": chunks, "sums": sums}
        return {f"{kind}_mb": graph.comm.allreduce(nbytes) / 1e6 for kind, nbytes in found.items()}


@dataclass(frozen=True)
class Case:
    """A graph file for a program, and the memory that it streams through. threads: of each rank."""

    path: Path
    graph: str
    nodes: int
    edges: int
    threads: int
    program: str = "gcn"

    @property
    def limit(self) -> int:
        """plan.memory in bytes: a quarter of the features, and the plans."""
        return max(self.nodes * FEATURES, LEAST) + PLAN_BYTES * self.edges

    @contextmanager
    def opened(self, streaming: Streaming | None) -> Iterator[Net]:
        """Yield a net over the graph, with the same weights each time. Collective."""
        torch.manual_seed(1)
        with open_graph(self.path, streaming=streaming, threads=self.threads) as graph:
            made, widths = PROGRAMS[self.program], (graph.num_features, FEATURES, CLASSES)
            yield Net(torch.nn.ModuleList(made(a, b) for a, b in pairwise(widths)), graph)

    @contextmanager
    def all_opened(self, variants: Mapping[str, Streaming | None]) -> Iterator[dict[str, Net]]:
        """Yield a net for each variant, open at the same time."""
        with ExitStack() as stack:
            yield {name: stack.enter_context(self.opened(each)) for name, each in variants.items()}


def in_turns(nets: Mapping[str, Net], turns: int) -> dict[str, list[float]]:
    """Return the milliseconds of each net's step in each turn, after a warm-up."""
    runs = {name: net.ms for name, net in nets.items()}
    interleaved(runs, 2)
    return interleaved(runs, turns)


@contextmanager
def written(name: str, folder: Path | None, threads: int) -> Iterator[Case]:
    """Write a named graph and a small one with features and labels for all ranks; yield its case. Collective."""
    comm, case, shape = mpi.world(), None, Shape.of("gcn", FEATURES, None, CLASSES, 0.0)
    with ExitStack() as stack:
        with mpi.agree(comm):
            if comm.Get_rank() == 0:
                scratch = tempfile.TemporaryDirectory(dir=folder, prefix="mgg-streaming-")
                path, graph = Path(stack.enter_context(scratch)), graphs.read(name)
                writer.write(path / "small.h5", labelled(graphs.read("rmat:8"), shape))
                writer.write(path / "graph.h5", labelled(graph, shape))
                case = Case(path / "graph.h5", graph.name, graph.nodes, graph.edges, threads)
        yield comm.bcast(case)
        comm.Barrier()  # all have closed it


@command(__doc__)
@options.graph_names("rmat:17")
@options.words("parts", PARTS, "Comparisons.", "memory")
@options.folder()
@click.option("--rate", type=click.FloatRange(1e-3), help="GB/s of stores. [default: each part's]")
@click.option("--ranks", type=click.IntRange(1), default=1, help="Of the part ring.")
@options.threads()
@options.turns(3)
@output_files()
def main(
    names: tuple[str, ...],
    parts: list[str],
    folder: Path | None,
    rate: float | None,
    ranks: int,
    threads: int | None,
    turns: int,
    files: tuple[Path, ...],
) -> int:
    if (ranks > 1 or mpi.launched()) and parts != ["ring"]:
        raise InputError("--ranks, or a launcher: for --parts ring alone")
    if ranks > 1 and not mpi.launched():
        return process_launch(ranks, sys.argv)
    threads = threads or cores.available()
    results, first = Results("streaming", threads=threads), exit_code.is_first()
    for name in names:
        with written(name, folder, threads) as case:
            for part in parts:
                for program in PROGRAMS if part != "ring" else ["gcn"]:
                    of_program = replace(case, program=program)
                    if part == "memory":
                        in_memory(results, of_program, turns)
                    else:
                        at_rate(results, part, of_program, rate, turns)
                    if first:
                        results.write(files, draw)  # what is measured stays, whatever ends the rest
    if first:
        results.show(*(column for column in SHOWN if any(column in row for row in results.rows)))
    return 0


def at_rate(results: Results, part: str, case: Case, rate: float | None, turns: int) -> None:
    """Add the rows of a part whose stores have a rate. Collective. rate: GB/s, or None for the part's."""
    size, parts_alone = mpi.world().Get_size(), {}
    how = Streaming(case.limit // size, copies=True)
    if part == "overlap":
        with case.opened(replace(how, ahead=False)) as net:
            computing = in_turns({part: net}, turns)[part]
            moved_mb = net.moved()["moved_mb"] / size
        rate = rate or moved_mb / statistics.median(computing)
        parts_alone = {"bytes alone": [moved_mb / rate], "all else alone": computing}
    rate = rate or RATES[part]
    how = replace(how, rate=rate * 1e9)
    variants = {
        "schedules": {name: replace(how, schedule=name) for name in SCHEDULES},
        "overlap": {"ahead": how, "when wanted": replace(how, ahead=False)},
        "ring": {"chains": how, "each for itself": replace(how, chains="none")},
    }[part]
    with case.all_opened(variants) as nets:
        ms = in_turns(nets, turns)
        more = {name: net.moved() for name, net in nets.items()}
    same = dict(zip(CASE, (case.graph, part, case.program, size, round(rate, 3)), strict=True))
    results.compare(ms, more, **same)
    for name, taken in parts_alone.items():
        results.add(name, taken, **same)


def in_memory(results: Results, case: Case, turns: int) -> None:
    """Compare with rows in memory; each variant is measured in a process of its own."""
    peak, how = alone(peak_of, case, None), Streaming(case.limit)
    variants = {
        "in place": how,
        "copied into chunks": replace(how, copies=True),
        "files, direct": replace(how, folder=case.path.parent),
    }
    same = {"graph": case.graph, "part": "memory", "program": case.program}
    for name, variant in variants.items():
        ms, columns = alone(beside, case, variant, turns)
        if name == "in place":
            results.add("in memory", ms["memory"], ms["memory"], **same, peak_mb=peak / 1e6)
        results.add(name, ms["stream"], ms["memory"], **same, **columns, limit_mb=case.limit / 1e6)


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
    """Compare a stream with rows in memory; return the milliseconds of both, and further columns.

    Raises AssertionError where losses differ.
    """
    peak = peak_of(case, how)
    with case.all_opened({"memory": None, "stream": how}) as nets:
        ms, before = in_turns(nets, turns), storage_bytes()
        columns = nets["stream"].moved()
        columns |= {"storage_mb": (storage_bytes() - before) / 1e6, "peak_mb": peak / 1e6}
        loss, expected = nets["stream"].step(), nets["memory"].step()
    if abs(loss - expected) > 1e-5 * abs(expected):
        raise AssertionError(f"losses are {loss} and {expected}")
    return ms, columns


def storage_bytes() -> int:
    """Return the bytes that this process has read from storage, and written to it, so far."""
    found = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(found["read_bytes"]) + int(found["write_bytes"])


if __name__ == "__main__":
    run(main)
