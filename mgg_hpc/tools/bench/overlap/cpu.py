"""`mgg bench overlap`: how much of the exchange hides behind the sums, on the ranks of a launcher.

The same kernels sum in every way of exchanging, in turns: as rows arrive (halo), after all have arrived (bulk), through
pointers (direct) or by a get for each edge, and after every rank has got all rows of all others (all-gather). What the
parts take is measured by leaving the other out: sums over rows that have arrived, and the exchange without sums. What
is hidden follows from that (`plan.overlap`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import InputError
from ....nn.graph import transfer
from ....nn.graph.handle import Adjacency, symmetric_bytes
from ....plan import ranges, workload
from ....plan.layout import RowFormat
from ....plan.overlap import hidden_share
from ....runtime import backends, exchange, exit_code, mpi, probe
from ....runtime.backends.host.components import padded
from ..harness import document, graphs
from ..harness.document import Sheet, cell
from ..harness.timing import spread

WAYS = ("halo", "bulk", "direct", "get", "all-gather")
PARTS = ("sum", "exchange")  # of a halo, each without the other
SLOW_SECONDS = 2.0  # a way that takes longer has fewer turns


def process_overlap(
    graph: str | None,
    *,
    width: int | None,
    ways: str | None,
    backend: str,
    threads: int,
    turns: int,
    shares: str | None,
    json: Path | None,
    table: Path | None,
    plot: Path | None,
) -> int:
    """Measure on all ranks; rank 0 prints and writes. Raises InputError, the same on all ranks."""
    comm = mpi.world()
    root = comm.rank == 0
    name, width = graph or "rmat:17:16", width or 64
    options = document.Options("none", None, threads, turns, "", json, table, None)
    with mpi.agree(comm):
        if shares is not None or plot is not None:
            raise InputError(f"--{'plot' if plot else 'shares'} has a meaning with --device cuda only")
        options.check()
        chosen = [word.strip() for word in (ways or ",".join(WAYS)).split(",")]
        if unknown := [word for word in chosen if word not in WAYS]:
            raise InputError(f"--ways: {unknown[0]!r}; expected {', '.join(WAYS)}")
        graphs.check(name)
        read = graphs.read(name)
    subject = Subject(comm, read, width, backend, threads or mpi.threads_share(comm))
    with mpi.agree(comm):
        if "direct" in chosen and not subject.backend.capabilities.reaches_peers:
            chosen.remove("direct")
    times, processor = subject.measure([*PARTS, *chosen], turns)
    found = document.begin("overlap", subject.backend.options.threads, turns) | {
        "graph": read.name,
        "nodes": read.nodes,
        "edges": read.edges,
        "width": width,
        "ranks": comm.size,
        "backend": subject.backend.capabilities.name,
        "remote_edges": comm.allgather(subject.plan.remote_edges),
        "halo_rows": comm.allgather(len(subject.plan.halo)),
        "row_bytes": subject.format.row_bytes,
        "waves": subject.rounds.lists.rounds,
        "transfer": str(subject.choice),
        "transfer_reason": subject.choice.why,
        "ms": {way: spread([1e3 * t for t in taken]) for way, taken in times.items()},
        "processor_ms": {way: 1e3 * seconds for way, seconds in processor.items()},
        "samples_ms": {way: [1e3 * t for t in taken] for way, taken in times.items()},
    }
    summing, moving = (float(np.median(times[part])) for part in PARTS)
    if "halo" in times and comm.size > 1:
        piped = float(np.median(times["halo"]))
        found["hidden_share"] = hidden_share(summing, moving, piped)
    if root:
        found["notes"] = notes(found)
        document.finish(found, sheets(found), options)
    subject.backend.memory.close()
    exit_code.record(0)
    return 0


class Subject:
    """One graph divided over the ranks, ready to be summed in every way."""

    def __init__(self, comm: Any, graph: Any, width: int, backend: str, threads: int) -> None:
        self.comm = comm
        bounds = ranges.edge_balanced(graph.indptr, comm.size)
        low, high = int(bounds[comm.rank]), int(bounds[comm.rank + 1])
        indptr = graph.indptr[low : high + 1] - graph.indptr[low]
        indices = graph.indices[graph.indptr[low] : graph.indptr[high]]
        self.counts = np.diff(bounds)
        geometry = backends.DEFAULT_GEOMETRY
        asked = backends.Request(geometry.ps, geometry.dist, geometry.wpb, threads)
        self.backend: Any = backends.make(backends.choose_cpu(backend, comm), comm, asked)
        self.format = RowFormat(np.dtype(np.float32), width)
        self.plan = workload.build(comm.rank, bounds, indptr, indices)
        self.rounds: Any = exchange.halo_in_rounds(comm, self.plan)[0]
        self.whole = workload.rectangular(
            comm.rank, indptr, indices.astype(np.int32, copy=False), graph.nodes, geometry.ps
        )
        halo = Adjacency(self.rounds, self.rounds, None)
        rows = 2 * int(self.counts.max(initial=0)) * self.format.row_bytes
        self.backend.memory.reserve(
            2 * symmetric_bytes([halo], self.counts, self.format, comm.size)
            + rows
            + probe.symmetric_bytes(self.backend.capabilities.probe_rows, comm.size)
            + (1 << 20)
        )
        gcn = Adjacency(self.plan, self.plan, None)
        self.choice = transfer.choose_transfer(
            comm, "auto", self.backend, gcn, self.counts, [self.format], [self.format]
        )
        self.backend.prepare(self.rounds, self.format)
        self.shared = self.backend.rows(self.counts, self.format, symmetric=True)
        self.own = self.backend.rows(self.counts, self.format, symmetric=False)
        values = np.random.default_rng(comm.rank).standard_normal(self.own.local.shape, dtype=np.float32)
        self.own.local[:] = self.shared.local[:] = values
        every = np.zeros(comm.size, dtype=np.int64)
        every[comm.rank] = graph.nodes
        self.all = self.backend.rows(every, self.format, symmetric=False)
        self.out = padded(self.plan.destinations, self.format)

    def way(self, name: str) -> Callable[[], None]:
        """One aggregation, or a part of it."""
        backend, out, rounds = self.backend, self.out, self.rounds

        def add(plan: Any, rows: Any, **more: Any) -> None:
            backend.aggregate(plan, "copy", "sum", rows, out, **more)

        def published(plan: Any) -> None:
            backend.publish(self.shared)
            add(plan, self.shared)

        def bulk() -> None:
            backend.transfer_only(rounds, self.own)
            add(rounds, self.own, arrived=True)

        def all_gather() -> None:
            whole = self.all.buffer.view(np.float32).reshape(-1)
            mine = self.own.buffer.view(np.float32)[: int(self.counts[self.comm.rank]) * self.format.stride]
            self.comm.Allgatherv(mine, [whole, self.counts * self.format.stride])
            add(self.whole, self.all)

        get = replace(self.plan, transfer="get")
        return {
            "sum": lambda: add(rounds, self.own, arrived=True),
            "exchange": lambda: backend.transfer_only(rounds, self.own),
            "halo": lambda: add(rounds, self.own),
            "bulk": bulk,
            "direct": lambda: published(self.plan),
            "get": lambda: published(get),
            "all-gather": all_gather,
        }[name]

    def measure(self, names: list[str], turns: int) -> tuple[dict[str, list[float]], dict[str, float]]:
        """Seconds of the slowest rank, way by way in turns, and the median of those that its processors worked.

        Every way's sums must be those of the first.
        """
        actions = {name: self.way(name) for name in names}
        wanted = None
        wall: dict[str, list[float]] = {}
        worked: dict[str, list[float]] = {}
        turns_of = {}
        self.way("exchange")()  # what "sum" alone sums
        for name, action in actions.items():
            first, _ = self._timed(action)
            if name != "exchange":
                wanted = self._compare(name, wanted)
            turns_of[name] = turns if first < SLOW_SECONDS else 2
            wall[name], worked[name] = [], []
        for turn in range(turns):
            for name, action in actions.items():
                if turn < turns_of[name]:
                    seconds, processor = self._timed(action)
                    wall[name].append(seconds)
                    worked[name].append(processor)
        return wall, {name: float(np.median(seconds)) for name, seconds in worked.items()}

    def _timed(self, action: Callable[[], None]) -> tuple[float, float]:
        mpi.barrier(self.comm)
        began, worked = time.perf_counter(), time.process_time()
        action()
        taken = time.perf_counter() - began, time.process_time() - worked
        every = self.comm.allgather(taken)
        return max(wall for wall, _ in every), max(processor for _, processor in every)

    def _compare(self, name: str, wanted: Any) -> Any:
        """The sums of every way, up to the order of additions."""
        with mpi.agree(self.comm):
            if wanted is None:
                return self.out.copy()
            apart = float(np.abs(self.out - wanted).max(initial=0.0))
            scale = float(np.abs(wanted).max(initial=1.0))
            if apart > 1e-4 * scale:
                raise AssertionError(f"{name} sums to something else, by {apart}")
        return wanted


def notes(found: dict[str, Any]) -> list[str]:
    """What was measured, in words."""
    share = found.get("hidden_share")
    return [
        f"{found['graph']}: {found['nodes']:,} nodes, {found['edges']:,} edges; width {found['width']}; "
        f"{found['ranks']} ranks of {found['threads']} threads; backend {found['backend']}",
        f"remote edges {sum(found['remote_edges']):,}, halo rows {sum(found['halo_rows']):,} "
        f"in {found['waves']} rounds",
        f"auto takes {found['transfer']} ({found['transfer_reason']})",
        *([] if share is None else [f"hidden share {share:.2f}"]),
    ]


def sheets(found: dict[str, Any]) -> list[Sheet]:
    """The table."""
    rows = [[way, cell(times, 2), f"{found['processor_ms'][way]:.2f}"] for way, times in found["ms"].items()]
    return [Sheet("slowest rank, ms, median (min .. max)", ["way", "ms", "of processors"], rows)]
