"""A case as a grid of chunks, whose rows stream from a store."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from world import SMALL

from mgg_hpc.plan import grid
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.arguments import Options
from mgg_hpc.runtime.backends.host.kernels import SerialBackend
from mgg_hpc.runtime.backends.simulated import World
from mgg_hpc.runtime.streaming.buffer import ChunkBuffer, slot_bytes
from mgg_hpc.runtime.streaming.files import FileStore
from mgg_hpc.runtime.streaming.store import HostStore

PLACES = ("host", "packed", "file", "direct", "dataset")


def lone(threads=2, geometry=SMALL):
    """A backend of one rank."""
    return SerialBackend(0, World(1), Options(geometry, threads))


def cut(rows, size):
    """Bounds of intervals of ``size`` rows, smaller than those of `plan.grid.intervals`."""
    return np.append(np.arange(0, max(rows, 1), size), rows)


def loaded_rows(order):
    """Number of rows that a pass loads."""
    return int(np.diff(order.sources)[order.chunk[order.loads]].sum())


@dataclass
class Gridded:
    """Plans of a case's destination intervals. low, high: the rows of one rank."""

    case: object
    sources: np.ndarray
    targets: np.ndarray

    def __post_init__(self):
        count = len(self.sources) - 1
        self.plans = [
            grid.grid_plan(self.sources, grid.reading_order(j, count), *self.part(j), keep_edges=True)
            for j in range(len(self.targets) - 1)
        ]
        self.calls = [grid.chunks_of(plan) for plan in self.plans]

    def part(self, target):
        """(indptr, indices) of a destination interval."""
        low, high = self.targets[target], self.targets[target + 1]
        first, last = self.case.indptr[low], self.case.indptr[high]
        return self.case.indptr[low : high + 1] - first, self.case.indices[first:last]

    def edges(self, target):
        """The places of a plan's edges among all edges."""
        return self.case.indptr[self.targets[target]] + self.plans[target].edge

    def order(self, slots):
        """The pass with so many slots; with "all" one for each chunk."""
        return grid.replacement(
            self.sources, self.calls, max(2, len(self.sources) - 1) if slots == "all" else slots
        )

    def rows(self, target):
        """The rows of a destination interval."""
        return slice(int(self.targets[target]), int(self.targets[target + 1]))

    def run(self, backend, store, order, call, *, ahead=True, in_place=False):
        """call(plan, rows, destination interval) of each interval in one pass; what they return, one below another."""
        buffer = ChunkBuffer(backend, order.slots * slot_bytes(order.capacity, store.format))
        buffer = None if in_place else buffer
        with backend.stream_rows(store, order, buffer, ahead=ahead) as rows:
            return [call(plan, rows, target) for target, plan in enumerate(self.plans)]


def store_of(place, values, folder, dim=None, **options):
    """A store that holds ``values`` [n, columns], as rows of `dim` values in memory."""
    format = RowFormat(values.dtype, values.shape[1] if dim is None else dim)
    if place == "packed":
        return HostStore(format, len(values), rows=np.ascontiguousarray(values), **options)
    if place == "dataset":
        path = folder / "dataset"
        path.write_bytes(b"before" + np.ascontiguousarray(values).tobytes())
        return FileStore.over(path, 6, format, len(values), direct=True, **options)
    if place == "host":
        store = HostStore(format, len(values), **options)
    else:
        store = FileStore(format, len(values), folder, direct=place == "direct", **options)
    half = len(values) // 2
    store.write(half, values[half:])
    store.write(0, values[:half])
    return store
