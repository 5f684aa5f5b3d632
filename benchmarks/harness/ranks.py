"""A graph that is divided over the ranks of a launcher, ready to be summed by every variant of exchanging rows.

The same kernels sum in all of them: as rows arrive (halo), after all have arrived (bulk), through pointers (direct), by
a get for each edge (get), and after every rank has got all rows of all others (all-gather). Each phase of a halo is
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

from harness.graphs import drawn_rows
from mgg_hpc.data.graph import Graph
from mgg_hpc.nn.graph.handle import symmetric_bytes
from mgg_hpc.nn.graph.matrix import Adjacency
from mgg_hpc.plan import row_ranges, workload
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime import backends, exchange, mpi
from mgg_hpc.runtime.backends import native
from mgg_hpc.runtime.backends.arguments import Geometry
from mgg_hpc.runtime.timing import interleaved

from .plans import separated
from .sums import Reference

Call = Callable[[], None]

SLOW_MS = 2000.0  # a variant that takes longer has two turns


def timed(comm: Any, call: Call) -> tuple[float, float]:
    """Return the slowest rank's ms of one call, and the most ms of CPU time that a rank took for it. Collective."""
    mpi.barrier(comm)
    began, worked = time.perf_counter(), time.process_time()
    call()
    every = comm.allgather((1e3 * (time.perf_counter() - began), 1e3 * (time.process_time() - worked)))
    return max(wall for wall, _ in every), max(cpu for _, cpu in every)


@dataclass(frozen=True)
class Variant:
    """An aggregation, or a part of one. Collective.

    crossing: number of rows that cross between ranks in a call, of all ranks together.
    sums: False for an exchange without sums.
    """

    call: Call
    crossing: int
    sums: bool = True

    def __call__(self) -> None:
        self.call()


class Subject:
    """A graph whose rows are divided over the ranks, with the same normally distributed float32 rows on any number.

    geometry: how the backend cuts work by itself. reaches_peers: whether there is "direct". Collective.
    """

    def __init__(
        self, comm: Any, graph: Graph, width: int, *, backend: str = "auto", threads: int | None = None
    ) -> None:
        self.comm, self.graph = comm, graph
        bounds = row_ranges.edge_balanced(graph.indptr, comm.size)
        low, high = int(bounds[comm.rank]), int(bounds[comm.rank + 1])
        indptr = graph.indptr[low : high + 1] - graph.indptr[low]
        indices = graph.indices[graph.indptr[low] : graph.indptr[high]]
        self.counts = np.diff(bounds)
        threads = threads or mpi.threads_share(comm)
        self.backend: Any = backends.make(backends.choose_cpu(backend, comm), comm, threads=threads)
        self.geometry: Geometry = self.backend.options.geometry
        self.reaches_peers: bool = self.backend.capabilities.reaches_peers
        self.format = RowFormat(np.dtype(np.float32), width)
        self.edges = workload.split(comm.rank, bounds, indptr, indices)
        self.plan = workload.direct(self.edges)
        self.rounds: Any = exchange.halo_in_rounds(comm, self.edges)[0]
        small = indices.astype(np.int32, copy=False)
        self.whole = workload.rectangular(comm.rank, indptr, small, graph.nodes)
        layer = Adjacency(self.rounds, self.rounds, None)
        halo = symmetric_bytes([layer], self.counts, self.format, comm.size)
        rows = 2 * int(self.counts.max(initial=0)) * self.format.row_bytes
        self.backend.memory.reserve(3 * halo + rows + (1 << 20))  # with the one that `separate` makes
        self.backend.prepare(self.rounds, self.format)
        self.shared = self.backend.rows(self.counts, self.format, symmetric=True)
        self.own = self.backend.rows(self.counts, self.format, symmetric=False)
        x = drawn_rows(graph.nodes, width, "float32")
        self.own.local[:] = self.shared.local[:] = x[low:high]
        self.reference = Reference(graph, x, low=low, high=high)
        del x
        self.all = self._private(graph.nodes)
        self.out = self.backend.memory.padded(self.plan.destinations, self.format)
        self.phases = self.backend.profiling.phases(self.rounds, self.own, self.out)
        counted = comm.allgather((self.plan.local_edges, self.plan.remote_edges, len(self.plan.halo)))
        self.local_edges, self.remote_edges, self.halo_rows = map(sum, zip(*counted, strict=True))

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

    def variant(self, name: str) -> Variant:
        """Return one aggregation, or a part of it: "sum", "exchange", "all-gather alone"."""
        everything = (self.comm.size - 1) * self.graph.nodes
        if name in ("direct", "get"):
            return Variant(partial(self._published, replace(self.plan, transfer=name)), self.remote_edges)
        return {
            "halo": Variant(partial(self._aggregate, self.rounds, self.own), self.halo_rows),
            "bulk": Variant(self._bulk, self.halo_rows),
            "all-gather": Variant(self._all_gather, everything),
            "sum": Variant(self.phases.compute_only, 0),
            "exchange": Variant(self.phases.transfer_only, self.halo_rows, sums=False),
            "all-gather alone": Variant(self._gather, everything, sums=False),
        }[name]

    def cut(self, transfer: str, geometry: Geometry, hubs: Geometry | None = None) -> Variant:
        """Return an aggregation by "direct" or "get" whose work is cut by another geometry. Collective.

        hubs: a destination with more edges than four of its blocks is split. [default: the backend's own geometry]
        """
        backend, usual = self.backend, self.backend.options
        plan = replace(self.plan, transfer=transfer)
        # The schedule splits hubs by the geometry of the options.
        backend.options = replace(usual, geometry=hubs or usual.geometry)
        backend.retune(plan, self.format, geometry)
        backend.options = usual
        return Variant(partial(self._published, plan), self.remote_edges)

    def separate(self, transfer: str) -> Variant:
        """Return an aggregation whose local and remote rows are summed by separate threads, half of them each.

        All threads add up both sums afterwards. There is memory for one of a halo.
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
            local = threading.Thread(target=backend.aggregate, args=(mine, "sum", self.own, here))
            local.start()
            backend.aggregate(others, "sum", rows, there)
            local.join()
            backend.options = usual
            self._aggregate(merged, both)

        return Variant(call, self.halo_rows if halo else self.remote_edges)

    def _private(self, rows: int) -> Any:
        counts = np.zeros(self.comm.size, dtype=np.int64)
        counts[self.comm.rank] = rows
        return self.backend.rows(counts, self.format, symmetric=False)

    def _aggregate(self, plan: Any, rows: Any) -> None:
        self.backend.aggregate(plan, "sum", rows, self.out)

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

    def measure(
        self, variants: Mapping[str, Variant], turns: int
    ) -> tuple[dict[str, list[float]], dict[str, Any]]:
        """Return the slowest rank's ms of each turn, and more columns, by variant. Collective.

        cpu_ms: median of the most ms of CPU time that a rank took. Before anything is timed in turns, each variant's
        sums are compared with SciPy's. Raises AssertionError where they differ by more than rounding.
        """
        self.phases.transfer_only()  # the rows that "sum" sums
        slow = {name: self._checked(name, each) >= SLOW_MS for name, each in variants.items()}
        taken = interleaved(
            {name: partial(timed, self.comm, each) for name, each in variants.items()},
            {name: min(2, turns) if slow[name] else turns for name in variants},
        )
        more = {
            name: {
                "cpu_ms": round(float(np.median([cpu for _, cpu in each])), 4),
                "crossing_bytes": variants[name].crossing * self.format.row_bytes,
            }
            for name, each in taken.items()
        }
        return {name: [wall for wall, _ in each] for name, each in taken.items()}, more

    def _checked(self, name: str, variant: Variant) -> float:
        """Compare a variant's sums with SciPy's, warm up, and return the ms of the last call. Raises AssertionError."""
        self.out[:] = np.nan
        ms, _ = timed(self.comm, variant)
        with mpi.agree(self.comm):
            if variant.sums:
                self.reference.check(name, self.out)
        # The schedule tries how to sweep wide rows in its first calls.
        for _ in range(native.load().Schedule.SETTLED):
            if ms >= SLOW_MS:
                break
            ms, _ = timed(self.comm, variant)
        return ms
