"""The measured cost of a remote row by each transfer: a small aggregation is timed at two widths."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from ..plan import workload
from ..plan.cost_model import TRANSFERS, RowCost
from ..plan.layout import RowFormat
from ..plan.workload import Plan, SplitEdges
from . import exchange
from .backends.base import Backend

ROWS_AN_EDGE = 4  # of each rank; gets over a slow network take some 20 us an edge
WIDTHS = (16, 128)  # of float32
REPEATS = 7


def symmetric_bytes(backend: Backend) -> int:
    """Return the symmetric bytes of `measure` on each rank: rows that peers read, two stagings, and signals."""
    rows = backend.stream.probe_rows
    return (rows + 2 * (rows // ROWS_AN_EDGE)) * 4 * max(WIDTHS) + 16 * 8 * backend.collectives.size


def measure(comm: Any, backend: Backend) -> dict[str, RowCost]:
    """Measure the cost of a row for each transfer that this backend can use here. Collective.

    It takes milliseconds on one node, and up to a second where rows are fetched one by one over a network. Its rows
    (`symmetric_bytes`) stay allocated: symmetric memory is given back as a whole, when the backend closes.

    Every rank sums pairs of its own rows, and pairs of one of its own and one of its neighbour's rows; the difference
    of the slowest rank counts.
    """
    format, size = RowFormat(np.dtype(np.float32), max(WIDTHS)), backend.stream.probe_rows
    rows = backend.rows(np.full(comm.size, size, dtype=np.int64), format, symmetric=True)
    far, near = _edges(comm, 1, size), workload.direct(_edges(comm, 0, size))
    rounds, _ = exchange.halo_in_rounds(comm, far, backend.capabilities.halo_rounds)
    plans = {"direct": workload.direct(far), "get": workload.direct(far, "get"), "halo": rounds}
    if not all(comm.allgather(bool(rows.addresses.all()))):
        del plans["direct"]
    for plan in (rounds, plans["get"]):
        backend.prepare(plan, format)
    moved = {"direct": far.remote_edges, "get": far.remote_edges, "halo": len(far.halo)}
    times: dict[str, list[float]] = {name: [] for name in plans}
    for width in WIDTHS:
        shaped = rows.shaped(width)
        own = _seconds(comm, backend, near, shaped)
        for name, plan in plans.items():
            times[name].append(max(0.0, _seconds(comm, backend, plan, shaped) - own) / moved[name])
    costs = {}
    low, high = (RowFormat(format.dtype, width).row_bytes for width in WIDTHS)
    for name in TRANSFERS:
        if name in times:
            at_low, at_high = times[name]
            byte = max(0.0, (at_high - at_low) / (high - low))
            costs[name] = RowCost(row=max(0.0, at_low - byte * low), byte=byte)
    return costs


def _edges(comm: Any, step: int, rows: int) -> SplitEdges:
    """Return edges whose destinations have one from this rank and one from the rank ``step`` further on."""
    random, edges = np.random.default_rng(comm.rank), rows // ROWS_AN_EDGE
    owners = np.array([comm.rank, (comm.rank + step) % comm.size])
    sources = (owners * rows + random.integers(0, rows, (edges, 2))).reshape(-1)
    bounds = np.arange(comm.size + 1, dtype=np.int64) * rows
    degree = np.zeros(rows, dtype=np.int64)
    degree[:edges] = 2
    return workload.split(comm.rank, bounds, workload.prefix_sum(degree), sources)


def _seconds(comm: Any, backend: Backend, plan: Plan, rows: Any) -> float:
    """Return the seconds of the slowest rank, each in its fastest repetition, since other work only adds time."""
    out = backend.memory.padded(plan.destinations, rows.format)
    taken = []
    for _ in range(REPEATS):
        backend.publish(rows)
        began = time.perf_counter()
        backend.aggregate(plan, "sum", rows, out)
        backend.stream.finish()
        taken.append(time.perf_counter() - began)
    return float(max(comm.allgather(min(taken))))
