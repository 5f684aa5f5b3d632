"""The parts of programs.py.

Each has what it measures, its table and its picture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mgg_hpc.data.graph import Graph
from mgg_hpc.tools.bench.harness import document, watch
from mgg_hpc.tools.bench.harness.document import Sheet
from mgg_hpc.tools.bench.harness.options import BenchOptions

from . import density, fused, plot, ring, schedules, streaming, streaming_plot

Row = dict[str, Any]
Measured = tuple[Row, dict[str, Any]]  # a row, and the beginning of a document


@dataclass(frozen=True, kw_only=True)
class Request:
    """Subjects of a measurement.

    programs: of the part fused. peers: names of other libraries. nodes: rows of the matrices that the part density
    draws. rate: GB/s of slow stores; 0: each part's own. ranks: numbers of ranks, of the part ring.
    """

    options: BenchOptions
    graphs: Sequence[Graph] = ()
    programs: Sequence[str] = tuple(fused.PROGRAMS)
    peers: Sequence[str] = ()
    width: int = fused.WIDTH
    nodes: int = density.NODES
    rate: float = 0.0
    ranks: Sequence[int] = ring.RANKS


@dataclass(frozen=True)
class Part:
    """A part.

    measure: yields its rows. sheet: returns the table of rows. draw: draws rows of a document into a file.
    """

    measure: Callable[[Request], Iterator[Measured]]
    sheet: Callable[[Sequence[Row]], Sheet]
    draw: Callable[[Sequence[Row], Mapping[str, Any], Path], None]


def _fused(request: Request) -> Iterator[Measured]:
    peers = [name for name in request.peers if name in fused.MODULES]
    for graph in request.graphs:
        for program in request.programs:
            with watch.cell("fused", graph.name, program):
                yield fused.measure(graph, program, peers, request.options, request.width)


def _density(request: Request) -> Iterator[Measured]:
    peers = [name for name in request.peers if name in density.PEERS]
    yield from density.sweep(request.nodes, peers, request.options, request.width)


def _streamed(
    name: str, row_of: Callable[[streaming.Case, int, float], Row], programs: Sequence[str]
) -> Callable[[Request], Iterator[Measured]]:
    """Return what yields the rows of programs over each graph that streams."""

    def measure(request: Request) -> Iterator[Measured]:
        options = request.options
        for graph in request.graphs:
            with streaming.written(graph, request.width) as (path, about):
                for program in programs:
                    case = streaming.Case(path, about, program, options.threads, request.width)
                    with watch.cell(name, graph.name, program):
                        row = row_of(case, options.turns, request.rate)
                    yield row, document.begin("programs", options)

    return measure


def _ring(request: Request) -> Iterator[Measured]:
    for ranks in request.ranks:

        def row_of(case: streaming.Case, turns: int, rate: float, ranks: int = ranks) -> Row:
            return ring.started(replace(case, threads=1), turns, rate, ranks)

        yield from _streamed("ring", row_of, ["gcn"])(request)


EVERY = tuple(streaming.PROGRAMS)
PARTS = {
    "fused": Part(_fused, fused.sheet, plot.draw_fused),
    "density": Part(_density, density.sheet, plot.draw_density),
    "schedules": Part(
        _streamed("schedules", schedules.by_schedule, EVERY),
        schedules.sheet,
        streaming_plot.draw_schedules,
    ),
    "overlap": Part(
        _streamed("overlap", schedules.by_overlap, EVERY),
        schedules.overlap_sheet,
        streaming_plot.draw_overlap,
    ),
    "ring": Part(_ring, ring.sheet, streaming_plot.draw_ring),
}
PEERS = (*fused.MODULES, *density.PEERS)


def measured(name: str, request: Request) -> tuple[list[Row], dict[str, Any]]:
    """Return the rows of a part, and the beginning of its document with the notes of all rows."""
    rows, found, notes = list[Row](), dict[str, Any](), list[str]()
    for row, about in PARTS[name].measure(request):
        rows.append(row)
        notes += about["notes"]
        found = found or about
    return rows, found | {"notes": list(dict.fromkeys(notes))}
