"""Measure what sums, products and transfers take, with all ranks of a communicator at once, which are on one node.

Sums over random edges give a cost for each kind of work that the cost model counts (`plan.cost_model`): what is left
of a measured time after the work whose cost is known is the cost of the rest.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..plan import counts, workload
from ..plan.cost_model import Gather, RowCost
from ..plan.layout import RowFormat
from ..plan.workload import Plan, SplitEdges
from . import backends, cores, exchange, mpi
from .backends.arguments import RngKey
from .backends.base import Backend
from .calibration import NOTHING, Measured

SIZES = (
    512 << 10,
    2 << 20,
    8 << 20,
    16 << 20,
    32 << 20,
    96 << 20,
)  # bytes of the rows that are read at random
WIDTHS = (16, 64, 256)  # of float32
DEGREE, FEW_EDGES = 32, 4  # mean edges of a destination: where edges are measured, and where destinations are
EDGES = 1 << 19  # of an aggregation that is timed, at the smallest width; fewer at others
HALO_BYTES = 16 << 20  # rows of all ranks whose halo is measured
PRODUCTS = (8, 16, 64, 256)  # smaller dimensions
TURNS = 7
FEW_ROWS = 64  # rows of an aggregation that takes no time but its fixed one


def slowest(comm: Any, action: Callable[[], object], turns: int = TURNS) -> float:
    """Return the seconds of an action on the slowest rank in the fastest turn: other work only adds time. Collective.

    By the clock, not by what processors worked: the system counts other threads' work in ticks of milliseconds. Where
    ranks outnumber cores, the action has ended once the last rank's has, since they run one after another.
    """
    shared = comm.size > cores.available()
    repeats = 4 if shared else 1  # ranks that share cores do not leave a barrier at the same time
    times = []
    for _ in range(turns):
        mpi.barrier(comm)
        began = time.perf_counter()
        for _ in range(repeats):
            action()
        times.append((began, time.perf_counter()))
    every = np.array(comm.allgather(times))  # [ranks, turns, 2]; the clock is the host's
    taken = every[:, :, 1].max(axis=0) - every[:, :, 0].min(axis=0)
    if not shared:
        taken = (every[:, :, 1] - every[:, :, 0]).max(axis=0)
    return float(taken.min()) / repeats


def measure(comm: Any) -> Measured:
    """Measure this host. Collective."""
    threads = mpi.threads_share(comm)
    backend = backends.make(backends.choose_cpu("auto", comm), comm, threads=threads)
    sums, alone = _Sums(comm, backend), comm.size == 1
    sums.measure_destinations()
    own = sums.gather("halo")
    found = Measured(
        ranks=comm.size,
        threads=threads,
        gather=own,
        mixed={} if alone else {name: sums.gather(name) for name in ("direct", "get")},
        destination=sums.destination,
        segment=sums.segment,
        dense=_products(comm, threads),
        draw=_draw(comm, backend),
        within={} if alone else _within(sums, own),
        fixed=_fixed(comm, backend),
    )
    backend.memory.close()
    return found


@dataclass
class _Sums:
    """Aggregations of random edges on all ranks. destination, segment: what each takes, once they were measured."""

    comm: Any
    backend: Backend
    destination: RowCost = NOTHING
    segment: RowCost = NOTHING

    def seconds(self, plan: Plan, rows: Any) -> float:
        """Return the seconds of an aggregation over rows that are published, on the slowest rank. Collective."""
        out = self.backend.memory.padded(plan.destinations, rows.format)

        def run() -> None:
            self.backend.aggregate(plan, "copy", "sum", rows, out)

        for _ in range(
            6 if rows.format.row_bytes >= 512 else 2
        ):  # the first ones choose how wide rows are swept
            run()
        return slowest(self.comm, run)

    def edges(
        self, count: int, degree: int, rows: int, *, everywhere: bool
    ) -> tuple[SplitEdges, counts.Reuse]:
        """Return about ``count`` edges of this rank, drawn at random, and how they use rows again.

        degree: mean edges of a destination. rows: of each rank. everywhere: from the rows of all ranks, not its own.
        """
        rng = np.random.default_rng(self.comm.rank)
        degrees = rng.poisson(degree, max(1, count // degree))
        first, total = (0, rows * self.comm.size) if everywhere else (rows * self.comm.rank, rows)
        sources = first + rng.integers(0, total, int(degrees.sum()))
        destination = np.repeat(np.arange(len(degrees)), degrees)
        sources = sources[np.lexsort((sources, destination))]
        return _split(self.comm, rows, degrees, sources), counts.reuse_of(sources, len(np.unique(sources)))

    def rows(self, count: int, format: RowFormat, *, symmetric: bool) -> Any:
        """Return rows of which each rank has ``count``, filled: pages that were never written are all the same one."""
        rows = self.backend.rows(np.full(self.comm.size, count), format, symmetric=symmetric)
        rows.local[:] = 1
        if symmetric:
            self.backend.publish(rows)
        return rows

    def measure_destinations(self) -> None:
        """Measure what a destination takes beside its edges: to be stored, and to begin a segment of edges."""
        formats = [RowFormat(np.dtype(np.float32), width) for width in (WIDTHS[0], WIDTHS[-1])]
        stored, begun = [], []
        for format in formats:
            count = (32 << 20) // format.row_bytes
            nothing = np.zeros(0, dtype=np.int64)
            plan = workload.direct(_split(self.comm, count, np.zeros(count, np.int64), nothing))
            stored.append(self.seconds(plan, self.rows(count, format, symmetric=False)) / count)
        self.destination = _line(formats, stored)
        for format in formats:
            rows = self.rows(SIZES[0] // format.row_bytes, format, symmetric=False)
            count = EDGES * formats[0].row_bytes // format.row_bytes
            few, many = (
                workload.direct(self.edges(count, degree, len(rows.local), everywhere=False)[0])
                for degree in (FEW_EDGES, DEGREE)
            )
            edge = self.seconds(many, rows) / many.edges
            taken = self.seconds(few, rows) - few.edges * edge
            fewer = few.destinations - many.destinations * few.edges / many.edges
            begun.append(taken / fewer - self.destination.of(1, format.row_bytes))
        self.segment = _line(formats, begun)

    def beside_edges(self, plan: Plan, row_bytes: int) -> float:
        """Return the seconds of a plan's segments and destinations."""
        segments = len(plan.segments)
        stored = segments if plan.transfer == "halo" else plan.destinations
        return self.segment.of(segments, row_bytes) + self.destination.of(stored, row_bytes)

    def gather(self, transfer: str) -> Gather:
        """Measure edges by the bytes of their rows, and of all rows that are read: a rank's own, for a halo, or all.

        Random reads of S bytes are as far apart as any number of bytes up to S, so the time of those between two sizes
        is the difference of both products of size and time.
        """
        table: list[tuple[float, ...]] = []
        formats = [RowFormat(np.dtype(np.float32), width) for width in WIDTHS]
        mixed = transfer != "halo"
        for at, format in enumerate(formats):
            times = []
            for size in SIZES:
                count = size // format.row_bytes // (self.comm.size if mixed else 1)
                edges, _ = self.edges(EDGES >> at, DEGREE, count, everywhere=mixed)
                plan = workload.direct(edges, "get" if transfer == "get" else "direct")
                rows = self.rows(count, format, symmetric=mixed)
                taken = self.seconds(plan, rows) - self.beside_edges(plan, format.row_bytes)
                times.append(max(1e-12, max(self.comm.allgather(taken)) / plan.edges))
                if mixed:
                    self.backend.memory.release(rows)
            areas = np.array(SIZES) * np.array(times)
            classes = np.diff(areas, prepend=0) / np.diff(SIZES, prepend=0)
            table.append(tuple(np.maximum.accumulate(classes).tolist()))
        sizes = tuple(format.row_bytes for format in formats)
        return Gather(tuple(float(size) for size in SIZES[:-1]), sizes, tuple(table))


def _split(comm: Any, rows: int, degrees: NDArray[np.integer], sources: NDArray[np.integer]) -> SplitEdges:
    """Return the edges of this rank's destinations, whose sources are global rows; each rank has ``rows`` of them."""
    bounds = np.arange(comm.size + 1, dtype=np.int64) * rows
    return workload.split(comm.rank, bounds, workload.prefix_sum(degrees), sources)


def _line(formats: list[RowFormat], seconds: list[float]) -> RowCost:
    """Return the cost that gives these seconds for rows of two formats, without negative parts."""
    low, high = (format.row_bytes for format in formats)
    byte = max(0.0, (seconds[1] - seconds[0]) / (high - low))
    return RowCost(max(0.0, seconds[0] - byte * low), byte)


def _within(sums: _Sums, own: Gather) -> dict[str, RowCost]:
    """Return what a remote row takes beyond its edges, by transfer: a halo's rows are packed and moved."""
    comm, left = sums.comm, []
    formats = [RowFormat(np.dtype(np.float32), width) for width in (WIDTHS[0], WIDTHS[-1])]
    for format in formats:
        count = HALO_BYTES // format.row_bytes // comm.size
        edges, reuse = sums.edges(8 * count, 8, count, everywhere=True)
        plan = exchange.halo_in_rounds(comm, edges)[0]
        sums.backend.prepare(plan, format)
        taken = sums.seconds(plan, sums.rows(count, format, symmetric=False))
        taken -= sums.beside_edges(plan, format.row_bytes)
        taken -= plan.edges * own.of(reuse, format.row_bytes)
        left.append(max(comm.allgather(taken / len(plan.halo))))
    return {"direct": NOTHING, "get": NOTHING, "halo": _line(formats, left)}


def _products(comm: Any, threads: int) -> tuple[tuple[int, float], ...]:
    """Measure the operations a second of products [n, k] x [k, k], and of [n, 64] x [64, k] for small k."""
    import torch

    torch.set_num_threads(threads)
    n, found = 1 << 15, []
    for k in PRODUCTS:
        wide = max(k, 64)
        x, w, out = torch.ones(n, wide), torch.ones(k, wide), torch.empty(n, k)
        seconds = slowest(comm, lambda x=x, w=w, out=out: torch.mm(x, w.t(), out=out))  # type: ignore[misc]
        found.append((k, 2.0 * n * wide * k / seconds))
    return tuple(found)


def _draw(comm: Any, backend: Backend) -> float:
    """Measure the seconds of a value that dropout decides."""
    format = RowFormat(np.dtype(np.float32), 64)
    x = backend.memory.padded(1 << 14, format)
    x[:] = 1
    out, ids = backend.memory.padded(1 << 14, format), np.arange(1 << 14)
    key = RngKey(0.5, seed=0, epoch=1, stream=0)
    return slowest(comm, lambda: backend.dropout(x, out, ids, key)) / x.size


def _fixed(comm: Any, backend: Backend) -> dict[str, float]:
    """Measure an aggregation of a few rows by each transfer, with its barrier."""
    source = np.arange(FEW_ROWS) + (comm.rank + 1) % comm.size * FEW_ROWS
    edges = _split(comm, FEW_ROWS, np.ones(FEW_ROWS, np.int64), source)
    plans = {"direct": workload.direct(edges), "get": workload.direct(edges, "get")}
    plans["halo"] = exchange.halo_in_rounds(comm, edges)[0]
    format, found = RowFormat(np.dtype(np.float32), 16), {}
    rows = backend.rows(np.full(comm.size, FEW_ROWS), format, symmetric=True)
    out = backend.memory.padded(FEW_ROWS, format)
    backend.prepare(plans["halo"], format)
    for name, plan in plans.items():

        def run(name: str = name, plan: Plan = plan) -> None:
            for _ in range(10):
                if name != "halo":
                    backend.publish(rows)
                backend.aggregate(plan, "copy", "sum", rows, out)

        found[name] = slowest(comm, run) / 10
    return found


def main() -> None:
    """Measure with all ranks of the world, and print the result as JSON from rank 0."""
    comm = mpi.world()
    found = measure(comm)
    if comm.rank == 0:
        sys.stdout.write(msgspec.json.encode(found).decode() + "\n")


if __name__ == "__main__":
    main()
