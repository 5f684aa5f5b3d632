"""Measure what work and transfers take on this host, keep it in the user's cache folder, and read it again.

Each number of ranks is measured by that many processes at once, since they share caches, memory and cores: the cost
model (`plan.cost_model`) takes the figures of a rank among so many. `mgg doctor --calibrate` runs it.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from .. import __version__
from ..data import user_cache
from ..errors import InputError
from ..plan import workload
from ..plan.cost_model import Gather, RowCost, System
from ..plan.layout import RowFormat
from ..plan.workload import Plan
from . import backends, cores, exchange, mpi, probe
from .backends.arguments import RngKey
from .backends.base import Backend

FORMAT, VERSION = "mgg-calibration", 1
HOW = "mgg doctor --calibrate"
SIZES = (512 << 10, 4 << 20, 32 << 20, 128 << 20)  # bytes of the rows that are read at random
WIDTHS = (16, 64, 256)  # of float32
DEGREE = 32
EDGES = 1 << 19  # of an aggregation that is timed
PROBED = 1 << 16  # rows of each rank, of which some are remote
PRODUCTS = (16, 64, 256)  # smaller dimensions
TURNS = 11
FEW = 64  # rows of an aggregation that takes no time but its fixed one


@dataclass(frozen=True)
class Measured:
    """Costs of each rank, measured while ``ranks`` ranks of this host work at once. Other fields are those of `System`.

    threads: of each rank. layer: seconds of a layer of a tiny job, both directions, its aggregations' fixed ones aside.
    """

    ranks: int
    threads: int
    gather: Gather
    own: Gather
    destination: RowCost
    dense: tuple[tuple[int, float], ...]
    stream: float
    draw: float
    within: dict[str, RowCost]
    fixed: dict[str, float]
    layer: float = 0.0


@dataclass(frozen=True)
class Calibration:
    """The measurements of a host. cores: that its processes may use. when: UTC."""

    host: str
    cpu: str
    cores: int
    when: str
    measured: list[Measured]
    format: str = FORMAT
    version: int = VERSION
    mgg: str = __version__
    cache_bytes: int = field(default_factory=lambda: cores.cache_bytes() // 4)  # as HostBackend has it

    def system(self, ranks: int) -> System:
        """Return this host for a number of ranks: as measured, or scaled from the nearest number that was measured."""
        near = min(self.measured, key=lambda each: abs(np.log(each.ranks / ranks)))
        moving = near
        if not near.within and ranks > 1:
            moving = min((each for each in self.measured if each.within), key=lambda each: each.ranks)
        # The cost of each rank grows with the number of ranks that share this machine.
        share = ranks / near.ranks
        return System(
            name="this",
            ranks_a_node=max(ranks, 1),
            gather=_slower(near.gather, share),
            own=_slower(near.own, share),
            destination=RowCost(share * near.destination.row, share * near.destination.byte),
            dense=tuple((width, rate / share) for width, rate in near.dense),
            stream=near.stream / share,
            draw=share * near.draw,
            layer=share * near.layer,
            step=0.0,
            within=moving.within or dict.fromkeys(("direct", "get", "halo"), RowCost(0.0, 0.0)),
            between={},
            fixed=moving.fixed,
            cache_bytes=self.cache_bytes,
        )

    def trust(self) -> list[str]:
        """Return what is measured and what is modelled, a sentence each."""
        numbers = ", ".join(str(each.ranks) for each in self.measured)
        return [
            f"Costs were measured on this host ({self.host}: {self.cpu}, {self.cores} cores) at {self.when} UTC, with "
            f"{numbers} ranks; times are modelled from them. Other numbers of ranks are scaled from the nearest one, "
            "as if all ran on this host.",
            "docs/prediction.md says how far measured and predicted times were apart.",
        ]


def _slower(gather: Gather, times: float) -> Gather:
    """Return the same costs, each so many times as large."""
    return replace(gather, seconds=tuple(tuple(times * each for each in row) for row in gather.seconds))


def name() -> str:
    """Return the name of this host's calibration in the user's cache folder."""
    return f"calibration-{platform.node() or 'host'}.json"


def load() -> Calibration:
    """Return this host's calibration. Raises InputError, with the reason, where there is none that holds here."""
    document, wrong = user_cache.read(name(), FORMAT, VERSION)
    if document is None:
        raise InputError(f"{wrong or 'this host was not calibrated yet'}; run '{HOW}' (about a minute)")
    try:
        found = msgspec.convert(document, Calibration)
    except msgspec.ValidationError as error:
        wrong = f"ignored, since it is damaged ({error})"
    else:
        wrong = stale(found)
    if wrong:
        raise InputError(f"{user_cache.folder() / name()}: {wrong}; run '{HOW}' again")
    return found


def stale(found: Calibration) -> str:
    """Return why a calibration does not hold here, or nothing."""
    here = {"mgg": __version__, "host": platform.node(), "cpu": cores.processor(), "cores": cores.available()}
    for what, now in here.items():
        was = getattr(found, what)
        if was != now:
            return f"ignored, since it is of {what} {was}, and this is {now}"
    return "" if found.measured else "ignored, since it holds no measurement"


def save(measured: list[Measured]) -> Path:
    """Write this host's calibration, whole or not at all; return its file."""
    when = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    made = Calibration(platform.node(), cores.processor(), cores.available(), when, measured)
    user_cache.write(name(), msgspec.to_builtins(made))
    return user_cache.folder() / name()


def measure(comm: Any) -> Measured:
    """Measure this host with all ranks of a communicator, which are on one node. Collective."""
    threads = mpi.threads_share(comm)
    backend = backends.make(backends.choose_cpu("auto", comm), comm, threads=threads)
    formats = [RowFormat(np.dtype(np.float32), width) for width in WIDTHS]
    destination = _destination(comm, backend, formats[0], formats[-1])
    alone = comm.size == 1
    # Transfers first: what was allocated and freed before changes how the memory of gets is had.
    within = {} if alone else _within(comm, backend, destination)
    gather = _gather(comm, backend, formats, destination, symmetric=True)
    found = Measured(
        ranks=comm.size,
        threads=threads,
        gather=gather,
        own=gather if alone else _gather(comm, backend, formats, destination, symmetric=False),
        destination=destination,
        dense=_products(comm, threads),
        stream=_stream(comm),
        draw=_draw(comm, backend),
        within=within,
        fixed=_fixed(comm, backend),
    )
    backend.memory.close()
    return found


def slowest(comm: Any, action: Callable[[], object], turns: int = TURNS) -> float:
    """Return the seconds of an action on the slowest rank, as if nothing else ran on this host. Collective.

    What a rank's processors worked in its fastest turn, divided by its threads; where ranks outnumber cores, they share
    them. (The time on the clock is the same while the host is idle, and worth nothing while it is not.)
    """
    taken = []
    for _ in range(turns):
        mpi.barrier(comm)
        began = time.process_time()
        action()
        taken.append(time.process_time() - began)
    alone = max(comm.allgather(min(taken))) / mpi.threads_share(comm)
    return alone * max(1.0, comm.size / cores.available())


def _aggregation(comm: Any, backend: Backend, plan: Plan, rows: Any) -> float:
    """Return the seconds of an aggregation over rows that are published, on the slowest rank."""
    out = backend.memory.padded(plan.destinations, rows.format)

    def run() -> None:
        backend.aggregate(plan, "copy", "sum", rows, out)

    backend.publish(rows)
    for _ in range(6 if rows.format.row_bytes >= 512 else 2):  # the first ones choose how wide rows are swept
        run()
    return slowest(comm, run)


def _random(comm: Any, rows: int, edges: int) -> Plan:
    """Return a plan that sums ``edges`` of a rank's own rows, drawn at random, DEGREE for each destination."""
    sources = np.random.default_rng(comm.rank).integers(0, rows, edges, dtype=np.int32)
    return workload.rectangular(comm.rank, np.arange(0, edges + 1, DEGREE), sources, rows)


def _gather(
    comm: Any, backend: Backend, formats: Sequence[RowFormat], destination: RowCost, *, symmetric: bool
) -> Gather:
    """Measure edges by the bytes of their rows, and of all rows, which are symmetric or private.

    Random reads of S bytes are as far apart as any number of bytes up to S, so the time of those between two sizes is
    the difference of both products of size and time.
    """
    table: list[tuple[float, ...]] = []
    for at, format in enumerate(formats):
        times = []
        for size in SIZES:
            count = size // format.row_bytes
            plan = _random(comm, count, EDGES >> at)
            rows = backend.rows(np.full(comm.size, count), format, symmetric=symmetric)
            rows.local[:] = 1  # pages that were never written are all the same one
            taken = _aggregation(comm, backend, plan, rows)
            taken -= destination.of(plan.destinations, format.row_bytes)
            times.append(max(1e-12, taken / plan.edges))
            if symmetric:
                backend.memory.release(rows)
        areas = np.array(SIZES) * np.array(times)
        classes = np.diff(areas, prepend=0) / np.diff(SIZES, prepend=0)
        table.append(tuple(np.maximum.accumulate(classes).tolist()))
    sizes = tuple(format.row_bytes for format in formats)
    return Gather(tuple(float(size) for size in SIZES[:-1]), sizes, tuple(table))


def _destination(comm: Any, backend: Backend, narrow: RowFormat, wide: RowFormat) -> RowCost:
    """Measure what a destination takes beside its edges, from sums without any."""
    taken = []
    for format in (narrow, wide):
        count = (32 << 20) // format.row_bytes
        bounds = np.arange(comm.size + 1, dtype=np.int64) * count
        nothing = np.zeros(count + 1, dtype=np.int64)
        plan = workload.direct(workload.split(comm.rank, bounds, nothing, nothing[:0]))
        rows = backend.rows(np.full(comm.size, count), format, symmetric=True)
        taken.append(_aggregation(comm, backend, plan, rows) / count)
        backend.memory.release(rows)
    byte = max(0.0, (taken[1] - taken[0]) / (wide.row_bytes - narrow.row_bytes))
    return RowCost(max(0.0, taken[0] - byte * narrow.row_bytes), byte)


def _products(comm: Any, threads: int) -> tuple[tuple[int, float], ...]:
    """Measure the operations a second of products [n, 256] x [256, k]."""
    import torch

    torch.set_num_threads(threads)
    n, wide, found = 1 << 14, 256, []
    x = torch.ones(n, wide)
    for k in PRODUCTS:
        w, out = torch.ones(k, wide), torch.empty(n, k)
        seconds = slowest(comm, lambda w=w, out=out: torch.mm(x, w.t(), out=out))  # type: ignore[misc]
        found.append((k, 2.0 * n * wide * k / seconds))
    return tuple(found)


def _stream(comm: Any) -> float:
    """Measure the bytes a second that are read and written in order."""
    import torch

    a, b = torch.ones(8 << 20), torch.empty(8 << 20)
    return 2 * a.nbytes / slowest(comm, lambda: b.copy_(a))


def _draw(comm: Any, backend: Backend) -> float:
    """Measure the seconds of a value that dropout decides."""
    format = RowFormat(np.dtype(np.float32), 64)
    x = backend.memory.padded(1 << 14, format)
    x[:] = 1
    out, ids = backend.memory.padded(1 << 14, format), np.arange(1 << 14)
    key = RngKey(0.5, seed=0, epoch=1, stream=0)
    return slowest(comm, lambda: backend.dropout(x, out, ids, key)) / x.size


def _within(comm: Any, backend: Backend, destination: RowCost) -> dict[str, RowCost]:
    """Measure what a remote row takes beyond a local one, by transfer.

    Destinations of the probe have a local edge and a remote one, so that a halo stores them once more.
    """
    found = probe.measure(comm, backend, size=PROBED, timed=_aggregation)
    row, byte = (found["halo"].row - destination.row, found["halo"].byte - destination.byte)
    return found | {"halo": RowCost(max(0.0, row), max(0.0, byte))}


def _fixed(comm: Any, backend: Backend) -> dict[str, float]:
    """Measure an aggregation of a few rows by each transfer, with its barrier."""
    source = np.arange(FEW) + (comm.rank + 1) % comm.size * FEW
    bounds = np.arange(comm.size + 1, dtype=np.int64) * FEW
    edges = workload.split(comm.rank, bounds, np.arange(FEW + 1), source)
    plans = {"direct": workload.direct(edges), "get": workload.direct(edges, "get")}
    plans["halo"] = exchange.halo_in_rounds(comm, edges)[0]
    format, found = RowFormat(np.dtype(np.float32), 16), {}
    rows = backend.rows(np.full(comm.size, FEW), format, symmetric=True)
    out = backend.memory.padded(FEW, format)
    backend.prepare(plans["halo"], format)
    for name, plan in plans.items():

        def run(name: str = name, plan: Plan = plan) -> None:
            for _ in range(10):
                if name != "halo":
                    backend.publish(rows)
                backend.aggregate(plan, "copy", "sum", rows, out)

        clock = []
        for _ in range(TURNS):
            mpi.barrier(comm)
            began = time.perf_counter()
            run()
            clock.append(time.perf_counter() - began)
        found[name] = max(comm.allgather(min(clock))) / 10  # ranks that wait for each other do not work
    return found


def with_layers(measured: Measured, layer: float) -> Measured:
    """Return a measurement with the seconds of a layer of a tiny job, without its aggregations' fixed ones."""
    return replace(measured, layer=max(0.0, layer - 2 * measured.fixed["direct"]))


def main() -> None:
    """Measure with all ranks of the world, and print the result as JSON from rank 0."""
    comm = mpi.world()
    found = measure(comm)
    if comm.rank == 0:
        sys.stdout.write(msgspec.json.encode(found).decode() + "\n")


if __name__ == "__main__":
    main()
