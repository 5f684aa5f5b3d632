"""`mgg bench overlap`: how much of the exchange hides behind the sums, on the ranks of a launcher.

The same kernels sum in every way of exchanging, in turns: as rows arrive (halo), after all have arrived (bulk), through
pointers (direct) or by a get for each edge, and after every rank has got all rows of all others (all-gather). What each
phase takes is measured by leaving the other out: sums over rows that have arrived, and the exchange without sums. What
is hidden follows from that (`plan.overlap`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ....nn.graph import transfer
from ....nn.graph.handle import symmetric_bytes
from ....nn.graph.matrix import Adjacency, Unplanned
from ....plan import ranges, workload
from ....plan.layout import RowFormat
from ....runtime import backends, exchange, exit_code, mpi, probe
from ....runtime.turns import take_turns
from ..harness import document, graphs, timing
from ..harness.document import Sheet, cell
from ..harness.options import BenchOptions, words_of

WAYS = ("halo", "bulk", "direct", "get", "all-gather")
PHASES = ("sum", "exchange")  # of a halo, each without the other
MOVES = ("exchange", "all-gather alone")
SLOW_MS = 2000.0  # a way that takes longer has fewer turns


def run_overlap(
    graph: str | None, *, width: int | None, ways: str | None, backend: str, threads: int | None, **files: Any
) -> int:
    """Measure on all ranks; rank 0 prints and writes. Raises InputError, the same on all ranks."""
    comm = mpi.world()
    name, width, options = graph or "rmat:17:16", width or 64, BenchOptions(**files)
    with mpi.agree(comm):
        options.check_files()
        chosen = words_of("ways", ways or ",".join(WAYS), WAYS)
        read = graphs.read(name)
    subject = Subject(comm, read, width, backend, threads or mpi.threads_share(comm), choose=True)
    if not subject.backend.capabilities.reaches_peers:
        chosen = [way for way in chosen if way != "direct"]
    runs = {name: subject.way(name) for name in (*PHASES, *chosen)}
    times, processor = subject.measure(runs, options.turns)
    found = document.begin("overlap", replace(options, threads=subject.backend.options.threads)) | {
        **document.about(read),
        "width": width,
        "ranks": comm.size,
        "backend": subject.backend.capabilities.name,
        "remote_edges": comm.allgather(subject.plan.remote_edges),
        "halo_rows": comm.allgather(len(subject.plan.halo)),
        "row_bytes": subject.format.row_bytes,
        "waves": subject.rounds.lists.rounds,
        "transfer": str(subject.choice),
        "transfer_reason": subject.choice.why,
        "ms": {way: timing.spread(taken) for way, taken in times.items()},
        "processor_ms": processor,
        "samples_ms": times,
    }
    if "halo" in times and comm.size > 1:
        found["hidden_share"] = timing.hidden(found["ms"], "exchange", "halo")
    if comm.rank == 0:
        found["notes"] = notes(found)
        document.finish(found, sheets(found), options)
    subject.backend.memory.close()
    exit_code.record(0)
    return 0


def timed(comm: Any, action: Callable[[], None]) -> tuple[float, float]:
    """Return the slowest rank's ms of one call, and the largest ms that a rank's processors worked. Collective."""
    mpi.barrier(comm)
    began, worked = time.perf_counter(), time.process_time()
    action()
    taken = 1e3 * (time.perf_counter() - began), 1e3 * (time.process_time() - worked)
    every = comm.allgather(taken)
    return max(wall for wall, _ in every), max(processor for _, processor in every)


class Subject:
    """A graph divided over the ranks, ready to be summed in every way.

    halos: number of plans with a halo that are prepared beside this one's. choose: measure which transfer a job would
    take, too.
    """

    def __init__(
        self,
        comm: Any,
        graph: Any,
        width: int,
        backend: str,
        threads: int,
        *,
        halos: int = 0,
        choose: bool = False,
    ) -> None:
        self.comm = comm
        bounds = ranges.edge_balanced(graph.indptr, comm.size)
        low, high = int(bounds[comm.rank]), int(bounds[comm.rank + 1])
        indptr = graph.indptr[low : high + 1] - graph.indptr[low]
        indices = graph.indices[graph.indptr[low] : graph.indptr[high]]
        self.counts = np.diff(bounds)
        self.backend: Any = backends.make(backends.choose_cpu(backend, comm), comm, threads=threads)
        self.format = RowFormat(np.dtype(np.float32), width)
        self.edges = edges = workload.split(comm.rank, bounds, indptr, indices)
        self.plan = workload.direct(edges)
        self.rounds: Any = exchange.halo_in_rounds(comm, edges)[0]
        self.whole = workload.rectangular(
            comm.rank, indptr, indices.astype(np.int32, copy=False), graph.nodes
        )
        halo = Adjacency(self.rounds, self.rounds, None)
        rows = 2 * int(self.counts.max(initial=0)) * self.format.row_bytes
        self.backend.memory.reserve(
            (2 + halos) * symmetric_bytes([halo], self.counts, self.format, comm.size)
            + rows
            + probe.symmetric_bytes(self.backend.capabilities.probe_rows, comm.size)
            + (1 << 20)
        )
        if choose:
            matrix, formats = Unplanned(edges, edges, None), [self.format]
            self.choice = transfer.choose_transfer(
                comm, "auto", self.backend, matrix, self.counts, formats, formats
            )
        self.backend.prepare(self.rounds, self.format)
        self.shared = self.backend.rows(self.counts, self.format, symmetric=True)
        self.own = self.backend.rows(self.counts, self.format, symmetric=False)
        values = np.random.default_rng(comm.rank).standard_normal(self.own.local.shape, dtype=np.float32)
        self.own.local[:] = self.shared.local[:] = values
        every = np.zeros(comm.size, dtype=np.int64)
        every[comm.rank] = graph.nodes
        self.all = self.backend.rows(every, self.format, symmetric=False)
        self.out = self.backend.memory.padded(self.plan.destinations, self.format)
        self.phases = self.backend.phases(self.rounds, "copy", self.own, self.out)

    def way(self, name: str) -> Callable[[], None]:
        """Return one aggregation, or a phase of it."""
        backend, out, phases = self.backend, self.out, self.phases

        def aggregate(plan: Any, rows: Any) -> None:
            backend.aggregate(plan, "copy", "sum", rows, out)

        def published(plan: Any) -> None:
            backend.publish(self.shared)
            aggregate(plan, self.shared)

        def bulk() -> None:
            phases.transfer_only()
            phases.compute_only()

        def gathered() -> None:
            whole = self.all.buffer.view(np.float32).reshape(-1)
            mine = self.own.buffer.view(np.float32)[: int(self.counts[self.comm.rank]) * self.format.stride]
            self.comm.Allgatherv(mine, [whole, self.counts * self.format.stride])

        def all_gather() -> None:
            gathered()
            aggregate(self.whole, self.all)

        get = replace(self.plan, transfer="get")
        return {
            "sum": phases.compute_only,
            "exchange": phases.transfer_only,
            "halo": lambda: aggregate(self.rounds, self.own),
            "bulk": bulk,
            "direct": lambda: published(self.plan),
            "get": lambda: published(get),
            "all-gather": all_gather,
            "all-gather alone": gathered,
        }[name]

    def measure(
        self, ways: Mapping[str, Callable[[], None]], turns: int
    ) -> tuple[dict[str, list[float]], dict[str, float]]:
        """Return the slowest rank's ms in each turn, by way, and the median of its processors' ms.

        Every way's sums must be those of the first; MOVES sum nothing.
        """
        runs = {name: partial(self.timed, way) for name, way in ways.items()}
        wanted, counts = None, {}
        self.phases.transfer_only()  # of what "sum" alone sums
        for name, run in runs.items():
            first, _ = run()
            counts[name] = turns if first < SLOW_MS else min(2, turns)
            if name not in MOVES:
                wanted = self._compare(name, wanted)
        taken = take_turns(runs, counts)
        wall = {name: [clock for clock, _ in of] for name, of in taken.items()}
        return wall, {name: float(np.median([worked for _, worked in of])) for name, of in taken.items()}

    def timed(self, action: Callable[[], None]) -> tuple[float, float]:
        """See `timed`."""
        return timed(self.comm, action)

    def _compare(self, name: str, wanted: Any) -> Any:
        """Compare a way's sums with the wanted ones, up to the order of additions; return the wanted ones."""
        with mpi.agree(self.comm):
            if wanted is None:
                return self.out.copy()
            apart = float(np.abs(self.out - wanted).max(initial=0.0))
            scale = float(np.abs(wanted).max(initial=1.0))
            if apart > 1e-4 * scale:
                raise AssertionError(f"{name} sums to something else, by {apart}")
        return wanted


def notes(found: dict[str, Any]) -> list[str]:
    """Return the conditions of the measurement, in words."""
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
    """Return the table of times and hidden shares."""
    rows = [[way, cell(times, 2), f"{found['processor_ms'][way]:.2f}"] for way, times in found["ms"].items()]
    return [Sheet("slowest rank, ms, median (min .. max)", ["way", "ms", "of processors"], rows)]
