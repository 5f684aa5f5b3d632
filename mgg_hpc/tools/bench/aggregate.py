"""`mgg bench aggregate`: the speed of this machine's sums of neighbours' rows, beside the gather floor.

The gather floor reads the same rows in the same order, with the same threads, and stores nothing (for CPUs
cuda/bench/gather_floor.cpp, for GPUs cuda/gpu/rows/gather.cuh). benchmarks/aggregate.py compares with other libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - makes bfloat16 a name of NumPy's
import numpy as np

from ...data.graph import Graph
from ...plan import cuda_grid, workload
from ...plan.layout import RowFormat
from ...runtime import backends, cores, mpi
from ...runtime.backends import native
from ...runtime.timing import interleaved
from . import graphs
from .results import TIMES, Results, numbers_of

AHEAD = (4, 16, 64)  # prefetch distances of the floor, in edges; the fastest counts
FLOOR_EDGES = 8  # that a worker reads at once (cuda/gpu/rows/gather.cuh)
FLOOR_THREADS = (128, 256, 512)  # of a CUDA block; the fastest counts
WARM_UP = 3


class Aggregation:
    """Sums of drawn rows over a graph on one rank, ready to be timed.

    Args:
        graph: its structure.
        x: rows [N, F] of any type that kernels take.
        weight: float32 [E] that rows are multiplied by, or None.
        backend: "serial" or "cuda".
    """

    def __init__(
        self, graph: Graph, x: np.ndarray, *, weight: np.ndarray | None, backend: str, threads: int
    ) -> None:
        format, comm = RowFormat(x.dtype, x.shape[1]), mpi.world()
        self.graph, self.threads = graph, threads
        self.backend: Any = backends.make(
            backends.choose(backend, comm), comm, threads=threads, widest=format
        )
        self.cuda = self.backend.capabilities.device != "cpu"
        keep = weight is not None
        bounds = np.array([0, graph.nodes])
        self.plan = workload.direct(workload.split(0, bounds, graph.indptr, graph.indices, keep_edges=keep))
        self.edge = None if weight is None else self.uploaded(weight[self.plan.edge])
        self.rows = self.backend.rows(np.array([graph.nodes]), format, symmetric=False)
        self.rows.local[:] = self.uploaded(x)
        self.out = self.backend.memory.padded(graph.nodes, format)
        self.backend.prepare(self.plan, format)
        # Schedules of CPUs try two ways of sweeping wide rows in their first calls.
        for _ in range(WARM_UP if self.cuda else native.load().Schedule.SETTLED):
            self.sums()
        floors = self._device_floors() if self.cuda else self._host_floors()
        self.floor = min(floors, key=lambda floor: min(self._floor_seconds(floor) for _ in range(WARM_UP)))

    def uploaded(self, array: np.ndarray) -> Any:
        """Return an array where the backend's arrays lie."""
        return self.backend.arrays.uploaded(array) if self.cuda else array

    def sums(self) -> None:
        """Sum once."""
        op = "copy" if self.edge is None else "mul"
        self.backend.aggregate(self.plan, op, "sum", self.rows, self.out, edge=self.edge)

    def seconds(self, call: Callable[[], Any]) -> float:
        """Return the seconds of a call, on a GPU by its own clock."""
        began = self.backend.stream.stamp()
        call()
        taken = self.backend.stream.since(began)
        self.backend.stream.finish()
        return taken()

    def ms(self, turns: int) -> dict[str, list[float]]:
        """Return the milliseconds of the floor and of the sums, in turns."""
        runs = {
            "gather floor": partial(self._floor_seconds, self.floor),
            "mgg": partial(self.seconds, self.sums),
        }
        return {name: [1e3 * each for each in taken] for name, taken in interleaved(runs, turns).items()}

    @property
    def moved_bytes(self) -> int:
        """Bytes that a sum must move: each edge's row and index, each output and offset."""
        row = self.rows.format.dim * self.rows.format.dtype.itemsize
        each = row + 4 + (0 if self.edge is None else 4)
        return self.graph.edges * each + self.graph.nodes * (row + 8)

    def _floor_seconds(self, floor: Callable[[], Any]) -> float:
        """Return the seconds of a call of a floor; those of CPUs have a clock of their own."""
        return self.seconds(floor) if self.cuda else float(floor()[0])

    def _host_floors(self) -> list[Callable[[], Any]]:
        words = self.rows.local.view(f"u{self.rows.format.dtype.itemsize}")  # it takes no bfloat16
        indices = self.graph.indices.astype(np.int32, copy=False)
        return [partial(native.load().gather_floor, indices, words, ahead, self.threads) for ahead in AHEAD]

    def _device_floors(self) -> list[Callable[[], Any]]:
        arrays, format = self.backend.arrays, self.rows.format
        indices = arrays.uploaded(self.graph.indices.astype(np.int32))
        lanes, _ = cuda_grid.shape(format)

        def floor(threads: int) -> None:
            blocks = -(-self.graph.edges // FLOOR_EDGES * lanes // threads)
            shape = self.backend.native.LaunchShape(lanes, 1, blocks, threads, 0, arrays.stream())
            at, first = arrays.address(indices), int(self.rows.addresses[0])
            self.backend.native.gather_floor(at, self.graph.edges, first, format.row_bytes, 0, shape)

        return [partial(floor, threads) for threads in FLOOR_THREADS]


def drawn_rows(nodes: int, width: int, dtype: str) -> np.ndarray:
    """Return normally distributed rows [N, width] of this type."""
    rows = np.random.default_rng(0).standard_normal((nodes, width), dtype=np.float32)
    return rows.astype(np.dtype(dtype))


def run_aggregate(
    names: Sequence[str],
    *,
    widths: str,
    dtype: str,
    weighted: bool,
    device: str,
    threads: int | None,
    turns: int,
    files: Sequence[Path],
) -> None:
    """Measure, print and write. Raises InputError."""
    columns = numbers_of("widths", widths)
    for name in names:
        graphs.check(name)
    threads = threads or cores.available()
    results = Results("mgg bench aggregate", device=device, threads=threads)
    for name in names:
        graph = graphs.read(name)
        weight = graphs.weights(graph) if weighted else None
        for width in columns:
            x = drawn_rows(graph.nodes, width, dtype)
            one = Aggregation(
                graph, x, weight=weight, backend="cuda" if device == "cuda" else "serial", threads=threads
            )
            results.compare(one.ms(turns), graph=graph.name, edges=graph.edges, dtype=dtype, width=width)
            results.rows[-1]["gb_per_s"] = one.moved_bytes / results.rows[-1]["median_ms"] / 1e6
            one.backend.memory.close()
            results.write(files)  # what is measured stays, whatever ends the rest
    results.show("graph", "dtype", "width", *TIMES, "gb_per_s")
