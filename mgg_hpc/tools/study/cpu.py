"""The studies on CPUs, over the ranks of a launcher: what each way of cutting and exchanging takes.

All variants of a study sum the same rows by the same kernels, in turns; their sums and their times are compared with
those of the first one. Times are those of the slowest rank.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...plan.overlap import separated
from ...runtime import exit_code, mpi
from ...runtime.backends.arguments import Geometry
from ..bench.harness import graphs, machine, timing
from ..bench.overlap.cpu import MOVES, Subject
from . import names
from .table import Files, Table

Call = Callable[[], None]

UNCUT = 2**30  # partitions of so many edges, in which no destination is split
SHOWN = (
    "variant",
    "width_values",
    "median_ms",
    "min_ms",
    "max_ms",
    "processor_ms",
    "times_first",
    "crossing_bytes",
)


@dataclass(frozen=True)
class Request:
    """What a study is asked to measure: a graph, widths of rows, and where."""

    graph: str
    widths: Sequence[int]
    backend: str
    threads: int | None
    turns: int
    files: Files


class Variants:
    """The ways in which a subject can be summed, beside those of `mgg bench overlap`."""

    def __init__(self, subject: Subject) -> None:
        self.subject, self.backend = subject, subject.backend

    def cut(self, transfer: str, geometry: Geometry, hubs: Geometry | None = None) -> Call:
        """Return an aggregation by ``direct`` or ``get``, cut in another way.

        hubs: of whose blocks a destination has four before it is split, or None for the backend's own.
        """
        subject, backend = self.subject, self.backend
        plan = replace(subject.plan, transfer=transfer)
        usual = backend.options
        split = replace(usual, geometry=hubs or usual.geometry)
        backend.retune(plan, subject.format, geometry)

        def call() -> None:
            backend.publish(subject.shared)
            backend.options = split  # by which the first call cuts hubs
            backend.aggregate(plan, "copy", "sum", subject.shared, subject.out)
            backend.options = usual

        return call

    def separate(self, transfer: str) -> Call:
        """Return an aggregation whose local and remote rows are summed by separate threads, half of them each.

        What both have summed is added up afterwards, by all threads.
        """
        subject, backend, usual = self.subject, self.backend, self.backend.options
        halo = transfer == "halo"
        rows = subject.own if halo else subject.shared
        mine, others, merged = separated(subject.rounds if halo else replace(subject.plan, transfer=transfer))
        backend.prepare(others, subject.format)
        counts = np.zeros(subject.comm.size, dtype=np.int64)
        counts[subject.comm.rank] = mine.destinations + others.destinations
        both = backend.rows(counts, subject.format, symmetric=False)
        here, there = both.local[: mine.destinations], both.local[mine.destinations :]
        half = replace(usual, threads=max(1, usual.threads // 2))

        def call() -> None:
            if not halo:
                backend.publish(subject.shared)
            backend.options = half
            beside = threading.Thread(target=backend.aggregate, args=(mine, "copy", "sum", subject.own, here))
            beside.start()
            backend.aggregate(others, "copy", "sum", rows, there)
            beside.join()
            backend.options = usual
            backend.aggregate(merged, "copy", "sum", both, subject.out)

        return call


def neighbour_partitioning(of: Variants) -> Mapping[str, Call]:
    """Destinations split into neighbour partitions against whole ones (OSDI '23, figure 10a)."""
    usual = of.backend.options.geometry
    small, tiny, one = (replace(usual, ps=ps, wpb=1) for ps in (256, 16, 1))
    whole = replace(usual, ps=UNCUT, wpb=1)
    transfer = "direct" if of.backend.capabilities.reaches_peers else "get"
    return {
        f"blocks of {usual.ps * usual.wpb:,} edges, larger hubs split": of.cut(transfer, usual),
        "blocks of 256 edges, larger hubs split": of.cut(transfer, small, small),
        "blocks of 16 edges, larger hubs split": of.cut(transfer, tiny, tiny),
        "blocks of 256 edges, destinations whole": of.cut(transfer, small, whole),
        "a whole destination a block (no partitioning)": of.cut(transfer, one, whole),
    }


def interleaving(of: Variants) -> Mapping[str, Call]:
    """Local work under the transfer against one after the other, and on separate threads (figure 10b)."""
    usual, way = of.backend.options.geometry, of.subject.way
    found = {
        names.HALO: way("halo"),
        names.BULK: way("bulk"),
        "halo, local and remote on separate threads": of.separate("halo"),
    }
    if of.backend.capabilities.reaches_peers:
        found[names.DIRECT] = way("direct")
        found["direct, nothing fetched ahead"] = of.cut("direct", replace(usual, dist=0))
        found["direct, local and remote on separate threads"] = of.separate("direct")
    return found


def primitives(of: Variants) -> Mapping[str, Call]:
    """How a remote row is asked for: loads, gets of more and more rows at a time, or all of them (figure 10c)."""
    usual = of.backend.options.geometry
    found = {}
    if of.backend.capabilities.reaches_peers:
        found[names.DIRECT] = of.subject.way("direct")
    found |= {
        "get: rows of one destination at a time": of.cut("get", replace(usual, ps=1, wpb=1)),
        "get: rows of 64 edges at a time": of.cut("get", replace(usual, ps=64, wpb=1)),
        f"get: rows of {usual.ps * usual.wpb:,} edges at a time": of.cut("get", usual),
    }
    return found | {names.HALO: of.subject.way("halo"), names.BULK: of.subject.way("bulk")}


def transfers(of: Variants) -> Mapping[str, Call]:
    """Each transfer, and its parts (OSDI '23, figures 7 to 9; arXiv, figure 2 and table 1)."""
    way = of.subject.way
    found = {names.HALO: way("halo"), names.BULK: way("bulk")}
    if of.backend.capabilities.reaches_peers:
        found[names.DIRECT] = way("direct")
    found |= {names.GET: way("get"), names.ALL_GATHER: way("all-gather"), "sums alone": way("sum")}
    return found | {"halo's exchange alone": way("exchange"), "all-gather alone": way("all-gather alone")}


STUDIES = {
    "neighbour-partitioning": neighbour_partitioning,
    "interleaving": interleaving,
    "primitives": primitives,
    "transfers": transfers,
}
MOVED_ALONE = {"halo's exchange alone": MOVES[0], "all-gather alone": MOVES[1]}  # which sum nothing
HALOS = {"interleaving": 1}  # plans that are prepared beside the subject's own


def measure(study: str, request: Request) -> Table:
    """Measure a study on all ranks, which must all call this; the rows are those of all. Raises InputError."""
    comm = mpi.world()
    with mpi.agree(comm):
        request.files.check()
        graph = graphs.read(request.graph)
    table = Table(study, {})
    for width in sorted(request.widths, reverse=True):  # OpenSHMEM's heap has the size of the first one's
        threads = request.threads or mpi.threads_share(comm)
        subject = Subject(comm, graph, width, request.backend, threads, halos=HALOS.get(study, 0))
        _add(table, study, subject, graph, request.turns)
        subject.backend.memory.close()
    table.rows.sort(key=lambda row: request.widths.index(row["width_values"]))
    if len(request.widths) > 1:
        table.same = {name: value for name, value in table.same.items() if name != "width_values"}
    return table


def conditions(subject: Subject, graph: Any, threads: int) -> dict[str, Any]:
    """Return the columns that all rows of a subject have. Collective."""
    every = subject.comm.allgather(
        (subject.plan.local_edges, subject.plan.remote_edges, len(subject.plan.halo))
    )
    local, remote, halo = (sum(counts) for counts in zip(*every, strict=True))
    return {
        "graph": graph.name,
        "nodes": graph.nodes,
        "edges": graph.edges,
        "device": machine.describe()["cpu"],
        "backend": subject.backend.capabilities.name,
        "ranks": subject.comm.size,
        "threads_per_rank": threads,
        "width_values": subject.format.dim,
        "local_edges": local,
        "remote_edges": remote,
        "halo_rows": halo,
    }


def _add(table: Table, study: str, subject: Subject, graph: Any, turns: int) -> None:
    """Measure one width, and add its rows."""
    table.same = conditions(subject, graph, subject.backend.options.threads)
    ways = STUDIES[study](Variants(subject))
    named = {MOVED_ALONE.get(name, name): way for name, way in ways.items()}
    taken, processor = subject.measure(named, turns)
    first = taken[next(iter(named))]
    for name in ways:
        ms = taken[MOVED_ALONE.get(name, name)]
        table.add(
            name,
            timing.spread(ms),
            len(ms),
            timing.ratios(*zip(*zip(ms, first, strict=False), strict=True))["median"],
            processor_ms=round(processor[MOVED_ALONE.get(name, name)], 4),
            crossing_bytes=_crossing(name, table.same, subject.format.row_bytes),
        )


def _crossing(name: str, same: Mapping[str, Any], row_bytes: int) -> int:
    """Return the bytes of rows that cross between ranks in one call of a variant, of all ranks together."""
    if name.startswith("sums alone"):
        return 0
    if name.startswith("all-gather"):
        return int((same["ranks"] - 1) * same["nodes"] * row_bytes)
    once = name.startswith(("halo", "bulk"))
    return int(same["halo_rows" if once else "remote_edges"]) * row_bytes


def run(study: str, request: Request, draw: Callable[..., None]) -> int:
    """Measure a study, and have rank 0 print and write it."""
    table = measure(study, request)
    if mpi.world().rank == 0:
        table.finish(request.files, draw, SHOWN)
    exit_code.record(0)
    return 0
