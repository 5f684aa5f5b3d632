"""A graph that is divided over the ranks of a launcher, ready to be summed in every way of exchanging rows.

The same kernels sum in every way: as rows arrive (halo), after all have arrived (bulk), through pointers (direct), by a
get for each edge (get), and after every rank has got all rows of all others (all-gather). Each phase of a halo is
measured by leaving the other out: sums over rows that have arrived (sum), and the exchange without sums (exchange).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from mgg_hpc.data.graph import Graph
from mgg_hpc.nn.graph.handle import symmetric_bytes
from mgg_hpc.nn.graph.matrix import Adjacency, Unplanned
from mgg_hpc.nn.graph.transfer import choose_transfer
from mgg_hpc.plan import ranges, workload
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.plan.overlap import separated
from mgg_hpc.runtime import backends, exchange, mpi, probe
from mgg_hpc.runtime.backends import native
from mgg_hpc.runtime.backends.arguments import Geometry
from mgg_hpc.runtime.turns import take_turns
from mgg_hpc.tools.bench.aggregate import drawn_rows

from . import sums

Call = Callable[[], None]

SLOW_MS = 2000.0  # a way that takes longer has two turns


def timed(comm: Any, call: Call, before: Call = lambda: None) -> tuple[float, float]:
    """Return the slowest rank's ms of one call, and the most ms of CPU time that a rank took for it. Collective.

    before: called first, while no clock runs.
    """
    before()
    mpi.barrier(comm)
    began, worked = time.perf_counter(), time.process_time()
    call()
    every = comm.allgather((1e3 * (time.perf_counter() - began), 1e3 * (time.process_time() - worked)))
    return max(wall for wall, _ in every), max(cpu for _, cpu in every)


@dataclass(frozen=True)
class Way:
    """An aggregation, or a part of one. Collective.

    crossing: number of rows that cross between ranks in a call, of all ranks together.
    sums: False for an exchange without sums.
    before: called before each call, while no clock runs.
    """

    call: Call
    crossing: int
    sums: bool = True
    before: Call = lambda: None

    def __call__(self) -> None:
        self.call()


class Subject:
    """A graph whose rows are divided over the ranks, with the same normally distributed float32 rows on any number.

    Collective.

    halos: number of plans with a halo that `separate` makes, for which memory is reserved.
    """

    def __init__(
        self,
        comm: Any,
        graph: Graph,
        width: int,
        *,
        backend: str = "auto",
        threads: int | None = None,
        halos: int = 0,
    ) -> None:
        self.comm, self.graph = comm, graph
        bounds = ranges.edge_balanced(graph.indptr, comm.size)
        low, high = int(bounds[comm.rank]), int(bounds[comm.rank + 1])
        indptr = graph.indptr[low : high + 1] - graph.indptr[low]
        indices = graph.indices[graph.indptr[low] : graph.indptr[high]]
        self.counts = np.diff(bounds)
        threads = threads or mpi.threads_share(comm)
        self.backend: Any = backends.make(backends.choose_cpu(backend, comm), comm, threads=threads)
        self.format = RowFormat(np.dtype(np.float32), width)
        self.edges = workload.split(comm.rank, bounds, indptr, indices)
        self.plan = workload.direct(self.edges)
        self.rounds: Any = exchange.halo_in_rounds(comm, self.edges)[0]
        small = indices.astype(np.int32, copy=False)
        self.whole = workload.rectangular(comm.rank, indptr, small, graph.nodes)
        layer = Adjacency(self.rounds, self.rounds, None)
        halo = symmetric_bytes([layer], self.counts, self.format, comm.size)
        probed = probe.symmetric_bytes(self.backend.capabilities.probe_rows, comm.size)
        rows = 2 * int(self.counts.max(initial=0)) * self.format.row_bytes
        self.backend.memory.reserve((2 + halos) * halo + rows + probed + (1 << 20))
        self.backend.prepare(self.rounds, self.format)
        self.shared = self.backend.rows(self.counts, self.format, symmetric=True)
        self.own = self.backend.rows(self.counts, self.format, symmetric=False)
        x = drawn_rows(graph.nodes, width, "float32")
        self.own.local[:] = self.shared.local[:] = x[low:high]
        self.picked = sums.sample(indptr)  # of this rank's rows: their sums are compared with SciPy's
        self.expected = sums.product(graph, x.astype(np.float64), picked=low + self.picked)
        self.limit = sums.allowed(graph, x, picked=low + self.picked)
        del x
        self.uncut_settled = False
        self.all = self._private(graph.nodes)
        self.out = self.backend.memory.padded(self.plan.destinations, self.format)
        self.phases = self.backend.phases(self.rounds, "copy", self.own, self.out)
        counted = comm.allgather((self.plan.local_edges, self.plan.remote_edges, len(self.plan.halo)))
        self.local_edges, self.remote_edges, self.halo_rows = map(sum, zip(*counted, strict=True))

    @property
    def geometry(self) -> Geometry:
        """How the backend cuts work by itself."""
        return self.backend.options.geometry

    @property
    def reaches_peers(self) -> bool:
        """Whether pointers lead to the rows of all ranks, so that there is "direct"."""
        return self.backend.capabilities.reaches_peers

    def choice(self) -> Any:
        """Return the transfer that a job would take, by measuring. Collective."""
        matrix, formats = Unplanned(self.edges, self.edges, None), [self.format]
        return choose_transfer(self.comm, "auto", self.backend, matrix, self.counts, formats, formats)

    def columns(self) -> dict[str, Any]:
        """Return the columns that all rows have."""
        return {
            "backend": self.backend.capabilities.name,
            "ranks": self.comm.size,
            "threads_per_rank": self.backend.options.threads,
            "local_edges": self.local_edges,
            "remote_edges": self.remote_edges,
            "halo_rows": self.halo_rows,
        }

    def close(self) -> None:
        """Free the memory of all rows. Collective."""
        self.backend.memory.close()

    def way(self, name: str) -> Way:
        """Return one aggregation, or a part of it: "sum", "exchange", "all-gather alone"."""
        everything = (self.comm.size - 1) * self.graph.nodes
        if name in ("direct", "get"):
            return Way(partial(self._published, replace(self.plan, transfer=name)), self.remote_edges)
        return {
            "halo": Way(partial(self._aggregate, self.rounds, self.own), self.halo_rows),
            "bulk": Way(self._bulk, self.halo_rows),
            "all-gather": Way(self._all_gather, everything),
            "sum": Way(self.phases.compute_only, 0),
            "exchange": Way(self.phases.transfer_only, self.halo_rows, sums=False),
            "all-gather alone": Way(self._gather, everything, sums=False),
        }[name]

    def cut(self, transfer: str, geometry: Geometry, hubs: Geometry | None = None) -> Way:
        """Return an aggregation by "direct", "get" or "halo" whose work is cut by another geometry.

        hubs: a destination with more edges than four of its blocks is split. [default: the backend's own geometry]
        Collective.
        """
        backend, usual = self.backend, self.backend.options
        plan = self.rounds if transfer == "halo" else replace(self.plan, transfer=transfer)

        def retune() -> None:
            # The schedule splits hubs by the geometry of the options.
            backend.options = replace(usual, geometry=hubs or usual.geometry)
            backend.retune(plan, self.format, geometry)
            backend.options = usual

        if transfer != "halo":
            retune()
            return Way(partial(self._published, plan), self.remote_edges)
        call = partial(self._aggregate, plan, self.own)
        if not self.uncut_settled:  # each cut's new schedule sweeps as the uncut one does
            self._settled(self.way("halo"))
            self.uncut_settled = True

        def before() -> None:  # there is one halo, whose staging each cut would need again
            retune()
            call()

        return Way(call, self.halo_rows, before=before)

    def separate(self, transfer: str) -> Way:
        """Return an aggregation whose local and remote rows are summed by separate threads, half of them each.

        All threads add up both sums afterwards. A halo's is one of the ``halos`` for which memory is reserved.
        """
        backend, usual, halo = self.backend, self.backend.options, transfer == "halo"
        rows = self.own if halo else self.shared
        mine, others, merged = separated(self.rounds if halo else replace(self.plan, transfer=transfer))
        backend.prepare(others, self.format)
        both = self._private(mine.destinations + others.destinations)
        here, there = both.local[: mine.destinations], both.local[mine.destinations :]
        half = replace(usual, threads=max(1, usual.threads // 2))

        def call() -> None:
            if not halo:
                backend.publish(self.shared)
            backend.options = half
            local = threading.Thread(target=backend.aggregate, args=(mine, "copy", "sum", self.own, here))
            local.start()
            backend.aggregate(others, "copy", "sum", rows, there)
            local.join()
            backend.options = usual
            self._aggregate(merged, both)

        return Way(call, self.halo_rows if halo else self.remote_edges)

    def _private(self, rows: int) -> Any:
        counts = np.zeros(self.comm.size, dtype=np.int64)
        counts[self.comm.rank] = rows
        return self.backend.rows(counts, self.format, symmetric=False)

    def _aggregate(self, plan: Any, rows: Any) -> None:
        self.backend.aggregate(plan, "copy", "sum", rows, self.out)

    def _published(self, plan: Any) -> None:
        self.backend.publish(self.shared)
        self._aggregate(plan, self.shared)

    def _bulk(self) -> None:
        self.phases.transfer_only()
        self.phases.compute_only()

    def _gather(self) -> None:
        whole = self.all.buffer.view(np.float32).reshape(-1)
        mine = self.own.buffer.view(np.float32)[: int(self.counts[self.comm.rank]) * self.format.stride]
        self.comm.Allgatherv(mine, [whole, self.counts * self.format.stride])

    def _all_gather(self) -> None:
        self._gather()
        self._aggregate(self.whole, self.all)

    def measure(self, ways: Mapping[str, Way], turns: int) -> tuple[dict[str, list[float]], dict[str, Any]]:
        """Return the slowest rank's ms of each turn, and more columns, by way. Collective.

        cpu_ms: median of the most ms of CPU time that a rank took. Before anything is timed in turns, each way's sums
        are compared with SciPy's. Raises AssertionError where they differ by more than rounding.
        """
        self.phases.transfer_only()  # the rows that "sum" sums
        counts = {
            name: turns if self._checked(name, way) < SLOW_MS else min(2, turns) for name, way in ways.items()
        }
        taken = take_turns(
            {name: partial(timed, self.comm, way, way.before) for name, way in ways.items()}, counts
        )
        more = {
            name: {
                "cpu_ms": round(float(np.median([cpu for _, cpu in each])), 4),
                "crossing_bytes": ways[name].crossing * self.format.row_bytes,
            }
            for name, each in taken.items()
        }
        return {name: [wall for wall, _ in each] for name, each in taken.items()}, more

    def _checked(self, name: str, way: Way) -> float:
        """Compare a way's sums with SciPy's, warm up, and return the ms of the last call. Raises AssertionError."""
        way.before()
        self.out[:] = np.nan
        ms, _ = timed(self.comm, way)
        with mpi.agree(self.comm):
            wrong = sums.differing(self.expected, self.out[self.picked], self.limit)
            if way.sums and (wrong or np.isnan(self.out).any()):
                raise AssertionError(f"{name}: {wrong or 'some rows were not summed'}")
        return self._settled(way, ms)

    def _settled(self, way: Way, ms: float = 0.0) -> float:
        """Call a way until its schedule has chosen how to sweep wide rows; return the last call's ms. Collective."""
        for _ in range(native.load().Schedule.SETTLED):
            if ms >= SLOW_MS:
                break
            ms, _ = timed(self.comm, way, way.before)
        return ms
